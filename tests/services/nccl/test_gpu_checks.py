"""Runs are started, read and judged: real processes in the real sandbox, standing in for programs that need GPUs."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_mcp_server.models.nccl_check import NcclCheck
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.nccl.checks import buffer_dumps, run_output
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.nccl.gpu_checks import NcclGpuChecks
from gpu_mcp_server.services.nccl.rank_jobs import NcclBuildResult, ProgramLaunch
from gpu_mcp_server.services.nccl.trial_programs import VerifiedProgram

HERE = Path(__file__).parents[2] / "nccl"
Make = Callable[..., NcclBuildResult]
TEXT = "#include <nccl.h>\nint main() { for (;;) ncclx::AlltoAll(a, b, n, ncclFloat, comm, stream); }\n"
HOST = TEXT.replace("ncclx::A", "ncclA")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Compile the stand-in with definitions, each set once."""
    folder = tmp_path_factory.mktemp("standin")
    known: dict[tuple[str, ...], NcclBuildResult] = {}

    def built(*defines: str) -> NcclBuildResult:
        if defines not in known:
            out = folder / f"program{len(known)}"
            command = ["gcc", "-o", str(out), *(f"-D{d}" for d in defines), str(HERE / "standin.c")]
            subprocess.run(command, check=True)
            known[defines] = NcclBuildResult(out.read_bytes(), "ok", (), 0.1, "")
        return known[defines]

    return built


async def trials(
    lab: Lab,
    program: Make,
    how: str,
    *,
    original: str = "good",
    ranks: int = 2,
    limit_s: float = 30.0,
    checker: Path | None = None,
) -> NcclGpuChecks:
    host = await lab.nccl.verifier.hosts.describe_host(None)
    if checker is not None:
        tools = {checker.name: Tool(path=str(checker), version="1", roots=[str(checker.parent)])}
        toolchains = host.probe.toolchains.model_copy(update={"tools": tools})
        host = replace(host, probe=host.probe.model_copy(update={"toolchains": toolchains}))
    recorded = program()
    subject = VerifiedProgram(
        ProgramModel.read({"main.cu": TEXT}, "main.cu"),
        ProgramModel.read({"main.cu": HOST}, "main.cu"),
        ProgramLaunch((how,), ranks, "torchrun", limit_s),
    )
    subject.built = {
        "plain": program("UNRECORDED"),
        "stress": recorded,
        "original": program(f'ORIGINAL="{original}"'),
        "differential": program(f'DIFFERENTIAL="{how}"'),
        "late": program(f'DIFFERENTIAL="{how}"'),
    }
    return NcclGpuChecks(lab.nccl.verifier.jobs, host, subject, None)


def told(checks: list[NcclCheck]) -> dict[str, tuple[str, str]]:
    return {c.name: (c.status, c.evidence) for c in checks}


async def test_a_program_that_is_right_passes_every_trial(lab: Lab, program: Make):
    trial = await trials(lab, program, "good")
    checks = [*await trial.plain(), *await trial.differential(), *await trial.stress(), *await trial.negative()]

    assert {c.name: c.status for c in [*checks, *await trial.timing()]} == dict.fromkeys(
        ["run", "counters", "differential", "stress", "negative control", "timing"], "passed"
    )
    said = told(checks)
    assert said["counters"][1] == "40 device collectives, 0 host fallbacks in 2 processes"
    assert "1 buffers as the original leaves them" in said["differential"][1]
    assert "differential: 2 cases equal to host NCCL" in said["differential"][1]
    assert "late: 2 cases equal to host NCCL" in said["stress"][1]


@pytest.mark.parametrize(
    ("how", "stage", "check", "words"),
    [
        ("illegal", "plain", "run", "rank 0: exit 1, last said \"CUDA error main.cu:61 'an illegal memory access"),
        ("wrong", "plain", "run", "rank 0: exit 1, last said 'rank 0: element 7 is 3, not 5'; with a wait after each"),
        ("says-fail", "plain", "run", "printed that its own verification failed"),
        ("says-fail", "plain", "run", "with a wait after each launch it fails too"),
        ("illegal", "plain", "run", "with a wait after each launch: 1 of 1 ranks failed: rank 0"),
        ("unordered", "plain", "run", "with a wait after each launch it does not fail: look for a missing order"),
        ("fallback", "plain", "counters", "ncclAlltoAll: pointer is in no window"),
        ("bad-case", "differential", "differential", "first AlltoAll of 1003 at offset 1, seed 5: 3 elements wrong"),
        ("past-the-end", "differential", "differential", "4 bytes written outside"),
        ("other-data", "differential", "differential", "1 of 1 buffers differ: rank0-buffer1.bin has"),
        (
            "dies-in-check",
            "differential",
            "differential",
            "differential: after 2 cases: 1 of 1 ranks failed: rank 0: exit",
        ),
        ("dies-in-check", "stress", "stress", "late: after 2 cases: 1 of 1 ranks failed"),
        ("dies-in-time", "timing", "timing", "1 of 1 ranks failed: rank 0: exit 3"),
        ("guard", "stress", "stress", "buffers were written past their end"),
        ("pass-anyway", "negative", "negative control", "still says PASS: its verification proves nothing"),
        ("silent-case", "negative", "negative control", "0 of 2 cases of the differential program are bad without it"),
    ],
)
async def test_a_failure_is_named_with_its_evidence(
    lab: Lab, program: Make, how: str, stage: str, check: str, words: str
):
    found = told(await getattr(await trials(lab, program, how, ranks=1), stage)())

    assert found[check][0] == "failed"
    assert words in found[check][1]


async def test_a_hang_of_the_program_itself_names_kernel_barrier_and_rank_by_another_run(lab: Lab, program: Make):
    found = told(await (await trials(lab, program, "hang", limit_s=10.0)).plain())

    assert found["run"][0] == "failed"
    assert (
        "it did not end in time; rank 1: after exchange main.cu:57 (turn 4), passed the barrier of line 14"
        in found["run"][1]
    )
    assert "Cuda failure 1" in found["run"][1]
    assert "the host's NCCL did AlltoAll: the receive buffer is in no window" in found["run"][1]


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("sleep 100", "skipped", "no error seen, and no end: 3 s were too short"),
        ("echo '========= Invalid __global__ read of size 4 bytes'; sleep 100", "failed", "Invalid __global__ read"),
        ("exit 3", "failed", "it did not come to its summary: 1 of 1 ranks failed"),
        ("echo '========= ERROR SUMMARY: 0 errors'", "passed", "0 errors"),
    ],
)
async def test_a_checker_that_needs_longer_than_its_time_condemns_no_program(
    lab: Lab, program: Make, tmp_path: Path, script: str, status: str, words: str
):
    checker = tmp_path / "compute-sanitizer"
    checker.write_text(f"#!/bin/sh\n{script}\n")
    checker.chmod(0o755)
    tmp_path.chmod(0o755)
    limit_s = 3.0 if "sleep" in script else 60.0
    trial = await trials(lab, program, "good", ranks=1, limit_s=limit_s, checker=checker)
    (check,) = await trial.memcheck()

    assert (check.status, words in check.evidence) == (status, True), check


async def test_a_slow_collective_is_noted_and_its_times_are_kept(lab: Lab, program: Make):
    trial = await trials(lab, program, "slow")
    (check,) = await trial.timing()

    assert check.status == "noted" and "worst AlltoAll 1024 B" in check.evidence


async def test_a_run_that_dies_while_it_is_timed_has_passed_the_cases_before(lab: Lab, program: Make):
    trial = await trials(lab, program, "dies-in-time", ranks=1)
    said = told([*await trial.differential(), *await trial.negative()])

    assert said["differential"][0] == said["negative control"][0] == "passed", said


def test_junk_is_no_reading():
    assert run_output.cases("case op=\ncase x\ncase op=A count=1 bad=x guard=0")[0].bad == -1
    assert run_output.timings("time op=A bytes=x original_us=1") == []
    assert run_output.counters(["", "ncclx: nothing"]) is None
    assert run_output.hang_locations(["gmcp: rank=x ended after="]) == []
    assert not run_output.ended_well("end ranks=2 failed=1")


def test_sums_may_differ_by_rounding_and_moves_may_not():
    import numpy as np

    want = np.linspace(-1, 1, 1000, dtype=np.float32)
    near, off = want * np.float32(1 + 2**-23), want.copy()
    off[700] += 0.001

    assert buffer_dumps.compare({"b": want.tobytes()}, {"b": near.tobytes()}, reduces=True) == []
    assert buffer_dumps.compare({"b": want.tobytes()}, {"b": near.tobytes()}, reduces=False) != []
    (wrong,) = buffer_dumps.compare({"b": want.tobytes()}, {"b": off.tobytes()}, reduces=True)
    assert "1 of 1000 float32" in wrong.text and "element 700" in wrong.text
    assert "not among" in buffer_dumps.compare({"b": b"x"}, {}, reduces=False)[0].text
