"""Begin of confirmation runs, whom they are charged to, and what becomes of one whose job is gone."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.user import User
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation import confirmation_runs, judge_results
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.records.confirmations import Confirmation
from gpu_mcp_server.team.users import Users
from tests.laboratory import Folder, settings_for
from tests.services.evaluation import test_confirmation_runs as runs_tests
from tests.services.evaluation.test_confirmation_runs import PATIENCE_S, RIGHT, SLOW, job_of, recorded, register, until

REST = confirmation_runs.REST  # before a fixture takes it away
believing_judge, quick, pytestmark = runs_tests.believing_judge, runs_tests.quick, runs_tests.pytestmark


async def owed_of(lab: Lab, attempt_id: str) -> Confirmation:
    """Return a run that is owed now."""
    (found,) = [one for one in await lab.evaluation.confirmations.list_owed() if one.attempt_id == attempt_id]
    return found


async def test_a_run_that_was_asked_for_is_owed_by_who_is_not_the_best(
    believing_judge: None, quick: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirmation_runs, "QUIET_S", 3600.0)  # none begins
    problem = await register(quick, "400_000")
    await recorded(quick, problem, RIGHT, 900.0, tier="performance")
    judge = quick.evaluation.evaluator.evaluate
    unasked = await judge(problem, CandidateSource(RIGHT, "c", "k.c"))
    asked = await judge(problem, CandidateSource(RIGHT + "// 2", "c", "k.c"), timing=TimingOptions(confirm=True))

    assert (unasked.trust, unasked.confirmation) == ("provisional", ""), unasked.summary()
    assert asked.trust == "provisional" and asked.confirmation in asked.summary(), asked.summary()
    assert (await owed_of(quick, asked.attempt_id)).why == "asked"


async def test_a_run_is_behind_all_others_and_charged_to_who_submitted_the_attempt(
    quick: Lab, monkeypatch: pytest.MonkeyPatch
):
    submitted: list[tuple[str, str, str]] = []
    runner = quick.jobs.runner
    submit = runner.submit

    async def noting(spec: Any, **more: Any) -> Any:
        submitted.append((spec.purpose, spec.gpus.priority, quick.jobs.pool.share().user))
        return await submit(spec, **more)

    monkeypatch.setattr(runner, "submit", noting)
    await Users(quick.store.db).put("ada")
    with acting_as(User(name="ada")):
        attempt = await recorded(quick, await register(quick), RIGHT, 7.0)
        submitted.clear()
        await quick.evaluation.confirmations.owe_best(attempt.attempt_id)
    await until(quick, attempt.attempt_id, lambda one: one.state not in ("owed", "running"))

    (run,) = [one for one in submitted if one[0] == "judge"]
    assert run[1] == "background" and run[2].startswith("ada@"), run


async def test_the_next_run_on_a_host_begins_so_late_that_runs_take_a_fifth_of_the_time(
    quick: Lab, monkeypatch: pytest.MonkeyPatch
):
    problem = await register(quick)
    first = await recorded(quick, problem, SLOW, 50.0)
    await quick.evaluation.confirmations.owe_best(first.attempt_id)
    await until(quick, first.attempt_id, lambda one: one.state not in ("owed", "running"))
    monkeypatch.setattr(confirmation_runs, "REST", 1000 * REST)  # on a busy machine too it is not over yet
    second = await recorded(quick, problem, RIGHT, 90.0)
    await quick.evaluation.confirmations.owe_best(second.attempt_id)
    wait_s = await quick.evaluation.runs._wait_s(await owed_of(quick, second.attempt_id))

    row = await quick.store.db.fetch_one("SELECT seconds FROM confirmations WHERE attempt_id = ?", (first.attempt_id,))
    assert row is not None and row["seconds"] > 3, "it slept for so long"
    assert 3000 * REST - PATIENCE_S < wait_s <= 1000 * REST * row["seconds"]
    assert 1 / (1 + REST) == 0.2, "a fifth of the time at most"


async def test_a_run_that_was_owed_for_ten_minutes_gives_way_no_more(quick: Lab, monkeypatch: pytest.MonkeyPatch):
    slow = await recorded(quick, await register(quick), SLOW, 50.0)
    await quick.evaluation.confirmations.owe_best(slow.attempt_id)
    job_id = await job_of(quick, slow.attempt_id)
    monkeypatch.setattr(confirmation_runs, "PATIENT_S", 0.0)
    quick.evaluation.runs.give_way("local")

    await until(quick, slow.attempt_id, lambda one: one.state not in ("owed", "running"))
    assert (await quick.jobs.runner.poll(job_id, "local")).record.status == "ok"
    assert await quick.evaluation.confirmations.job_of(slow.attempt_id, None) == job_id, "it was not made twice"


async def test_in_an_allocation_only_a_short_run_begins(quick: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(confirmation_runs, "QUIET_S", 3600.0)
    monkeypatch.setattr(confirmation_runs, "BATCH_KINDS", ("local",))
    runs, experience = quick.evaluation.runs, quick.store.experience
    attempt = await recorded(quick, await register(quick), RIGHT, 7.0)
    await quick.evaluation.confirmations.owe_best(attempt.attempt_id)
    owed = await owed_of(quick, attempt.attempt_id)
    assert await runs._wait_s(owed) == confirmation_runs.LOOK_S, "nothing says how long a run takes"

    read = judge_results.parse_verdict
    monkeypatch.setattr(judge_results, "parse_verdict", lambda data: waited(read(data), 0.01))
    first = await quick.evaluation.evaluator.evaluate(
        attempt.problem_id, CandidateSource(RIGHT + "// 2", "c", "k.c"), timing=TimingOptions(tier="smoke")
    )
    known = replace(owed, attempt_id=first.attempt_id)
    took_s = (await quick.jobs.table.get(first.job_id)).record.wall_s
    for limit_s, fits in ((took_s - 0.005, True), (took_s - 0.015, False)):
        monkeypatch.setattr(confirmation_runs, "IN_ALLOCATION_S", limit_s)
        assert await runs._fits_allocation(known) is fits, "the wait for its window is no part of its length"
    monkeypatch.setattr(confirmation_runs, "IN_ALLOCATION_S", took_s)
    longer = (await experience.get(first.attempt_id)).model_copy(update={"evidence": {"judge_s": took_s + 1}})
    await quick.evaluation.confirmations.confirm(await experience.get(first.attempt_id), longer)
    assert await runs._fits_allocation(known), "what a run took is no first look's length"
    monkeypatch.setattr(quick.jobs.runner.hosts, "is_connected", lambda _: False)
    assert not await runs._fits_allocation(known), "no allocation is begun for it"


def waited(verdict: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return a verdict whose owner waited so long until it had its GPU alone."""
    evidence = verdict["evidence"]
    return {**verdict, "evidence": {**evidence, "seconds": {**evidence["seconds"], "window": seconds}}}


async def test_a_run_whose_job_is_gone_is_owed_again():
    """The test kills its server and all its processes, so no process writes a verdict."""
    with Folder() as folder:
        server = subprocess.Popen(  # noqa: ASYNC220 - it is waited for in a thread
            [sys.executable, "-c", runs_tests.SERVER, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        try:
            assert server.stdout is not None
            attempt_id, job_id = (await asyncio.to_thread(server.stdout.readline)).split()
        finally:
            server.kill()
            await asyncio.to_thread(server.communicate)
        for pid in processes_below(folder):
            os.kill(pid, signal.SIGKILL)
        async with Lab.open(settings_for(folder)) as lab:
            found = await until(lab, attempt_id, lambda one: one.state != "running")
            assert (found.state, found.server) == ("owed", None)
            assert await lab.evaluation.confirmations.job_of(attempt_id, None) == job_id
            listed = await lab.evaluation.listing.list_attempts("best", attempt_id)
            assert "confirmation owed" in listed.summary()


def processes_below(folder: Path) -> list[int]:
    """Return the processes whose command line names a folder."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
