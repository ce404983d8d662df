"""The benchmarks' own promises: what breaks is not passed over."""

import json
import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from gpu_mcp_server.mcp_api.lab_tool import LabTool
from gpu_mcp_server.mcp_api.toolset import discover
from gpu_mcp_server.nccl.checks import rules
from gpu_mcp_server.nccl.program_model.program import ProgramModel

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


async def test_a_part_that_breaks_is_remembered_and_does_not_stop_the_next(capsys: pytest.CaptureFixture[str]):
    module = runpy.run_path(str(BENCHMARKS / "toolchains" / "profiling.py"))

    async def broken() -> None:
        raise ValueError("no such counter")

    async def fine() -> int:
        return 7

    parts = module["Parts"]({})
    await parts.done("first", broken())
    assert await parts.done("second", fine()) == 7
    assert parts.broken == ["first"] and "no such counter" in parts.results["first"]
    assert "first broke" in capsys.readouterr().out


def test_a_broken_part_is_the_exit_status(monkeypatch: pytest.MonkeyPatch):
    module = runpy.run_path(str(BENCHMARKS / "toolchains" / "profiling.py"))

    async def run(into: Path | None) -> list[str]:
        return ["plain"]

    monkeypatch.setitem(module["main"].__globals__, "run", run)
    monkeypatch.setattr("sys.argv", ["profiling.py"])
    with pytest.raises(SystemExit, match="plain"):
        module["main"]()


def test_the_agent_s_tasks_are_ten_and_what_is_wrong_in_them_is_wrong():
    tasks = runpy.run_path(str(BENCHMARKS / "agent" / "tasks.py"))["TASKS"]
    register = next(s for t in discover().values() for s in t.tools if s.name == "register_problem").to_mcp()
    assert isinstance(register, LabTool)

    assert [task.compiled_only for task in tasks] == [False] * 5 + [True] * 5
    for task in tasks:
        register._accepted(task.problem)
        assert bool(task.wrong_problem) == bool(task.because), task.name
        if task.wrong_problem and "shapes" not in task.wrong_problem:
            with pytest.raises(ToolError, match=re.escape(task.because)):
                register._accepted({**task.problem, **task.wrong_problem})
        assert all(each.because for each in task.candidates[1:]), task.name


def test_a_reason_that_no_answer_gave_is_a_dead_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS / "agent"), *sys.path])
    module = runpy.run_path(str(BENCHMARKS / "agent" / "play.py"))
    task = module["TASKS"][0]
    player = module["Player"](None, task)
    player._expect("said", "this was said")
    player._expect("not there", "an answer")

    assert player.played.dead_ends == ["nothing said 'not there': an answer"]
    assert player._written(task.candidates[0], "C candidate: int launch(const float* x)  (C++)").startswith(
        "#include <math.h>\nint launch(const float* x) {"
    )
    text = module["report"]([player.played], {"tools": 1, "instructions": 1}, 0.0)
    assert "no dead end: missed" in text and "not reached" in text


@pytest.fixture(scope="module")
def ranks() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "nccl" / "ranks.py"))


def test_faults_for_gpus_are_such_that_no_rule_sees(ranks: dict[str, Any]):
    kernels = {
        n: (program, ranks["KERNELS"], ((old, new),)) for n, (program, old, new) in ranks["KERNEL_FAULTS"].items()
    }
    of_a_run = {n: ("alltoall.cu", *fault) for n, fault in ranks["RUN_FAULTS"].items()}
    for name, fault in {**kernels, **of_a_run}.items():
        files, main = ranks["with_fault"](*fault)
        original = ProgramModel.read({fault[0]: files[fault[0]]}, fault[0])
        found = rules.findings(ProgramModel.read(files, main), original=original)
        assert [f for f in found if f.severity == "error"] == [], name
    with pytest.raises(ValueError, match="0 times, not once"):
        ranks["with_fault"]("alltoall.cu", ranks["KERNELS"], (("what is nowhere", ""),))


def test_programs_then_faults_come_in_an_order_in_which_what_hangs_is_last(ranks: dict[str, Any], tmp_path: Path):
    (tmp_path / "given.cc").touch()
    found = ranks["items"](2, "programs,faults", tmp_path)
    late = found[-2]

    assert [i.name for i in found[:4]] == ["given.cc", "alltoall.cu", "allreduce.cu", "mpi.cu"]
    assert {i.table for i in found[4:]} == {"fault"} and len(found) == 10
    assert [i.name for i in found[-2:]] == ["a rank that comes too late", "one rank skips a collective"]
    assert late.prepare(tmp_path)[-8:-2] == ["--ranks", "2", "--launcher", "self", "--arg", "2"]
    assert [i.table for i in ranks["items"](4, "faults")] == ["fault"] * 6


def test_what_a_spent_budget_left_out_or_broke_off_is_said(ranks: dict[str, Any], tmp_path: Path):
    first = ranks["items"](4)[0]
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]

    assert "not run: the budget is spent" in ranks["row_of"](first, tmp_path, "static", 0.0)[0]
    assert ranks["_said"](sleeps, 0.5)["status"] == "broken off"
    assert ranks["_said"]([sys.executable, "-c", "raise SystemExit('why not')"], 60)["headline"] == "why not"


def test_a_program_and_a_fault_for_gpus_are_rows_with_what_the_checks_said(
    ranks: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GPU_MCP_DATA_DIR", str(tmp_path / "data"))  # not this machine's own, which others may migrate
    program, fault = (next(i for i in ranks["items"](4) if i.name == n) for n in ("sendrecv.cu", "half a broadcast"))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    rows = [
        ranks["row_of"](i, f, "static", time.monotonic() + 3600)[0]
        for i, f in zip((program, fault), folders, strict=True)
    ]

    assert rows[0].startswith("| program | sendrecv.cu | incomplete | analyze: done,"), rows[0]
    assert rows[1].startswith("| fault | half a broadcast | incomplete | nothing failed |"), rows[1]


def test_each_check_is_a_row_while_the_program_goes_on(ranks: dict[str, Any], tmp_path: Path):
    rows: list[str] = []
    item = next(i for i in ranks["items"](4) if i.name == "alltoall.cu")

    def tell(row: str) -> None:
        rows.append(row)
        (tmp_path / str(len(rows))).touch()

    heard = ranks["_check_rows"](item, time.monotonic(), tell)
    words = ["verify stage B", "building", "check run: passed, 4 processes | ended", "check stress: failed, 3 wrong"]
    speaks = f"""import os, sys, time
print({chr(10).join(words)!r}, file=sys.stderr, flush=True)
while not os.path.exists({str(tmp_path / "2")!r}): time.sleep(0.01)
print({{}})"""

    assert ranks["_said"]([sys.executable, "-c", speaks], 600.0, heard) == {}
    assert [row.rpartition(" | ")[0] for row in rows] == [
        "| check | alltoall.cu, verify stage B | run: passed | 4 processes \\| ended",
        "| check | alltoall.cu, verify stage B | stress: failed | 3 wrong",
    ]


def test_multicast_is_off_in_every_run_of_the_ranks_benchmark(
    ranks: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    monkeypatch.setenv("NCCL_P2P_LEVEL", "NVL")
    code, out, told = ranks["run_command"](
        [
            sys.executable,
            "-c",
            "import os; print(os.environ['GPU_MCP_HOSTS__LOCAL__ENVIRONMENT'], os.environ['NCCL_NVLS_ENABLE'])",
        ],
        60,
    )

    handed, own = out.rsplit(maxsplit=1)
    assert (code, own, told) == (0, "0", "")
    assert json.loads(handed).items() >= {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_LEVEL": "NVL"}.items()
