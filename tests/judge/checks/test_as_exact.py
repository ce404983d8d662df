"""Answers that are as near to double precision as the reference, where sums of few and of many terms lie side by side."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from gpu_mcp_judge.checks.fp64_check import as_exact


def sums(seed: int) -> tuple[np.ndarray, np.ndarray, Callable[[float], np.ndarray]]:
    """Return products of triangular matrices, their numbers of terms, and what draws errors of sums one by one.

    Half of the products are zeros. The error of a sum of n terms is as large as n, and so is that of its partial sums.
    """
    draw = np.random.default_rng(seed)
    terms = np.ceil((1 - np.sqrt(draw.random(1 << 18))) * 4096) * (draw.random(1 << 18) < 0.5)

    def errors(times: float) -> np.ndarray:
        spread = np.exp(0.3 * draw.standard_normal(terms.size))
        return times * 1.2e-8 * terms * spread * draw.standard_normal(terms.size)

    return np.sqrt(terms) * draw.standard_normal(terms.size), terms, errors


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("wrong", [1, 30, 3000])
def test_equally_exact_sums_of_few_and_many_terms_are_forgiven_in_every_draw(seed, wrong):
    exact, _, errors = sums(seed)
    want, have = exact + errors(1), exact + errors(1)
    atol = float(np.partition(np.abs(have - want), -wrong)[-wrong]) * 0.999999
    found = as_exact(exact, want, have, (0.0, atol))

    assert found is not None and found[np.abs(have - want) > atol].all()


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        pytest.param(lambda have, size, terms, draw: have + 2**-12 * np.sqrt(terms) * draw, slice(None), id="TF32"),
        pytest.param(lambda have, size, terms, draw: have + 2**-9 * np.sqrt(terms) * draw, slice(None), id="bfloat16"),
        pytest.param(lambda have, size, terms, draw: have + 5e-8 * terms * draw, slice(None), id="longer sums"),
        pytest.param(
            lambda have, size, terms, draw: have + (size < 1) * 1e-7 * terms * draw, slice(None), id="small elements"
        ),
        pytest.param(
            lambda have, size, terms, draw: have + (np.arange(size.size) % 50 == 0) * 4e-7 * terms * draw,
            slice(None),
            id="every fiftieth",
        ),
        pytest.param(
            lambda have, size, terms, draw: np.where(np.arange(size.size) < 1024, 0, have), slice(1024), id="a tile"
        ),
        pytest.param(
            lambda have, size, terms, draw: have + (np.arange(size.size) == 77) * 4e-3, slice(77, 78), id="one element"
        ),
        pytest.param(
            lambda have, size, terms, draw: np.where(np.arange(size.size) < 5, np.nan, have), slice(5), id="NaN"
        ),
    ],
)
def test_what_is_less_exact_or_wrong_among_such_sums_is_not_forgiven(spoil, where):
    exact, terms, errors = sums(9)
    want = exact + errors(1)
    draw = np.random.default_rng(10).standard_normal(exact.size)
    have = spoil(exact + errors(1), np.abs(exact), terms, draw)
    found = as_exact(exact, want, have, (1e-5, 1e-5))

    assert found is None or not found[where].all()


ORDERS = {
    "forward": [range(64)],
    "every eighth": [range(first, 64, 8) for first in range(8)],
    "runs": [range(first, first + 8) for first in range(0, 64, 8)],
    "runs backward": [range(last, last - 8, -1) for last in range(63, 0, -8)],
}


def decayed_sums(seed: int) -> tuple[np.ndarray, np.ndarray, Callable[..., np.ndarray]]:
    """Return sums of 64 products whose weights decay, in double precision, how far they move, and what adds them.

    What is left of large terms errs far more than others of its size do, as in a scan of a state space model.
    """
    draw = np.random.default_rng(seed)
    weights = np.exp(np.cumsum(draw.standard_normal((64, 32, 1)), 0)[::-1]).astype(np.float32)
    left, right = (draw.standard_normal((64, 32, n)).astype(np.float32) for n in (16, 64))

    def summed(a: np.ndarray, b: np.ndarray, parts: Sequence[Iterable[int]], dtype: type) -> np.ndarray:
        total = np.zeros((32, 16, 64), dtype)
        for part in parts:
            some = np.zeros_like(total)
            for k in part:
                some += a[k][:, :, None] * b[k][:, None, :]
            total += some
        return total.ravel().astype(np.float64)

    def add(order: str, lower: type = np.float32) -> np.ndarray:
        a, b = (each.astype(lower).astype(np.float32) for each in (left, right))
        return summed(weights * a, b, ORDERS[order], np.float32)

    def nudged(given: np.ndarray) -> np.ndarray:
        return given * (1 + draw.uniform(-1, 1, given.shape) * 2.0**-24)

    exact = summed(weights * left, right, ORDERS["forward"], np.float64)
    moves = [summed(nudged(weights * left), nudged(right), ORDERS["forward"], np.float64) - exact for _ in range(4)]
    return exact, np.abs(moves).max(0), add


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [("runs", "every eighth"), ("every eighth", "runs"), ("runs", "runs backward"), ("forward", "runs")],
)
def test_what_another_order_leaves_of_large_terms_is_forgiven_beside_what_moves_as_far(seed, reference, candidate):
    exact, moved, add = decayed_sums(seed)
    want, have = add(reference), add(candidate)
    wrong = np.abs(have - want) > 1e-4 + 1e-4 * np.abs(want)
    found = as_exact(exact, want, have, (1e-4, 1e-4), moved=moved)

    assert found is not None and found[wrong].all()


@pytest.mark.parametrize("seed", range(8))
def test_such_sums_of_half_precision_are_forgiven_neither_way(seed):
    exact, moved, add = decayed_sums(seed)
    want, have = add("runs"), add("runs backward", np.float16)
    wrong = np.abs(have - want) > 1e-4 + 1e-4 * np.abs(want)
    for way in (None, moved):
        found = as_exact(exact, want, have, (1e-4, 1e-4), moved=way)
        assert found is None or not found[wrong].all()


@pytest.mark.parametrize("size", [1, 30, 1e4])
def test_an_element_that_errs_more_than_others_that_move_as_far_is_not_forgiven(size):
    exact, moved, add = decayed_sums(3)
    want, have = add("runs"), add("runs backward")
    place = int(np.argmin(np.abs(np.abs(exact) - size)))
    have[place] += 0.02 * size
    found = as_exact(exact, want, have, (1e-4, 1e-4), moved=moved)

    assert found is None or not found[place]


@pytest.mark.parametrize(("rows", "refused"), [(8, 3), (16, 1), (40, 0)])
def test_of_few_sums_in_half_precision_hardly_any_looks_less_exact_and_coarser_ones_do(rows, refused):
    draw = np.random.default_rng(rows)

    def added(terms: np.ndarray) -> np.ndarray:
        total = np.zeros(rows, np.float16)
        for column in terms.T:
            total = (total + column).astype(np.float16)
        return total.astype(np.float64)

    found = {"other order": 0, "coarser": 0}
    for _ in range(300):
        terms = draw.uniform(-1, 1, (rows, 200)).astype(np.float16)
        exact, want, other = terms.astype(np.float64).sum(1), added(terms), added(terms[:, ::-1])
        for name, have in (("other order", other), ("coarser", exact + 8 * (other - exact))):
            near = as_exact(exact, want, have, (2e-3, 1e-3))
            found[name] += near is None or not near.all()

    assert found["other order"] <= refused
    assert found["coarser"] > 250


def test_steps_that_two_answers_take_elsewhere_are_forgiven_and_a_larger_one_is_not():
    """Whole numbers of which one in five hundred is rounded otherwise."""
    draw = np.random.default_rng(11)
    exact = np.rint(20 * draw.standard_normal(1 << 18))
    want, have = (exact + (draw.random(exact.size) < 2e-3) for _ in range(2))
    assert as_exact(exact, want, have, (0.0, 0.5)).all()
    have[5] += 20
    found = as_exact(exact, want, have, (0.0, 0.5))
    assert found is None or not found[5]
