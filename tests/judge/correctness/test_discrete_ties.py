"""Discrete answers where rounding or chance decides: right ones pass in timed rounds too, wrong ones find no cover."""

from typing import Any

import pytest

from tests.judge.harness import judge, torch_python

HEAD = """
#include <math.h>
#include <stdint.h>
"""


def task(
    reference: str, outputs: list[Any], shape: dict[str, int], dtype: str = "float16", **more: Any
) -> dict[str, Any]:
    inputs = [{"name": "x", "dtype": dtype, "shape": ["rows", "cols"], "distribution": "normal"}]
    given = {
        "reference": "import numpy as np\n" + reference, "entry": "f", "inputs": inputs, "outputs": outputs,
        "shapes": [shape], "rtol": 1e-3, "atol": 1e-3, "max_rounds": 7, "round_ms": 1, "budget_s": 0.2, "overhead_s": 20,
    }  # fmt: skip
    return {**given, **more}


ROWS = {"name": "at", "dtype": "int32", "shape": ["rows"]}
LARGEST = task("def f(x):\n    return x.argmax(axis=1).astype(np.int32)\n", [ROWS], {"rows": 1000, "cols": 64})
"""Of 64 normal numbers with eleven bits the largest has an equal in about one row of 300."""
CLOSE = task(
    "def f(x):\n    return x.argmax(axis=1).astype(np.int32)\n", [ROWS], {"rows": 100, "cols": 1000}, fixed_shapes=True
)
CLOSE["inputs"][0]["distribution"], CLOSE["budget_s"] = "uniform", 0.05
"""Of 1,000 numbers from 0 to 1 with eleven bits two or more are the largest in every fifth row."""
CODES = task(
    "def f(x):\n    return np.rint(x * np.float32(20000)).astype(np.int32)\n",
    [{"name": "code", "dtype": "int32", "shape": ["rows", "cols"]}],
    {"rows": 100, "cols": 100},
    "float32",
    distributions="declared",
    budget_s=0.01,
)
"""Rounding decides about one code of a thousand, so of nearly every call."""
BEST = task(
    "def f(x):\n    at = np.argsort(-x, axis=1, kind='stable')[:, :2].astype(np.int64)\n"
    "    return np.take_along_axis(x, at, 1), at\n",
    [{"name": "y", "dtype": "float16", "shape": ["rows", 2]}, {"name": "at", "dtype": "int64", "shape": ["rows", 2]}],
    {"rows": 2000, "cols": 8},
    fixed_shapes=True,
)
CHAOS = task(
    "def f(x):\n    return (np.floor(x.astype(np.float64) * 1e9) % 7).astype(np.int32)\n",
    CODES["outputs"],
    {"rows": 50, "cols": 100},
    "float32",
)

ORDER = task(
    "def f(x):\n    return np.argsort(x, axis=0, kind='stable').astype(np.int32)\n",
    [{"name": "at", "dtype": "int32", "shape": ["rows", "cols"]}],
    {"rows": 700, "cols": 3},
    tier="correctness",
)
LEAST = task("def f(x):\n    return x.argmin(axis=1).astype(np.int32)\n", [ROWS], {"rows": 50, "cols": 400}, "float32")
LEAST["inputs"][0]["distribution"] = "integers"
"""Of 400 whole numbers below 100 about four are zero in every row."""
MASK = [{"name": "mask", "dtype": "bool", "shape": ["rows", "cols"]}]
TOP = task("def f(x):\n    return x == x.max(axis=1, keepdims=True)\n", MASK, {"rows": 16, "cols": 1000}, "float32")
TOP["inputs"][0]["distribution"] = "integers"
SAME = task("def f(x, y):\n    return x == y\n", MASK, {"rows": 200, "cols": 500})
SAME["inputs"] = [SAME["inputs"][0], {**SAME["inputs"][0], "name": "y"}]
DIFFERENT = task(
    "def f(x):\n    s = np.sort(x, axis=1)\n    return (1 + (s[:, 1:] != s[:, :-1]).sum(axis=1)).astype(np.int32)\n",
    [ROWS],
    {"rows": 200, "cols": 500},
)
SUM = task(
    "def f(x):\n    w = x.astype(np.float32)\n    return (w * w * w).sum(axis=1), x.argmax(axis=1).astype(np.int32)\n",
    [{"name": "y", "dtype": "float32", "shape": ["rows"]}, ROWS],
    {"rows": 350, "cols": 700},
    rtol=1e-5,
    atol=1e-6,
    tier="correctness",
)
SUM["inputs"][0]["distribution"] = "uniform"
"""With distributions that have both signs a sum cancels, beyond the tolerance: rounding allows it."""


def largest(body: str) -> str:
    """Return a candidate for `LARGEST`; `best` begins with the first column, `in` is the row."""
    return (
        HEAD
        + """int launch(const _Float16 *x, int32_t *at, int64_t rows, int64_t cols) {
        for (int64_t r = 0; r < rows; r++) { const _Float16 *in = x + r * cols; int32_t best = 0;"""
        + body
        + " at[r] = best; } return 0; }"
    )


def coded(body: str) -> str:
    """Return a candidate for `CODES`."""
    return (
        HEAD
        + "int launch(const float *x, int32_t *code, int64_t rows, int64_t cols) {"
        + "for (int64_t i = 0; i < rows * cols; i++) {"
        + body
        + "} return 0; }"
    )


def best(rule: str, more: str = "") -> str:
    """Return a candidate for `BEST`: `rule` says whether column `c` comes before `a`, the best so far."""
    return (
        HEAD
        + """int launch(const _Float16 *x, _Float16 *y, int64_t *at, int64_t rows, int64_t cols) {
        for (int64_t r = 0; r < rows; r++) { const _Float16 *in = x + r * cols; int64_t found[2] = {-1, -1};
            for (int k = 0; k < 2; k++) for (int64_t c = 0; c < cols; c++) { int64_t a = found[k];
                if ((!k || c != found[0]) && (a < 0 || """
        + rule
        + ")) found[k] = c; }"
        + more
        + "for (int k = 0; k < 2; k++) y[r * 2 + k] = in[found[k]], at[r * 2 + k] = found[k]; } return 0; }"
    )


def ordered(after: str) -> str:
    """Return a candidate for `ORDER`: `after` says what stands at place `k` of column `c` once `t` has the order."""
    return (
        HEAD
        + """#include <stdlib.h>
        static const _Float16 *in; static int64_t step;
        static int before(const void *a, const void *b) {
            _Float16 p = in[*(int *)a * step], q = in[*(int *)b * step];
            return p < q ? -1 : p > q ? 1 : *(int *)b - *(int *)a; }
        int launch(const _Float16 *x, int32_t *at, int64_t rows, int64_t cols) {
            int *t = malloc(rows * sizeof *t);
            for (int64_t c = 0; c < cols; c++) {
                for (int64_t r = 0; r < rows; r++) t[r] = r;
                in = x + c, step = cols, qsort(t, rows, sizeof *t, before);
                for (int64_t k = 0; k < rows; k++) at[k * cols + c] = """
        + after
        + "; } free(t); return 0; }"
    )


def nothing(arguments: str, fill: str) -> str:
    """Return a candidate that does not look at its inputs."""
    return HEAD + "int launch(" + arguments + ", int64_t rows, int64_t cols) {" + fill + "return 0; }"


FALSE = "for (int64_t i = 0; i < rows * cols; i++) mask[i] = 0;"
SUMMING = (
    HEAD
    + """int launch(const _Float16 *x, float *y, int32_t *at, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++, x += cols) {
        float sum = 0; int32_t best = 0;
        for (int64_t c = 0; c < cols; c++) { float w = x[c]; sum += w * w * w; if (x[c] >= x[best]) best = c; }
        y[r] = sum, at[r] = best; } return 0; }"""
)
LAST = "for (int64_t c = 1; c < cols; c++) if (in[c] >= in[best]) best = c;"
LANES = """int32_t of[8]; for (int l = 0; l < 8; l++) of[l] = l;
    for (int64_t c = 8; c < cols; c++) if (in[c] > in[of[c % 8]]) of[c % 8] = c;
    best = of[3]; for (int l = 0; l < 8; l++) if (in[of[l]] > in[best]) best = of[l];"""
RIGHT = {
    "the last of frequently equal maxima": (CLOSE, largest(LAST)),
    "some of frequently equal maxima": (CLOSE, largest(LANES)),
    "the last of equal maxima": (LARGEST, largest(LAST)),
    "a code by division": (CODES, coded("code[i] = (int32_t)lrintf(x[i] / 5e-5f);")),
    "an order by columns, the last of equals first": (ORDER, ordered("t[k]")),
    "the last of the zeros": (LEAST, largest(LAST.replace(">=", "<=")).replace("_Float16", "float")),
    "a sum beside an index, both as rounding allows": (SUM, SUMMING),
    "the last of equals first": (BEST, best("in[c] >= in[a]")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_another_answer_that_is_as_right_is_correct_and_noted(court, name):
    problem, source = RIGHT[name]
    verdict = court(source, **problem).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    shape = verdict["shapes"][0]
    assert "tier" in problem or shape["calls_checked"] > 1
    assert any("as right: they tie within rounding" in note for note in shape["notes"]), shape["notes"]


def test_the_same_answer_as_the_reference_needs_no_leniency(court):
    verdict = court(largest(LAST.replace(">=", ">")), **LARGEST).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert not any("as right" in note for note in verdict["shapes"][0]["notes"])


SEED = "5e" * 32
"""Its draws have equals among the largest two: other ones may have none, and then nothing is wrong."""
WRONG = {
    "some of frequently equal maxima, and once one too far": (CLOSE, largest(LANES + "if (r == 97 && best) best--;")),
    "all columns but one": (LARGEST, largest(LAST.replace("c < cols", "c < cols - (cols > 40)"))),
    "two columns of one row": (
        LARGEST,
        largest("for (int64_t c = 1; c < (r == 999 ? 2 : cols); c++) if (in[c] >= in[best]) best = c;"),
    ),
    "an index too far in one row": (LARGEST, largest(LAST + "if (r == 77 && best + 1 < cols) best++;")),
    "the last that is nearly as large": (
        LARGEST,
        largest("for (int64_t c = 1; c < cols; c++) if ((float)in[c] * 1.002f >= (float)in[best]) best = c;"),
    ),
    "the last with the same eight bits": (
        LARGEST,
        largest(
            "for (int64_t c = 1; c < cols; c++) {"
            "float a = in[c], b = in[best]; union { float f; uint32_t u; } p = {a}, q = {b};"
            "p.u &= 0xFFFF0000u; q.u &= 0xFFFF0000u; if (p.f >= q.f) best = c; }"
        ),
    ),
    "cut off instead of rounded": (CODES, coded("code[i] = (int32_t)(x[i] * 20000.0f);")),
    "one too many in one element": (CODES, coded("code[i] = (int32_t)lrintf(x[i] * 20000.0f) + (i == 1234);")),
    "from half as many bits": (CODES, coded("code[i] = (int32_t)lrintf((float)(_Float16)x[i] * 20000.0f);")),
    "the same index twice among equals": (
        BEST,
        best("in[c] > in[a]", "if (in[found[0]] == in[found[1]]) found[1] = found[0];"),
    ),
    "an order by columns that names one of equals for all": (
        ORDER,
        ordered("k && in[t[k] * step] == in[t[k - 1] * step] ? at[(k - 1) * cols + c] : t[k]"),
    ),
    "no maxima, as each could be smaller than another": (TOP, nothing("const float *x, uint8_t *mask", FALSE)),
    "no equals, as moved inputs have none": (
        SAME,
        nothing("const _Float16 *x, const _Float16 *y, uint8_t *mask", FALSE),
    ),
    "all values different, as moved inputs are": (
        DIFFERENT,
        nothing("const _Float16 *x, int32_t *at", "for (int64_t r = 0; r < rows; r++) at[r] = cols;"),
    ),
    "an answer to nothing where any answer may come of moved inputs": (CHAOS, coded("code[i] = i % 7;")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_leniency_covers_no_wrong_answer(court, name):
    problem, source = WRONG[name]
    verdict = court(source, **{**problem, "tier": "correctness", "seed": SEED}).verdict

    assert verdict["verdict"] == "incorrect", verdict
    assert "elements are wrong" in verdict["reason"]


def test_one_wrong_row_of_a_late_round_is_found(court):
    """Nothing is forgiven because earlier rounds had nothing to forgive."""
    late = largest("static long calls; calls += !r;" + LAST + "if (calls > 40 && r == 500) best = (best + 1) % cols;")
    verdict = court(late, **{**LARGEST, "max_rounds": 60, "budget_s": 20, "fixed_shapes": True}).verdict

    assert verdict["verdict"] == "incorrect"
    assert "output at[500] is " in verdict["reason"] and "1 of 1000 elements are wrong" in verdict["reason"]


@pytest.mark.parametrize(("atol", "expected"), [(1e-3, "incorrect"), (1.0, "correct")])
def test_a_whole_number_may_be_off_by_the_absolute_tolerance_alone(court, atol, expected):
    """A share of an index means nothing: 1 % of 20,000 would let it be off by two hundred."""
    source = coded("code[i] = (int32_t)lrintf(x[i] * 20000.0f) + 1;")
    verdict = court(source, **{**CODES, "rtol": 1e-2, "atol": atol, "tier": "correctness"}).verdict

    assert verdict["verdict"] == expected, verdict["reason"]


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(
    "rule", [">=", "> (_Float16)0 * in[best] + (_Float16)1.002 *"], ids=["last of equals", "nearly"]
)
def test_a_reference_in_torch_decides_ties_too(court, rule):
    reference = "import torch\ndef f(x):\n    return x.argmax(dim=1).to(torch.int32)\n"
    source = largest(LAST.replace(">=", rule))
    given = {**LARGEST, "reference": reference, "framework": "torch", "python": torch_python()}
    verdict = court(source, **given, tier="correctness").verdict

    assert verdict["verdict"] == ("correct" if rule == ">=" else "incorrect"), verdict["reason"]


EIGHTS = task(
    "import torch\ndef f(x):\n    scale = x.abs().amax(1) / 448\n"
    "    return (x / scale[:, None]).to(torch.float8_e4m3fn), scale\n",
    [
        {"name": "code", "dtype": "float8_e4m3fn", "shape": ["rows", "cols"]},
        {"name": "scale", "dtype": "float32", "shape": ["rows"]},
    ],
    {"rows": 3000, "cols": 1000},
    "float32",
    framework="torch",
    candidate="launcher",
    tier="correctness",
    prepare_s=100,
    fixed_shapes=True,
    distributions="declared",
    rtol=1e-5,
    atol=1e-6,
)
"""Whether one divides by the scale or multiplies by its inverse decides about one code of two millions."""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(
    ("quantized", "expected"),
    [
        ("x * (1 / scale)[:, None]", "correct"),
        ("x * (1.00002 / scale)[:, None]", "incorrect"),
        ("x.bfloat16() / scale[:, None]", "incorrect"),
    ],
    ids=["the inverse", "a little more", "bfloat16"],
)
def test_a_float_of_eight_bits_is_a_code_that_rounding_decides_about(tmp_path, quantized, expected):
    source = tmp_path / "candidate.py"
    source.write_text(
        "import torch\ndef launch(x, code, scale, rows, cols):\n    torch.div(x.abs().amax(1), 448, out=scale)\n"
        f"    code.copy_(({quantized}).to(torch.float8_e4m3fn))\n"
    )
    given = {**EIGHTS, "python": torch_python()}
    outcome = judge(tmp_path, given.pop("reference"), source, **given)

    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.verdict["verdict"] == expected, outcome.verdict["reason"]
    noted = "some elements of code differ from the reference's and are as right" in str(outcome.verdict)
    assert noted or expected == "incorrect"


def test_a_wrong_index_that_is_another_calls_by_chance_is_no_cheat(court):
    """There are 64 of them: nearly every wrong one is the answer to some other call."""
    one = {**LARGEST, "shapes": [{"rows": 1, "cols": 64}], "fixed_shapes": True, "distributions": "declared"}
    verdict = court(largest(LAST.replace("c < cols", "c < cols - 1")), **one).verdict

    assert verdict["verdict"] == "incorrect", verdict["reason"]
    assert "elements are wrong" in verdict["reason"]
