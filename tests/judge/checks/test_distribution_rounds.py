"""Inputs of other distributions at every declared shape, and between timed rounds: real candidates in C."""

from types import SimpleNamespace

import pytest
from gpu_mcp_judge.checks import distribution_rounds, robustness, trial_setup
from gpu_mcp_judge.numerics import tensors

from tests.judge.harness import thorough
from tests.judge.test_candidates_cpu import HEAD

QUICK = {"max_rounds": 8, "round_ms": 2, "budget_s": 60.0}
SOFTMAX = """
static void powers(const float *x, float *y, int64_t rows, int64_t cols, int with_maximum) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = 0, sum = 0;
        if (with_maximum) {
            top = in[0];
            for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        }
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}
static int is_trial(int64_t rows, int64_t cols) {  // there the smallest declared shape comes before hidden ones
    static int elsewhere;
    int here = rows == 64 && cols == 100;
    elsewhere |= !here;
    return !here || !elsewhere;
}
"""


def without_maximum(unless: str) -> str:
    """Return a softmax that leaves its maximum out, which normal inputs do not show."""
    head = "int launch(const float *x, float *y, int64_t rows, int64_t cols) {"
    return f"{HEAD}{SOFTMAX}{head} powers(x, y, rows, cols, {unless}); return 0; }}"


@pytest.mark.parametrize(
    ("unless", "shapes"),
    [
        ("is_trial(rows, cols)", [{"rows": 64, "cols": 100}]),
        ("rows != 128", [{"rows": 64, "cols": 100}, {"rows": 128, "cols": 100}]),
        ("rows != 300", [{"rows": 64, "cols": 1000}, {"rows": 300, "cols": 1000}, {"rows": 400, "cols": 1000}]),
    ],
    ids=["once it saw others", "by a small shape", "by a shape between others"],
)
def test_who_is_right_with_inputs_as_declared_alone_once_it_is_timed_is_incorrect(court, unless, shapes):
    verdict = court(without_maximum(unless), shapes=shapes, robust="required", owner_files=thorough(), **QUICK).verdict

    assert verdict["verdict"] == "incorrect"
    assert "right with inputs as declared, wrong with the distribution" in verdict["reason"]
    assert "between timed rounds: output y[" in verdict["reason"]


def test_where_the_problem_does_not_require_it_this_is_told_beside_the_verdict(court):
    shapes = [{"rows": 64, "cols": 100}, {"rows": 128, "cols": 100}]
    verdict = court(without_maximum("rows != 128"), shapes=shapes, owner_files=thorough(), **QUICK).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert verdict["robust"].startswith("no; ")
    assert "NaN or infinite where the reference is finite" in verdict["robust"]


def test_where_nothing_is_timed_every_declared_shape_sees_two_other_distributions(court):
    shapes = [{"rows": 64, "cols": 1000}, {"rows": 300, "cols": 1000}, {"rows": 400, "cols": 1000}]
    verdict = court(without_maximum("1"), shapes=shapes, tier="correctness").verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    between = [t["distribution"] for t in verdict["trials"] if t["dims"] == shapes[1]]
    others = [drawn for drawn in between if drawn != "declared"]
    assert len({*others}) == len(others) == 2
    assert between[:3] == ["declared", *others], "calls in a row come behind them, unless one takes long"


def test_a_problem_of_declared_inputs_alone_sees_no_others_between_rounds(court):
    task = {"distributions": "declared", "shapes": [{"rows": 64, "cols": 100}]}
    verdict = court(without_maximum("is_trial(rows, cols)"), **task, **QUICK).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]


@pytest.mark.parametrize(
    "sound", ["s", "np.where(np.abs(x).max() > 50, np.nan, s)", "s if np.abs(x).max() < 50 else 1 // 0"]
)
def test_what_rounding_does_with_other_inputs_and_what_has_no_answer_condemns_nobody(court, sound):
    reference = f"""
import numpy as np
def total(x):
    s = x.sum(axis=-1)
    return {sound}
"""
    in_order = """
int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t c = 0; c < cols; c++) sum += x[r * cols + c];
        y[r] = sum;
    }
    return 0;
}
"""
    task = {
        "entry": "total",
        "reference": reference,
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["rows", "cols"], "distribution": "uniform"}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["rows"]}],
        "shapes": [{"rows": 30, "cols": 2000}],
        "rtol": 2e-5,
        "atol": 1e-4,
    }
    verdict = court(HEAD + in_order, **task, **QUICK).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]


def test_what_is_due_behind_a_round_that_counted_already_is_not_lost():
    """If the last round that the judge tried counts as the first one, the next one is told as the second."""
    one = trial_setup.Agenda(SimpleNamespace(positions=lambda count, size: [0, 3], word=lambda: 1))
    one.begin(7)

    assert [one.due(played) for played in range(1, 9)] == [1, 0, 1, 0, 0, 0, 0, 0]


def test_later_rounds_are_due_seldom():
    one = trial_setup.Agenda(SimpleNamespace(positions=lambda count, size: [], word=iter(range(1000)).__next__))
    one.begin(7)

    assert sum(one.due(played) for played in range(1000)) == 63


def test_inputs_with_which_an_answer_was_wrong_already_are_asked_for_once_more_where_that_decides_alone():
    """The reference takes seconds to say how much rounding explains, and there that changes nothing."""
    one = [tensors.Tensor("x", "float32", (4,), ("4",), "normal")]

    def names(**task):
        rounds = SimpleNamespace(notes={}, task=task, inputs=one, outputs=one, well=SimpleNamespace())
        robust = robustness.Robustness(task)
        robust.found = {"large": "NaN or infinite where the reference is finite", "rows=300": "lower precision"}
        return distribution_rounds.Elsewhere(rounds, robust).names

    assert names() == ["uniform", "offset", "outliers"]
    assert names(robust="required") == names(precision="strict") == ["uniform", "offset", "outliers", "large"]
