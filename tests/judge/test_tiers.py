"""Tiers of judging a candidate: one call, all trials, or everything."""

import pytest

SHAPES = [{"rows": 8, "cols": 100}, {"rows": 3, "cols": 17}]
LATE_BUG = """
#include <math.h>
#include <stdint.h>
int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols; float *out = y + r * cols; float top = in[0], sum = 0;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
        if (WHERE) out[0] = 0.5f;
    }
    return 0;
}
"""


def test_smoke_is_one_call_at_the_smallest_shape(court):
    verdict = court(LATE_BUG.replace("WHERE", "rows == 8"), shapes=SHAPES, tier="smoke").verdict

    assert (verdict["verdict"], verdict["tier"], verdict["speedup"]) == ("correct", "smoke", None)
    assert [(s["dims"], s["calls_checked"]) for s in verdict["shapes"]] == [({"rows": 3, "cols": 17}, 1)]
    assert verdict["note"] == "tier smoke: not timed"
    assert "tier smoke is one call" in verdict["trials_summary"]


def test_correctness_tries_every_shape_and_times_none(court):
    verdict = court("naive.c", shapes=SHAPES, tier="correctness").verdict

    assert (verdict["verdict"], verdict["speedup"]) == ("correct", None)
    assert [s["dims"] for s in verdict["shapes"]] == [SHAPES[1], SHAPES[0]]
    assert not any(s.get("candidate") for s in verdict["shapes"])
    assert verdict["note"] == "tier correctness: not timed"
    assert any(entry["hidden"] for entry in verdict["trials"])


@pytest.mark.parametrize(
    ("where", "words"), [("rows == 8", "rows=8, cols=100"), ("rows != 8 && rows != 3", "hidden shape")]
)
def test_correctness_finds_what_smoke_does_not(court, where, words):
    verdict = court(LATE_BUG.replace("WHERE", where), shapes=SHAPES, tier="correctness").verdict

    assert verdict["verdict"] == "incorrect" and words in verdict["reason"]


def test_smoke_finds_what_is_wrong_at_the_smallest_shape(court):
    verdict = court(LATE_BUG.replace("WHERE", "rows == 3"), shapes=SHAPES, tier="smoke").verdict

    assert verdict["verdict"] == "incorrect" and "rows=3, cols=17" in verdict["reason"]


IN_A_ROW = """
#include <math.h>
#include <stdint.h>
#include <time.h>
static double before;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    double lost = now() - before < 50e-6 ? 0.5 : 1;
    for (int64_t r = 0; r < rows; r++) {
        float top = x[r * cols], sum = 0;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, x[r * cols + c]);
        for (int64_t c = 0; c < cols; c++) sum += y[r * cols + c] = expf(x[r * cols + c] - top);
        for (int64_t c = 0; c < cols; c++) y[r * cols + c] *= lost / sum;
    }
    before = now();
    return 0;
}
"""
"""Answers as a race does: wrongly where threads of the call before are still awake."""


def test_correctness_finds_what_is_wrong_among_calls_in_a_row_alone(court):
    verdict = court(IN_A_ROW, shapes=SHAPES, tier="correctness").verdict

    assert verdict["verdict"] == "incorrect"
    assert "right call by call and wrong in " in verdict["reason"]
    assert "as with a race, or inputs that come seldom: " in verdict["reason"]
    assert court(IN_A_ROW, shapes=SHAPES, tier="smoke").verdict["verdict"] == "correct"
