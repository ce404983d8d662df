"""Our differential program and stress build, with processes of this machine in the place of GPUs.

That tests what they compare, where their guards lie and whether they notice faults; it proves nothing of memory order.
"""

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_mcp_server.nccl.checks import buffer_dumps, instrument, kernels, run_output
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.stages.transformation import transform
from tests.compiled import compiled

HERE = Path(__file__).parents[1]
TIMER = re.compile(r"asm volatile\(\"mov\.u64 %0, %%globaltimer;\" : \"=l\"\((\w+)\)\);")
LAUNCH = re.compile(r"(\w+)<<<[^>]*>>>\(")


def built(files: Mapping[str, str], main: str, *defines: str) -> Path:
    """Compile for the processor: launches become calls of one thread, PTX becomes a function."""
    ours = {path.name: path.read_text(encoding="utf-8") for path in (HERE / "emulation").glob("*.*h")}
    given = {name: LAUNCH.sub(r"\1(", TIMER.sub(r"globaltimer(\1);", text)) for name, text in files.items()}
    command = ["g++", "-std=c++17", "-O3", "-w", "-x", "c++", "-I.", *(f"-D{d}" for d in defines), main]
    return compiled("program", {**ours, **given}, *command, "-o", "program")


@dataclass
class Ran:
    code: int
    out: str
    err: str
    files: dict[str, bytes]


def run(program: Path, arguments: list[str], folder: Path, **env: str) -> Ran:
    (folder / "dumps").mkdir(parents=True)
    given = {"EMULATION": str(folder), "GMCP_DUMPS": str(folder / "dumps"), **env}
    done = subprocess.run([program, *arguments], env=given, capture_output=True, text=True, timeout=60, check=False)
    return Ran(done.returncode, done.stdout, done.stderr, {p.name: p.read_bytes() for p in folder.glob("dumps/*")})


@pytest.fixture(scope="module")
def gathering() -> Path:
    return built({"d.cu": instrument.differential()}, "d.cu", "CHECK_ALLGATHER", "CHECK_REDUCESCATTER")


def test_every_case_of_right_collectives_is_equal_to_the_hosts(gathering: Path, tmp_path: Path):
    ran = run(gathering, ["3", "check", "5"], tmp_path / "run")
    cases = run_output.cases(ran.out)

    assert ran.code == 0 and run_output.ended_well(ran.out), ran.err
    assert len(cases) == 25 and [c for c in cases if c.bad or c.guard] == []
    assert {"AllGather of 1003 in place, seed 10", "ReduceScatter of 65537 of fractions, seed 9"} <= {
        c.title for c in cases
    }


def test_all_parts_run_in_one_communicator_and_each_is_told_apart(gathering: Path, tmp_path: Path):
    ran = run(gathering, ["2", "check,few,silent", "5"], tmp_path / "run")
    parts = run_output.parts(ran.out)
    cases = [run_output.cases(p.text) for p in parts]

    assert ran.code == 0, ran.err
    assert [(p.mode, p.complete, len(c)) for p, c in zip(parts, cases, strict=True)] == [
        ("check", True, 25), ("few", True, 10), ("silent", True, 25)
    ]  # fmt: skip
    assert [any(c.bad or c.guard for c in found) for found in cases] == [False, False, True]
    assert all(c.bad for c in cases[2]) and cases[0][0].title != cases[2][0].title, "each part has its own seed"


@pytest.mark.parametrize(
    ("fault", "mode", "bad", "guard"),
    [
        ("stale", "check", True, False),
        ("beyond", "check", False, True),
        ("", "silent", True, False),
    ],
)
def test_a_fault_is_found_in_every_case(gathering: Path, tmp_path: Path, fault: str, mode: str, bad: bool, guard: bool):
    cases = run_output.cases(run(gathering, ["2", mode, "5"], tmp_path / "run", FAULT=fault).out)

    assert len(cases) == 25
    assert {(c.bad > 0, c.guard > 0) for c in cases} == {(bad, guard)}


ROOTED = ("BROADCAST", "REDUCE", "GATHER", "SCATTER")


@pytest.fixture(scope="module")
def rooted() -> Path:
    return built({"d.cu": instrument.differential()}, "d.cu", *(f"CHECK_{name}" for name in ROOTED))


@pytest.mark.parametrize(
    ("fault", "mode", "bad"), [("", "check", False), ("stale", "check", True), ("", "silent", True)]
)
def test_collectives_with_a_root_are_compared_where_they_write(
    rooted: Path, tmp_path: Path, fault: str, mode: str, bad: bool
):
    cases = run_output.cases(run(rooted, ["3", mode, "5"], tmp_path / "run", FAULT=fault).out)

    assert len(cases) == 4 * 10 + 1  # one of fractions, of the sum
    assert {(c.bad > 0, c.guard > 0) for c in cases} == {(bad, False)}


@pytest.fixture(scope="module")
def programs() -> tuple[Path, Path]:
    """The stress builds of an all-to-all: with host collectives, and as the transformation makes it."""
    text = (HERE / "programs" / "alltoall.cu").read_text(encoding="utf-8")
    result, made = transform({"alltoall.cu": text}, "alltoall.cu", nccl_version=(2, 28, 9))
    files = {"alltoall.cu": text, **made}
    found: list[Path] = []
    for main in ("alltoall.cu", result.main or ""):
        program = ProgramModel.read(files, main)
        stressed = instrument.instrument_program(program, kernels.communicating(program)).files
        own = {p: t for p, t in stressed.items() if not p.startswith("ncclx")}
        found.append(built(own, main))
    return found[0], found[1]


ARGUMENTS = ["2", "1003"]


def test_a_transformed_program_leaves_the_buffers_of_the_original(programs: tuple[Path, Path], tmp_path: Path):
    original = run(programs[0], ARGUMENTS, tmp_path / "a")
    device = run(programs[1], ARGUMENTS, tmp_path / "b", GMCP_STRESS="1")
    seen = run_output.stress([device.err])

    assert "PASS" in original.out and "PASS" in device.out
    assert sorted(original.files) == [f"rank{r}-buffer{b}.bin" for r in (0, 1) for b in (0, 1)]
    assert buffer_dumps.compare(original.files, device.files, reduces=False) == []
    assert seen is not None and seen.ranks == 2 and seen.guards_broken == 0
    assert seen.poisoned == 2 * 21 and seen.skewed == 20 and seen.dumped == 4


def test_a_write_past_the_end_breaks_a_guard_although_the_program_passes(programs: tuple[Path, Path], tmp_path: Path):
    ran = run(programs[1], ARGUMENTS, tmp_path / "run", GMCP_STRESS="1", FAULT="beyond")
    seen = run_output.stress([ran.err])

    assert "PASS" in ran.out
    assert seen is not None and seen.guards_broken == 2


def test_without_communication_the_verification_fails(programs: tuple[Path, Path], tmp_path: Path):
    ran = run(programs[1], ARGUMENTS, tmp_path / "run", GMCP_STRESS="1", GMCP_SILENT="1")

    assert ran.code != 0 and run_output.SAYS_FAIL.search(ran.out)


def test_a_rank_that_hangs_says_where_it_stood(programs: tuple[Path, Path], tmp_path: Path):
    """Rank 1 never comes: rank 0 waits within the collective of the warm-up until it is ended."""
    folder = tmp_path / "run"
    folder.mkdir()
    env = {"EMULATION": str(folder), "ABSENT": "1"}
    command = [programs[1], *ARGUMENTS]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        process.stderr.readline()  # rank 1 said that it stays away, after rank 0 came
        os.killpg(process.pid, signal.SIGTERM)
        stood = run_output.hang_locations([process.stderr.read()])

    assert stood and stood[0].site.startswith("ncclx::AlltoAll alltoall.device.cu:")
