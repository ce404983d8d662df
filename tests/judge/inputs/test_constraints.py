"""Constraints move drawn shapes to ones that comply, and sizes that follow from others are computed."""

import itertools
from typing import Any

import pytest

from gpu_mcp_server.judge.inputs.constraints import MOST_SIZES, Constraints, satisfies
from gpu_mcp_server.judge.inputs.hidden_shapes import hidden_shapes
from gpu_mcp_server.services.problems.shape_expressions import parse_constraint

SIZES = (1, 2, 3, 7, 64, 2049)

CASES = [
    (["oh == (h - 3) // 2 + 1", "ow == (w + 2 - 3) // 2 + 1"], "h w oh ow", "oh ow"),
    (["m == l - 8"], "l m", "m"),
    (["2 * half == d", "d % 16 == 0"], "d half", "d"),
    (["c == b + 1", "b == 2 * a"], "a b c", "b c"),
    (["b == 2 * a", "c == b + 1", "c <= 31"], "a b c", "b c"),
    (["heads % kv == 0"], "heads kv", ""),
    (["in % 3 == 1", "64 <= out", "out <= in"], "in out", ""),
    (["rows == cols", "cols == rows"], "rows cols", "rows"),
    (["h != w", "h > 5", "w < 9"], "h w", ""),
]


@pytest.mark.parametrize(("texts", "names", "defined"), CASES)
def test_every_drawn_shape_is_moved_to_one_that_complies(texts: list[str], names: str, defined: str):
    symbols = names.split()
    parsed = [parse_constraint(text, symbols) for text in texts]
    constraints = Constraints(parsed)
    assert set(constraints.defined) == set(defined.split())
    for drawn in itertools.product(SIZES, repeat=len(symbols)):
        dims = constraints.adjust_shape(dict(zip(symbols, drawn, strict=True)))
        assert dims is not None and min(dims.values()) >= 1
        assert all(satisfies(each, dims) for each in parsed)


def test_what_complies_stays_as_it_was_drawn():
    symbols = ["h", "oh", "n"]
    constraints = Constraints([parse_constraint(text, symbols) for text in ("oh == h // 2", "n % 4 == 0")])
    assert constraints.adjust_shape({"h": 31, "oh": 15, "n": 8}) == {"h": 31, "oh": 15, "n": 8}
    assert constraints.adjust_shape({"h": 31, "oh": 2, "n": 9}) == {"h": 31, "oh": 15, "n": 12}


@pytest.mark.parametrize("text", ["n < n", "n % (n - n) == 0", "n == n + 1", "0 * n == 5"])
def test_a_constraint_that_no_shape_complies_with_leaves_none(text: str):
    assert Constraints([parse_constraint(text, ["n"])]).adjust_shape({"n": 5}) is None


def test_hidden_shapes_of_a_convolution_keep_its_output_with_its_input():
    symbols = ["n", "l", "m"]
    task = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", "l"]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["n", "m"]}],
        "shapes": [{"n": 4, "l": 500, "m": 246}],
        "constraints": [parse_constraint("m == (l - 9) // 2 + 1", symbols)],
        "seed": "5e" * 32,
    }
    found = hidden_shapes(task, 1 << 20)
    assert len({dims["l"] for dims in found}) >= 5
    assert all(dims["m"] == (dims["l"] - 9) // 2 + 1 for dims in found)


def product(name: str, factors: int) -> Any:
    """Return a symbol's product with itself."""
    term: Any = name
    for _ in range(factors - 1):
        term = ["*", term, name]
    return term


def test_sizes_beyond_what_a_size_can_be_are_none_and_no_numbers_of_a_gigabit():
    chain = [{"left": b, "operator": "==", "right": product(a, 60)} for a, b in ("ab", "bc", "cd", "de")]

    assert Constraints(chain).adjust_shape({"a": 7, "b": 1, "c": 1, "d": 1, "e": 1}) in (
        None,
        dict.fromkeys("abcde", 1),
    )


def test_sizes_that_are_tried_for_a_problem_come_to_an_end():
    three = [("a", "b", "c", "d"), ("a", "e", "f", "b"), ("e", "f", "c", "d")]
    demands = [{"left": ["*", a, b], "operator": "==", "right": ["+", ["*", c, d], 1]} for a, b, c, d in three]
    constraints = Constraints(demands)
    for size in range(2, 300):
        constraints.adjust_shape({name: size + place for place, name in enumerate("abcdef")})

    assert 0 <= constraints.left < MOST_SIZES
