"""An identical request is answered at once by the verdict that it got, and says so; what is questioned answers nobody."""

import shutil
from dataclasses import replace
from typing import Any

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.candidate_batches import NamedCandidate
from gpu_mcp_server.services.evaluation.verdict_cache import key_of_request
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
PROBLEM = """
name = "negation"
reference = "def reference(x):\\n    return -x\\n"
rtol = 1e-5
atol = 1e-6
inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
shapes = [{ n = 1000 }]
trials = { fixed_shapes = true, distributions = "declared" }
"""
TEXT = """
#include <stdint.h>
int launch(const float *x, float *y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = -x[i]; return 0; }
"""
RIGHT, WRONG = CandidateSource(TEXT, "c", "kernel.c"), CandidateSource(TEXT.replace("-x", "x"), "c", "kernel.c")
SMOKE = TimingOptions(tier="smoke")


async def test_an_identical_request_is_answered_by_the_verdict_that_it_got_until_that_is_questioned(lab: Lab):
    problem = await lab.evaluation.registry.import_file(ProblemSource("p.toml", PROBLEM))

    async def judged(source: CandidateSource = RIGHT, *, reuse: bool = True, timing: TimingOptions = SMOKE):
        return await lab.evaluation.evaluator.evaluate(problem.problem_id, source, timing=timing, reuse=reuse)

    first = await judged()
    again = await judged()
    assert (first.verdict, first.kept) == ("correct", "")
    assert again.attempt_id == first.attempt_id and "identical request" in again.kept and "fresh" in again.kept
    assert again.summary().splitlines()[1].startswith("kept: ") and "compile" not in again.seconds

    wrong = await judged(WRONG)
    assert (wrong.verdict, wrong.kept) == ("incorrect", "") and (await judged(WRONG)).kept
    table = await lab.evaluation.batches.compare(problem.problem_id, [NamedCandidate("a", RIGHT)], tier="smoke")
    assert table.rows[0].attempt_id == first.attempt_id and table.rows[0].kept
    deeper = await judged(timing=TimingOptions(tier="correctness"))
    assert not deeper.kept and deeper.attempt_id != first.attempt_id

    anew = await judged(reuse=False)
    assert not anew.kept and anew.attempt_id != first.attempt_id and (await judged()).attempt_id == anew.attempt_id
    await lab.store.experience.void(anew.attempt_id, "not had twice")
    after = await judged()
    assert not after.kept and after.attempt_id != anew.attempt_id and (await judged()).kept
    assert (await lab.evaluation.auditor.audit(after.attempt_id)).outcome == "confirmed"
    assert (await judged()).attempt_id == after.attempt_id, "what was had twice answers as before"


async def test_whatever_decides_a_verdict_is_part_of_its_address(lab: Lab):
    problem = await lab.store.problems.get(
        (await lab.evaluation.registry.import_file(ProblemSource("p.toml", PROBLEM))).problem_id
    )
    probe = await lab.jobs.runner.probe("local")
    assert probe.judge is not None
    asked: dict[str, Any] = {"device": ("cpu", "one"), "flags": (), "entry": "launch", "timing": SMOKE}
    plain = key_of_request(problem, RIGHT, probe, **asked)
    others = [
        key_of_request(problem.model_copy(update={"content_hash": "other"}), RIGHT, probe, **asked),
        key_of_request(problem, WRONG, probe, **asked),
        key_of_request(problem, replace(RIGHT, beside={"a.h": "x"}), probe, **asked),
        *(
            key_of_request(problem, RIGHT, probe, **{**asked, **more})
            for more in (
                {"device": ("cpu", "two")}, {"flags": ("-O0",)}, {"entry": "run"}, {"timing": TimingOptions()},
            )
        ),
        key_of_request(problem, RIGHT, probe.model_copy(update={"driver": "999.1"}), **asked),
        key_of_request(problem, RIGHT, probe.model_copy(update={"judge": None}), **asked),
    ]  # fmt: skip
    assert len({plain, *others}) == 1 + len(others)
    assert key_of_request(problem, replace(RIGHT, name="other.c"), probe, **asked) == plain
