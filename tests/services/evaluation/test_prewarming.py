"""The judge's processes are made while a problem is registered or a candidate compiled: the first job finds them."""

from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.jobs.job_folder import JobFolder
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from tests.hostd.laboratory import wrapped
from tests.laboratory import HONEST, PROBLEM, laboratory

SMOKE = TimingOptions(tier="smoke")


async def registered(lab: Lab) -> str:
    tensors = {side: [TensorSpec.model_validate(t) for t in PROBLEM[side]] for side in ("inputs", "outputs")}
    return (await lab.evaluation.registry.register(**{**PROBLEM, **tensors})).problem_id


async def evaluated(lab: Lab, problem_id: str, text: str = HONEST) -> Evaluation:
    return await lab.evaluation.evaluator.evaluate(
        problem_id, CandidateSource(text, "c", "candidate.c"), device="cpu", timing=SMOKE
    )


async def judged_in(lab: Lab) -> list[str]:
    """Return the control groups of the last judge's job."""
    records = (await lab.hosts.call("local", "list"))[0]["records"]
    last = next(r["id"] for r in records if r["purpose"] == "judge")
    return JobFolder(str(lab.settings.data_dir / "hostd" / "jobs" / last)).read_notes()["groups"]


def of_one_made_ahead(groups: list[str]) -> bool:
    return [g.startswith("warm-") for g in groups] == [True] * 3


@pytest.fixture
async def lab(tmp_path: Path):
    python = wrapped(tmp_path / "state", {LOCKS: str(tmp_path / "locks")})  # while others time, nothing would be made
    async with laboratory(hosts={"local": {"kind": "local", "python": str(python)}}) as opened:
        if (await opened.hosts.link("local")).greeting["level"] not in ("full", "namespaces"):
            pytest.skip("sandboxes are made ahead only with namespaces")
        yield opened


async def test_the_first_candidate_finds_the_judge_s_processes(lab: Lab):
    evaluation = await evaluated(lab, await registered(lab))
    assert evaluation.verdict == "correct", evaluation.reason
    assert of_one_made_ahead(await judged_in(lab))


async def test_a_problem_that_is_known_needs_no_more_than_the_evaluation_to_announce_itself(lab: Lab):
    problem_id, link = await registered(lab), await lab.hosts.link("local")
    await link.close()  # what waits ends with its hostd
    asked: list[tuple[str, Any]] = []
    calling = lab.hosts.call

    async def call(name: str, verb: str, *attachment: bytes, **arguments: Any) -> Any:
        asked.append((verb, arguments.get("spec")))
        return await calling(name, verb, *attachment, **arguments)

    lab.hosts.call = call
    assert (await evaluated(lab, problem_id)).verdict == "correct"
    verbs = [(verb, spec["purpose"]) for verb, spec in asked if spec]
    assert verbs.index(("expect", "judge")) < verbs.index(("submit", "judge"))
    announced = next(spec for verb, spec in asked if verb == "expect")
    assert announced["files"] == {}
    assert (
        announced["trees"]
        == next(spec for verb, spec in asked if verb == "submit" and spec["purpose"] == "judge")["trees"]
    )


async def test_a_candidate_that_does_not_compile_leaves_them_for_the_next(lab: Lab):
    problem_id = await registered(lab)
    assert (await evaluated(lab, problem_id, "int launch(")).status == "compile_failed"
    assert (await evaluated(lab, problem_id)).verdict == "correct"
    assert of_one_made_ahead(await judged_in(lab))
