"""The examples and further candidates on the CPU, judged by the real three processes."""

from typing import Any

import pytest
from gpu_mcp_judge.devices import cpu

from tests.judge.harness import EXAMPLES, believing, build, edited, judge, patient

HEAD = """
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols; float *out = y + r * cols; float top = in[0], sum = 0;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}
"""
SMALL = [{"rows": 8, "cols": 100}]


def launcher(body: str) -> str:
    return HEAD + "int launch(const float *x, float *y, int64_t rows, int64_t cols) {" + body + " return 0; }"


def test_an_honest_candidate_whose_threads_share_the_work_is_correct(court):
    shapes = [{"rows": 64, "cols": 1000}, {"rows": 7, "cols": 4097}]
    verdict = court("vectorized.c", shapes=shapes, round_ms=1, max_rounds=9, owner_files=believing()).verdict

    assert (verdict["verdict"], verdict["reason"]) == ("correct", "")
    assert [s["verdict"] for s in verdict["shapes"]] == ["correct", "correct"]


def test_an_honest_candidate_is_correct_and_has_a_time_with_an_interval(court):
    shapes = [{"rows": 64, "cols": 4096}, {"rows": 100, "cols": 1001}]
    verdict = court("naive.c", shapes=shapes, owner_files=believing()).verdict

    assert (verdict["verdict"], verdict["reason"]) == ("correct", "")
    assert [s["verdict"] for s in verdict["shapes"]] == ["correct", "correct"]
    for shape in verdict["shapes"]:
        assert 0 < shape["candidate"]["low_us"] <= shape["candidate"]["median_us"] <= shape["candidate"]["high_us"]
        assert shape["speedup_low"] <= shape["speedup"] <= shape["speedup_high"]
        assert len(shape["samples"]["candidate_us"]) == shape["candidate"]["rounds"] >= 6
        assert shape["calls_checked"] >= shape["candidate"]["rounds"] * shape["candidate"]["calls_per_round"]
        assert shape["max_rel_error"] < 1e-4
    assert verdict["evidence"]["memory"] == "memfd, inputs sealed"
    seconds = verdict["evidence"]["seconds"]
    assert set(seconds) == {
        "start",
        "supervisor",
        "window",
        "trials",
        "fill",
        "reference",
        "candidate",
        "check",
        "state",
        "wait",
        "map",
        "launch",
        "other",
        "total",
    }
    assert seconds["candidate"] > 0 < seconds["reference"]


@pytest.mark.parametrize("compiled", [True, False])
def test_calls_are_made_by_compiled_code_and_by_python_where_there_is_none(court, compiled):
    task = {"shapes": SMALL, "round_ms": 1, "max_rounds": 6, "owner_files": believing()}
    honest = court("naive.c", compiled_calls=compiled, **task).verdict
    assert honest["verdict"] == "correct", honest["reason"]
    by = honest["evidence"]["candidate_calls_by"]
    assert by == ("compiled C" if compiled else "Python: no C compiler on this host")


@pytest.mark.parametrize(("more_s", "confirmed"), [("0.0", True), ("0.5 * (end - begin)", False)])
def test_where_the_judge_s_clock_reads_much_more_than_the_candidate_s_it_counts_and_that_is_said(
    court, more_s, confirmed
):
    end = "end - max(begin, player.thawed_s)"
    slower = f"{end} + ({more_s} if player.role == 'candidate' else 0.0)"
    clock = edited("timing/timed_pass.py", (end, slower))
    shape = court("naive.c", owner_files={**believing(), **clock}).verdict["shapes"][0]

    samples = shape["samples"]
    if confirmed and shape["unconfirmable"]:
        pytest.skip("this machine is too busy to confirm a time")
    assert shape["speedup"] is not None and ("% more" in shape["unconfirmable"]) is not confirmed
    assert (samples["candidate_us"] == pytest.approx(samples["outside_us"], rel=1e-3)) is not confirmed


@pytest.mark.parametrize("compiled", [True, False])
def test_a_launcher_that_fails_in_the_middle_is_named_by_its_call(court, compiled):
    source = launcher("static int n; softmax(x, y, rows, cols); if (++n == 20) return -3;")
    failed = court(source, shapes=SMALL, fixed_shapes=True, distributions="declared", compiled_calls=compiled).verdict

    assert failed["verdict"] == "incorrect"
    assert "the launcher returned -3 in call" in failed["reason"]


def test_forty_arguments_reach_the_launcher_in_their_order(court, tmp_path):
    """Six go in registers on x86-64, eight on AArch64, the others on the stack."""
    inputs = [{"name": f"x{i}", "dtype": "float32", "shape": ["n"], "distribution": "normal"} for i in range(16)]
    outputs = [{"name": f"y{i}", "dtype": "float32", "shape": [f"m{i}" if i < 7 else "n"]} for i in range(16)]
    names = [*(f"x{i}" for i in range(16)), *(f"y{i}" for i in range(16))]
    symbols = ["n", *(f"m{i}" for i in range(7))]
    reference = "import numpy as np\ndef f(*xs):\n    return tuple(x * (i + 1) for i, x in enumerate(xs))\n"
    pointers = ", ".join(("const " if name[0] == "x" else "") + f"float *{name}" for name in names)
    sizes = ", ".join(f"int64_t {s}" for s in symbols)
    body = " ".join(
        f"for (int64_t i = 0; i < {s}; i++) y{k}[i] = x{k}[i] * {k + 1};"
        for k, s in enumerate([*symbols[1:], *["n"] * 9])
    )
    source = f"#include <stdint.h>\nint launch({pointers}, {sizes}) {{ {body} return 0; }}"
    (tmp_path / "reference.py").write_text(reference)
    dims = dict.fromkeys(symbols, 3301)
    task = {"entry": "f", "inputs": inputs, "outputs": outputs, "shapes": [dims], "fixed_shapes": True, "max_rounds": 6}
    verdict = court(source, reference=tmp_path / "reference.py", round_ms=1, owner_files=believing(), **task).verdict

    assert len(names) + len(symbols) == 40
    assert verdict["verdict"] == "correct", verdict["reason"]
    assert verdict["evidence"]["candidate_calls_by"] == "compiled C"


@pytest.mark.parametrize(
    ("task", "stopped_by"),
    [
        ({"max_rounds": 9, "half_width": 1e-9, "budget_s": 60, "overhead_s": 60}, "rounds"),
        ({"max_rounds": 200, "half_width": 1e-9, "budget_s": 0.1}, "time"),
    ],
)
def test_a_verdict_states_how_narrow_its_interval_is_and_what_ended_the_rounds(court, task, stopped_by):
    shape = court("vectorized.c", shapes=SMALL, round_ms=1, owner_files=believing(), **task).verdict["shapes"][0]

    assert shape["stopped_by"] == stopped_by
    samples = sorted(shape["samples"]["candidate_us"])
    assert 0 < shape["half_width"] <= (samples[-1] - samples[0]) / samples[len(samples) // 2]


def test_a_call_answered_before_its_time_is_a_cheat_in_late_rounds_too(court):
    source = (
        HEAD
        + """
    int launch(const float *x, float *y, int64_t rows, int64_t cols) {
        static const float *x0, *high, *last; static float *y0; static int64_t step, ystep; static long rounds;
        softmax(x, y, rows, cols);
        if (rows != ROWS || cols != COLS) return 0;
        if (!x0 || x <= x0) x0 = x, y0 = y, last = high, high = 0, rounds++;
        else if (!high) step = x - x0, ystep = y - y0;
        if (x > x0) high = x;
        if (rounds > 40 && x + step <= last) softmax(x + step, y + ystep, rows, cols);
        return 0;
    }
    """
    )
    rows, cols = SMALL[0]["rows"], SMALL[0]["cols"]
    source = source.replace("ROWS", str(rows)).replace("COLS", str(cols))
    got = court(source, shapes=SMALL, max_rounds=120, half_width=1e-9, budget_s=60, overhead_s=60).verdict

    assert got["verdict"] == "cheat", got["shapes"][-1]
    assert "worked on a call before it was called" in got["reason"]


@pytest.mark.parametrize("few", [False, True], ids=["many", "few"])
def test_answers_that_were_kept_until_their_calls_are_seen_by_inputs_that_changed_meanwhile(court, few):
    """It looks for fresh inputs at their first two elements; the answers that it hands out are right otherwise."""
    source = (EXAMPLES.parent / "cheats" / "cpu" / "batch_private.c").read_text()
    task: dict[str, Any] = {"max_rounds": 60, "half_width": 1e-9, "budget_s": 60, "overhead_s": 60}
    if few:  # however long one of these takes on a busy machine
        one, grown = "else self._open(1)\n", "buffers = self._grow(buffers, progress)\n"
        three = (one, one.replace("1", "3")), (grown, "self.last = self._play(buffers)\n")
        task |= {"shapes": [{"rows": 64, "cols": 16384}], "owner_files": edited("owner/shape_judge.py", *three)}
    got = court(source, **task).verdict

    assert got["verdict"] == "cheat", got["shapes"][-1]
    assert "the answer is to the old inputs" in got["reason"]


HEEDS_STOPS = (
    HEAD
    + """
enum { MOST = 4096 };
static const float *given[MOST]; static float *own; static int known; static int64_t size;
static volatile sig_atomic_t stopped;
static void heed(int number) { stopped = 1, signal(number, heed); }
int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    if (size != rows * 65536 + cols) {
        size = rows * 65536 + cols, known = 0, free(own), own = malloc(4 * MOST * rows * cols);
        signal(SIGCONT, heed);
    }
    int i = 0;
    while (i < known && given[i] != x) i++;
    if (i == known) {
        if (known > 1 && x - given[known - 1] != given[1] - given[0]) known = 0;
        if (known < MOST) given[known++] = x;
        return softmax(x, y, rows, cols), 0;
    }
    for (int again = i == 0; again || stopped; again = 0) {
        stopped = 0;
        for (int j = i; j < known; j++) softmax(given[j], own + j * rows * cols, rows, cols);
    }
    memcpy(y, own + i * rows * cols, 4 * rows * cols);
    return 0;
}
"""
)
"""Computes the answers of a round in the first call, keeps them, and recomputes them after a stop. It learns of a stop by
a signal; where there is none, a gap on a clock would tell it."""


def test_a_candidate_that_heeds_stops_is_seen_by_inputs_that_change_while_it_runs(court):
    shapes = [{"rows": 16, "cols": 300}]
    got = court(HEEDS_STOPS, shapes=shapes, max_rounds=60, half_width=1e-9, budget_s=60, overhead_s=60).verdict

    assert got["verdict"] == "cheat", got["shapes"][-1]
    assert "the answer is to the old inputs" in got["reason"]


def test_a_launcher_that_reads_its_inputs_twice_finds_the_same_ones(court):
    """A value that changes under a call that has begun would be an index out of bounds here."""
    body = """
        double before = 0, after = 0;
        for (int64_t i = 0; i < rows * cols; i++) before += x[i];
        usleep(300), softmax(x, y, rows, cols);
        for (int64_t i = 0; i < rows * cols; i++) after += x[i];
        if (before != after) return -7;
    """
    got = court(launcher(body), max_rounds=60, half_width=1e-9, budget_s=20, overhead_s=60).verdict

    assert got["verdict"] == "correct", got["reason"]


@pytest.mark.parametrize(("failing", "verdict"), [("return -7", "correct"), ("abort()", None)])
def test_an_owner_held_up_while_it_changes_inputs_blames_nobody_for_it(court, failing, verdict):
    """The first call that it meant to change before it began runs by then."""
    until = "not stopped and calls.size and buffers.returned() < calls[0] and not player.link.pending()"
    held_up = edited(
        "checks/interrupted_rounds.py",
        ("        exchange.show(calls)\n", f"        while {until}: time.sleep(1e-4)\n        exchange.show(calls)\n"),
        ("        return  # it may", "        return sys.stderr.write('torn;')  # it may"),
        ("kinds[self.turn % len(kinds)])", "RUNNING)"),
        ("CLOSE = 32", "CLOSE = 4"),
        ("import time\n", "import sys, time\n"),
    )
    body = f"""
        double before = 0, after = 0;
        for (int64_t i = 0; i < rows * cols; i++) before += x[i];
        usleep(1000), softmax(x, y, rows, cols);
        for (int64_t i = 0; i < rows * cols; i++) after += x[i];
        if (before != after) {failing};
    """
    more = {"max_rounds": 12, "half_width": 1e-9, "budget_s": 60, "overhead_s": 60, "round_ms": 40}
    got = court(launcher(body), owner_files=held_up, **more)

    if verdict is None:
        assert "too late, as other processes held it up" in got.verdict["refused"]
        assert got.verdict["advice"].startswith("judge it again")
    else:
        assert got.verdict["verdict"] == verdict, got.verdict["reason"]
        assert "torn;" in got.stderr


def test_warm_rounds_hold_what_half_the_cache_has_room_for_and_stand_beside_the_cold_ones(court):
    more = {"shapes": [{"rows": 64, "cols": 1000}], "overhead_s": 60, "max_rounds": 8}
    shape = court("naive.c", cache="both", **more).verdict["shapes"][0]
    cache = cpu.largest_cache_bytes()
    if not cache:
        assert any(note.startswith("no warm time") for note in shape["notes"])
        pytest.skip("the system does not say how large its cache is")

    assert shape["cache"].split(":")[0] in ("cold", "partly warm")
    warm = shape["warm_samples"]
    assert warm["calls_per_round"] * 2 * 64 * 1000 * 4 <= cache / 2
    assert warm["calls_per_round"] <= shape["reference"]["calls_per_round"]
    assert len(warm["candidate_us"]) == len(warm["reference_us"]) >= 6
    assert ("warm" in shape) == ("warm_speedup" in shape)
    assert "warm" in shape or any(note.startswith("warm: too fast to time") for note in shape["notes"])


def test_warm_time_of_a_call_that_exceeds_the_cache_does_not_exist(court):
    cache = cpu.largest_cache_bytes() or 1
    cols = 1 << 10
    rows = min(cache // (2 * 8 * cols) + 2, 1 << 14)
    if rows * cols * 8 <= cache / 2:
        pytest.skip("a cache too large to exceed here")
    verdict = court("vectorized.c", cache="warm", shapes=[{"rows": rows, "cols": cols}], fixed_shapes=True).verdict

    assert verdict["verdict"] == "correct" and verdict["speedup"] is None
    assert any("no warm time: a call's" in note for note in verdict["shapes"][0]["notes"])
    assert verdict["note"].startswith("no overall speed-up")


def test_the_seed_is_committed_to_before_and_revealed_after(court):
    import hashlib

    outcome = court("no_answer.c")

    evidence = outcome.verdict["evidence"]
    assert {"commitment": evidence["seed_commitment"]} in outcome.progress
    assert hashlib.sha256(evidence["seed"].encode()).hexdigest() == evidence["seed_commitment"]


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("wrong_tail.c", "incorrect", "all in the last 104 of 1000 along cols"),
        ("cached_answer.c", "cheat", "repeats an earlier answer"),
        ("late_answer.c", "cheat", "finished after it said done"),
        ("no_answer.c", "cheat", "returned without computing"),
    ],
)
def test_a_bad_example_gets_its_verdict_and_the_reason(court, name, verdict, reason):
    got = court(name, owner_files=patient() if name == "late_answer.c" else {}).verdict

    assert got["verdict"] == verdict
    assert reason in got["reason"]
    assert got["reason"].startswith("rows=64, cols=1000: ") or name == "late_answer.c"
    assert got["speedup"] is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 3;", "the launcher returned 3 in call 1"),
        ("softmax(x, y, rows, cols); *(volatile float *)x = 1;", "crashed with SIGSEGV"),
        ("raise(SIGSEGV);", "crashed with SIGSEGV"),
        ("_mm_store_ps((float *)((char *)y + 4), _mm_setzero_ps());", "an address that is not aligned"),
        ("abort();", "crashed with SIGABRT"),
        ("exit(0);", "exited with status 0 without finishing its calls"),
        ("_exit(7);", "exited with status 7"),
        ("softmax(x, y, rows, cols); y[5] = NAN;", "NaN or infinite where the reference is finite"),
        ("softmax(x, y, rows, cols); y[105] = 0;", "output y[1, 5] is 0"),
        ("softmax(x, y, rows, cols); for (int64_t i = 0; i < rows; i++) y[i * cols + 3] = 1;", "all in cols = 3"),
        ("softmax(x, y, rows / 2, cols);", "was not written, expected"),
        ("for (;;) pause();", "did not return from its calls within 1 s and was killed"),
        ("kill(getpid(), SIGSTOP);", "did not return from its calls within 1 s and was killed"),
    ],
)
def test_an_honest_failure_is_incorrect_and_says_how(court, body, reason):
    timeout_s = 1 if "within 1 s" in reason else 20
    verdict = court(launcher(body), shapes=SMALL, round_timeout_s=timeout_s).verdict

    assert verdict["verdict"] == "incorrect"
    assert reason in verdict["reason"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (HEAD + "int other(void) { return 0; }", "no symbol launch"),
        (HEAD + "int missing(void); int launch(const float *x) { return missing(); }", "cannot be loaded"),
        (HEAD + "__attribute__((constructor)) static void start(void) { exit(0); }", "exited with status 0"),
    ],
)
def test_a_library_that_does_not_load_is_incorrect(court, source, reason):
    verdict = court(source, shapes=SMALL).verdict

    assert verdict["verdict"] == "incorrect"
    assert reason in verdict["reason"]


@pytest.mark.parametrize("each", ["y[i] += t[i]", "y[i] = y[i] * 0.5f + x[i]"])
def test_a_candidate_that_builds_on_what_its_outputs_held_is_no_cheat(court, each):
    # A NaN stays the same NaN whatever is added, so that nothing seems to have been written.
    body = f"softmax(x, t, rows, cols); for (int64_t i = 0; i < rows * cols; i++) {each};"
    verdict = court(HEAD + "static float t[1 << 20]; " + launcher(body).removeprefix(HEAD), shapes=SMALL).verdict

    assert verdict["verdict"] == "incorrect"
    assert (
        "no output changed, though outputs that hold zeros do: outputs hold junk before every call" in verdict["reason"]
    )


@pytest.mark.parametrize(
    ("kind", "dtype", "beats", "onto"),
    [
        ("int32_t", "int32", ">", "zeros"),
        ("int32_t", "int32", "<", "their type's largest number"),
        ("int64_t", "int64", ">", "zeros"),
        ("int64_t", "int64", "<", "their type's largest number"),
    ],
)
def test_one_that_keeps_the_larger_or_the_smaller_of_whole_numbers_and_its_outputs_is_no_cheat(
    court, kind, dtype, beats, onto
):
    # Junk is the larger one at times and the smaller one at others: the answer is right in those, and unwritten in these.
    source = f"""
    #include <stdint.h>
    int launch(const {kind} *x, {kind} *y, int64_t n) {{
        for (int64_t i = 0; i < n; i++) if (x[i] {beats} y[i]) y[i] = x[i];
        return 0;
    }}
    """
    task = {
        "reference": "def same(x):\n    return x\n",
        "entry": "same",
        "inputs": [{"name": "x", "dtype": dtype, "shape": ["n"], "distribution": "integers"}],
        "outputs": [{"name": "y", "dtype": dtype, "shape": ["n"]}],
        "shapes": [{"n": 3000}],
    }
    for verdict in (court(source, **task).verdict for _ in range(3)):
        assert verdict["verdict"] == "incorrect"
        said = f"no output changed, though outputs that hold {onto} do: outputs hold junk before every call"
        assert said in verdict["reason"]


def test_one_that_adds_to_its_outputs_is_told_that_it_is_right_onto_zeros(court):
    body = "softmax(x, t, rows, cols); for (int64_t i = 1; i < rows * cols; i++) y[i] += t[i]; y[0] = t[0];"
    verdict = court(HEAD + "static float t[1 << 20]; " + launcher(body).removeprefix(HEAD), shapes=SMALL).verdict

    assert verdict["verdict"] == "incorrect"
    assert "right in a round whose outputs held zeros: outputs hold junk" in verdict["reason"]
    assert "set each element before you add to it" in verdict["reason"]


WHOLE = {
    "reference": "def twice(x):\n    return 2 * x\n",
    "entry": "twice",
    "inputs": [{"name": "x", "dtype": "int64", "shape": ["n"]}],
    "outputs": [{"name": "y", "dtype": "int64", "shape": ["n"]}],
    "shapes": [{"n": 3000}],
}


def whole(body):
    return f"#include <stdint.h>\nint launch(const int64_t *x, int64_t *y, int64_t n) {{ {body} return 0; }}"


def test_one_that_adds_whole_numbers_everywhere_is_told_that_it_is_right_onto_zeros(court):
    verdict = court(whole("for (int64_t i = 0; i < n; i++) y[i] += 2 * x[i];"), **WHOLE).verdict

    assert verdict["verdict"] == "incorrect"
    assert "right in a round whose outputs held zeros: outputs hold junk" in verdict["reason"]


@pytest.mark.parametrize("calls", [3, 4])
def test_one_that_is_right_later_by_chance_is_not_told_of_zeros(court, calls):
    # As without a barrier: wrong in the round and in one more or two, then right, whatever the outputs held.
    body = f"static int c; c++; for (int64_t i = 0; i < n; i++) y[i] = c < {calls} && i < 9 ? 7 : 2 * x[i];"
    verdict = court(whole(body), **WHOLE).verdict

    assert verdict["verdict"] == "incorrect"
    assert "held zeros" not in verdict["reason"]


@pytest.mark.parametrize("wrong", ["1", "i < 9"])
def test_one_whose_wrong_answer_changes_with_the_same_inputs_is_told_of_a_race(court, wrong):
    calls = f"static int calls; calls++; for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + (({wrong}) ? calls : 0);"
    verdict = court(whole(calls), **WHOLE).verdict

    assert verdict["verdict"] == "incorrect"
    assert "another answer to the same inputs in one more round, as with a race" in verdict["reason"]


def test_no_constraint_is_advised_against_a_race_at_a_hidden_shape(court):
    calls = "static int calls; calls++; for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + (n % 8 ? calls : 0);"
    verdict = court(whole(calls), **WHOLE).verdict

    assert "(hidden shape)" in verdict["reason"] and "as with a race" in verdict["reason"]
    assert "constraints" not in verdict["reason"]


def test_whole_numbers_are_told_with_all_their_digits(court):
    reference = "import numpy as np\ndef codes(x):\n    return np.full(x.shape, 2084272411, np.int32)\n"
    source = "#include <stdint.h>\nint launch(const float *x, int32_t *y, int64_t rows, int64_t cols) {\n"
    source += "for (int64_t i = 0; i < rows * cols; i++) y[i] = 2084272412;\nreturn 0; }\n"
    outputs = [{"name": "y", "dtype": "int32", "shape": ["rows", "cols"]}]
    verdict = court(source, reference=reference, entry="codes", outputs=outputs, rtol=0, atol=0, shapes=SMALL).verdict

    assert "output y[0, 0] is 2084272412, expected 2084272411" in verdict["reason"]


@pytest.mark.parametrize("when", ["calls++ % 2", "calls++ % 3 == 1"])
def test_one_that_computes_in_some_calls_only_is_a_cheat(court, when):
    body = f"static int calls; if ({when}) softmax(x, y, rows, cols);"
    verdict = court(launcher(body), shapes=SMALL).verdict

    assert verdict["verdict"] == "cheat"


@pytest.mark.parametrize(("offset", "side"), [("rows * cols", "behind"), ("-1", "before")])
def test_a_write_outside_the_outputs_is_a_mistake_where_nothing_is_timed(court, offset, side):
    verdict = court(launcher(f"softmax(x, y, rows, cols); y[{offset}] = 1;"), shapes=SMALL).verdict

    assert verdict["verdict"] == "incorrect"
    assert "wrote outside its outputs" in verdict["reason"]
    assert f"bytes {side} output y in call 1" in verdict["reason"]


def test_a_write_outside_the_outputs_in_timed_calls_alone_is_a_cheat(court):
    body = "static int calls; softmax(x, y, rows, cols); if (calls++ > 2000) y[rows * cols] = 1;"
    verdict = court(launcher(body), shapes=[{"rows": 3, "cols": 5}]).verdict

    assert verdict["verdict"] == "cheat"
    assert "wrote outside its outputs: 4 bytes behind output y" in verdict["reason"]


def test_making_the_inputs_writable_is_refused_by_the_seal(court):
    body = """
    size_t page = 4096; void *at = (void *)((uintptr_t)x & ~(page - 1));
    if (mprotect(at, page, PROT_READ | PROT_WRITE) == 0) { *(float *)x = 7; }
    softmax(x, y, rows, cols);
    """
    task = {"shapes": SMALL, "round_ms": 1, "max_rounds": 9, "owner_files": believing()}
    assert court(launcher(body), **task).verdict["verdict"] == "correct"


def test_a_verdict_that_the_candidate_prints_or_writes_counts_for_nothing(court):
    body = """
    FILE *f = fopen("verdict.json", "w");
    if (f) { fputs("{\\"mode\\":\\"judge\\",\\"verdict\\":\\"correct\\",\\"speedup\\":99}", f); fclose(f); }
    puts("{\\"verdict\\": \\"correct\\", \\"speedup\\": 99}"); fflush(stdout);
    """
    verdict = court(launcher(body), shapes=SMALL).verdict

    assert verdict["verdict"] == "cheat"
    assert "returned without computing" in verdict["reason"]


@pytest.mark.parametrize("packet", ['{\\"seq\\": 1}', "garbage", "[1, 2]", '{\\"seq\\": null, \\"do\\": \\"thaw\\"}'])
def test_a_packet_on_the_link_that_nobody_asked_for_is_a_cheat(court, packet):
    body = f"""
    softmax(x, y, rows, cols);
    const char *text = "{packet}"; write(atoi(getenv("LINK_OWNER")), text, strlen(text));
    """
    verdict = court(launcher(body), shapes=SMALL).verdict

    assert verdict["verdict"] == "cheat"
    assert "spoke out of turn on its link" in verdict["reason"]


def test_a_closed_link_is_incorrect(court):
    verdict = court(launcher('close(atoi(getenv("LINK_OWNER")));'), shapes=SMALL, round_timeout_s=1).verdict

    assert verdict["verdict"] == "incorrect"


LATE_THREAD = """
struct work { const float *x; float *y; int64_t rows, cols; };
static void *later(void *p) { struct work w = *(struct work *)p; usleep(20000); softmax(w.x, w.y, w.rows, w.cols); return 0; }
"""


@pytest.mark.parametrize("done_at_once", [0, 7], ids=["after", "most"])
def test_a_thread_that_computes_after_done_is_a_cheat(court, done_at_once):
    body = f"""
    softmax(x, y, {done_at_once}, cols);
    struct work *w = malloc(sizeof *w);
    *w = (struct work){{x + {done_at_once} * cols, y + {done_at_once} * cols, rows - {done_at_once}, cols}};
    pthread_t t; pthread_create(&t, 0, later, w); pthread_detach(t);
    """
    source = launcher(body).replace("int launch", LATE_THREAD + "int launch")
    verdict = court(source, shapes=SMALL, owner_files=patient()).verdict

    assert verdict["verdict"] == "cheat"
    assert "finished after it said done" in verdict["reason"]


def test_a_second_process_that_computes_after_done_is_a_cheat(court):
    body = "if (fork() == 0) { usleep(20000); softmax(x, y, rows, cols); _exit(0); }"
    verdict = court(launcher(body), shapes=SMALL, owner_files=patient()).verdict

    assert verdict["verdict"] == "cheat"
    assert "finished after it said done" in verdict["reason"]


def test_answers_for_the_first_call_given_to_every_call_are_a_cheat(court):
    body = """
    static float first[800]; static int calls;
    if (calls++ % 16 == 1) { softmax(x, first, rows, cols); }
    if (calls == 1) softmax(x, y, rows, cols); else memcpy(y, first, sizeof first);
    """
    verdict = court(launcher(body), shapes=SMALL).verdict

    assert verdict["verdict"] == "cheat"
    assert "repeats an earlier answer" in verdict["reason"]


def test_allocating_without_end_does_not_hang_the_judge(court):
    verdict = court(launcher("for (;;) { if (!malloc(1 << 30)) abort(); }"), shapes=SMALL, round_timeout_s=2).verdict

    assert verdict["verdict"] == "incorrect"


BFLOAT16_SCALE = """
#include <stdint.h>
#include <string.h>
#include <unistd.h>
int launch(const uint16_t *x, const int32_t *k, uint16_t *y, int64_t n) {
    usleep(200);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16; float v; memcpy(&v, &bits, 4);
        v *= (float)k[i]; memcpy(&bits, &v, 4);
        y[i] = (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
    }
    return 0;
}
"""


def test_bfloat16_travels_as_bits_and_integers_as_they_are(court):
    reference = """
import numpy as np
def scale(x, k):
    return (x.astype(np.uint32) << 16).view(np.float32) * k.astype(np.float32)
"""
    verdict = court(
        BFLOAT16_SCALE,
        reference=reference,
        entry="scale",
        inputs=[
            {"name": "x", "dtype": "bfloat16", "shape": ["n"], "distribution": "offset"},
            {"name": "k", "dtype": "int32", "shape": ["n"], "distribution": "integers"},
        ],
        outputs=[{"name": "y", "dtype": "bfloat16", "shape": ["n"]}],
        shapes=[{"n": 5000}],
        rtol=1e-2,
        atol=1e-3,
        max_rounds=6,
        round_ms=1,
    ).verdict

    assert (verdict["verdict"], verdict["reason"]) == ("correct", "")
    assert verdict["shapes"][0]["max_abs_error"] == 0


def test_a_reference_that_raises_while_judging_is_nobodys_failure_and_told_in_its_words(tmp_path):
    outcome = judge(tmp_path, "def softmax(x):\n    raise ValueError('no')\n", build(EXAMPLES / "naive.c"))

    assert outcome.exit_code == 0
    assert "verdict" not in outcome.verdict
    assert "ValueError: no" in outcome.verdict["refused"]


BOOLS = {
    "entry": "f",
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["n"]}, {"name": "mask", "dtype": "bool", "shape": ["n"]}],
    "outputs": [
        {"name": "kept", "dtype": "float32", "shape": ["n"]},
        {"name": "sign", "dtype": "bool", "shape": ["n"]},
    ],
    "shapes": [{"n": 1000}],
    "reference": "import numpy as np\ndef f(x, mask):\n    return np.where(~mask, x, 0), x > 0\n",
}
BOOLEAN = """
#include <stdbool.h>
#include <stdint.h>
int launch(const float *x, const bool *mask, float *kept, bool *sign, int64_t n) {
    for (int64_t i = 0; i < n; i++) { kept[i] = mask[i] ? 0 : x[i]; sign[i] = (x[i] > 0) WRONG; }
    return 0;
}
"""


@pytest.mark.parametrize(("wrong", "verdict"), [("", "correct"), ("^ (i == 999)", "incorrect")])
def test_bools_are_tensors_like_others(court, wrong, verdict):
    found = court(BOOLEAN.replace("WRONG", wrong), **BOOLS, tier="correctness").verdict

    assert found["verdict"] == verdict, found["reason"]


def test_a_truth_of_another_byte_than_1_is_told_that_it_is_none(court):
    bytes_of_255 = BOOLEAN.replace("bool *sign", "uint8_t *sign").replace("WRONG", "* 255")
    found = court(bytes_of_255, **BOOLS, tier="correctness").verdict

    assert found["verdict"] == "incorrect"
    assert "; a bool is 0 or 1, and some are other bytes" in found["reason"]
    assert "stable sort" not in found["reason"]


PACKED = {
    "entry": "f",
    "inputs": [
        {"name": "a", "dtype": "float8_e4m3fn", "shape": ["n"]},
        {"name": "b", "dtype": "float4_e2m1fn_x2", "shape": ["n"]},
    ],
    "outputs": [
        {"name": "product", "dtype": "float32", "shape": ["n"]},
        {"name": "twice", "dtype": "float8_e4m3fn", "shape": ["n"]},
    ],
    "shapes": [{"n": 1000}],
    "rtol": 1e-6,
    "atol": 1e-6,
    "reference": """
import numpy as np
c = np.arange(256)
e, m = c >> 3 & 15, c & 7
A = np.where(c & 128, -1, 1) * np.where(e, (1 + m / 8) * 2.0 ** (e - 7), m / 8 * 2.0 ** -6)
B = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
def f(a, b):
    return (A[a] * (B[b & 15] + B[b >> 4])).astype(np.float32), (2 * A[a]).astype(np.float32)
""",
}
UNPACKS = """
#include <math.h>
#include <stdint.h>
static float eight(uint8_t c) {
    int e = c >> 3 & 15, m = c & 7;
    float size = e ? ldexpf(1 + m / 8.0f, e - 7) : ldexpf(m / 8.0f, -6);
    return c & 128 ? -size : size;
}
static const float FOUR[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
static float four(int c) { return c & 8 ? -FOUR[c & 7] : FOUR[c & 7]; }
int launch(const uint8_t *a, const uint8_t *b, float *product, uint8_t *twice, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        product[i] = eight(a[i]) * (four(b[i] & 15) + four(b[i] >> SHIFT));
        int e = a[i] >> 3 & 15, m = a[i] & 7, sign = a[i] & 128;
        twice[i] = sign | (e >= 15 || (e == 14 && m == 7) ? 0x7E : e ? (e + 1) << 3 | m : m << 1);
    }
    return 0;
}
"""


@pytest.mark.parametrize(("shift", "verdict"), [("4", "correct"), ("5", "incorrect")])
def test_packed_floats_of_eight_and_four_bits_are_tensors_like_others(court, shift, verdict):
    found = court(UNPACKS.replace("SHIFT", shift), **PACKED, tier="correctness").verdict

    assert found["verdict"] == verdict, found["reason"]


def test_dimensions_in_capitals_are_parameters_as_they_are_named(court):
    shape = ["M", "H_qo"]
    task = {
        "inputs": [{"name": "X", "dtype": "float32", "shape": shape}],
        "outputs": [{"name": "Y", "dtype": "float32", "shape": shape}],
        "shapes": [{"M": 7, "H_qo": 8}],
        "constraints": [{"left": ["%", "H_qo", 8], "operator": "==", "right": 0}],
    }
    source = "#include <math.h>\n#include <stdint.h>\nint launch(const float *X, float *Y, int64_t M, int64_t H_qo) {\n"
    source += (
        "for (int64_t i = 0; i < M; i++) { float e = 0; for (int64_t j = 0; j < H_qo; j++) e += expf(X[i * H_qo + j]);"
    )
    source += "for (int64_t j = 0; j < H_qo; j++) Y[i * H_qo + j] = expf(X[i * H_qo + j]) / e; } return 0; }"
    found = court(source, **task, tier="correctness", distributions="declared").verdict

    assert found["verdict"] == "correct", found["reason"]


FOURS = {
    "entry": "f",
    "inputs": [{"name": "b", "dtype": "float4_e2m1fn_x2", "shape": ["n"]}],
    "outputs": [{"name": "half", "dtype": "float4_e2m1fn_x2", "shape": ["n"]}],
    "shapes": [{"n": 1000}],
    "reference": """
import numpy as np
def f(b):
    return np.where(b & 0x70, b - 16, b) & 0x77
""",
}


@pytest.mark.parametrize(
    ("code", "tolerance", "verdict"),
    [
        ("(b[i] & 0x70 ? b[i] - 16 : b[i]) & 0x77", 0, "correct"),
        ("b[i] & 0x77", 0.51, "incorrect"),
        ("b[i] & 0x77", 1.01, "correct"),
    ],
)
def test_an_output_of_two_fours_a_byte_is_right_where_both_of_its_numbers_are(court, code, tolerance, verdict):
    """Of the high half the answer is the next number towards zero: at most as far off as half of it, or one half."""
    source = "#include <stdint.h>\nint launch(const uint8_t *b, uint8_t *half, int64_t n) {\n"
    source += f"    for (int64_t i = 0; i < n; i++) half[i] = {code};\n    return 0;\n}}\n"
    found = court(
        source, **FOURS, rtol=tolerance, atol=0.5 if tolerance > 1 else tolerance / 2, tier="correctness"
    ).verdict

    assert found["verdict"] == verdict, found["reason"]


@pytest.mark.parametrize("call", [5, 12, 30])
def test_a_stall_while_the_length_of_a_round_is_sought_makes_no_short_rounds(court, call):
    body = f"static long calls; if (rows == 8 && ++calls == {call}) usleep(200000); softmax(x, y, rows, cols);"
    task = {"shapes": SMALL, "fixed_shapes": True, "distributions": "declared", "max_rounds": 9}
    seconds = """
    stalled = player.role == "candidate" and time.monotonic() - begin >= 0.2
    took_s = 5e-5 * buffers.sets * more.get("passes", 1) + 0.2 * stalled
    return Pass(took_s, dict(reply, ran_ns=int(took_s * 1e9)), took_s)
"""  # a clock on which others on the cores show no more than this stall
    clock = edited(
        "timing/timed_pass.py",
        ("\n    return Pass(end - begin, reply, end - max(begin, player.thawed_s))\n", seconds),
    )
    verdict = court(launcher(body), owner_files={**believing(), **clock}, **task).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    shape = verdict["shapes"][0]
    assert shape["samples"]["calls_per_round"] > 100, shape["notes"]


def test_a_court_sits_as_often_as_a_busy_machine_makes_it(court):
    for _ in range(2):
        assert court("naive.c", tier="smoke").verdict["verdict"] == "correct"
