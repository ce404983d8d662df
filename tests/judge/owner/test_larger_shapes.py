"""Hidden shapes beyond the declared ones: real candidates in C."""

import pytest

from tests.judge.checks.test_robustness import PRODUCT, SEED, product
from tests.judge.harness import edited
from tests.judge.owner.test_untimed_trials import SCALING, scaling

LIMITED = {**SCALING, "tier": "correctness"}
PATIENT = {
    "owner_files": {
        **edited("owner/larger_shapes.py", ("CALL_S = 0.3", "CALL_S = 300.0")),
        **edited("owner/trial_room.py", ("TRIALS_S, OWN_S = 20.0", "TRIALS_S, OWN_S = 200.0")),
    }
}
"""A busy machine makes the reference look slow, and what it may take too long for is left out."""
TASK = {**LIMITED, **PATIENT}


@pytest.mark.parametrize("mask", ["0x7fff", "0xffff"], ids=["signed", "unsigned"])
def test_an_index_of_16_bits_is_found_beyond_its_end(court, mask):
    verdict = court(scaling(f"y[i] = 3 * x[i / cols * cols + (i % cols & {mask})];"), **TASK).verdict

    assert verdict["verdict"] == "incorrect"
    assert "cols=" in verdict["reason"] and "(hidden shape, larger than declared)" in verdict["reason"]
    assert 'register the problem with trials: constraints = ["cols <= 100"]' in verdict["reason"]


def test_a_correct_verdict_says_how_far_the_shapes_go(court):
    verdict = court(scaling("y[i] = 3 * x[i];"), **TASK).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    sizes = [trial["dims"] for trial in verdict["trials"] if trial["hidden"]]
    largest = {name: max(dims[name] for dims in sizes) for name in ("rows", "cols")}
    assert min(largest.values()) > 65536
    assert "larger than declared, up to cols={cols}, rows={rows}".format(**largest) in verdict["covers"]


def test_what_the_reference_would_take_too_much_for_is_left_out_with_the_limit(court):
    reference = """
import numpy as np
def scale(x):
    n = x.shape[1]
    if n > 100:
        np.linalg.norm(np.outer(np.arange(n * 2.0), np.arange(n * 2.0)))
    return x * x.dtype.type(3)
"""
    verdict = court(scaling("y[i] = 3 * x[i];"), **{**LIMITED, "reference": reference}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert max(t["dims"]["cols"] for t in verdict["trials"]) < 32768
    assert "rows=" in verdict["covers"]


@pytest.mark.parametrize(("shape", "size", "end"), [(["n"], 1 << 20, 1 << 20), (["n", "n"], 100, 150)])
def test_twice_the_declared_size_is_tried_where_no_other_larger_one_is(court, shape, size, end):
    task = {
        **LIMITED,
        "reference": "def scale(x):\n    return 3 * x\n",
        "inputs": [{"name": "x", "dtype": "float32", "shape": shape}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": shape}],
        "shapes": [{"n": size}],
    }
    count = " * ".join(shape)
    source = "#include <stdint.h>\nint launch(const float *x, float *y, int64_t n) {"
    source += f" for (int64_t i = 0; i < {count} && n <= {end}; i++) y[i] = 3 * x[i]; return 0; }}"
    verdict = court(source, **task).verdict

    assert verdict["verdict"] == "incorrect", verdict["trials_summary"]
    assert "(hidden shape, larger than declared)" in verdict["reason"]


def test_what_every_call_costs_does_not_leave_out_twice_a_large_declared_size(court):
    """A million elements beside a small shape, and a reference whose calls take a millisecond whatever their size."""
    task = {
        **LIMITED,
        "owner_files": edited("owner/larger_shapes.py", ("CALL_S = 0.3", "CALL_S = 30.0")),
        "reference": "import time\n\ndef scale(x):\n    time.sleep(1e-3)\n    return 3 * x\n",
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["n"]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["n"]}],
        "shapes": [{"n": 100}, {"n": 1 << 20}],
    }
    source = "#include <stdint.h>\nint launch(const float *x, float *y, int64_t n) {"
    source += " for (int64_t i = 0; i < n && i < 1 << 20; i++) y[i] = 3 * x[i]; return 0; }"
    verdict = court(source, **task).verdict

    assert verdict["verdict"] == "incorrect", verdict["trials_summary"]
    assert "(hidden shape, larger than declared)" in verdict["reason"]


def test_a_candidate_is_not_called_slow_at_shapes_that_the_reference_is_too_slow_for(court):
    """The owner would doubt its time for shapes that it never tries."""
    slow = "extern int usleep(unsigned); if (i == 0 && (rows > 1000 || cols > 1000)) usleep(400000); y[i] = 3 * x[i];"
    reference = (
        "import time\ndef scale(x):\n    time.sleep(0.2 * (max(x.shape) > 1000))\n    return x * x.dtype.type(3)\n"
    )
    # A busy machine has a reason of its own, which would hide this one.
    alone = edited("owner/owner_process.py", ('self.shapes[-1].get("unconfirmable") or LEFT_OUT', "LEFT_OUT"))
    verdict = court(scaling(slow), **{**SCALING, "reference": reference, "owner_files": alone}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert max(trial["dims"]["rows"] for trial in verdict["trials"]) < 8192
    assert "the candidate may take" not in str(verdict["shapes"][0].get("unconfirmable"))


def test_what_an_interpreter_would_take_too_long_for_is_left_out_with_the_limit(court):
    slow = "extern int usleep(unsigned); if (i == 0 && rows > 1000) usleep(400000); y[i] = 3 * x[i];"
    interpreted = court(scaling(slow), **TASK, untimed="an interpreter", interpreted=True).verdict
    compiled = court(scaling(slow), **TASK, untimed="this sandbox is too weak for times").verdict

    def largest(verdict):
        return max(trial["dims"]["rows"] for trial in verdict["trials"])

    assert interpreted["verdict"] == compiled["verdict"] == "correct", interpreted["reason"]
    assert 2048 <= largest(interpreted) < 8192, "0.4 s a call at 2,048 rows"
    assert f"rows={largest(interpreted)}" in interpreted["covers"], "the verdict says how far it went"
    assert "the candidate may take" in str(interpreted) and "the limit is 5 s" in str(interpreted)
    assert largest(compiled) > 65536, "who is slow on purpose is spared nothing"


def test_what_grows_with_the_square_of_a_size_is_left_out_before_it_is_late(court):
    """A plain Fourier transform of 2,048 numbers took 0.2 s, and one of 32,768 was called incorrect after 20 s."""
    slow = "extern int usleep(unsigned); if (i == 0) usleep(cols * cols / 80); y[i] = 3 * x[i];"
    verdict = court(scaling(slow), **{**TASK, "round_timeout_s": 2}).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "cols beyond 100 (the candidate may take" in verdict["trials_summary"]


def test_an_interpreter_is_spared_a_first_size_that_a_square_would_make_late(court):
    """Attention took 240 s for 2,122 rows in Triton's interpreter, and was called incorrect."""
    slow = "extern int usleep(unsigned); if (i == 0) usleep(cols * cols * 4); y[i] = 3 * x[i];"
    task = {**TASK, "round_timeout_s": 2}
    verdict = court(scaling(slow), **task, untimed="an interpreter", interpreted=True).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "in the interpreter, the limit is 1 s" in verdict["trials_summary"]


def test_constraints_and_fixed_shapes_bound_them(court):
    constraints = [{"left": "cols", "operator": "<=", "right": 200}]
    body = "if (cols > 200) return 9; y[i] = 3 * x[i];"
    bounded = court(scaling(body), **TASK, constraints=constraints).verdict
    fixed = court(scaling("y[i] = 3 * x[i];"), **TASK, fixed_shapes=True).verdict

    assert bounded["verdict"] == "correct", bounded["reason"]
    assert "cols beyond 100 (constraints)" in bounded["trials_summary"]
    assert not any(trial["hidden"] for trial in fixed["trials"])


def test_the_end_of_a_long_sum_that_is_left_out_is_no_lower_precision(court):
    """The sum of some 550 of 65,589 terms could be lost to a lower precision, had shorter sums not been exact."""
    short = "if (k > 65535) for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) {"
    short += " float s = 0; for (int64_t l = 0; l < 65000; l++) s += a[i * k + l] * b[l * n + j]; y[i * n + j] = s; }"
    source = product("float: s += u * v;").replace(" return 0; }", short + " return 0; }")
    verdict = court(source, **PRODUCT, **PATIENT, seed=SEED).verdict  # few draws have too few outputs to tell

    assert verdict["verdict"] == "incorrect"
    assert "larger than declared" in verdict["reason"]
