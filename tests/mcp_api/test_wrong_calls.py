"""Wrong calls, as agents make them: each error says what, the value, the limit, and what to do next."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client

from tests.laboratory import PROBLEM, Folder, client_of, refused

X = PROBLEM["inputs"][0]


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    with Folder() as folder:
        async with client_of(folder) as client:
            yield client


def problem(**changed: Any) -> dict[str, Any]:
    return {**PROBLEM, **changed}


WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("gpu_status", {"host": "nope"}, ["no host 'nope'", "Configured: local", "hosts add"]),
    ("write_files", {}, ["`files` (texts by path)", "`local_path`"]),
    ("write_files", {"files": {"../x": "a"}}, ["'../x' holds `..`", "src/kernel.cu"]),
    ("write_files", {"files": {"a": "b"}, "workspace_id": "w-9"}, ["'w-9'", "write_files without workspace_id"]),
    ("write_files", {"files": "x"}, ["files must be an object (got 'x')", "For example files: {"]),
    ("read_file", {"workspace_id": "w-9", "path": "a"}, ["'w-9'", "write_files"]),
    ("compile_kernel", {"path": "gone.c"}, ["no local file 'gone.c'", "The server looked in '/", "working folder"]),
    ("compile_kernel", {}, ["source either as text or as a path"]),
    ("compile_kernel", {"source": "int x;"}, ["Set language: c, cpp, cuda, hip, triton, launcher."]),
    ("compile_kernel", {"source": "x", "language": "c", "compiler": "icc"}, ["'icc' is no compiler for c", "There are"]),
    ("compile_kernel", {"source": "x", "language": "c", "flags": ["-fplugin=x"]}, ["-fplugin=x is not", "Allowed are"]),
    ("compile_kernel", {"source": "x", "language": "rust"}, ["'c', 'cpp', 'cuda', 'hip', 'triton' or 'launcher' (got 'rust')"]),
    ("run_command", {"command": "ls -l"}, ["command: ", "For example command: [", "(got 'ls -l')"]),
    ("run_command", {"command": ["x"], "gpus": 1}, ["GPU", "gpu_status"]),
    ("run_command", {"command": ["x"], "timeout_s": 1e9}, ["less than or equal to 86400 (got 1000000000.0)"]),
    ("run_command", {"command": ["x"], "needs": {"arch": "sm_90"}}, ["Give gpus, or no needs"]),
    ("job_status", {"job_id": "j-9"}, ["no job 'j-9'", "run_command and evaluate_kernel"]),
    ("read_artifact", {"artifact_id": "b-9"}, ["no artifact 'b-9'", "results of other tools"]),
    ("register_problem", problem(shapes=[{"m": 1}]), ["gives n no value", "Give each symbol a size"]),
    ("register_problem", problem(shapes=[{"n": 0}]), ["{'n': 0} has a size below 1", "Sizes are 1 or more"]),
    ("register_problem", problem(shapes=[{"n": 10**12}]), ["take 8000000000000 bytes; the limit is", "smaller sizes"]),
    ("register_problem", problem(inputs=[{**X, "shape": ["N"]}]), ["gives N no value", "Give each symbol a size"]),
    ("register_problem", problem(inputs=[{**X, "shape": ["2n"]}]), ["inputs.0.shape.0: a name is", "n or rows (got '2n')"]),
    ("register_problem", problem(inputs=[{**X, "shape": "n"}]), ["inputs.0.shape", "For example inputs: [{"]),
    ("register_problem", problem(inputs=[X, X]), ["'x' names more than one", "Rename one"]),
    ("register_problem", problem(reference="def f(x) return x"), ["not Python: line 1", "Correct it"]),
    ("register_problem", problem(trials={"constraints": ["n % 4"]}), ["'n % 4' cannot be read", "symbol % integer"]),
    ("register_problem", problem(trials={"constraints": ["n & (n - 1) == 0"]}), ["cannot be read", "fixed_shapes"]),
    ("register_problem", problem(inputs=[{**X, "dtype": "half"}, {**X, "dtype": "c64"}]), ["inputs.1.dtype: likewise (got 'c64')"]),
    ("register_problem", {"name": "x"}, ["inputs is missing", "rtol is missing", "For example shapes: [{"]),
    ("import_problem", {}, ["`path` (a file or folder", "`text`"]),
    ("import_problem", {"text": "junk"}, ["no problem file of a known format", "problem.toml", "KernelBench"]),
    ("evaluate_kernel", {"problem_id": "p-9", "source": "x", "language": "c"}, ["'p-9'", "list_problems", "register_problem"]),
    ("evaluate_kernels", {"problem_id": "p-9"}, ["'p-9'", "list_problems"]),
    ("list_attempts", {"view": "ancestors"}, ["needs an attempt_id", "Give the attempt"]),
    ("check_memory", {"target": {}}, ["either command or attempt_id"]),
    ("transform_nccl", {}, ["No program is given", "workspace_id of write_files"]),
    ("release_gpu", {"lease_id": "l-9"}, ["no reservation 'l-9'", "reserve_gpu"]),
    ("submit_batch", {"command": ["true"]}, ["A host of kind slurm or pbs must be named", "run_command with detach"]),
    ("find_attempts", {}, ["Nothing is asked", "operation, dtype"]),
    ("add_note", {"text": " "}, ["0 characters", "1 to 2000"]),
    ("read_doc", {"uri": "doc://x"}, ["no document 'doc://x'", "search_docs"]),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "said"), WRONG, ids=lambda each: each if isinstance(each, str) else "")
async def test_an_error_says_what_and_what_next(client: Client, tool: str, arguments: dict[str, Any], said: list[str]):
    words = await refused(client, tool, **arguments)

    assert [each for each in said if each not in words] == [], words
    assert len(words) <= 1000 and "Traceback" not in words and "None" not in words, words
    assert words.endswith((".", "!", "?"))
