"""Floats beside a discrete answer: they follow from it where the reference has both, and not by luck."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_mcp_judge.correctness.whole_answers import AGREEING, follow
from gpu_mcp_judge.numerics.tensors import Tensor

from tests.judge.correctness.test_discrete_ties import CODES, HEAD, ROWS, SEED, task

NAN, INF = float("nan"), float("inf")
AT, Y = Tensor("at", "int32", (2,), ("n",), ""), Tensor("y", "float32", (1,), (), "")
TOLERANCES = (1e-3, 1e-3)


def follows(
    got: tuple[list[int], float],
    found: list[Any],
    expected: tuple[list[int], float] = ([4, 5], 1.0),
    *,
    wrong: int = 1,
    first: bool = False,
) -> bool:
    """Judge an answer, indices and a float, by what the reference found; `first`: the float is the first output."""
    turn = -1 if first else 1
    pairs = [
        [np.array(side[0], np.int32) for side in (expected, got)],
        [np.array([side[1]], np.float32) for side in (expected, got)],
    ][::turn]
    buffers: Any = SimpleNamespace(outputs=[AT, Y][::turn], pair=lambda call, number: pairs[number])
    counts = np.array([sum(a != b for a, b in zip(expected[0], got[0], strict=True)), wrong][::turn])
    answers = [
        each and np.concatenate([np.array(each[0], np.int64), np.array([each[1]]).view(np.int64)][::turn])[None]
        for each in found
    ]
    return follow(buffers, 0, counts, answers, TOLERANCES)


OTHER = ([4, 7], 3.0)
USUAL = ([4, 5], 1.0)


@pytest.mark.parametrize("first", [False, True])
def test_a_float_that_the_reference_has_with_the_index_follows(first):
    assert follows(OTHER, [USUAL, OTHER, USUAL, OTHER], first=first)
    assert follows(OTHER, [OTHER], first=first), "what double precision says is right without a move"


@pytest.mark.parametrize(
    ("got", "found"),
    [
        (OTHER, [USUAL] * 60),
        (([4, 7], 2.0), [USUAL, OTHER, OTHER, OTHER]),
        (([5, 4], 3.0), [USUAL, OTHER, OTHER, OTHER]),
        (([4, 7], NAN), [USUAL, ([4, 7], NAN), USUAL, ([4, 7], NAN)]),
        (([4, 7], INF), [USUAL, ([4, 7], INF), USUAL, ([4, 7], INF)]),
        (([4, 7], 1e30), [USUAL, OTHER, OTHER, OTHER]),
        (OTHER, [None]),
        (OTHER, [USUAL, OTHER, None]),
        (OTHER, [([4, 9], 3.0)] * 60),
    ],
    ids=[
        "an index that nothing explains", "another float", "indices the other way round", "NaN", "infinite", "huge",
        "no answer", "time over", "the float with yet another index",
    ],
)  # fmt: skip
def test_nothing_else_follows(got, found):
    assert not follows(got, found)


@pytest.mark.parametrize(
    "found",
    [
        [USUAL, ([4, 7], 2.9), OTHER],
        [USUAL, OTHER, ([4, 7], 3.1), OTHER],
        [USUAL, ([4, 5], 1.1), OTHER, OTHER],
    ],
    ids=["missed once", "met once", "the reference's own moves too"],
)
def test_a_float_that_moves_by_itself_follows_from_nothing(found):
    """Or an answer that is wrong by as much as the inputs' last places would be right in one draw of many."""
    assert not follows(OTHER, found)


def test_one_answer_that_agrees_is_too_few():
    assert not follows(OTHER, [([0, 0], 0.0), OTHER])
    assert follows(OTHER, [([0, 0], 0.0), *[OTHER] * AGREEING])


def test_what_changed_since_it_was_checked_follows_from_nothing():
    assert not follows(OTHER, [OTHER], wrong=0)


FOLLOWS = task(
    "def f(x):\n    code = np.rint(x * np.float32(20000)).astype(np.int32)\n"
    "    return (code % 7).sum(axis=1).astype(np.float32), code\n",
    [{"name": "y", "dtype": "float32", "shape": ["rows"]}, *CODES["outputs"]],
    {"rows": 5, "cols": 20},
    "float32",
    fixed_shapes=True,
    distributions="declared",
    budget_s=0.01,
)
"""Rounding decides about a code in one call of ten."""


def followed(code: str, total: str = "s") -> str:
    """Return a candidate for `FOLLOWS`: `other` counts a row's codes that are not the reference's."""
    return (
        HEAD
        + "int launch(const float *x, float *y, int32_t *code, int64_t rows, int64_t cols) {"
        + "for (int64_t r = 0; r < rows; r++) { float s = 0; int other = 0; for (int64_t c = 0; c < cols; c++) {"
        + f"int32_t n = {code}, usual = lrintf(x[r * cols + c] * 20000.0f); code[r * cols + c] = n;"
        + f"s += (n % 7 + 7) % 7; other += n != usual; }} y[r] = {total}; }} return 0; }}"
    )


DOUBLE, QUOTIENT = "lrint(x[r * cols + c] * 20000.0)", "lrintf(x[r * cols + c] / 0.00005f)"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (followed(DOUBLE), "correct"),
        (followed(QUOTIENT), "correct"),
        (followed(QUOTIENT, "s + 3 * (other > 0)"), "incorrect"),
        (followed(QUOTIENT, "s + 3 * (r == 3)"), "incorrect"),
    ],
    ids=["in double", "with other rounding", "and is wrong there", "and is wrong elsewhere"],
)
def test_a_float_that_follows_from_a_code_that_rounding_decides_is_right_with_it(court, source, expected):
    outcome = court(source, **FOLLOWS, seed=SEED)
    verdict = outcome.verdict

    assert verdict["verdict"] == expected, verdict["reason"]
    noted = "some elements of code differ from the reference's and are as right" in str(verdict)
    assert noted or expected == "incorrect"


PICK = task(
    "def f(x, z):\n    at = x.argmax(axis=1)\n    return at.astype(np.int32), z[np.arange(len(z)), at]\n",
    [ROWS, {"name": "y", "dtype": "float32", "shape": ["rows"]}],
    {"rows": 200, "cols": 64},
    fixed_shapes=True,
    distributions="declared",
    budget_s=0.05,
)
PICK["inputs"] = [*PICK["inputs"], {**PICK["inputs"][0], "name": "z", "dtype": "float32"}]
"""A value that stands beside the largest, which has an equal in about one row of 300."""


def picked(rule: str = ">=", more: str = "", dtype: str = "_Float16") -> str:
    """Return a candidate for `PICK`: `more` may change `best` or `y`, knowing `other` than the first `usual`."""
    return (
        HEAD
        + f"int launch(const {dtype} *x, const float *z, int32_t *at, float *y, int64_t rows, int64_t cols) {{"
        + f"for (int64_t r = 0; r < rows; r++) {{ const {dtype} *in = x + r * cols; const float *of = z + r * cols;"
        + "int32_t best = 0, usual = 0; for (int64_t c = 1; c < cols; c++) {"
        + f"if (in[c] {rule} in[best]) best = c; if (in[c] > in[usual]) usual = c; }}"
        + "int other = best != usual; at[r] = best; y[r] = of[best];"
        + more
        + "} return 0; }"
    )


def again(row: str) -> str:
    """Return what puts another index and the value beside it into a row."""
    return f"if ({row}) {{ best = (best + 1) % cols; at[r] = best; y[r] = of[best]; }}"


INTEGERS = {
    **PICK,
    "inputs": [{**PICK["inputs"][0], "dtype": "float32", "distribution": "integers"}, PICK["inputs"][1]],
}
"""Most rows have several of the largest."""
CONSTANT = "best = 0; at[r] = 0; y[r] = of[0];"


@pytest.mark.parametrize(
    ("problem", "source", "expected"),
    [
        (PICK, picked(), "correct"),
        (PICK, picked(more="if (other) y[r] = z[(r + 1) % rows * cols + best];"), "incorrect"),
        (PICK, picked(more="if (other) y[r] = of[(best + 1) % cols];"), "incorrect"),
        (PICK, picked(more="if (other) y[r] = NAN;"), "incorrect"),
        (PICK, picked(more="if (other) y[r] = 1e38f;"), "incorrect"),
        (PICK, picked(more=again("other")), "incorrect"),
        (PICK, picked(more=again("r == 77")), "incorrect"),
        (PICK, picked(more=again("1")), "incorrect"),
        (PICK, picked(more=CONSTANT), "incorrect"),
        (INTEGERS, picked(more=CONSTANT, dtype="float"), "incorrect"),
        (INTEGERS, picked(more=again("other"), dtype="float"), "incorrect"),
    ],
    ids=[
        "the last of equals", "beside another row's", "beside another", "NaN", "huge", "no equal where equals are",
        "no equal in one row", "off by one", "constant", "constant among many equals", "no equal among many equals",
    ],
)  # fmt: skip
def test_a_float_beside_an_index_is_right_only_with_an_index_that_is(court, problem, source, expected):
    verdict = court(source, **problem, seed=SEED).verdict

    assert verdict["verdict"] == expected, verdict["reason"]
    assert expected == "correct" or "elements are wrong" in verdict["reason"]


def test_floats_that_follow_from_more_ties_than_rounding_makes_are_said_to_be_unjudged(court):
    verdict = court(picked(dtype="float"), **INTEGERS, seed=SEED).verdict

    assert verdict["verdict"] == "incorrect" and "did not look whether floats follow from ties" in verdict["reason"]


def test_a_float_that_is_wrong_only_where_a_code_is_on_edge_is_wrong(court):
    """By no more than the last places of its inputs move it: of many moves one has that float with that code."""
    total = task(
        "def f(x):\n    s = x.astype(np.float64).sum(axis=1)\n"
        "    return s.astype(np.float32), np.rint(s * 2).astype(np.int32)\n",
        [{"name": "y", "dtype": "float32", "shape": ["rows"]}, {**ROWS, "name": "code"}],
        {"rows": 1, "cols": 100},
        fixed_shapes=True,
        distributions="declared",
        rtol=1e-6,
        atol=3e-4,
    )
    source = (
        HEAD
        + "int launch(const _Float16 *x, float *y, int32_t *code, int64_t rows, int64_t cols) {"
        + "for (int64_t r = 0; r < rows; r++) {"
        + "double s = 0; for (int64_t c = 0; c < cols; c++) s += x[r * cols + c];"
        + "if (lrint((s + 0.001) * 2) != lrint(s * 2)) s += 0.001;"
        + "y[r] = s; code[r] = lrint(s * 2); } return 0; }"
    )
    verdict = court(source, **total, seed=SEED).verdict

    assert verdict["verdict"] == "incorrect" and "output y[0] is" in verdict["reason"], verdict
    assert not any("as right" in note for note in verdict["shapes"][0].get("notes", []))
