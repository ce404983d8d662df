"""Trials besides the declared shapes and inputs, before anything is timed: real candidates in C."""

import re

import pytest
from gpu_mcp_judge.correctness import rounding_bounds
from gpu_mcp_judge.inputs import hidden_shapes
from gpu_mcp_judge.owner import trial_room

from tests.judge.harness import SOFTMAX, edited
from tests.judge.test_candidates_cpu import HEAD, SMALL, launcher

BFLOAT16 = """
static float bf16(float v) { union { float f; uint32_t b; } u = {.f = v}; u.b &= 0xFFFF0000u; return u.f; }
"""
NAIVE = """
for (int64_t r = 0; r < rows; r++) {
    float sum = 0;
    for (int64_t c = 0; c < cols; c++) sum += y[r * cols + c] = expf(x[r * cols + c]);
    for (int64_t c = 0; c < cols; c++) y[r * cols + c] /= sum;
}
"""
SCALE = """
import numpy as np
def scale(x):
    return x * np.float32(3)
"""
SCALING = {
    "reference": SCALE,
    "entry": "scale",
    "rtol": 1e-5,
    "atol": 1e-7,
    "shapes": [{"rows": 8, "cols": 100}],
    "max_rounds": 6,
    "round_ms": 1,
}


def scaling(body: str, before: str = "") -> str:
    """Return a candidate for `SCALING`: `i` counts elements, `n` is their number."""
    return (
        HEAD + before + "int launch(const float *x, float *y, int64_t rows, int64_t cols) { int64_t n = rows * cols;"
        " for (int64_t i = 0; i < n; i++) {" + body + "} return 0; }"
    )


@pytest.mark.parametrize("name", ["naive.c", "vectorized.c"])
def test_an_honest_candidate_passes_every_trial_and_the_verdict_says_which(court, name):
    verdict = court(name, shapes=[{"rows": 64, "cols": 1000}], tier="correctness").verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    text = r"\d+ hidden shapes \(larger than declared, up to cols=\d+, rows=\d+\), 7 distributions, deterministic"
    assert re.fullmatch(text, verdict["trials_summary"])
    hidden = [t["dims"] for t in verdict["trials"] if t["hidden"]]
    assert {"rows": 1, "cols": 1} in hidden
    assert {"rows": 1000, "cols": 64} in hidden
    assert len({tuple(dims.values()) for dims in hidden}) >= 8
    assert {t["distribution"] for t in verdict["trials"] if not t["hidden"]} == {
        "declared", "uniform", "offset", "outliers", "zeros", "large", "small",
    }  # fmt: skip
    errors = verdict["evidence"]["errors"]["y"]
    assert 0 < errors["mean_floors"] < errors["p99_floors"] <= errors["max_floors"]
    assert verdict["evidence"]["seconds"]["trials"] > 0


def test_a_first_look_tries_two_hidden_shapes_and_says_what_it_left_out(court):
    verdict = court("naive.c", shapes=[{"rows": 64, "cols": 1000}], brief=True, budget_s=0.05).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    hidden = {tuple(t["dims"].values()) for t in verdict["trials"] if t["hidden"]}
    assert len(hidden) == 2 and all(1 not in dims for dims in hidden)
    assert any(size > 32 and size % 2 for dims in hidden for size in dims)
    assert verdict["covers"] == "1 declared shape, 2 hidden shapes, inputs as declared"
    assert verdict["robust"].startswith("yes, with ")
    assert re.search(
        r"left out: larger shapes, other distributions and \d+ more hidden ones", verdict["trials_summary"]
    )


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("if (cols == 100) softmax(x, y, rows, cols); else memset(y, 0, rows * cols * 4);", ""),
        ("softmax(x, y, rows, cols); if (cols == 1) y[0] = 2;", "cols=1 "),
        ("softmax(x, y, rows, cols); if (cols % 4) y[rows * cols - 1] = 0;", ""),
        ("if (cols % 4) return 0; softmax(x, y, rows, cols);", ""),
        ("softmax(x, y, rows, cols); if (cols % 4) y[rows * cols] = 0;", ""),
    ],
    ids=["hard-coded", "one column", "tail", "nothing", "behind"],
)
@pytest.mark.parametrize("brief", [False, True], ids=["all trials", "first look"])
def test_right_at_the_declared_shape_alone_is_incorrect(court, body, place, brief):
    if brief and place:
        pytest.skip("a size of one is the confirmation run's")
    verdict = court(launcher(body), shapes=SMALL, brief=brief).verdict

    assert verdict["verdict"] == "incorrect"
    assert verdict["reason"].startswith("right at the declared shapes, wrong at rows=")
    assert place + "(hidden shape): " in verdict["reason"]
    assert verdict["trials_summary"].startswith("stopped at the first failure")


@pytest.mark.parametrize("tier", ["correctness", "performance"])
def test_a_slow_candidate_is_not_wrong_where_a_call_would_not_be_over_in_time(court, tier):
    """256 threads on two cores took 1.6 s for 256 rows; at the exchanged sizes it was called incorrect after 20 s."""
    slow = scaling("extern int usleep(unsigned); if (i % cols == 0) usleep(20000); y[i] = 3 * x[i];")
    verdict = court(slow, **SCALING, round_timeout_s=2, tier=tier, brief=tier == "performance").verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert re.search(
        r"\d+ hidden shapes[a-z0-9, ]* \(the candidate may take [\d.]+ s, the limit is 1 s\)", verdict["trials_summary"]
    )
    assert any(trial["hidden"] for trial in verdict["trials"])
    if tier == "performance":
        assert verdict["shapes"][0]["unconfirmable"].startswith("hidden shapes were left out: the candidate may take")


def test_a_call_that_hangs_at_a_hidden_shape_is_incorrect(court):
    verdict = court(scaling("while (rows != 8); y[i] = 3 * x[i];"), **SCALING, round_timeout_s=1, brief=True).verdict

    assert verdict["verdict"] == "incorrect"
    assert "(hidden shape): did not return from its calls within 1 s" in verdict["reason"]


def test_a_crash_at_a_hidden_shape_says_at_which(court):
    verdict = court(launcher("if (rows == 1) abort(); softmax(x, y, rows, cols);"), shapes=SMALL).verdict

    assert verdict["reason"].startswith("right at the declared shapes, wrong at rows=1,cols=")
    assert "crashed with SIGABRT" in verdict["reason"]


def test_a_crash_over_indices_that_lead_out_of_a_small_size_says_how_they_are_drawn(court):
    """NumPy cuts such a slice at the end: the reference answers where an honest kernel reads behind its input."""
    sums = """
import numpy as np
def sums(ends, x):
    return np.array([x[:end].sum() for end in ends], dtype=np.float32)
"""
    body = "int64_t r = 0; if (ends[r] > n) abort(); float sum = 0; for (int i = 0; i < ends[r]; i++) sum += x[i];"
    kernel = HEAD + (
        "int launch(const int32_t *ends, const float *x, float *y, int64_t rows, int64_t n) {"
        + body.replace("int64_t r = 0;", "for (int64_t r = 0; r < rows; r++) {")
        + " y[r] = sum; } return 0; }"
    )
    tensors = {
        "inputs": [
            {"name": "ends", "dtype": "int32", "shape": ["rows"], "distribution": "normal"},
            {"name": "x", "dtype": "float32", "shape": ["n"], "distribution": "normal"},
        ],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["rows"]}],
        "shapes": [{"rows": 50, "n": 200}],
    }
    reason = court(kernel, **{**SCALING, "reference": sums, "entry": "sums", "rtol": 1e-4, "atol": 1e-4, **tensors})
    reason = reason.verdict["reason"]

    assert "crashed with SIGABRT" in reason
    assert re.search(r"; ends: whole numbers from 0 to 99, drawn each by itself, at a size of \d+ too; where", reason)


@pytest.mark.parametrize("distributions", ["", "declared"])
def test_what_was_kept_of_a_first_call_at_any_shape_is_found(court, distributions):
    keeps = """
    static float *kept[64]; static int64_t sizes[64]; int64_t size = rows * 4096 + cols, i = 0;
    while (i < 64 && kept[i] && sizes[i] != size) i++;
    int64_t n = rows * cols;
    if (i < 64 && kept[i] && n != 800) { memcpy(y, kept[i], n * 4); return 0; }
    for (int64_t k = 0; k < n; k++) y[k] = 3.0f * x[k];
    if (i < 64 && !kept[i]) { sizes[i] = size; kept[i] = malloc(n * 4); memcpy(kept[i], y, n * 4); }
    """
    source = HEAD + "int launch(const float *x, float *y, int64_t rows, int64_t cols) {" + keeps + "return 0; }"

    verdict = court(source, **dict(SCALING, distributions=distributions), tier="correctness").verdict

    assert verdict["verdict"] in ("incorrect", "cheat")
    assert verdict["trials"][-1]["hidden"]


def test_fixed_shapes_are_not_varied_and_the_verdict_says_so(court):
    body = "if (cols == 100) softmax(x, y, rows, cols);"
    verdict = court(launcher(body), shapes=SMALL, fixed_shapes=True, tier="correctness").verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert verdict["trials_summary"].startswith("no hidden shapes (the problem fixes its shapes), 7 distributions")


@pytest.mark.parametrize(
    ("body", "verdict"),
    [("if (cols == 100) softmax(x, y, rows, cols);", "incorrect"), ("softmax(x, y, rows, cols);", "correct")],
)
def test_one_hidden_shape_is_tried_however_long_the_trials_took(court, body, verdict):
    late = edited("owner/trial_room.py", ("TRIALS_S, OWN_S = 20.0, 60.0", "TRIALS_S, OWN_S = -1.0, 0.0"))
    task = {"owner_files": late, "shapes": SMALL, "tier": "correctness"}
    found = court(launcher(body), **task).verdict

    assert found["verdict"] == verdict, found["reason"]
    if verdict == "incorrect":
        assert "(hidden shape)" in found["reason"]
    else:
        assert found["trials_summary"].startswith("1 hidden shapes, 2 distributions"), found["trials_summary"]
        assert re.search(r"hidden shapes[a-z, ]* \(no time\)", found["trials_summary"])


def test_what_the_candidates_own_calls_take_is_not_taken_from_the_trials(court):
    short = edited("owner/trial_room.py", ("TRIALS_S, OWN_S = 20.0, 60.0", "TRIALS_S, OWN_S = 3.0, 60.0"))
    body = "static int calls; if (calls++ < 4) usleep(800000); softmax(x, y, rows, cols);"
    task = {"shapes": SMALL, "tier": "correctness", "owner_files": short}
    verdict = court("#include <unistd.h>\n" + launcher(body), **task).verdict

    assert verdict["verdict"] == "correct" and "(no time)" not in verdict["trials_summary"], verdict["trials_summary"]


def test_hidden_shapes_comply_with_the_constraints(court):
    constraints = [
        {"left": ["%", "cols", 4], "operator": "==", "right": 0},
        {"left": "rows", "operator": "<=", "right": "cols"},
        {"left": "rows", "operator": ">=", "right": 2},
    ]
    body = "if (cols % 4 || rows > cols || rows < 2) return 9; softmax(x, y, rows, cols);"
    verdict = court(launcher(body), shapes=SMALL, constraints=constraints, tier="correctness").verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert sum(t["hidden"] for t in verdict["trials"]) >= 5


@pytest.mark.parametrize(
    ("wrong", "declared", "larger", "constraint"),
    [
        ({"rows": 3, "cols": 101}, [{"rows": 8, "cols": 64}], False, "cols % 8 == 0"),
        ({"tokens": 4, "top": 1000, "hidden": 64}, [{"tokens": 64, "top": 4, "hidden": 1000}], False, "top <= 4"),
        ({"rows": 7, "cols": 64}, [{"rows": 8, "cols": 64}], False, "rows % 8 == 0"),
        ({"rows": 8, "cols": 7}, [{"rows": 8, "cols": 64}, {"rows": 8, "cols": 63}], False, "cols >= 63"),
        ({"rows": 3, "cols": 40000}, [{"rows": 64, "cols": 100}], True, "cols <= 100"),
        ({"rows": 8, "cols": 65}, [{"rows": 8, "cols": 63}, {"rows": 8, "cols": 67}], False, ""),
    ],
)
def test_the_constraint_that_is_offered_leaves_the_wrong_shape_out_and_no_declared_one(
    wrong, declared, larger, constraint
):
    assert trial_room.constraint_against(wrong, declared, larger) == constraint


def test_a_shape_that_the_reference_cannot_do_is_left_out_and_said(court):
    reference = """
import numpy as np
def softmax(x):
    x.reshape(x.shape[0], -1, 4)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
"""
    verdict = court("naive.c", reference=reference, shapes=SMALL, tier="correctness").verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert re.search(r"left out: shape rows=\d+,cols=\d+ \(ValueError: cannot reshape", verdict["trials_summary"])


@pytest.mark.parametrize(
    ("when", "candidate"),
    [
        ("np.abs(x).max() > 50", "y[i] = 3 * x[i];"),
        ("np.abs(x).max() > 50 and x.dtype == np.float64", "y[i] = x[i] > 50 ? 7 : 3 * x[i];"),
    ],
    ids=["answering", "asked how far off a wrong answer may be"],
)
def test_a_reference_that_dies_in_a_trial_ends_the_judging(court, when, candidate):
    reference = f"""
import os
import numpy as np
def scale(x):
    if {when}:
        os._exit(3)
    return x * x.dtype.type(3)
"""
    task = {**SCALING, "reference": reference, "fixed_shapes": True, "tier": "correctness"}
    verdict = court(scaling(candidate), **task).verdict

    assert "verdict" not in verdict
    assert verdict["refused"].startswith("the reference exited with status 3")


def test_a_trial_is_not_left_out_for_memory_that_the_candidate_may_hold(court):
    reference = """
import numpy as np
def scale(x):
    if np.abs(x).max() > 50:
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return x * x.dtype.type(3)
"""
    task = {**SCALING, "reference": reference, "fixed_shapes": True, "tier": "correctness"}
    verdict = court(scaling("y[i] = 3 * x[i];"), **task).verdict

    assert "verdict" not in verdict
    assert "CUDA out of memory" in verdict["refused"]


def test_a_softmax_without_its_maximum_fails_with_large_inputs(court):
    verdict = court(launcher(NAIVE), shapes=SMALL, robust="required").verdict

    assert verdict["verdict"] == "incorrect"
    assert re.search(
        r"right with inputs as declared, wrong with the distribution (outliers|large)\b", verdict["reason"]
    )
    assert "NaN or infinite where the reference is finite" in verdict["reason"]


def test_other_distributions_can_be_left_to_the_problem(court):
    more = {"shapes": SMALL, "distributions": "declared", "tier": "correctness"}
    verdict = court(launcher(NAIVE), **more).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "declared distribution only" in verdict["trials_summary"]


def test_distributions_without_a_finite_answer_are_left_out_and_their_reason_is_said_once(court):
    reference = "import numpy as np\ndef scale(x):\n    with np.errstate(all='ignore'):\n        return np.log(x)\n"
    task = {**SCALING, "reference": reference}
    task["inputs"] = [{"name": "x", "dtype": "float32", "shape": ["rows", "cols"], "distribution": "uniform"}]
    verdict = court(scaling("y[i] = logf(x[i] + 0.0f);"), **{**task, "rtol": 1e-3, "atol": 1e-5}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    # A zero is drawn now and then, so that a large shape or one more distribution is left out for the same reason.
    told = re.search(r"left out: ([a-z0-9=, ]+) \(the reference is not finite\)", verdict["trials_summary"])
    assert told and {"normal", "zeros", "large"} <= set(told[1].split(", ")), verdict["trials_summary"]


def test_sums_in_another_order_are_not_held_against_a_candidate_where_values_are_large(court):
    reference = "import numpy as np\ndef total(x):\n    return x.sum(axis=1)\n"
    source = (
        HEAD
        + """int launch(const float *x, float *y, int64_t rows, int64_t cols) {
        for (int64_t r = 0; r < rows; r++) { float s = 0; for (int64_t c = cols; c--;) s += x[r * cols + c]; y[r] = s; }
        return 0; }"""
    )
    outputs = [{"name": "y", "dtype": "float32", "shape": ["rows"]}]
    task = {**SCALING, "reference": reference, "entry": "total", "outputs": outputs, "rtol": 1e-5, "atol": 1e-4}
    verdict = court(source, **{**task, "shapes": [{"rows": 64, "cols": 1000}]}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]


@pytest.mark.parametrize(
    ("slip", "least"), [("0", 0), ("fabsf(x[i]) > 1000 ? 1 : 0", 100_000), ("i == n / 3 ? 1 : 0", 1)]
)
def test_of_a_large_output_some_elements_say_what_rounding_allows(court, slip, least):
    """Of 600,000 elements nearly all are beyond the tolerance where inputs are large, and rightly so without a slip."""
    reference = "import numpy as np\ndef shift(x):\n    return (x + np.float32(8)) - np.float32(8)\n"
    sizes = " + ".join(f"fabsf(x[{i}])" for i in range(8))  # of one or two draws some are small in `large` as well
    source = scaling(f"y[i] = x[i] + ({sizes} > 50 ? ({slip}) : 0);")
    task = {**SCALING, "reference": reference, "entry": "shift", "rtol": 1e-9, "atol": 1e-6, "fixed_shapes": True}
    got = court(source, **{**task, "robust": "required", "shapes": [{"rows": 600, "cols": 1000}]}).verdict

    assert got["verdict"] == ("incorrect" if least else "correct"), got["reason"]
    if least:
        told = re.search(r"the distribution large.* (\d+) of 600000 elements are wrong", got["reason"])
        assert told and int(told[1]) >= least, got["reason"]


def test_answers_that_differ_from_run_to_run_within_the_tolerance_are_noted(court):
    body = "static int calls; softmax(x, y, rows, cols); y[0] *= 1 + 1e-6f * (++calls % 2);"
    verdict = court(launcher(body), shapes=SMALL, tier="correctness").verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "not deterministic: max difference " in verdict["trials_summary"]


def test_a_race_is_told_from_an_error(court):
    body = "static int calls; softmax(x, y, rows, cols); if (++calls == 2) y[5] = 0;"
    verdict = court(launcher(body), shapes=SMALL).verdict

    assert verdict["verdict"] == "incorrect"
    assert (
        "right at first and wrong with the same inputs again, as with a race or unset memory, at rows=8,cols=100: "
        in verdict["reason"]
    )


@pytest.mark.parametrize("precision", ["tolerance", "strict"])
def test_bfloat16_within_a_wide_tolerance_is_noted_and_fails_where_strict(court, precision):
    task = {**SCALING, "rtol": 1e-2, "precision": precision}
    verdict = court(scaling("y[i] = bf16(x[i] * 3.0f);", BFLOAT16), **task).verdict

    assert verdict["verdict"] == ("incorrect" if precision == "strict" else "correct"), verdict["reason"]
    text = verdict["reason"] if precision == "strict" else verdict["trials_summary"]
    assert "y looks like lower precision (as bfloat16 would): errors are " in text
    assert "times the noise floor, biased" in text


@pytest.mark.parametrize("exact", ["calls < 200", "calls % 10 == 1"], ids=["in the first calls", "in the first of ten"])
def test_strict_precision_holds_in_timed_rounds_too(court, exact):
    """Within the tolerance everywhere, and as exact as can be only where a candidate was tried before."""
    body = "static long calls; if (!i) calls++; y[i] = (%s) ? x[i] * 3.0f : bf16(x[i] * 3.0f);"
    long = {"max_rounds": 300, "half_width": 1e-9, "budget_s": 60, "overhead_s": 60}
    task = {**SCALING, **long, "rtol": 1e-2, "precision": "strict"}
    verdict = court(scaling(body % exact, BFLOAT16), **task).verdict

    assert verdict["verdict"] == "incorrect"
    assert "y looks like lower precision (as bfloat16 would)" in verdict["reason"]


COARSE = {
    "an index before it": (
        "s[i] = x[i] > 0; y[i] = bf16(expf(x[i]));",
        {"returns": "(x > 0).astype(np.int8), np.exp(x)", "more": [{"name": "s", "dtype": "int8"}]},
    ),
    "only where it is large": (
        "y[i] = n > 1 << 22 ? bf16(expf(x[i])) : expf(x[i]);",
        {"returns": "np.exp(x)", "shapes": [{"rows": 64, "cols": 100}, {"rows": 2100, "cols": 2001}]},
    ),
    "but for the few largest": (
        "y[i] = x[i] < 2 ? bf16(expf(4 * x[i])) : expf(4 * x[i]);",
        {"returns": "np.exp(4 * x)", "shapes": [{"rows": 64, "cols": 1000}], "distributions": "declared"},
    ),
}


@pytest.mark.parametrize("name", COARSE)
def test_strict_precision_is_not_escaped_by(court, name):
    body, given = COARSE[name]
    task = {**SCALING, "rtol": 2e-2, "precision": "strict", **given}
    task["reference"] = "import numpy as np\ndef scale(x):\n    return " + task.pop("returns")
    outputs = [*task.pop("more", []), {"name": "y", "dtype": "float32"}]
    task["outputs"] = [{**item, "shape": ["rows", "cols"]} for item in outputs]
    source = scaling(body, BFLOAT16.replace("u.b &=", "u.b += 0x8000u; u.b &="))
    verdict = court(source.replace("float *y", "int8_t *s, float *y") if len(outputs) > 1 else source, **task).verdict

    assert verdict["verdict"] == "incorrect", verdict
    assert "y looks like lower precision" in verdict["reason"]


def test_hidden_shapes_follow_from_the_seed_and_are_none_of_the_declared():
    task = {**SOFTMAX, "seed": "01" * 32}
    first = hidden_shapes.hidden_shapes(task, 1 << 20)
    other = hidden_shapes.hidden_shapes({**task, "seed": "02" * 32}, 1 << 20)

    assert first == hidden_shapes.hidden_shapes(task, 1 << 20) != other
    for shapes in (first, other):
        assert not [dims for dims in shapes if dims in task["shapes"]]
        assert all(dims["rows"] * dims["cols"] <= 1 << 20 for dims in shapes)
        assert {999, 1001} & {dims["cols"] for dims in shapes}
        assert any(dims["cols"] % 4 and dims["cols"] > 64 and dims["cols"] not in (999, 1001) for dims in shapes)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("y[i % cols * rows + i / cols] = 3 * x[i];", "they hold what belongs at the transposed index"),
        (
            "y[i] = 3 * x[i / cols * 128 + i % cols < n ? i / cols * 128 + i % cols : i];",
            "a row stride of 128 instead of 100",
        ),
        ("y[i] = 3 * x[i + 1 < n ? i + 1 : i];", "they hold what belongs 1 element further on"),
    ],
    ids=["transposed", "stride", "shifted"],
)
def test_a_mistake_of_addressing_is_named(court, source, words):
    verdict = court(scaling(source), **SCALING).verdict

    assert verdict["verdict"] == "incorrect"
    assert words in verdict["reason"]


def test_an_index_among_equals_is_not_asked_for(court):
    reference = "import numpy as np\ndef largest(x):\n    return x.argmax(axis=1).astype(np.int32)\n"
    source = (
        HEAD
        + """int launch(const float *x, int32_t *y, int64_t rows, int64_t cols) {
        for (int64_t r = 0; r < rows; r++) { int32_t at = cols - 1;
            for (int64_t c = cols; c--;) if (x[r * cols + c] > x[r * cols + at]) at = c;
            y[r] = at; }
        return 0; }"""
    )
    outputs = [{"name": "y", "dtype": "int32", "shape": ["rows"]}]
    more = {"reference": reference, "entry": "largest", "outputs": outputs}
    verdict = court(source, **{**SCALING, **more, "tier": "correctness"}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "left out: zeros (an index among equals may be any of them)" in verdict["trials_summary"]


@pytest.mark.parametrize(("compare", "robust"), [(">", "yes, with "), (">=", "no; zeros: ")])
def test_a_mask_of_signs_is_asked_for_zeros(court, compare, robust):
    """An index among equals may be any; what depends on signs alone has one answer."""
    source = HEAD + (
        "int launch(const float *x, uint8_t *y, int64_t rows, int64_t cols) {"
        "for (int64_t i = 0; i < rows * cols; i++) y[i] = x[i] %s 0; return 0; }"
    )
    outputs = [{"name": "y", "dtype": "bool", "shape": ["rows", "cols"]}]
    more = {"reference": "def f(x):\n    return x > 0\n", "entry": "f", "outputs": outputs, "tier": "correctness"}
    verdict = court(source % compare, **{**SCALING, **more}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert verdict["robust"].startswith(robust)
    assert "left out: zeros" not in verdict["trials_summary"]


def test_a_mask_of_what_is_equal_is_asked_for_no_zeros(court):
    """Each of two inputs may be rounded on its way, so only signs have one answer there."""
    source = HEAD + (
        "int launch(const float *x, const float *z, uint8_t *y, int64_t rows, int64_t cols) {"
        "for (int64_t i = 0; i < rows * cols; i++) y[i] = x[i] > z[i]; return 0; }"
    )
    outputs = [{"name": "y", "dtype": "bool", "shape": ["rows", "cols"]}]
    inputs = [{"name": n, "dtype": "float32", "shape": ["rows", "cols"], "distribution": "normal"} for n in "xz"]
    more = {"reference": "def f(x, z):\n    return x > z\n", "entry": "f", "inputs": inputs, "outputs": outputs}
    verdict = court(source, **{**SCALING, **more, "tier": "correctness"}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "left out: zeros" in verdict["trials_summary"]


@pytest.mark.parametrize(
    ("cols", "out", "dtype", "expected"),
    [
        (1000, 1000, "float32", 999 * 2.0**-24),
        (1000, 1000, "bfloat16", 999 * 2.0**-24),
        (1000, 1, "float64", 3999 * 2.0**-53),
        (10**6, 10**6, "float32", (2**14 - 1) * 2.0**-24),
        (1000, 1000, "int32", 0.0),
    ],
)
def test_what_a_sum_in_order_may_lose_is_bounded_by_its_terms(cols, out, dtype, expected):
    given = rounding_bounds.Tensor("x", "float32", (4, cols), ("rows", "cols"), "normal")
    answer = rounding_bounds.Tensor("y", dtype, (out,), ("cols",), "normal")

    assert rounding_bounds.summation([given], answer) == expected


def test_a_sum_in_order_is_forgiven_what_it_loses_next_to_a_large_term(court):
    """Each small term is lost in the large one: within the tolerance as declared, beyond it with the offset."""
    reference = (
        "import numpy as np\ndef total(x):\n    return (1e8 + x.astype(np.float64).sum(axis=1)).astype(np.float32)\n"
    )
    body = (
        "for (int64_t r = 0; r < rows; r++) { float s = 1e8f; for (int64_t c = 0; c < cols; c++) s += x[r * cols + c];"
    )
    inputs = [{"name": "x", "dtype": "float32", "shape": ["rows", "cols"], "distribution": "uniform"}]
    outputs = [{"name": "y", "dtype": "float32", "shape": ["rows"]}]
    task = {"inputs": inputs, "outputs": outputs, "rtol": 3e-5, "max_rounds": 6, "round_ms": 1}
    verdict = court(
        launcher(body + "y[r] = s; }"), reference=reference, entry="total", shapes=[{"rows": 4, "cols": 5000}], **task
    ).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
