"""A candidate that hangs, crashes or takes what it can leaves nothing behind that the next one would notice."""

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation import crash_stacks, judge_job
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import HONEST, PROBLEM

HEAD = """
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int launch(const float *x, float *y, int64_t n) {
"""
BAD = {
    "does not compile": ("int launch(", "compile_failed", ""),
    "misnamed launcher": (HONEST.replace("launch", "lunch"), "incorrect", "no symbol launch"),
    "one parameter too many": (
        HEAD.replace("float *x, float *y", "float *x, const float *w, float *y") + "y[0] = w[0] + x[0]; return 0; }",
        "incorrect",
        "launch is defined with 4 parameters and called with 3: int launch(const float* x, float* y, int64_t n)",
    ),
    "a value for an address": (
        HEAD.replace("const float *x", "float x") + "y[0] = x; return 0; }",
        "incorrect",
        "launch takes x as float x and gets const float* x: int launch(const float* x, float* y, int64_t n); n=",
    ),
    "one parameter too few": (
        HEAD.replace("float *x, float *y", "float *x") + "((float *)x)[0] = 1; return 0; }",
        "incorrect",
        "launch is defined with 2 parameters and called with 3: int launch(const float* x, float* y, int64_t n); n=",
    ),
    "hangs": (HEAD + "for (;;); }", "incorrect", "did not return from its calls within"),
    "sleeps": (HEAD + "for (;;) pause(); }", "incorrect", "did not return from its calls within"),
    "null pointer": (HEAD + "*(volatile int *)0 = 1; return 0; }", "incorrect", "crashed with SIGSEGV"),
    "aborts": (HEAD + "abort(); }", "incorrect", "crashed with SIGABRT"),
    "exits": (HEAD + "_exit(0); }", "incorrect", "exited with status 0"),
    "ignores signals and hangs": (
        HEAD + "for (int s = 1; s < 65; s++) signal(s, SIG_IGN); for (;;); }", "incorrect", "did not return from its calls within"
    ),
    "children that hang": (HEAD + "if (!fork()) for (;;); for (;;); }", "incorrect", "did not return from its calls within"),
    "writes its inputs": (HEAD + "*(float *)x = 1; return 0; }", "incorrect", "writes to input x (1 of "),
    "closes its link": (HEAD + "for (int d = 3; d < 64; d++) close(d); return 0; }", "incorrect", ""),
}  # fmt: skip


TENSORS = {side: [TensorSpec(**t) for t in PROBLEM[side]] for side in ("inputs", "outputs")}
UNTIMED = TimingOptions(tier="correctness")
GIVEN = {**PROBLEM, **TENSORS, "shapes": PROBLEM["shapes"][:1]}


@pytest.fixture(scope="module")
async def problem_id(lab: Lab) -> str:
    return (await lab.evaluation.registry.register(**GIVEN)).problem_id


@pytest.mark.parametrize("name", BAD)
async def test_an_honest_candidate_is_correct_right_after_a_bad_one(lab: Lab, problem_id, name, monkeypatch):
    monkeypatch.setattr(judge_job, "ROUND_TIMEOUT_S", 2.0)
    monkeypatch.setattr(crash_stacks, "HANG_S", {"c": 3.0})
    monkeypatch.setattr(crash_stacks, "BESIDE_S", 3.0)  # this test reads no stack
    source, verdict, reason = BAD[name]

    bad = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(source, "c", "bad.c"))
    assert (bad.verdict or bad.status) == verdict, bad.summary()
    assert reason in bad.reason
    good = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(HONEST, "c", "good.c"), timing=UNTIMED)
    assert good.verdict == "correct", good.summary()


TIRED = """import os
import numpy as np

CALLS = []

def reference(x):
    CALLS.append(1)
    if len(CALLS) > 60:  # registering it takes fewer calls, judging a candidate more
        {end}
    return 2 * np.tanh(x) + 1
"""
ENDS = {
    "raises": ("raise RuntimeError('the table is full')", "RuntimeError: the table is full"),
    "exits": ("os._exit(3)", "the reference exited with status 3"),
    "crashes": ("os.abort()", "the reference crashed with SIGABRT"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_reference_that_fails_is_nobodys_failure_and_says_so(lab: Lab, problem_id, name):
    end, words = ENDS[name]
    tired = await lab.evaluation.registry.register(
        **{**GIVEN, "name": "tired", "reference": TIRED.replace("{end}", end)}
    )

    refused = await lab.evaluation.evaluator.evaluate(tired.problem_id, CandidateSource(HONEST, "c", "good.c"))
    assert (refused.status, refused.verdict) == ("refused", None), refused.summary()
    assert words in refused.reason and "register it again" in (refused.note or "")
    good = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(HONEST, "c", "good.c"), timing=UNTIMED)
    assert good.verdict == "correct", good.summary()
