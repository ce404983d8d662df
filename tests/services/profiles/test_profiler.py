"""Checks and profiles through the laboratory: real jobs and sandboxes; the tools are stand-ins that replay captures.

The tools themselves need a GPU: tests/real/test_profiling.py.
"""

import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound, ToolMissing
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.profiles import memory_checker, profile_targets
from gpu_mcp_server.services.profiles.memory_checker import arguments
from gpu_mcp_server.workers import run_attempt
from tests.laboratory import laboratory
from tests.profilers.test_ncu import kernels as captured
from tests.profilers.test_ncu import line_of
from tests.profilers.test_sanitizer import planted

HERE = Path(__file__).parents[1]
DATA = HERE.parent / "profilers" / "data"
PROGRAM = (DATA / "programs" / "kernels.cu").read_text()


def put_tools(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the laboratory's host the stand-ins, which need no GPU."""
    tools = lab.settings.data_dir / "tools"
    shutil.copytree(HERE / "tools", tools, dirs_exist_ok=True)
    for page in ((DATA / "ncu").glob("*.csv"), (DATA / "sanitizer").glob("*.txt")):
        for path in page:
            shutil.copy(path, tools)
    tools.chmod(0o755)
    found = {n: Tool(path=str(tools / n), version="2025.3.1", roots=[str(tools)]) for n in ("ncu", "compute-sanitizer")}
    monkeypatch.setattr(profile_targets, "GPUS", 0)
    whole = lab.hosts.probe

    async def probe(name: str) -> Any:
        about = await whole(name)
        return about.model_copy(update={"toolchains": about.toolchains.model_copy(update={"tools": found})})

    monkeypatch.setattr(lab.hosts, "probe", probe)


@pytest.fixture
async def lab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A laboratory whose host has the stand-ins."""
    async with laboratory() as lab:
        put_tools(lab, monkeypatch)
        yield lab


async def workspace(lab: Lab, **files: str) -> str:
    return (await lab.store.workspaces.write(None, {k.replace("__", "."): v for k, v in files.items()})).workspace_id


async def test_a_finding_comes_with_the_text_of_its_line_and_stays_in_the_history(lab: Lab):
    where = await workspace(lab, kernels__cu=PROGRAM)
    found = await lab.profiles.checker.check(RunTarget(command=["sh", "-c", "exit 0", "memcheck"], workspace_id=where))
    assert found.status == "findings", found
    line = planted("past_end")[1]
    assert found.findings[0].line == line
    assert found.findings[0].source == PROGRAM.splitlines()[line - 1].strip()
    assert (await lab.store.artifacts.read(found.log_artifact_id or "")).startswith(b"========= COMPUTE-SANITIZER")
    attempt = await lab.store.experience.get(found.attempt_id or "")
    assert (attempt.kind, attempt.status) == ("check", "findings") and f"kernels.cu:{line}" in (attempt.reason or "")


async def test_a_clean_program_is_clean_and_one_that_fails_by_itself_is_not(lab: Lab):
    assert (await lab.profiles.checker.check(RunTarget(command=["true", "clean"]))).status == "clean"
    failed = await lab.profiles.checker.check(RunTarget(command=["sh", "-c", "echo wrong answer; exit 3", "clean"]))
    assert failed.status == "failed" and "the program alone ended with 3" in (failed.note or "")
    assert "wrong answer" in failed.output
    silent = await lab.profiles.checker.check(RunTarget(command=["true", "nothing"]))
    assert silent.status == "not_checked" and "did not come to its summary" in (silent.note or "")


async def test_what_would_take_hours_is_refused_with_the_way_to_shrink_it(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_checker, "FACTORS", {"racecheck": 1e6})
    refused = await lab.profiles.checker.check(RunTarget(command=["sleep", "0.05"]), "racecheck")
    assert refused.status == "not_checked" and "count: 1" in (refused.note or ""), refused
    few = await lab.profiles.checker.check(RunTarget(command=["sh", "-c", "true", "racecheck"], count=1), "racecheck")
    assert few.status == "findings"


async def test_the_checkers_time_is_limited_and_a_hang_is_named(lab: Lab):
    hung = await lab.profiles.checker.check(RunTarget(command=["sleep", "50"], timeout_s=0.3), "synccheck")
    assert hung.status == "timeout" and "not all threads reach" in (hung.note or ""), hung


async def test_initcheck_is_refused_where_it_breaks_programs(lab: Lab):
    where = await workspace(lab, a__cu="ncclDevComm_t comm;")
    with pytest.raises(BadRequest, match="device interface"):
        await lab.profiles.checker.check(RunTarget(command=["true"], workspace_id=where), "initcheck")
    with pytest.raises(BadRequest, match="ncu cannot replay"):
        await lab.profiles.profiler.profile(RunTarget(command=["true"], workspace_id=where))


def test_options_pad_allocations_and_ask_for_one_record_a_race():
    assert arguments("memcheck", RunTarget(), api_errors=True)[-2:] == ["--padding", "64"]
    race = arguments("racecheck", RunTarget(kernel="gemm", count=2), api_errors=True)
    assert race[-6:] == ["--racecheck-report", "analysis", "--kernel-name", "kns=gemm", "--launch-count", "2"]
    assert "--report-api-errors" in arguments("memcheck", RunTarget(), api_errors=False)


async def test_a_profile_has_a_verdict_a_report_a_picture_and_answers_questions(lab: Lab):
    where = await workspace(lab, kernels__cu=PROGRAM)
    result = await lab.profiles.profiler.profile(RunTarget(command=["true"], workspace_id=where))
    assert result.status == "ok", result
    product, tiled, *_ = captured()
    assert result.verdict.startswith(f"product: {(product.time_us or 0) / 1e3:.3g} ms") and len(result.verdict) <= 1600
    assert await lab.store.artifacts.read(result.report_artifact_id or "") == b"a report"
    assert (await lab.store.artifacts.read(result.roofline_artifact_id or ""))[:4] == b"\x89PNG"
    assert result.device == product.device
    kernels = await lab.profiles.queries.ask(result.profile_id or "", "kernels")
    assert [r["kernel"] for r in kernels.rows][:2] == ["product", "tiled<32>"]
    lines = await lab.profiles.queries.ask(result.profile_id or "", "lines", kernel="tiled")
    share = 100 * tiled.lines[0].samples / sum(line.samples for line in tiled.lines)
    assert (lines.rows[0]["line"], lines.rows[0]["percent"]) == (f"kernels.cu:{line_of('HOT')}", round(share, 1))
    metrics = await lab.profiles.queries.ask(
        result.profile_id or "", "metrics", kernel="saxpy", name="l1tex__t*hit*,nothing"
    )
    assert [r["metric"] for r in metrics.rows] == ["l1tex__t_sector_hit_rate.pct"]
    rules = await lab.profiles.queries.ask(result.profile_id or "", "rules", name="uncoal")
    assert rules.rows[0]["speedup_percent"] > 70
    again = await lab.profiles.profiler.profile(RunTarget(command=["true"], kernel="saxpy"))
    beside = await lab.profiles.queries.ask(result.profile_id or "", "compare", other=again.profile_id)
    assert beside.text.startswith("product: 2.73 ms -> 2.73 ms, as fast")
    attempt = await lab.store.experience.get(result.profile_id or "")
    assert attempt.kind == "profile" and attempt.evidence and attempt.evidence["roofline"][0]["pipe"] == "fp32"
    assert (attempt.reason or "").startswith(f"bound by {result.kernels[0].bound}; product: "), attempt.reason


async def test_closed_counters_are_said_with_what_opens_them(lab: Lab):
    result = await lab.profiles.profiler.profile(RunTarget(command=["true", "closed"]))
    assert result.status == "not_measured"
    assert "ERR_NVGPUCTRPERM" in result.not_measured[0] and "NVreg_Restrict" in result.summary()


async def test_a_job_that_outlasts_the_call_is_settled_when_it_is_asked_for(lab: Lab):
    started = await lab.profiles.profiler.profile(RunTarget(command=["sleep", "0.5"], wait_s=0.0))
    assert started.status == "running"
    later = await lab.commands.status(started.job_id or "", wait_s=30)
    assert "product: " in (later.note or "") and "BOUND: " in (later.note or "")
    assert (await lab.profiles.queries.ask(started.profile_id or "", "verdict")).text.startswith("product: ")


async def test_a_report_from_elsewhere_is_read_without_running_anything(lab: Lab):
    trace = '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n"KERNEL_DISPATCH","blur(int)",1000,9000\n'
    where = (await lab.store.workspaces.write(None, {"run/p_kernel_trace.csv": trace})).workspace_id
    result = await lab.profiles.profiler.profile(RunTarget(report="run", workspace_id=where))
    assert (result.status, result.profiler) == ("ok", "rocprofv3") and result.verdict.startswith("blur: 8.00 µs")
    assert result.job_id is None
    elsewhere = await workspace(lab, a="x")
    with pytest.raises(BadRequest, match="no file or folder"):
        await lab.profiles.profiler.profile(RunTarget(report="run", workspace_id=elsewhere))
    unknown = await lab.profiles.profiler.profile(RunTarget(report="a", workspace_id=elsewhere))
    assert unknown.status == "not_measured" and "none of these files" in unknown.verdict


async def test_a_report_says_which_files_and_counters_were_not_understood(lab: Lab):
    head = '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"'
    rows = [
        '"0","mix(float *)","(128, 1, 1)","(512, 1, 1)",' + r
        for r in (
            '"Duration","usecond","1400.5"',
            '"dram__throughput.avg.pct_of_peak_sustained_elapsed","%","n/a"',
        )
    ]
    files = {"run/details.csv": "\n".join([head, *rows]) + "\n", "run/notes.csv": "Shade,Weight\nred,1\n"}
    where = (await lab.store.workspaces.write(None, files)).workspace_id
    result = await lab.profiles.profiler.profile(RunTarget(report="run", workspace_id=where))
    assert result.status == "ok" and result.verdict.startswith("mix: 1.40 ms; grid 512 x block 128")
    counters, unread = result.not_measured
    assert "NVreg_RestrictProfilingToAdminUsers=0" in counters and "notes.csv was not understood" in unread
    assert "NOT MEASURED: 1 counters are n/a or NaN" in result.verdict
    assert "not enough counters to advise: level full" in result.verdict


async def test_a_log_of_refused_counters_has_the_administrators_line(lab: Lab):
    log = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n"
    where = (await lab.store.workspaces.write(None, {"ncu.log": log})).workspace_id
    result = await lab.profiles.profiler.profile(RunTarget(report="ncu.log", workspace_id=where))
    assert result.status == "not_measured" and "NVreg_RestrictProfilingToAdminUsers=0" in result.not_measured[0]


async def test_traces_of_several_ranks_say_who_is_late(lab: Lab):
    def rank(ns: int) -> str:
        rows = [f"{n * 10_000},{ns},{n},GPU (0),7,ncclDevKernel_AllReduce" for n in range(3)]
        return "\n".join(["Start (ns),Duration (ns),CorrId,Device,Strm,Name", *rows]) + "\n"

    files = {"t/rank0.csv": rank(5000), "t/rank1.csv": rank(900)}
    where = (await lab.store.workspaces.write(None, files)).workspace_id
    result = await lab.profiles.profiler.profile(RunTarget(report="t", workspace_id=where))
    assert "TIMELINE: 25 us from first to last, idle 40 %" in result.verdict
    assert "t/rank1.csv arrives last" in result.verdict


async def test_the_quick_level_of_a_python_program_without_a_profiler_fails_with_its_words(lab: Lab):
    where = await workspace(lab, a__py="print('ran')")
    result = await lab.profiles.profiler.profile(
        RunTarget(command=["/usr/bin/python3", "a.py"], workspace_id=where), "quick"
    )
    assert result.status in ("failed", "not_measured")
    assert "triton.profiler" in (result.note or "")
    with pytest.raises(ToolMissing, match="nsys"):
        await lab.profiles.profiler.profile(RunTarget(command=["true"]), "quick")


async def test_handles_and_targets_that_name_nothing_are_errors(lab: Lab):
    with pytest.raises(BadRequest, match="either command or attempt_id"):
        await lab.profiles.checker.check(RunTarget())
    with pytest.raises(NotFound):
        await lab.profiles.queries.ask("a-0", "kernels")
    attempt = await lab.store.experience.start("run")
    with pytest.raises(BadRequest, match="no evaluation"):
        await lab.profiles.checker.check(RunTarget(attempt_id=attempt))
    with pytest.raises(NotFound, match="profile"):
        await lab.profiles.queries.ask(attempt, "kernels")


async def test_without_a_gpu_a_program_is_the_processors_and_a_check_says_what_it_lacks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(profile_targets, "GPUS", 1)
    if (await lab.hosts.probe("local")).gpus:
        pytest.skip("this host has a GPU")
    profiled = await lab.profiles.profiler.profile(RunTarget(command=["true"]), "quick")
    assert profiled.status == "ok" and "s of processor time" in profiled.verdict, profiled.summary()
    attempt = await lab.store.experience.start("evaluate", problem_id="p", source_hash="0" * 64, language="triton")
    with pytest.raises(ToolMissing, match="GPU"):
        await lab.profiles.profiler.profile(RunTarget(attempt_id=attempt))
    checked = await lab.profiles.checker.check(RunTarget(command=["true"]))
    assert checked.status == "not_checked" and "no sanitizer runs in this program" in (checked.note or "")


def test_the_players_patterns_are_numbers():
    halves = run_attempt.pattern("float16", 1)
    assert all(abs(x) < 2 for (x,) in struct.iter_unpack("<e", halves[:4096]))
    assert {x for (x,) in struct.iter_unpack("<i", run_attempt.pattern("int32", 1))} == {0, 1, 2, 3}
