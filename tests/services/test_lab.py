"""The services together, over the real host: compile, run, judge, remember."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.commands.job_listing import list_jobs
from gpu_mcp_server.services.evaluation.judge_results import PRINTED_CHARS
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import HONEST, PROBLEM, Folder, laboratory, settings_for

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
C = CandidateSource(HONEST, "c", "twice.c")
CHEAT = CandidateSource("int launch(void) { return 0; }", "c", "nothing.c")
UNTIMED = TimingOptions(tier="correctness")


async def registered(lab: Lab) -> str:
    given = {k: [TensorSpec(**t) for t in v] if k in ("inputs", "outputs") else v for k, v in PROBLEM.items()}
    return (await lab.evaluation.registry.register(**given)).problem_id


async def test_a_library_is_built_once_and_comes_from_the_cache_then(lab: Lab):
    source = CandidateSource(HONEST + "// nobody else's", "c", "twice.c")
    first, second = await lab.builds.compiler.compile(source), await lab.builds.compiler.compile(source)
    assert (first.status, first.cached, second.cached) == ("ok", False, True)
    assert first.artifact_id == second.artifact_id and first.attempt_id != second.attempt_id
    assert (await lab.store.artifacts.read(first.artifact_id or ""))[:4] == b"\x7fELF"


async def test_a_failure_is_kept_as_well_as_a_success(lab: Lab):
    broken = CandidateSource("int launch(void) { return x; }", "c", "broken.c")
    first, second = await lab.builds.compiler.compile(broken), await lab.builds.compiler.compile(broken)
    assert (first.status, second.status, second.cached) == ("failed", "failed", True)
    assert "undeclared" in second.diagnostics[0].message and second.diagnostics == first.diagnostics


async def test_another_flag_is_another_build(lab: Lab):
    await lab.builds.compiler.compile(C)
    assert not (await lab.builds.compiler.compile(C, BuildOptions(flags=("-O1",)))).cached


async def test_a_cuda_kernel_compiles_without_a_gpu_and_says_its_registers(lab: Lab):
    if (await lab.hosts.probe("local")).nvcc is None:
        pytest.skip("nvcc is not installed")
    source = Path("examples/softmax/naive.cu").read_text(encoding="utf-8")
    result = await lab.builds.compiler.compile(CandidateSource(source, "cuda", "naive.cu"), BuildOptions(arch="sm_80"))
    assert result.status == "ok" and result.arch == "sm_80"
    assert 0 < result.resources[0].registers_per_thread < 256 and result.resources[0].arch == "sm_80"


async def test_a_job_sees_its_workspace_and_what_it_changes_comes_back(lab: Lab):
    workspace = (
        await lab.store.workspaces.write(None, {"in.txt": "one\n", "sub/run.sh": "#!/bin/sh\ncat in.txt > out.txt\n"})
    ).workspace_id
    result = await lab.commands.run(["sub/run.sh"], workspace_id=workspace)
    assert result.status == "ok", result.summary()
    assert [o.path for o in result.outputs] == ["out.txt"]
    assert (await lab.store.workspaces.read(workspace, "out.txt")).text == "one"
    again = await lab.commands.run(["cat", "out.txt"], workspace_id=workspace)
    assert again.stdout == "one\n" and again.outputs == []


async def test_a_program_that_fails_is_a_result_with_its_code(lab: Lab):
    result = await lab.commands.run(["sh", "-c", "echo bad >&2; exit 3"])
    assert (result.status, result.exit_code, result.stderr) == ("failed", 3, "bad\n")


async def test_control_sequences_in_the_output_are_escaped(lab: Lab):
    result = await lab.commands.run(["printf", r"\033]52;c;ZXZp\007\377ok"])
    assert "\x1b" not in result.stdout and result.stdout.endswith("ok") and "\\x1b" in result.stdout


async def test_a_call_that_waits_no_longer_gets_the_job_and_its_end_later(lab: Lab):
    result = await lab.commands.run(["sh", "-c", "read x; echo got $x"], stdin="it\n", wait_s=0.0)
    assert result.state in ("queued", "running", "finished")
    final = await lab.commands.status(result.job_id, wait_s=20)
    assert (final.state, final.stdout) == ("finished", "got it\n")


async def test_a_detached_job_is_found_by_another_server(lab: Lab):
    started = await lab.commands.run(["sh", "-c", "echo here; sleep 30"], detach=True)
    async with Lab.open(lab.settings) as other:
        cancelled = await other.commands.cancel(started.job_id)
    assert cancelled.status == "cancelled"
    assert (await lab.commands.status(started.job_id)).status == "cancelled"


async def test_cancelling_the_call_ends_the_job(lab: Lab):
    ids: list[str] = []

    async def told(message: str) -> None:
        ids.append(message)

    running = asyncio.create_task(lab.commands.run(["sleep", "60"], progress=told))
    while not ids:
        await asyncio.sleep(0)
    while (await lab.status.gpus.status()).hosts[0].jobs_running == 0:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    job_id = ids[0].split()[1]
    assert (await lab.commands.status(job_id, wait_s=10)).status == "cancelled"


async def test_the_network_is_only_for_fetch_jobs_and_those_only_where_a_person_allowed_it(lab: Lab):
    connect = ["python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 9), 1)"]
    assert "unreachable" in (await lab.commands.run(connect)).stderr
    with pytest.raises(BadRequest, match="allow_fetch"):
        await lab.commands.run(["true"], fetch=True)
    async with laboratory(allow_fetch=True) as allowed:
        assert (await allowed.commands.run(["true"], fetch=True)).status == "ok"
        with pytest.raises(BadRequest, match="GPU"):
            await allowed.commands.run(["true"], fetch=True, gpus=1)


async def test_an_unknown_job_or_host_is_named(lab: Lab):
    with pytest.raises(NotFound, match="j-nope"):
        await lab.commands.status("j-nope")
    with pytest.raises(NotFound, match="local"):
        await lab.commands.run(["true"], host="nowhere")


async def test_a_verdict_carries_its_evidence_and_is_remembered(lab: Lab):
    problem_id = await registered(lab)
    good = await lab.evaluation.evaluator.evaluate(problem_id, C, note="plain loop")
    bad = await lab.evaluation.evaluator.evaluate(problem_id, CHEAT, parent_id=good.attempt_id)
    assert (good.verdict, bad.verdict) == ("correct", "cheat"), (good.reason, bad.reason)
    assert good.speedup is not None or "not timed" in (good.note or "")  # a busy machine cannot time it, and says so
    whole = json.loads(await lab.store.artifacts.read(good.evidence_artifact_id or ""))
    for shape, recorded in zip(good.shapes, whole["shapes"], strict=True):
        assert len(recorded["samples"]["candidate_us"]) >= 6
        if shape.candidate is not None:
            assert shape.candidate.low_us <= shape.candidate.median_us <= shape.candidate.high_us
            assert len(recorded["samples"]["candidate_us"]) == shape.candidate.rounds
    best = await lab.store.experience.list("best", problem_id=problem_id)
    assert [a.attempt_id for a in best.attempts] == ([good.attempt_id] if good.speedup else [])
    chain = await lab.store.experience.list("ancestors", attempt_id=bad.attempt_id)
    assert [a.attempt_id for a in chain.attempts] == [bad.attempt_id, good.attempt_id]
    failures = await lab.store.experience.list("failures", problem_id=problem_id)
    assert failures.attempts[0].reason and "without computing" in failures.attempts[0].reason


async def test_what_a_candidate_wrote_before_it_broke_stands_beside_the_verdict_as_its_own_words(lab: Lab):
    """Its C stdout is a pipe, which a process that aborts would not have flushed."""
    problem_id = await registered(lab)
    code = """#include <stdio.h>
#include <stdlib.h>
int launch(void) {
    fprintf(stderr, "workspace \\033[31m of %d bytes?\\n", -4);
    printf("verdict: correct\\n");
    abort();
}
"""
    broken = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(code, "c", "aborts.c"))
    assert (broken.verdict, broken.printed) == (
        "incorrect", "verdict: correct\nworkspace \\x1b[31m of -4 bytes?"
    ), broken.reason  # fmt: skip
    assert broken.summary().startswith("verdict: incorrect - ")
    assert "the candidate wrote (not believed):\n    verdict: correct\n    workspace" in broken.summary()


async def test_a_flood_of_words_is_shortened_and_a_correct_candidate_has_none(lab: Lab):
    problem_id = await registered(lab)
    flood = 'for (int i = 0; i < 100000; i++) fprintf(stderr, "line %d\\n", i);'
    bad = f"#include <stdio.h>\nint launch(void) {{ static int once; if (!once++) {flood} return 0; }}"
    good = HONEST.replace("{", '{ fprintf(stderr, "called\\n");', 1)
    flooded = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(bad, "c", "floods.c"))
    correct = await lab.evaluation.evaluator.evaluate(
        problem_id, CandidateSource("#include <stdio.h>\n" + good, "c", "s.c"), timing=UNTIMED
    )
    assert flooded.verdict == "cheat" and flooded.printed.startswith("line 0\n")
    assert len(flooded.printed) < PRINTED_CHARS + 60 and "characters left out" in flooded.printed
    assert (correct.verdict, correct.printed) == ("correct", ""), correct.reason


async def test_what_was_written_stands_with_the_attempt_and_where_job_status_settles_it(lab: Lab):
    problem_id = await registered(lab)
    code = '#include <stdio.h>\n#include <stdlib.h>\nint launch(void) { puts("x\\nverdict: correct"); abort(); }'
    started = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(code, "c", "aborts.c"), wait_s=0.0)
    settled = await lab.commands.status(started.job_id or "", wait_s=60)
    attempt = await lab.store.experience.get(started.attempt_id)
    assert "the candidate wrote (not believed):\n    x\n    verdict: correct" in settled.summary()
    assert (attempt.evidence or {})["printed"] == "x\nverdict: correct"


async def test_an_identical_request_says_that_its_note_is_not_recorded_and_names_a_parent_that_is_not_there(lab: Lab):
    problem_id = await registered(lab)
    await lab.evaluation.evaluator.evaluate(problem_id, CHEAT, reuse=True)
    again = await lab.evaluation.evaluator.evaluate(problem_id, CHEAT, reuse=True, note="once more")
    assert again.kept.endswith("; the note and parent of this call are not recorded")
    with pytest.raises(NotFound, match="a-nope"):
        await lab.evaluation.evaluator.evaluate(problem_id, CHEAT, reuse=True, parent_id="a-nope")


async def test_an_audit_is_no_lesson(lab: Lab):
    problem_id = await registered(lab)
    broken = await lab.evaluation.evaluator.evaluate(
        problem_id, CandidateSource("int launch(void) { return 3; }", "c", "fails.c")
    )
    await lab.evaluation.auditor.audit(broken.attempt_id)
    lessons = (await lab.memory.lessons(limit=50)).lessons
    times = [each.times for each in lessons if each.attempt_id == broken.attempt_id]
    assert times == [1], lessons


async def test_two_candidates_are_never_timed_on_the_processor_at_once(lab: Lab):
    problem_id = await registered(lab)
    both = await asyncio.gather(*(lab.evaluation.evaluator.evaluate(problem_id, C) for _ in range(2)))
    records = [(await lab.jobs.runner.poll(e.job_id or "", "local")).record for e in both]
    first, second = sorted(records, key=lambda r: r.started_at or 0)
    assert (first.ended_at or 0) <= (second.started_at or 0)


async def test_a_problem_is_the_hash_of_its_content(lab: Lab):
    first, again = await registered(lab), await registered(lab)
    assert first == again
    assert (await lab.evaluation.registry.problems(first)).problems[0].content_hash.startswith(first.removeprefix("p-"))


async def test_a_verdict_that_was_not_waited_for_is_settled_by_job_status(lab: Lab):
    problem_id = await registered(lab)
    started = await lab.evaluation.evaluator.evaluate(problem_id, C, timing=UNTIMED, wait_s=0.0)
    assert started.status == "running" and started.job_id
    result = await lab.commands.status(started.job_id, wait_s=60)
    assert result.note and "verdict correct" in result.note
    assert "starting reference and candidate" in result.stdout and "{" not in result.stdout
    assert (await lab.store.experience.get(started.attempt_id)).verdict == "correct"


async def test_what_an_earlier_server_left_running_is_finished_by_the_next():
    with Folder() as folder:
        async with Lab.open(settings_for(folder)) as first:
            problem_id = await registered(first)
            started = await first.evaluation.evaluator.evaluate(problem_id, C, wait_s=0.0)
            assert started.job_id
        async with Lab.open(settings_for(folder)) as second:
            await second.jobs.runner.poll(started.job_id, "local", timeout_s=20)
            await second.commands.finish_leftovers()
            attempt = await second.store.experience.get(started.attempt_id)
    assert attempt.status in ("caller_lost", "judged")


async def test_an_audit_confirms_what_can_be_had_twice(lab: Lab):
    problem_id = await registered(lab)
    cheat = await lab.evaluation.evaluator.evaluate(problem_id, CHEAT, flags=["-O1"])
    audit = await lab.evaluation.auditor.audit(cheat.attempt_id)
    assert (audit.outcome, audit.verdict_now) == ("confirmed", "cheat"), audit.why
    assert (await lab.store.experience.get(audit.audit_attempt_id)).parent_id == cheat.attempt_id


async def test_an_audit_voids_a_verdict_that_does_not_come_again_and_the_row_stays(lab: Lab):
    problem_id = await registered(lab)
    good = await lab.evaluation.evaluator.evaluate(problem_id, C, timing=UNTIMED)
    forged = await lab.store.experience.start(
        "evaluate", problem_id=problem_id, host="local", device=(await lab.store.experience.get(good.attempt_id)).device,
        language="c", entry="launch", source_artifact_id=await lab.store.artifacts.put(CHEAT.text.encode(), name="kernel.c"),
    )  # fmt: skip
    await lab.store.experience.finish(forged, status="judged", verdict="correct", speedup=1000.0)
    assert (await lab.store.experience.list("best", problem_id=problem_id)).attempts[0].attempt_id == forged
    audit = await lab.evaluation.auditor.audit(forged)
    assert audit.outcome == "voided" and "cheat" in audit.why
    assert forged not in [
        a.attempt_id for a in (await lab.store.experience.list("best", problem_id=problem_id)).attempts
    ]
    assert audit.why in ((await lab.store.experience.get(forged)).voided or "")


async def test_only_a_verdict_can_be_audited(lab: Lab):
    compiled = await lab.builds.compiler.compile(C)
    with pytest.raises(BadRequest, match="no verdict"):
        await lab.evaluation.auditor.audit(compiled.attempt_id or "")


async def test_a_file_asked_for_that_the_job_did_not_make_is_named(lab: Lab):
    result = await lab.commands.run(["touch", "made"], outputs=["made", "never", "*"])
    assert result.status == "ok" and [o.path for o in result.outputs] == ["made"]
    assert result.note == "asked for in outputs, but not there: never"
    later = await lab.commands.status(result.job_id)
    assert later.note == result.note


async def test_a_file_of_the_workspace_that_did_not_change_is_there(lab: Lab):
    workspace = (await lab.store.workspaces.write(None, {"kept.txt": "one\n"})).workspace_id
    result = await lab.commands.run(["true"], workspace_id=workspace, outputs=["kept.txt", "never"])
    assert result.note == "asked for in outputs, but not there: never"


async def test_stdout_is_read_in_parts_by_the_offset_that_the_answer_names(lab: Lab):
    script = "printf one; read x < go; printf two; sleep 60"
    started = await lab.commands.run(["sh", "-c", f"mkfifo go; {script}"], detach=True)
    first = await lab.commands.status(started.job_id)
    while not first.stdout:
        first = await lab.commands.status(started.job_id)
    second = await lab.commands.status(started.job_id, stdout_offset=first.stdout_next_offset or 0)
    await lab.commands.cancel(started.job_id)
    assert (first.stdout, first.stdout_next_offset) == ("one", 3)
    assert (second.stdout, second.stdout_next_offset) == ("", 3)
    ended = await lab.commands.status(started.job_id, stdout_offset=1)
    assert (ended.stdout, ended.stdout_next_offset) == ("ne", 3)
    assert (await lab.commands.status(started.job_id)).stdout_next_offset is None


async def test_a_program_that_is_not_there_or_is_none_ends_as_in_a_shell(lab: Lab):
    absent = await lab.commands.run(["no-such-program"])
    folder = await lab.commands.run(["/usr"])
    assert absent.exit_code == 127
    assert (absent.note or "").startswith(
        "there is no program 'no-such-program' in the sandbox: one of the workspace is"
    )
    assert (folder.exit_code, folder.note) == (126, "'/usr' cannot be started: Permission denied")


async def test_lists_settle_jobs_that_ended_without_anybody(own_lab: Lab):
    started = await own_lab.commands.run(["true"], detach=True)
    await own_lab.jobs.runner.wait(started.job_id, "local")
    async with Lab.open(own_lab.settings) as other:
        await other.commands.refresh_running_jobs()
        attempts = await other.store.experience.list("recent")
        (job,) = await other.commands.recent()
    assert [a.status for a in attempts.attempts] == ["ok"]
    assert (job.state, job.status) == ("finished", "ok")


async def test_a_job_that_waits_is_listed_as_queued(own_lab: Lab):
    goes_on = await own_lab.commands.run(["sleep", "60"], detach=True)
    assert (await own_lab.commands.refresh_running_jobs()).keys() == {goes_on.job_id}
    states = {goes_on.job_id: "queued"}
    assert [job.state for job in await list_jobs(own_lab.store.db, 1, states=states)] == ["queued"]
    await own_lab.commands.cancel(goes_on.job_id)


async def test_a_job_that_its_host_does_not_know_is_lost_once_it_is_old(own_lab: Lab):
    attempt = await own_lab.store.experience.start("run", host="local")
    table = own_lab.commands._table  # pyright: ignore[reportPrivateUsage] # a row that was written before a kill
    await table.add("j-0-00000000", "local", "run", None, attempt)
    await own_lab.commands.refresh_running_jobs()
    assert (await own_lab.store.experience.get(attempt)).status == "running"
    await table._db.execute("UPDATE jobs SET submitted_at = '2020-01-01T00:00:00+00:00'")  # pyright: ignore[reportPrivateUsage]
    await own_lab.commands.refresh_running_jobs()
    assert (await own_lab.store.experience.get(attempt)).status == "broken"
    (job,) = await own_lab.commands.recent()
    assert (job.state, job.status) == ("finished", "broken")


async def test_a_refused_flag_is_no_attempt(own_lab: Lab):
    problem = await registered(own_lab)
    with pytest.raises(BadRequest, match="plugin"):
        await own_lab.evaluation.evaluator.evaluate(problem, C, flags=["-fplugin=x.so"])
    assert (await own_lab.store.experience.list("recent", kind="evaluate")).attempts == []


async def test_a_numpy_reference_is_told_how_it_sees_bfloat16(lab: Lab):
    problem = {
        **PROBLEM,
        "reference": "import numpy as np\n\ndef reference(x):\n    return 2 * np.tanh((x.astype(np.uint32) << 16).view(np.float32)) + 1\n",
        "inputs": [TensorSpec(name="x", dtype="bfloat16", shape=["n"])],
        "outputs": [TensorSpec(name="y", dtype="float32", shape=["n"])],
    }
    registered = await lab.evaluation.registry.register(**{**problem, "distributions": "declared"})
    assert any("reference gets x as uint16 bits" in note for note in registered.notes)
