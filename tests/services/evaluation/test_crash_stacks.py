"""Stacks of candidates that crash or hang: by gdb, by our handler, by Python's; they change no verdict."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.crash_stacks import (
    LINE_CHARACTERS,
    MOST_LINES,
    Stack,
    frames_in,
    stack_of,
    with_stack,
)
from gpu_mcp_server.services.lab import Lab
from tests.judge.harness import torch_python
from tests.laboratory import PROBLEM

TENSOR = {"dtype": "float32", "shape": [1000], "count": 1000}
TASK: dict[str, Any] = {
    "kind": "processor", "device": "cpu", "library": "candidate.so", "symbol": "launch", "inputs": [TENSOR],
    "outputs": [TENSOR], "dims": [1000], "calls": 1, "hang_s": 6.0,
}  # fmt: skip
BEYOND = """#include <stdint.h>
static void inner(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i <= n + 16; i++)
        y[i] = x[i];
}
int launch(const float *x, float *y, int64_t n) {
    inner(x, y, n);
    return 0;
}
"""
WRITES = "int launch(float *x, float *y, long n) {\n    x[3] = y[n - 1];\n    return 0;\n}\n"
HANGS = "#include <unistd.h>\nint launch(void) {\n    for (;;)\n        pause();\n}\n"
RIGHT = "int launch(const float *x, float *y, long n) {\n    y[0] = x[0];\n    y[n - 1] = x[n - 1];\n    return 0;\n}\n"
RUN = "import sys; sys.path.insert(0, sys.argv[1]); import run_crash; run_crash.main(sys.argv[2:])"
by_both = pytest.mark.parametrize(
    "gdb", [pytest.param(True, marks=pytest.mark.skipif(not shutil.which("gdb"), reason="no gdb")), False]
)


def seen(folder: Path, text: str, gdb: bool, python: str = sys.executable, **task: Any) -> Stack:
    """Return what a second run shows of a candidate."""
    whole = {**TASK, **task}
    if whole["kind"] == "processor":
        (folder / "candidate.c").write_text(text)
        subprocess.run(
            ["gcc", "-g", "-O1", "-shared", "-fPIC", "-o", "candidate.so", "candidate.c"], cwd=folder, check=True
        )
    else:
        (folder / "candidate.py").write_text(text)
    (folder / "task.json").write_text(json.dumps(whole))
    plan = {"command": [python, str(WORKERS / "run_attempt.py"), "task.json"], "limit_s": whole["hang_s"], "gdb": gdb}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(WORKERS), json.dumps(plan)], cwd=folder, capture_output=True, check=True
    )
    found = stack_of(done.stdout)
    assert found is not None, done.stdout
    return found


@by_both
@pytest.mark.parametrize(
    ("text", "places"), [(BEYOND, ["candidate.c:4", "candidate.c:7"]), (WRITES, ["candidate.c:2"])]
)
def test_a_crash_on_the_processor_has_a_stack_with_lines(tmp_path: Path, gdb: bool, text: str, places: list[str]):
    """A read past the end meets a page that nobody may touch, a write to an input one that is read-only."""
    stack = seen(tmp_path, text, gdb)

    assert not stack.late
    for place in places:
        assert any(place in line for line in stack.lines), stack.lines
    assert any("Fatal Python error: Segmentation fault" in line for line in stack.lines), stack.lines


@by_both
def test_a_hang_has_the_line_where_its_thread_stands(tmp_path: Path, gdb: bool):
    stack = seen(tmp_path, HANGS, gdb)

    assert stack.late
    if gdb:
        assert any("candidate.c:4" in line for line in stack.lines), stack.lines
    else:
        assert any("in the kernel: " in line for line in stack.lines), stack.lines
    assert any("play_processor" in line or "launch" in line for line in stack.lines), stack.lines


@by_both
def test_who_does_not_fail_again_has_no_stack(tmp_path: Path, gdb: bool):
    stack = seen(tmp_path, RIGHT, gdb)

    assert (stack.late, list(stack.lines)) == (False, [])


@by_both
@pytest.mark.timeout(300)
@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_a_model_that_crashes_has_its_own_lines_of_python(tmp_path: Path, gdb: bool):
    text = "import ctypes, torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return ctypes.string_at(8)\n"
    stack = seen(tmp_path, text, gdb, torch_python(), kind="model", library="candidate.py", hang_s=100.0)

    assert any("forward at" in line and "candidate.py:4" in line for line in stack.lines), stack.lines


@by_both
@pytest.mark.timeout(300)
@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("model", "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.relu_()\n"),
        ("launcher", "def launch(x, y, n):\n    y.copy_(x * 2)\n    x.relu_()\n"),
    ],
)
def test_a_python_file_that_writes_to_an_input_has_the_line(tmp_path: Path, gdb: bool, kind: str, text: str):
    """torch computes on so many elements in several threads, and more than one may fault."""
    tensor = {**TENSOR, "shape": [1 << 20], "count": 1 << 20}
    task = {"kind": kind, "library": "candidate.py", "hang_s": 100.0, "inputs": [tensor], "outputs": [tensor]}
    stack = seen(tmp_path, f"import torch\n{text}", gdb, torch_python(), **task)

    assert not stack.late and any("candidate.py:4" in line for line in stack.lines), stack.lines


def test_a_stack_is_shortened_and_stripped_and_changes_no_verdict():
    text = "Thread 1 (LWP 7):\n" + "".join(f"#{n} 0x1f in f{n}\x1b[31m (x=1) at a.c:{n}\n" for n in range(400))
    told = json.dumps({"by": "gdb", "late": False, "text": text * 40 + "verdict: correct\n"})
    found = stack_of(b"noise\n" + told.encode())
    before = Evaluation(
        status="judged", verdict="incorrect", reason="crashed with SIGSEGV", attempt_id="a", problem_id="p",
        problem_hash="h", language="c", host="local",
    )  # fmt: skip

    assert found and len(found.lines) <= MOST_LINES and max(map(len, found.lines)) <= LINE_CHARACTERS
    assert "\x1b" not in str(found.lines) and "verdict" not in str(found.lines)
    after = with_stack(before, found, "")
    assert (after.verdict, after.reason) == (before.verdict, before.reason)
    assert after.summary().startswith("verdict: incorrect - crashed with SIGSEGV")
    assert with_stack(before, None, "not run").evidence["stack"] == "not run"


LOADING = "Thread 1 (LWP 7):\n#0  __GI__dl_debug_state () at ./elf/dl-debug.c:117\n#1  0x7f in dl_main () at ./elf/rtld.c:2445\n"


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b"{}",
        b'{"by": 1, "late": 1}',
        b"\xff",
        json.dumps({"by": "gdb", "late": True, "text": LOADING}).encode(),
    ],
)
def test_what_is_no_stack_is_none(told: bytes):
    assert stack_of(told) is None


def test_a_thread_ends_where_python_begins():
    lines = frames_in(
        "Thread 2 (LWP 9):\n#0  f (x=1) at c.c:1\n#1  0x7f in ffi_call_unix64 () from libffi.so\n#2  0x8 in g ()\n"
    )

    assert lines == ["Thread 2 (LWP 9):", "  f (x=1) at c.c:1"]


def test_a_stack_begins_at_what_threw_and_not_at_what_ends_the_process():
    thrown = "\n".join(
        [
            "Thread 1 (LWP 7):",
            "#0  __pthread_kill_implementation (threadid=1) at ./nptl/pthread_kill.c:44",
            "#1  __GI_raise (sig=sig@entry=6) at ../sysdeps/posix/raise.c:26",
            "#2  __GI_abort () at ./stdlib/abort.c:79",
            "#3  0x7f in ?? () from /lib/x86_64-linux-gnu/libstdc++.so.6",
            "#4  0x7f in std::terminate() () from /lib/x86_64-linux-gnu/libstdc++.so.6",
            "#5  0x7f in __cxa_throw () from /lib/x86_64-linux-gnu/libstdc++.so.6",
            "#6  0x7f in std::__throw_bad_alloc() () from /lib/x86_64-linux-gnu/libstdc++.so.6",
            "#7  0x7f in fill (n=7) at candidate.cpp:4",
        ]
    )

    assert frames_in(thrown)[2:] == ["  fill (n=7) at candidate.cpp:4"]
    assert "bad_alloc" in frames_in(thrown)[1]


def test_threads_that_only_wait_are_counted_where_another_did_something():
    waiting = "Thread 2 (LWP 10):\n#0  0x7f in __futex_abstimed_wait_common64 (op=137) at ./nptl/futex.c:57\n"
    crashed = "Thread 1 (LWP 7):\n#0  launch (rows=64) at kernel.c:3\n#1  0x7f in ?? () from /lib/libffi.so.8\n"
    own = "Thread 2 (LWP 10):\n#0  0x7f in futex_wait (op=1)\n#1  0x7f in pool (n=1) at kernel.c:9\n"

    assert frames_in(waiting + crashed) == [
        "Thread 1 (LWP 7):", "  launch (rows=64) at kernel.c:3", "(and 1 that only wait)",
    ]  # fmt: skip
    assert "  pool (n=1) at kernel.c:9" in frames_in(own + crashed), "the candidate's own thread is shown"
    named = own.replace("kernel.c", "my_pool.c")
    assert "  pool (n=1) at my_pool.c:9" in frames_in(named + crashed, "my_pool.c") != frames_in(named + crashed)
    other = crashed.replace("launch (rows=64) at kernel.c:3", "at::parallel_for () from libtorch.so")
    assert frames_in(other + own)[:2] == ["Thread 2 (LWP 10):", "  futex_wait (op=1)"], "and before all others"
    assert len(frames_in(waiting)) == 2, "a deadlock has nothing else to show"


@pytest.mark.timeout(300)
async def test_a_verdict_on_a_crash_comes_with_its_stack(own_lab: Lab):
    tensors = {side: [TensorSpec(**PROBLEM[side][0])] for side in ("inputs", "outputs")}
    whole: dict[str, Any] = {**PROBLEM, **tensors}
    problem = await own_lab.evaluation.registry.register(**whole)
    found = await own_lab.evaluation.evaluator.evaluate(problem.problem_id, CandidateSource(WRITES, "c", "kernel.c"))

    assert found.verdict == "incorrect" and "SIGSEGV" in found.reason
    assert any("kernel.c:2" in line or "candidate.c:2" in line for line in found.stack), (found.stack, found.evidence)
    assert "where it stood" in found.summary() and "not believed" in found.summary()


UNDECLARED = "int launch(const float *x, float *y, long n) {\n    for (long i = 0; i < n; i++) y[i] = tanhf(x[i]);\n"


@pytest.mark.timeout(300)
async def test_a_compiler_s_warnings_stand_beside_a_verdict_that_is_not_correct(own_lab: Lab):
    tensors = {side: [TensorSpec(**PROBLEM[side][0])] for side in ("inputs", "outputs")}
    whole: dict[str, Any] = {**PROBLEM, **tensors}
    problem = await own_lab.evaluation.registry.register(**whole)
    source = CandidateSource(UNDECLARED + "    return 0;\n}\n", "c", "kernel.c")
    found = await own_lab.evaluation.evaluator.evaluate(problem.problem_id, source)

    assert found.verdict == "incorrect"
    assert "kernel.c:2: warning: implicit declaration of function 'tanhf'" in found.summary()
