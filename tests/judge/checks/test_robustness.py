"""Robustness of candidates that are right as declared, beside their verdicts: real candidates in C."""

import re

import numpy as np
import pytest
from gpu_mcp_judge.checks.fp64_check import as_exact
from gpu_mcp_judge.checks.robustness import Robustness
from gpu_mcp_judge.numerics.tensors import Array

from tests.judge.harness import thorough
from tests.judge.owner.test_untimed_trials import NAIVE, SCALING, scaling
from tests.judge.test_candidates_cpu import HEAD, SMALL, launcher

QUICK = {"max_rounds": 8, "round_ms": 2, "budget_s": 0.5}
LONGER = {"max_rounds": 8, "round_ms": 2, "budget_s": 60.0, "overhead_s": 60.0, "half_width": 1e-6}
"""No limit of time ends it before."""
ELSEWHERE = "static int elsewhere, back; back = elsewhere && (%s); elsewhere |= !(%s);"
"""In trials the smallest declared shape comes before the hidden ones. How many calls make a round depends on the load."""
ROUNDED = """
static float tf32(float v) { union { float f; uint32_t b; } u = {.f = v}; u.b = (u.b + 0x1000u) & 0xFFFFE000u; return u.f; }
"""
PRODUCT = {
    "entry": "product",
    "reference": "def product(a, b):\n    return a @ b\n",
    "inputs": [
        {"name": "a", "dtype": "float32", "shape": ["m", "k"]},
        {"name": "b", "dtype": "float32", "shape": ["k", "n"]},
    ],
    "outputs": [{"name": "y", "dtype": "float32", "shape": ["m", "n"]}],
    "shapes": [{"m": 16, "k": 64, "n": 24}],
    "rtol": 1e-2,
    "atol": 6e-2,
    "tier": "correctness",
}


def product(terms: str) -> str:
    """Return a product of matrices that makes its sums as told."""
    head = "int launch(const float *a, const float *b, float *y, int64_t m, int64_t k, int64_t n) {"
    loop = "for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) {"
    body = "for (int64_t l = 0; l < k; l++) { float u = a[i * k + l], v = b[l * n + j]; TERMS } y[i * n + j] = s; }"
    kind, text = terms.split(":")
    return HEAD + ROUNDED + f"{head} {loop} {kind} s = 0; {body.replace('TERMS', text)} return 0; }}"


SEED = f"{1:064x}"
"""Of drawn hidden shapes: in few of others the long sums have too few outputs to show float16."""
TF32 = "float: s += tf32(u) * tf32(v);"
FLOAT16 = "_Float16: s += (_Float16)(u * v);"


@pytest.mark.parametrize(
    ("terms", "robust"),
    [
        ("float: s += u * v;", "yes, with 6 other distributions"),
        (TF32, r"\blarge[a-z, ]*: looks like TF32 or float16"),
        (FLOAT16, r"\blarge[a-z, ]*: NaN or infinite where the reference is finite"),
        (FLOAT16, ": lower precision, by which the answer is "),
    ],
    ids=["float32", "TF32", "float16", "float16 in long sums"],
)
def test_a_lower_precision_within_the_tolerance_is_correct_and_told(court, terms, robust):
    verdict = court(product(terms), **PRODUCT, seed=SEED).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert re.search(robust, verdict["robust"])
    assert verdict["robust"].startswith("yes" if "yes" in robust else "no; ")
    assert verdict["covers"].startswith("1 declared shape, ") and "hidden shapes" in verdict["covers"]


def test_failures_that_differ_in_the_count_of_wrong_elements_are_told_in_one():
    found = Robustness({})
    found.found = {"uniform": "12 of 50 elements are wrong", "large": "looks like TF32 or float16"}
    found.found["small"] = "7 of 50 elements are wrong"

    assert found.text() == "no; uniform, small: 7 to 12 of 50 elements are wrong; large: looks like TF32 or float16"


def test_of_several_outputs_the_wrong_one_is_named(court):
    positive = {
        "entry": "positive",
        "reference": "def positive(x):\n    return 2 * x, (x > 0).sum(axis=1)\n",
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["rows", "cols"]}],
        "outputs": [
            {"name": "twice", "dtype": "float32", "shape": ["rows", "cols"]},
            {"name": "count", "dtype": "int64", "shape": ["rows"]},
        ],
        "shapes": [{"rows": 4, "cols": 100}],
        "rtol": 0.0,
        "atol": 0.0,
        "tier": "correctness",
    }
    loop = "for (int64_t r = 0; r < rows; r++) { count[r] = 0; for (int64_t c = 0; c < cols; c++) {"
    body = "twice[r * cols + c] = 2 * x[r * cols + c]; count[r] += x[r * cols + c] >= 0; } } return 0; }"
    head = "int launch(const float *x, float *twice, int64_t *count, int64_t rows, int64_t cols) {"
    verdict = court(HEAD + head + loop + body, **positive).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert verdict["robust"] == "no; zeros: output count: 4 of 4 elements are wrong"


@pytest.mark.parametrize("wish", [{"robust": "required"}, {"precision": "strict"}], ids=["robust", "strict"])
def test_it_is_incorrect_where_the_problem_wants_more(court, wish):
    verdict = court(product(TF32), **PRODUCT, **wish).verdict

    assert verdict["verdict"] == "incorrect"
    wrong = "right with inputs as declared, wrong with the distribution" if "robust" in wish else "strict precision"
    assert wrong in verdict["reason"]


def test_a_lower_precision_beyond_the_tolerance_is_told_with_the_wrong_answer(court):
    reason = court(product(TF32), **{**PRODUCT, "rtol": 1e-4, "atol": 1e-4}).verdict["reason"]

    assert "of y as a whole: looks like TF32 or float16" in reason
    assert "cudnn" not in reason  # this kernel does not compute with torch


def test_a_softmax_without_its_maximum_is_correct_and_not_robust(court):
    verdict = court(launcher(NAIVE), shapes=SMALL, **QUICK).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert re.search(r"large[a-z, ]*: NaN or infinite where the reference is finite", verdict["robust"])
    assert [trial["verdict"] for trial in verdict["trials"] if trial["distribution"] == "large"] == ["incorrect"] * 2


def test_an_epsilon_that_was_dropped_is_told_by_the_distribution_that_shows_it(court):
    reference = """
import numpy as np
def norm(x):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + x.dtype.type(1e-5))
"""
    body = """for (int64_t r = 0; r < rows; r++) { float s = 0; for (int64_t c = 0; c < cols; c++) s += x[r * cols + c] *
        x[r * cols + c]; s = 1 / sqrtf(s / cols); for (int64_t c = 0; c < cols; c++) y[r * cols + c] = x[r * cols + c] * s; }"""
    task = {"reference": reference, "entry": "norm", "rtol": 1e-4, "atol": 1e-4, "tier": "correctness"}
    fixed = {"shapes": [{"rows": 30, "cols": 100}], "fixed_shapes": True}
    verdict = court(launcher(body), **task, **fixed).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert re.search(r"small: \d+ of 3000 elements are wrong", verdict["robust"])
    assert "zeros: NaN or infinite where the reference is finite" in verdict["robust"]


def test_what_was_right_once_and_is_wrong_with_the_same_inputs_later_is_incorrect(court):
    here = "rows == 8 && cols == 100"
    body = ELSEWHERE % (here, here) + "if (!back) softmax(x, y, rows, cols); else {" + NAIVE + "}"
    verdict = court(launcher(body), shapes=SMALL, owner_files=thorough(), **LONGER).verdict

    assert verdict["verdict"] == "incorrect"
    assert verdict["reason"].startswith(
        "right at first and wrong with the same inputs later, drawn from the distribution"
    )


def test_a_lower_precision_that_is_chosen_later_lowers_robustness_alone(court):
    """As an autotuner does that takes another algorithm once it has timed some.

    Of so many elements some are wrong whatever is drawn; of 384 all passed in TF32 with one seed in fifteen.
    """
    here = "m == 64 && k == 64 && n == 96"
    source = product("float: s += u * v; t += tf32(u) * tf32(v); if (back && l == k - 1) s = t;")
    source = source.replace("float s = 0;", "double s = 0, t = 0;")
    source = source.replace("for (int64_t i = 0; i < m;", ELSEWHERE % (here, here) + " for (int64_t i = 0; i < m;")
    task = {**PRODUCT, "tier": "performance", "shapes": [{"m": 64, "k": 64, "n": 96}], "seed": SEED}
    verdict = court(source, **task, owner_files=thorough(), **LONGER).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    said = "large: looks like TF32 or float16 (the same inputs were answered more exactly at first)"
    assert said in verdict["robust"]


def test_what_is_wrong_with_other_inputs_must_be_right_with_those_as_declared_afterwards(court):
    body = "static int seen; for (int64_t i = 0; i < rows * cols; i++) seen |= x[i] > 900; softmax(x, y, rows, cols);"
    verdict = court(launcher(body + "if (seen) y[0] = 7;"), shapes=SMALL, tier="correctness").verdict

    assert verdict["verdict"] == "incorrect"
    assert "(after a wrong answer with the distribution large" in verdict["reason"]


RELU = "import numpy as np\ndef scale(x):\n    return np.maximum(x - x.dtype.type(50), 0)\n"


@pytest.mark.parametrize(
    ("value", "verdict"), [("0", "incorrect"), ("x[i] > 60 ? 10 : x[i] > 50 ? x[i] - 50 : 0", "correct")]
)
def test_an_answer_that_does_not_depend_on_its_inputs_is_incorrect(court, value, verdict):
    """Nobody registers such a problem by chance: as declared its answer is zeros."""
    task = {**SCALING, "reference": RELU, "tier": "correctness"}
    found = court(scaling(f"y[i] = {value};"), **task).verdict

    assert found["verdict"] == verdict, found["reason"]
    if verdict == "incorrect":
        assert "its answer does not depend on the inputs: with the distribution " in found["reason"]
    else:
        assert found["robust"].startswith("no; ")


def test_an_error_at_other_inputs_is_told_and_a_crash_decides(court):
    body = "int big = 0; for (int64_t i = 0; i < rows * cols; i++) big |= x[i] > 900; softmax(x, y, rows, cols);"
    told = court(launcher(body + "if (big) return 5;"), shapes=SMALL, tier="correctness").verdict
    crash = court(launcher(body + "if (big) abort();"), shapes=SMALL, tier="correctness").verdict

    assert told["verdict"] == "correct", told["reason"]
    assert told["robust"].startswith("no; large: the launcher returned 5")
    assert crash["verdict"] == "incorrect" and "crashed with SIGABRT" in crash["reason"]


def test_a_wrong_answer_to_other_inputs_that_is_right_the_next_time_is_a_race(court):
    body = """
    static int seldom; int big = 0;
    for (int64_t i = 0; i < rows * cols; i++) big |= x[i] > 900;
    softmax(x, y, rows, cols);
    if (big && seldom++ == 0) y[1] = y[0] + 1;
    """
    found = court(launcher(body), shapes=SMALL, tier="correctness").verdict

    assert found["verdict"] == "incorrect"
    assert (
        "wrong at first and right with the same inputs again, as with a race or unset memory, with the dist"
        in found["reason"]
    )


SHORT = """
import numpy as np
def total(x):
    s = np.zeros(x.shape[0], dtype=x.dtype)
    for c in range(x.shape[1]):
        s = (s + x[:, c]).astype(x.dtype)
    return s
"""
SUMS = {
    "reference": SHORT,
    "entry": "total",
    "inputs": [{"name": "x", "dtype": "float16", "shape": ["rows", "cols"], "distribution": "uniform"}],
    "outputs": [{"name": "y", "dtype": "float16", "shape": ["rows"]}],
    "shapes": [{"rows": 40, "cols": 1500}],
    "rtol": 2e-3,
    "atol": 1e-3,
    **QUICK,
}
FINE = """#include <stdint.h>
int launch(const _Float16 *x, _Float16 *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        float s = 0;
        for (int64_t c = 0; c < cols; c++) s += (float)x[r * cols + c];
        y[r] = (_Float16)(s * FACTOR);
    }
    return 0;
}
"""


@pytest.mark.parametrize(("factor", "verdict"), [("1", "correct"), ("1.2f", "incorrect")])
def test_a_reference_that_is_farther_from_double_precision_condemns_nobody(court, factor, verdict):
    found = court(FINE.replace("FACTOR", factor), **SUMS).verdict

    assert found["verdict"] == verdict, found["reason"]
    if verdict == "correct":
        said = "the reference is about as far from double precision as the candidate, or farther, in y"
        assert said in found["trials_summary"]
        assert any(said in note for note in found["shapes"][0]["notes"])


@pytest.mark.parametrize(("step", "verdict"), [("0", "correct"), ("1", "incorrect")])
def test_a_right_answer_may_be_as_inexact_as_the_reference(court, step, verdict):
    backwards = """#include <stdint.h>
int launch(const _Float16 *x, _Float16 *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        _Float16 s = 0;
        for (int64_t c = cols - 1; c >= STEP; c--) s = s + x[r * cols + c];
        y[r] = s + (STEP ? (_Float16)40 : (_Float16)0);
    }
    return 0;
}
"""
    found = court(backwards.replace("STEP", step), **SUMS).verdict

    assert found["verdict"] == verdict, found["reason"]


@pytest.mark.parametrize(("factor", "told"), [("1", True), ("1.1f", False)])
def test_a_tolerance_that_is_narrower_than_rounding_is_told_and_decides(court, factor, told):
    source = FINE.replace("_Float16", "float").replace("FACTOR", factor)
    both = {side: [{**SUMS[side][0], "dtype": "float32"}] for side in ("inputs", "outputs")}
    pairwise = "def total(x):\n    return x.sum(axis=1)\n"
    task = {**SUMS, **both, "reference": pairwise, "shapes": [{"rows": 4, "cols": 50000}], "rtol": 1e-6}
    found = court(source, **task).verdict

    assert found["verdict"] == "incorrect"
    assert ("no farther off than rounding may put them" in str(found)) == told


def test_which_element_is_as_near_to_double_precision_as_the_reference():
    def many(*values: float) -> Array:
        return np.tile(values, 16)

    exact, off, tolerances = many(1.0, 2.0, 3.0, 4.0), many(1.1, 2.1, 3.1, 4.1), (1e-3, 0.0)

    assert as_exact(exact, off, many(1.0, 2.05, 3.0, 4.0), tolerances).tolist() == [True] * 64
    assert as_exact(exact, off, many(1.0, 2.0, 3.0, 4.25), tolerances).all()
    assert as_exact(exact, off, many(1.0, 2.0, 3.0, 4.5), tolerances) is None
    assert as_exact(exact, exact, off, tolerances) is None
    assert as_exact(exact, many(3.0, 9.0, 9.0, 9.0), exact * 1.3, tolerances).tolist() == [False] * 64
    assert as_exact(exact, many(np.inf, 2.1, 3.1, 4.1), many(0.0, 2.0, 3.0, 4.0), tolerances)[0] == 0


@pytest.mark.parametrize(("elements", "wrong"), [(1, 24), (2, 8), (3, 4), (5, 4), (16, 4)])
def test_where_few_elements_err_an_answer_is_seldom_less_exact_by_chance(elements, wrong):
    """A sum of halves over two rows was called incorrect now and then; these are 200 pairs of one precision."""
    draw = np.random.default_rng(3)
    exact = 1000 + draw.standard_normal((200, elements))
    want, have, coarser = (exact + size * draw.standard_normal(exact.shape) for size in (0.01, 0.01, 0.16))

    def less_exact(answers: Array) -> int:
        found = [as_exact(*three, (1e-6, 0.0)) for three in zip(exact, want, answers, strict=True)]
        return sum(each is None or not each.all() for each in found)

    assert less_exact(have) <= wrong
    assert less_exact(coarser) > 100


@pytest.mark.parametrize(("columns", "times"), [(1, 0.0), (2, 0.0), (2, 0.5), (2, 2.0), (3, 0.5)])
def test_a_reference_that_is_far_off_leaves_nothing_to_chance(columns, times):
    """NumPy adds the rows of two columns of halves one after the other: the sums are 15 % too small."""
    rows = np.random.default_rng(3).random((4800, columns)).astype(np.float16)
    exact, want = rows.astype(np.float64).sum(axis=0), np.add.accumulate(rows, axis=0)[-1].astype(np.float64)
    found = as_exact(exact, want, times * exact, (1e-2, 1e-3))

    assert found is None or not found.all()
    assert as_exact(exact, want, exact, (1e-2, 1e-3)).all()


def test_two_answers_in_one_precision_are_as_exact_and_a_coarser_one_is_not():
    draw = np.random.default_rng(5)
    exact = draw.standard_normal(5000)
    want, have, coarser = (exact + size * draw.standard_normal(5000) for size in (1e-4, 1e-4, 4e-4))
    tolerances = (1e-4, 1e-4)
    beyond = np.abs(have - want) > 1e-4 + 1e-4 * np.abs(want)
    farther = np.abs(have - exact) > np.abs(want - exact)

    assert (beyond & farther).sum() > 100  # each of which is farther off than the reference's own
    assert as_exact(exact, want, have, tolerances).mean() > 0.999
    assert as_exact(exact, want, coarser, tolerances) is None


def test_an_element_that_is_farther_off_than_the_reference_anywhere_is_wrong_among_exact_ones():
    draw = np.random.default_rng(6)
    exact = draw.standard_normal(5000)
    exact[:2] = 1e-3, 1e-9
    want, have = exact + 1e-6 * draw.standard_normal(5000), exact.copy()
    have[0] = 1.1e-3
    want[1] = 1.4e-9  # by a large part of itself, which says nothing of larger ones

    found = as_exact(exact, want, have, (1e-5, 0.0))
    assert not found[0] and found[1:].all()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda exact: exact, id="exact"),
        pytest.param(lambda exact: np.where(np.abs(exact) < 400, exact * 1.04, exact), id="small ones"),
        pytest.param(lambda exact: np.where(np.arange(exact.size) % 4, exact, exact * 1.05), id="every fourth"),
        pytest.param(lambda exact: exact + 60.0, id="a constant"),
    ],
)
def test_large_errors_of_large_elements_excuse_no_others(wrong):
    """A reference that is off by a thousandth of each element, as a cube of TF32 sums is."""
    draw = np.random.default_rng(7)
    exact = (10 * draw.standard_normal(20_000)) ** 3
    want, have = exact * (1 + 1e-3 * draw.standard_normal(20_000)), wrong(exact)
    found = as_exact(exact, want, have, (1e-4, 1e-4))

    assert (found is not None and found.all()) == (have is exact)


def test_a_few_gross_errors_are_what_long_sums_have_and_many_are_a_mistake():
    draw = np.random.default_rng(8)
    exact = draw.standard_normal(65_536)
    want, have = (exact + 1e-5 * draw.standard_normal(65_536) for _ in range(2))
    have[7:10] += 1.2e-4
    few = as_exact(exact, want, have, (1e-6, 1e-6))
    have[100:500:4] += 1.2e-4
    many = as_exact(exact, want, have, (1e-6, 1e-6))
    have[7:10] += 3e-4
    grosser = as_exact(exact, want, have, (1e-6, 1e-6))

    assert few.all()
    assert not many[100:500:4].any() and many[1000:].mean() > 0.9
    assert not grosser[7:10].any()


@pytest.mark.parametrize(
    ("shapes", "declared"),
    [
        ([(8, 100), (9, 70), (8, 80)], "right at rows=8,cols=100; rows=8,cols=80; wrong at rows=9,cols=70"),
        ([(9, 70)], "wrong at rows=9,cols=70"),
    ],
)
def test_a_verdict_says_which_declared_shapes_pass_and_which_fail(court, shapes, declared):
    body = "softmax(x, y, rows, cols); if (rows == 9) y[0] = 2;"
    dims = [{"rows": rows, "cols": cols} for rows, cols in shapes]
    verdict = court(launcher(body), shapes=dims, fixed_shapes=True, **QUICK).verdict

    assert verdict["verdict"] == "incorrect"
    assert verdict["declared"] == declared


def test_a_verdict_of_a_hidden_shape_says_that_declared_ones_pass_or_that_nobody_knows(court):
    shapes = [{"rows": 8, "cols": 100}, {"rows": 16, "cols": 100}]
    wrong = court(launcher("softmax(x, y, rows, cols); if (cols != 100) y[0] = 2;"), shapes=shapes).verdict
    crash = court(launcher("if (cols != 100) abort(); softmax(x, y, rows, cols);"), shapes=shapes).verdict

    assert wrong["declared"] == "right at rows=8,cols=100; rows=16,cols=100"
    assert crash["declared"] == "right at rows=8,cols=100; not tried: rows=16,cols=100"


DECAY = {
    "entry": "decay",
    "reference": """
import numpy as np

def decay(s, a, b):
    weights = np.exp(np.cumsum(s, axis=0)[::-1])  # of one precision, as are all sums
    return sum((weights[k][:, None] * a[k])[:, :, None] * b[k][:, None, :] for k in range(64))
""",
    "inputs": [
        {"name": "s", "dtype": "float32", "shape": [64, "heads"], "distribution": "normal"},
        {"name": "a", "dtype": "float32", "shape": [64, "heads", 16], "distribution": "normal"},
        {"name": "b", "dtype": "float32", "shape": [64, "heads", 32], "distribution": "normal"},
    ],
    "outputs": [{"name": "y", "dtype": "float32", "shape": ["heads", 16, 32]}],
    "shapes": [{"heads": 64}],
    "rtol": 1e-4,
    "atol": 1e-4,
    **LONGER,
}
"""Terms that decay, as of a scan of a state space model: what is left of large ones errs by hundreds of tolerances."""


@pytest.mark.parametrize(("left", "verdict"), [("a", "correct"), ("(_Float16)a", "incorrect")])
def test_a_scan_of_another_order_is_as_exact_as_its_reference(court, left, verdict):
    source = """#include <math.h>
#include <stdint.h>
#include <string.h>
int launch(const float *s, const float *a, const float *b, float *y, int64_t heads) {
    for (int64_t h = 0; h < heads; h++) {
        float weights[64], sum = 0, *out = y + h * 512;
        for (int k = 0; k < 64; k++) weights[k] = sum += s[k * heads + h];
        memset(out, 0, 512 * sizeof(float));
        for (int first = 0; first < 8; first++) {
            float part[512] = {0};
            for (int k = first; k < 64; k += 8)
                for (int i = 0; i < 512; i++) {
                    const float w = expf(weights[63 - k]);
                    part[i] += w * LEFT[(k * heads + h) * 16 + i / 32] * b[(k * heads + h) * 32 + i % 32];
                }
            for (int i = 0; i < 512; i++) out[i] += part[i];
        }
    }
    return 0;
}
"""
    found = court(source.replace("LEFT", left), **DECAY).verdict

    assert found["verdict"] == verdict, found["reason"]
    if verdict == "correct":
        assert any("such differences do not count" in note for note in found["shapes"][0]["notes"])
