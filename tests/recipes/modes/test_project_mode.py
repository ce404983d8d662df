"""Project mode: four roles write, the build and the tests decide whose turn it is, and planted mistakes who is weak."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.project import ProjectBuild
from gpu_mcp_server.models.recipe import ProjectChange, RunState
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.reports.run_report import report
from gpu_mcp_server.recipes.run.journal import FILE, entries
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.run.planted_mistakes import choose_mistakes
from gpu_mcp_server.recipes.run.project_check import judge_build, missing_sources
from gpu_mcp_server.recipes.run.project_files import apply_change
from gpu_mcp_server.services.lab import Lab
from tests.commands import shared_commands
from tests.laboratory import Folder
from tests.recipes.conftest import HERE

AGENT = {"command": ["{python}", "agent.py"], "files": {"agent.py": str(HERE / "project_agent.py")}, "timeout_s": 60}


def plan(scenario: str, **more: Any) -> dict[str, Any]:
    agent = {**AGENT, "environment": {"SCENARIO": scenario}}
    return {"name": scenario, "mode": "project", "request": f"a {scenario}", "language": "cpp", "agent": agent, **more}


async def ran(lab: Lab, scenario: str, **more: Any) -> tuple[RunState, Path]:
    runs = Runs(lab)
    run_id = runs.create(plan_of(plan(scenario, **more), HERE))
    return await runs.go(run_id), lab.settings.data_dir / "recipes" / run_id


def steps(state: RunState, *prefixes: str) -> list[tuple[str, str]]:
    return [(step.step, step.outcome) for step in state.steps if step.step.startswith(prefixes)]


@pytest.mark.parametrize(
    ("scenario", "outcome", "next_role"),
    [
        ("histogram-tail", "tests_failed", "code-002"),
        ("histogram-syntax", "compile_failed", "code-002"),
        ("histogram-configure", "configure_failed", "build-files-002"),
        ("histogram-link", "link_failed", "build-files-002"),
        ("histogram-untested", "no_tests", "build-files-002"),
        ("histogram-weak", "green", "test-files-002"),
        ("histogram-misread", "green", ""),
    ],
)
async def test_a_failure_goes_to_the_role_whose_files_it_is_in(lab: Lab, scenario: str, outcome: str, next_role: str):
    state, folder = await ran(lab, scenario)

    assert state.stopped == "target", state.summary()
    checks = steps(state, "check-")
    assert checks[0] == ("check-001", outcome) and checks[-1][1] == "green"
    order = [step.step for step in state.steps]
    if next_role:
        assert order.index("check-001") < order.index(next_role) < order.index("check-002"), order
    assert "planted mistakes made one fail" in state.why
    assert {o for _, o in steps(state, f"plant-{len(checks):03}")} == {"caught"}
    assert "bins[x[i]] += 1" in (folder / "project" / "histogram.cpp").read_text()


async def test_a_symbol_that_the_builder_cannot_link_is_the_coders_to_define(lab: Lab):
    state, _ = await ran(lab, "histogram-undefined")

    assert state.stopped == "target", state.summary()
    asked = [name for name, _ in steps(state, "code-", "build-files-")]
    assert asked == ["code-001", "build-files-001", "build-files-002", "code-002"]


async def test_ranks_of_mpi_reach_green_tests(lab: Lab):
    state, _ = await ran(lab, "reduce-tail")

    assert state.stopped == "target", state.summary()
    assert steps(state, "check-")[0][1] == "tests_failed"


async def test_a_matrix_product_in_cuda_is_built_and_its_tests_skipped_where_there_is_no_device(lab: Lab):
    state, folder = await ran(lab, "matmul", language="cuda")

    device = bool((await lab.hosts.probe("local")).gpus)
    assert state.stopped == ("target" if device else "compiled"), state.summary()
    assert device or "all 1 tests were skipped" in state.why
    assert (folder / "project" / "matmul.cu").exists()


async def test_a_run_that_was_killed_in_any_step_goes_on_and_ends_the_same(lab: Lab):
    whole, folder = await ran(lab, "histogram")
    made = {path.name: path.read_text() for path in (folder / "project").glob("*.*")}
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    begun = [number for number, line in enumerate(lines, 1) if b'"event":"begun"' in line]
    assert len(begun) == len(whole.steps) == 9, whole.summary()

    for cut in begun[1:]:  # the process was killed while that step went on
        (folder / FILE).write_bytes(b"".join(lines[:cut]) + b'{"event":"do')
        again = await Runs(lab).go(whole.run_id)
        assert (again.stopped, again.why) == ("target", whole.why)
        assert [(s.step, s.outcome) for s in again.steps] == [(s.step, s.outcome) for s in whole.steps]
        assert {path.name: path.read_text() for path in (folder / "project").glob("*.*")} == made


async def test_a_test_that_misreads_the_specification_is_the_testers_by_the_coders_objection(lab: Lab):
    state, folder = await ran(lab, "histogram-disputed")

    assert [(s.step, s.outcome) for s in state.steps][4:9] == [
        ("build-files-001", "ok"), ("check-001", "tests_failed"), ("code-002", "ok"), ("test-files-002", "ok"),
        ("check-002", "green"),
    ], state.summary()  # fmt: skip
    prompt = await prompt_of(lab, folder, "test-files-002")
    assert state.stopped == "target" and "the coder objects: the specification counts how often" in prompt
    assert "n=1001 bin 0: 4, expected 1" in prompt.partition("The test said:")[2]


async def test_a_mistake_that_breaks_nothing_is_harmless_by_the_tester_and_said_at_the_end(lab: Lab):
    state, folder = await ran(lab, "histogram-unrolled")

    planted = [outcome for _, outcome in steps(state, "plant-001")]
    assert state.stopped == "target" and sorted(planted) == ["caught", "caught", "missed"], state.summary()
    assert "each of 2 planted mistakes made one fail; harmless as the tester has it: histogram.cpp:6" in state.why
    assert (folder / "handoffs" / "test-files-002.json").exists()
    page = await report(lab, state.run_id)
    assert "best speed-up against" not in page and page.count("<svg") == 1
    assert "for (; i &lt; n; i++) bins[x[i]] += 1;" in page.partition(">Files<")[2].partition(">Hand-offs<")[0]


async def prompt_of(lab: Lab, folder: Path, step: str) -> str:
    (done,) = [e for e in entries(folder) if e["event"] == "done" and e["step"] == step]
    return (await lab.store.artifacts.read(done["prompt_artifact_id"])).decode()


PLAN = """
name = "killed"
mode = "project"
language = "cpp"
request = "a histogram"
[agent]
command = ["{python}", "agent.py"]
files = { "agent.py" = "AGENT" }
environment = { SCENARIO = "histogram-disputed" }
"""


def test_a_run_that_is_killed_at_each_step_does_every_step_once(tmp_path: Path):
    steps = [
        "specification-001", "specification-002", "code-001", "test-files-001", "build-files-001", "check-001",
        "code-002", "test-files-002", "check-002", "plant-002-01", "plant-002-02",
    ]  # fmt: skip
    (tmp_path / "plan.toml").write_text(PLAN.replace("AGENT", str(HERE / "project_agent.py")))
    commands = shared_commands()
    with Folder() as data:
        env = {**os.environ, "GPU_MCP_DATA_DIR": str(data), "GPU_MCP_INDEX_DOCUMENTATION": "false"}
        journal = data / "recipes" / "r-killed"
        command = ["recipe", "run", "plan.toml", "--run-id", "r-killed"]
        within = 0
        for step in steps:
            running = commands.start(*command, env=env, cwd=tmp_path)
            while not any(e["step"] == step for e in entries(journal)):
                assert running.poll() is None
                time.sleep(0.02)
            running.send_signal(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
            within += entries(journal)[-1]["step"] == step and entries(journal)[-1]["event"] == "begun"
            command = ["recipe", "resume", "r-killed"]
        done = commands.run(*command, "--json", env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        state = json.loads(done.stdout)
        assert state["stopped"] == "target", state["why"]
        finished = [e["step"] for e in entries(journal) if e["event"] == "done"]
        assert finished == [*steps, *finished[len(steps) :]] and len(finished) == len(set(finished))
        assert within > len(steps) // 2, "on a busy machine a short step may be over before the signal comes"


async def test_a_coder_that_repeats_a_mistake_uses_its_iterations_up(lab: Lab):
    state, folder = await ran(lab, "histogram-stubborn", iterations={"correctness": 2})

    assert state.stopped == "iterations" and "2 changes ended as tests_failed" in state.why, state.summary()
    assert (folder / "project" / "CMakeLists.txt").exists()
    assert "hints.correctness" in state.next_step


@pytest.mark.parametrize(
    ("file", "message", "line", "role"),
    [
        ("tests/t.cpp", "x.h: No such file or directory", '#include "x.h"', "builder"),
        ("x.cpp", "mpi.h: No such file or directory", "#include <mpi.h>", "builder"),
        ("x.cpp", "y.h: No such file or directory", '#include "y.h"', "coder"),
        ("tests/t.cpp", "y.h: No such file or directory", '#include "y.h"', "tester"),
        ("tests/t.cpp", "expected ';'", "x", "tester"),
    ],
)
def test_a_header_that_only_cmake_can_bring_is_the_builders(file: str, message: str, line: str, role: str):
    error = Diagnostic(severity="error", message=message, file=file, line=1, context=[line])
    build = ProjectBuild(
        status="failed", system="cmake", host="local", workspace_id="w", job_id="j", stage="build", diagnostics=[error]
    )
    assert judge_build(build, {"src/x.h": "", "x.cpp": "", "tests/t.cpp": ""}).role == role


def test_a_test_program_that_no_target_compiles_is_found():
    files = {"x.cpp": "", "tests/t.cpp": "", "tests/note.md": "", "tests/more/t.cu": ""}
    commands = json.dumps([{"file": "/job/x.cpp"}, {"file": "/job/tests/more/t.cu"}])
    assert missing_sources(commands, files) == ["tests/t.cpp"]


def test_a_role_changes_its_own_files_alone():
    files = {"a.cpp": "int a;\nint a;\n", "CMakeLists.txt": "x"}

    def refused(role: Any, path: str, old: str = "", new: str = "y") -> str:
        change = ProjectChange.model_validate({"changes": [{"path": path, "old": old, "new": new}]})
        return apply_change(files, change, role)[1]

    assert "is the tester's; yours are" in refused("coder", "tests/t.cpp")
    assert "is the builder's" in refused("tester", "tests/CMakeLists.txt")
    assert "is the coder's" in refused("builder", "a.cpp")
    assert "`old` stands 2 times in a.cpp" in refused("coder", "a.cpp", "int a;")
    assert "there is no file b.cpp" in refused("coder", "b.cpp", "int b;")
    assert "CMake makes the folder build/" in refused("coder", "build/a.cpp")
    for path in ("../a.cpp", "/etc/passwd", "a/../../b.cpp"):
        assert refused("coder", path).startswith("change 1: "), path
    assert refused("coder", "b.cpp") == "" and refused("builder", "cmake/Find.cmake") == ""
    many = {f"f{number}.cpp": "" for number in range(100)}
    one_more = ProjectChange.model_validate({"changes": [{"path": "g.cpp", "new": "y"}]})
    assert "101 files with 1 bytes; the limits are 100 files" in apply_change(many, one_more, "coder")[1]


def test_mistakes_are_planted_into_arithmetic_of_the_coder_alone():
    text = '#include <x.h>\n// a += b\nfor (int i = 0; i < n; i++) s += a[i] * b[i];\nprintf("a += b");\n'
    files = {"a.cpp": text, "tests/t.cpp": text, "CMakeLists.txt": "s += 1"}
    found = choose_mistakes(files)

    assert {(m.path, m.line) for m in found} == {("a.cpp", 3)} and len(found) == 3
    planted = [m.plant(files)["a.cpp"].splitlines()[2] for m in found]
    assert sorted(planted) == [
        "for (int i = 0; i < n - 1; i++) s += a[i] * b[i];",
        "for (int i = 0; i < n; i++) s += a[i] + b[i];",
        "for (int i = 0; i < n; i++) s -= a[i] * b[i];",
    ]
    assert found == choose_mistakes(files)
    assert choose_mistakes({"README.md": text}) == []
