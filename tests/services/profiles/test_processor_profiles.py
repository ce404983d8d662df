"""Profiles on a processor: real attempts and programs in real jobs, with perf where this host has it."""

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.jobs.spec_validation import validate_spec
from gpu_mcp_server.hostd.protocol import JobSpec, ProcessSpec, ProtocolError
from gpu_mcp_server.models.profile import KernelReading, ProfileResult, SourceLine
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.profilers import bottleneck, perf_events
from gpu_mcp_server.profilers.perf_events import PerfSeen, ProcessorRun, RunSeen
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.workers import run_perf
from tests.judge.harness import torch_python
from tests.laboratory import PROBLEM, laboratory
from tests.services.profiles.attempts import noted_attempt

SCAN = """#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        y[i] = sum = sum * 0.5f + x[i];
    return 0;
}
"""
"""A recurrence: no compiler makes vectors of its loop."""
SCAN_PROBLEM: dict[str, Any] = {
    **PROBLEM,
    "name": "a damped running sum",
    "reference": "import numpy as np\n\ndef reference(x):\n    y, s = np.empty_like(x), np.float32(0)\n"
    "    for i, v in enumerate(x):\n        s = s * np.float32(0.5) + v\n        y[i] = s\n    return y\n",
    "shapes": [{"n": 1000}, {"n": 20_000}],
    "flops": "2 * n",
}


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        yield lab


def perf_works() -> bool:
    """Say whether perf may count here; in a job it then may as well."""
    perf = shutil.which("perf", path="/usr/local/bin:/usr/bin:/bin")
    command = [perf or "", "stat", "-e", "task-clock:u", "true"]
    return perf is not None and os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


def lines_at_80_columns(result: ProfileResult) -> list[str]:
    """Return what a text-only client reads; no line is longer than a terminal."""
    lines = result.summary().splitlines()
    assert all(len(line) <= 80 for line in lines), lines
    return lines


async def test_an_attempt_has_its_time_the_hosts_roofs_and_a_reason(lab: Lab):
    attempt_id = await noted_attempt(lab, SCAN_PROBLEM, SCAN)
    result = await lab.profiles.profiler.profile(RunTarget(attempt_id=attempt_id, shape={"n": 20_000}))
    lines, text = lines_at_80_columns(result), " ".join(result.verdict.split())
    assert result.status == "ok" and lines[0].startswith("launch: "), result.summary()
    assert "STREAM reaches" in text and "multiply-adds reach" in text and "CEILINGS: " in text
    (kernel,) = result.kernels
    assert kernel.roofline is not None and kernel.roofline.tflop_s > 0 and kernel.calls >= 3
    if perf_works():
        assert "HOT LINE: kernel.c:5 " in text and "y[i] = sum = sum * 0.5f" in text, text
        assert "the compiler made no vectors of line" in text, text
    else:
        assert "UNKNOWN: cycles, instructions, cache misses, branch misses" in text
    asked = await lab.profiles.queries.ask(result.profile_id or "", "metrics", name="GB/s,cycles")
    found = {row["metric"]: row["value"] for row in asked.rows}
    assert found["stream GB/s"] > 0 and found.get("cycles") != 0
    again = await lab.profiles.queries.ask(result.profile_id or "", "verdict")
    assert again.text == result.verdict


async def test_quick_times_calls_alone_in_cpp_too_and_a_failing_launcher_is_said(lab: Lab):
    text = SCAN.replace("int launch", 'extern "C" int launch').replace("return 0", "return n == 3 ? 7 : 0")
    attempt_id = await noted_attempt(lab, SCAN_PROBLEM, text, "cpp")
    result = await lab.profiles.profiler.profile(RunTarget(attempt_id=attempt_id, count=5, skip=2), "quick")
    lines = lines_at_80_columns(result)
    assert result.status == "ok" and "median of 5 calls" in lines[0], lines
    assert "STREAM" not in result.verdict and "level quick has none" in result.verdict
    failed = await lab.profiles.profiler.profile(RunTarget(attempt_id=attempt_id, shape={"n": 3}), "quick")
    assert failed.status == "failed" and "the launcher returned 7" in (failed.note or ""), failed.summary()


async def test_a_program_is_profiled_as_a_whole(lab: Lab):
    text = "int main(void) {\n    volatile double x = 0;\n    for (long i = 0; i < 60000000; i++)\n        x += i;\n}\n"
    workspace = (await lab.store.workspaces.write(None, {"a.c": text})).workspace_id
    command = ["sh", "-c", "gcc -g a.c -o a && ./a"]
    result = await lab.profiles.profiler.profile(RunTarget(command=command, workspace_id=workspace))
    lines = lines_at_80_columns(result)
    assert result.status == "ok" and " s of processor time" in lines[0], lines
    assert not perf_works() or "HOT LINE: a.c:" in result.verdict, result.verdict
    with pytest.raises(BadRequest, match="profiled as a whole"):
        await lab.profiles.profiler.profile(RunTarget(command=["true"], kernel="main"))


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
async def test_a_python_attempt_is_timed_on_the_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON", torch_python())
    async with laboratory() as lab:
        text = "import torch\ndef launch(x, y, n):\n    torch.cumsum(x, 0, out=y)\n"
        attempt_id = await noted_attempt(lab, SCAN_PROBLEM, text, "launcher")
        result = await lab.profiles.profiler.profile(RunTarget(attempt_id=attempt_id), "quick")
        assert result.status == "ok" and "median of " in lines_at_80_columns(result)[0], result.summary()


def test_only_a_profile_may_count():
    process = ProcessSpec(argv=("true",), counted=True)
    validate_spec(JobSpec(id="j-0-0", purpose="profile", processes=(process,)))
    with pytest.raises(ProtocolError, match="only a profile is counted"):
        validate_spec(JobSpec(id="j-0-0", purpose="run", processes=(process,)))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (PerfSeen(why="missing"), "An administrator runs: apt-get install linux-perf"),
        (PerfSeen(why="refused", paranoid="4"), "An administrator runs: sysctl kernel.perf_event_paranoid=2 (it is 4)"),
        (PerfSeen(why="refused", paranoid="2", said="EPERM"), "docker run --cap-add PERFMON. perf said: EPERM"),
        (PerfSeen(version="perf 6.1"), "the kernel offers no such counter here, as on most virtual machines"),
    ],
)
def test_a_counter_that_was_not_read_is_unknown_with_the_line_that_helps(seen: PerfSeen, said: str):
    run = ProcessorRun(cores=2, timed=RunSeen(code=0, seconds=1), perf=seen)
    reading = perf_events.reading_of("launch", run, None, {}, {})
    verdict = bottleneck.kernel_verdict(reading).verdict
    assert "UNKNOWN: cycles, instructions, cache misses, branch misses" in verdict
    assert said in " ".join(verdict.split()) and "COUNTED" not in verdict and "TRY" not in verdict


def test_hardware_counters_are_told_and_advice_names_its_count():
    csv = (
        "# started on Fri Nov 27\n\n1000.00,msec,task-clock:u,1000000000,100.00,0.999,CPUs utilized\n"
        "3000000000,,cycles:u,1000000000,100.00,,\n1500000000,,instructions:u,1000000000,100.00,0.50,insn per cycle\n"
        "30000000,,cache-misses:u,1000000000,100.00,,\n200000000,,branches:u,1000000000,100.00,,\n"
        "<not counted>,,branch-misses:u,0,100.00,,\n"
    )
    counts = run_perf.counts_in(csv)
    assert counts == {
        "task-clock": 1000, "cycles": 3e9, "instructions": 1.5e9, "cache-misses": 3e7, "branches": 2e8,
    }  # fmt: skip
    run = ProcessorRun(cores=2, timed=RunSeen(code=0, seconds=1), perf=PerfSeen(), counts=counts)
    text = " ".join(bottleneck.kernel_verdict(perf_events.reading_of("k", run, None, {}, {})).verdict.split())
    assert "COUNTED: 0.50 instructions a cycle, 3.00 GHz, 20 cache misses in 1,000 instructions" in text
    assert "TRY 1: blocks that stay in cache" in text and "% of branches" not in text
    assert "UNKNOWN: branch misses: " in text


def test_a_sample_counts_however_long_its_functions_name_is():
    """Demangled templates have thousands of characters, and are often the hot ones."""
    name = f"void fill<{', '.join(['std::pair<int (*)(long), float>'] * 300)}>(float*) const"
    ip, kept, file = run_perf.sample_in(f"        55d0aa001139 {name} (/job/a program)") or (0, "", "")
    assert (ip, file) == (0x55D0AA001139, "/job/a program") and 0 < len(kept) <= 400 and name.startswith(kept)
    assert run_perf.sample_in("prog 1 PERF_RECORD_MMAP2 1/1: [0x55d0(0x1000) @ 0 08:01 1 0]: r-xp /job/a") is None


def test_a_kernel_near_the_memorys_roof_is_told_so_and_one_in_cache_is_not():
    metrics = {"tensor bytes": 1e9, "stream GB/s": 10.0, "fma GFLOP/s": 100.0, "flops": 1e9, "cores": 2.0}
    reading = KernelReading(name="k", time_us=125e3, calls=3, metrics=metrics, texts={"tool": perf_events.TOOL})
    near = bottleneck.kernel_verdict(reading)
    assert near.bound == "memory" and near.bound_percent == pytest.approx(80)
    assert near.roofline is not None and near.roofline.levels[0].of_roof_percent == pytest.approx(80)
    assert any("fewer bytes" in advice for advice in near.advice)
    cached = bottleneck.kernel_verdict(reading.model_copy(update={"metrics": {**metrics, "cache bytes": 2e9}}))
    assert cached.bound is None and not cached.advice and "does not bound" in " ".join(cached.verdict.split())


def test_lines_of_the_report_stand_by_their_own_loop_alone():
    report = "kernel.c:4: loop vectorized using 32 byte vectors\nkernel.c:9: couldn't vectorize loop"
    texts = {"tool": perf_events.TOOL, perf_events.VECTORS: report}
    for line, told in ((4, False), (10, True), (20, False)):
        hot = [SourceLine(file="/job/kernel.c", line=line, samples=90)]
        reading = KernelReading(name="k", time_us=1.0, metrics={"samples": 100.0}, texts=texts, lines=hot)
        assert ("made no vectors" in bottleneck.kernel_verdict(reading).verdict) is told


@given(st.dictionaries(st.text(max_size=8), st.recursive(st.floats() | st.text(), st.lists, max_leaves=5)), st.binary())
def test_what_a_program_may_forge_is_read_within_limits(about: dict[str, Any], data: bytes):
    run = perf_events.read_run({**about, "counts": {"cycles": -1}})
    assert run == ProcessorRun()
    perf_events.read_times(data)
    assert perf_events.read_times(b"3 100 50 0\n" + b"7\n" * 5000) is not None
    json.dumps(perf_events.reading_of("k", run, None, {}, {}).model_dump())
