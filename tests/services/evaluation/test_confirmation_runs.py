"""Confirmation runs: owed, made behind other work, found again after every kill; what follows from their outcomes."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.protocol import LEVELS, GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation import confirmation_outcomes, confirmation_runs
from gpu_mcp_server.services.evaluation.confirmation_runs import ConfirmationRuns
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.records.confirmations import Confirmation
from tests.hostd.laboratory import wrapped
from tests.judge.harness import believing, edited
from tests.judge_package import shipping
from tests.laboratory import Folder, laboratory, settings_for

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
    pytest.mark.timeout(900),  # several jobs, each behind those of other tests on a busy machine
]
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
RIGHT = """
#include <stdint.h>
int launch(const float *x, float *y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = -x[i]; return 0; }
"""
WRONG = RIGHT.replace("-x[i]", "x[i]")
SLOW, SLOW_AND_WRONG = (f"#include <unistd.h>\n{text.replace('{ for', '{ sleep(3); for')}" for text in (RIGHT, WRONG))
UNTIMED = TimingOptions(tier="smoke")
PATIENCE_S = 300.0
OTHERS_WAIT = ConfirmationRuns._others_wait


async def register(lab: Lab, size: str = "1000") -> str:
    text = PROBLEM.replace("1000", size)
    return (await lab.evaluation.registry.import_file(ProblemSource("p.toml", text))).problem_id


async def recorded(lab: Lab, problem_id: str, text: str, speedup: float, tier: str = "smoke") -> Attempt:
    """Record a candidate as correct and fast, as a first look that was fooled would."""
    model = await lab.evaluation.evaluator.evaluate(
        problem_id, CandidateSource(RIGHT + f"// {speedup}", "c", "k.c"), timing=UNTIMED
    )
    alike = await lab.store.experience.get(model.attempt_id)
    columns = {n: getattr(alike, n) for n in ("problem_id", "problem_hash", "device", "driver", "host")}
    attempt_id = await lab.store.experience.start(
        "evaluate", **columns, language="c", flags="[]", entry="launch", target="cpu", tier=tier,
        source_hash=text, source_artifact_id=await lab.store.artifacts.put(text.encode(), name="kernel.c"),
    )  # fmt: skip
    await lab.store.experience.finish(
        attempt_id, status="judged", verdict="correct", speedup=speedup, evidence={"generation": 1}
    )
    return await lab.store.experience.get(attempt_id)


async def until(lab: Lab, attempt_id: str, good: Callable[[Confirmation], bool]) -> Confirmation:
    """Wait until a confirmation run stands as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await lab.evaluation.confirmations.get(attempt_id)
            if found is not None and good(found):
                return found
            await asyncio.sleep(0.05)


async def job_of(lab: Lab, attempt_id: str) -> str:
    """Wait until a run's job is on its host."""
    async with asyncio.timeout(PATIENCE_S):
        while (job_id := await lab.evaluation.confirmations.job_of(attempt_id, None)) is None or (
            await lab.jobs.runner.poll(job_id, "local")
        ).record.state == "queued":
            await asyncio.sleep(0.05)
        return job_id


async def nobody_waits(_: ConfirmationRuns, host: str, own: str | None) -> bool:
    return False


@pytest.fixture
async def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A laboratory whose confirmation runs wait for no quiet moment, and whose jobs wait for no other test's."""
    monkeypatch.setattr(confirmation_runs, "QUIET_S", 0.0)
    monkeypatch.setattr(ConfirmationRuns, "_others_wait", nobody_waits)
    monkeypatch.setattr(confirmation_runs, "REST", 0.0)
    python = wrapped(tmp_path / "state", {LOCKS: str(tmp_path / "locks")})
    async with laboratory(hosts={"local": {"kind": "local", "python": str(python)}}) as lab:
        yield lab


@pytest.fixture
def believing_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ship a judge that takes what its clocks read for a time, however busy the machine is; all else stays as it is."""
    lifted = {**believing(), **edited("timing/series.py", ("ALLOWED = 0.1", "ALLOWED = 1e9"))}
    monkeypatch.setattr(confirmation_outcomes, "SLOWER", 1e-3)  # the machine may be busier in the second run
    with shipping(lifted):
        yield


async def test_what_a_first_look_missed_is_voided_behind_it_and_the_next_best_owes_a_run(quick: Lab):
    problem = await register(quick)
    next_best = await recorded(quick, problem, SLOW, 50.0)
    cheat = await recorded(quick, problem, WRONG, 900.0)
    assert cheat.trust == "provisional"
    await quick.evaluation.confirmations.owe_best(next_best.attempt_id)
    assert await quick.evaluation.confirmations.get(next_best.attempt_id) is None, "it is not the best"
    await quick.evaluation.confirmations.owe_best(cheat.attempt_id)

    assert (await until(quick, cheat.attempt_id, lambda c: c.state == "void")).said.startswith("the second run says")
    voided = await quick.store.experience.get(cheat.attempt_id)
    assert voided.trust == "contradicted" and voided.voided
    best = (await quick.store.experience.list("best", problem_id=problem)).attempts
    assert best[0].attempt_id == next_best.attempt_id and best[0].confirmation
    assert cheat.attempt_id not in {a.attempt_id for a in best}
    assert (await until(quick, next_best.attempt_id, lambda c: True)).why == "best"

    said = f"attempt {cheat.attempt_id} was voided: "
    shown = await quick.evaluation.listing.list_attempts(attempt_id=next_best.attempt_id)
    assert shown.summary().startswith(said), "an attempt at the problem is asked for, not the problem"
    answer = await quick.evaluation.evaluator.evaluate(
        problem, CandidateSource(RIGHT + "// next", "c", "k.c"), timing=UNTIMED
    )
    assert answer.summary().startswith(said)
    later = await quick.evaluation.evaluator.evaluate(
        problem, CandidateSource(RIGHT + "// later", "c", "k.c"), timing=UNTIMED
    )
    assert not later.news, "it is told once"


@pytest.mark.timeout(600)  # two evaluations, on a busy machine too
async def test_a_run_confirms_an_attempt_and_its_figures_take_the_place_of_the_first_ones(
    believing_judge: None, quick: Lab
):
    problem = await register(quick, "400_000")
    source = CandidateSource(RIGHT, "c", "k.c")
    first = await quick.evaluation.evaluator.evaluate(problem, source)
    assert first.trust == "provisional", first.summary()
    assert first.confirmation and f"trust: provisional; confirmation run: {first.confirmation}" in first.summary()
    ended = await until(quick, first.attempt_id, lambda c: c.state in ("done", "failed", "void"))
    assert ended.state == "done", ended.said
    now = await quick.store.experience.get(first.attempt_id)
    evidence = now.evidence or {}
    assert now.trust == "confirmed" and evidence["first"]["speedup"] == first.speedup
    again = await quick.store.experience.get(evidence["confirmed_by"])
    assert (again.kind, again.parent_id, again.speedup) == ("confirm", first.attempt_id, now.speedup)
    kept = await quick.evaluation.evaluator.evaluate(problem, source, reuse=True)
    assert (kept.attempt_id, kept.trust, kept.speedup) == (first.attempt_id, "confirmed", now.speedup)
    listed = (await quick.store.experience.list("best", problem_id=problem)).attempts
    assert [(a.attempt_id, a.rank, a.trust) for a in listed] == [(first.attempt_id, 1, "confirmed")]


async def test_an_exact_evaluation_owes_nothing(quick: Lab):
    found = await quick.evaluation.evaluator.evaluate(
        await register(quick), CandidateSource(RIGHT, "c", "k.c"), timing=TimingOptions(precision="exact")
    )
    assert found.trust != "provisional" and not found.confirmation
    assert await quick.evaluation.confirmations.get(found.attempt_id) is None


async def test_a_run_gives_way_to_who_is_judged_and_is_owed_again(quick: Lab):
    problem = await register(quick)
    slow = await recorded(quick, problem, SLOW, 50.0)
    await quick.evaluation.confirmations.owe_best(slow.attempt_id)
    job_id = await job_of(quick, slow.attempt_id)
    row = await quick.jobs.table.get(job_id)
    await quick.evaluation.evaluator.evaluate(problem, CandidateSource(RIGHT, "c", "k.c"), timing=UNTIMED)
    assert (await quick.jobs.runner.poll(job_id, row.host, timeout_s=30.0)).record.status == "cancelled"
    await until(quick, slow.attempt_id, lambda c: c.state != "running" or c.started_at != row.submitted_at)
    assert await quick.evaluation.confirmations.rest_s(row.host, 1e6) > 0, "its time counts among that of all runs"
    assert await _second_job(quick, slow.attempt_id, job_id) != job_id, "it is made once more"


@pytest.mark.timeout(600)
async def test_a_run_that_ends_before_it_has_a_job_is_owed_again(monkeypatch: pytest.MonkeyPatch):
    """Somebody else may want its host between the row and the job; then its task never makes a step."""
    monkeypatch.setattr(confirmation_runs, "QUIET_S", 3600.0)  # none begins but by this test's hand
    async with laboratory() as lab:
        attempt = await recorded(lab, await register(lab), RIGHT, 7.0)
        runs, confirmations = lab.evaluation.runs, lab.evaluation.confirmations
        for how in ("gives way", "server ends"):
            await confirmations.owe(attempt.attempt_id, "asked")
            (owed,) = [one for one in await confirmations.list_owed() if one.attempt_id == attempt.attempt_id]
            await runs._begin(owed)
            assert (found := await confirmations.get(attempt.attempt_id)) and found.state == "running"
            if how == "gives way":
                runs.give_way(owed.host)
            else:
                await runs.close()
            found = await until(lab, attempt.attempt_id, lambda one: one.state != "running")
            assert (found.state, found.server, found.tries) == ("owed", None, 0), how
            assert await confirmations.job_of(attempt.attempt_id, None) is None
            while runs._running:
                await asyncio.sleep(0.01)


async def test_no_run_is_tried_while_other_jobs_wait_for_a_turn_on_its_host(
    quick: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ConfirmationRuns, "_others_wait", OTHERS_WAIT)
    attempt = await recorded(quick, await register(quick), RIGHT, 7.0)
    runner = quick.jobs.runner
    turn, states = GpuRequest(mode="exclusive", wait_s=PATIENCE_S), ("running", "queued")
    jobs: list[str] = []
    for state in states:  # the second waits for the first
        spec = JobSpec(
            id=new_job_id(),
            purpose="check",
            processes=(ProcessSpec(argv=("sleep", str(PATIENCE_S))),),
            gpus=turn,
            limits=Limits(wall_s=PATIENCE_S),
        )
        await runner.submit(spec, host="local", blobs={})
        jobs.append(spec.id)
        async with asyncio.timeout(PATIENCE_S):
            while (seen := await runner.poll(spec.id, "local")).record.state != state or not (
                state == "running" or seen.record.note
            ):
                await asyncio.sleep(0.05)
    await quick.evaluation.confirmations.owe_best(attempt.attempt_id)
    owed = await until(quick, attempt.attempt_id, lambda c: True)
    assert await quick.evaluation.runs._refused_s(owed) == confirmation_runs.LOOK_S
    assert await quick.evaluation.confirmations.job_of(attempt.attempt_id, None) is None
    for job_id in jobs:
        await runner.cancel(job_id, "local")


async def test_a_server_that_wants_a_stronger_sandbox_leaves_a_run_owed_and_says_why(
    quick: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirmation_runs, "LEVELS", (*LEVELS, "stronger"))
    monkeypatch.setattr(quick.evaluation.runs, "_least", "stronger")
    attempt = await recorded(quick, await register(quick), RIGHT, 7.0)
    await quick.evaluation.confirmations.owe_best(attempt.attempt_id)
    found = await until(quick, attempt.attempt_id, lambda c: bool(c.said))
    assert (found.state, found.tries) == ("owed", 0)
    listed = await quick.evaluation.listing.list_attempts("best", attempt.attempt_id)
    assert "confirmation owed (host local gives sandbox level " in listed.summary()
    assert "this server's min_level is stronger" in listed.summary()
    assert await quick.evaluation.confirmations.job_of(attempt.attempt_id, None) is None


async def _second_job(lab: Lab, attempt_id: str, first: str) -> str:
    async with asyncio.timeout(PATIENCE_S):
        while (found := await lab.evaluation.confirmations.job_of(attempt_id, None)) in (None, first):
            await asyncio.sleep(0.05)
        return str(found)


async def test_an_audit_whose_client_goes_is_made_by_the_server(quick: Lab):
    cheat = await recorded(quick, await register(quick), SLOW_AND_WRONG, 900.0)
    audit = asyncio.create_task(quick.evaluation.auditor.audit(cheat.attempt_id))
    await job_of(quick, cheat.attempt_id)
    audit.cancel()
    await asyncio.gather(audit, return_exceptions=True)
    assert audit.cancelled()
    assert (await until(quick, cheat.attempt_id, lambda c: c.state == "void")).why == "audit"


async def test_a_run_goes_on_when_its_host_side_is_killed(quick: Lab):
    slow = await recorded(quick, await register(quick), SLOW, 50.0)
    await quick.evaluation.confirmations.owe_best(slow.attempt_id)
    job_id = await job_of(quick, slow.attempt_id)
    sides = host_sides()
    assert sides
    for pid in sides:
        os.kill(pid, signal.SIGKILL)
    await until(quick, slow.attempt_id, lambda c: c.state != "running")
    assert (await quick.jobs.table.get(job_id)).record is not None
    again = await quick.store.experience.get((await quick.jobs.table.get(job_id)).attempt_id or "")
    assert (again.kind, again.verdict) == ("confirm", "correct"), "the job went on to its verdict"


def host_sides() -> list[int]:
    """Return the processes of hostd that this test's server started."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"hostd" in (path.parent / "cmdline").read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


SERVER = """
import asyncio, sys
from pathlib import Path
from gpu_mcp_server.services.evaluation import confirmation_outcomes, confirmation_runs
from tests.brief_rounds import set_rounds
from tests.laboratory import settings_for
from tests.services.evaluation.test_confirmation_runs import SLOW, Lab, job_of, recorded, register

async def main():
    set_rounds(brief=True)
    confirmation_runs.QUIET_S = confirmation_runs.PATIENT_S = 0.0
    async with Lab.open(settings_for(Path(sys.argv[1]))) as lab:
        slow = await recorded(lab, await register(lab), SLOW, 50.0)
        await lab.evaluation.confirmations.owe_best(slow.attempt_id)
        print(slow.attempt_id, await job_of(lab, slow.attempt_id), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
async def test_the_next_server_finds_the_run_of_one_that_ended(how: signal.Signals):
    with Folder() as folder:
        server = subprocess.Popen(  # noqa: ASYNC220 - it is waited for in a thread
            [sys.executable, "-c", SERVER, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        try:
            assert server.stdout is not None
            attempt_id, job_id = (await asyncio.to_thread(server.stdout.readline)).split()
        finally:
            server.send_signal(how)
            await asyncio.to_thread(server.communicate)
        async with Lab.open(settings_for(folder)) as lab:  # it only waits for the job: nothing gives way
            await until(lab, attempt_id, lambda c: c.state != "running")
            row = await lab.jobs.table.get(job_id)
            assert row.record is not None and row.record.status == "ok", "it went on without its server"
            again = await lab.store.experience.get(row.attempt_id or "")
            assert (again.kind, again.parent_id, again.verdict) == ("confirm", attempt_id, "correct")
            assert await lab.evaluation.confirmations.job_of(attempt_id, None) == job_id, "it was not made twice"


async def test_a_list_has_sources_where_they_are_asked_for(quick: Lab):
    problem = await register(quick)
    attempt = await recorded(quick, problem, WRONG, 2.0)
    plain = await quick.evaluation.listing.list_attempts("recent", problem_id=problem, limit=1)
    assert plain.attempts[0].source is None and f"source {attempt.source_artifact_id}" in plain.summary()
    asked = await quick.evaluation.listing.list_attempts("recent", problem_id=problem, limit=1, with_sources=True)
    assert asked.attempts[0].source == WRONG and "y[i] = x[i]" in asked.summary()
