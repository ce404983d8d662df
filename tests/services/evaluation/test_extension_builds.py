"""Extensions that a Python candidate has torch compile: built once, apart from the candidate, failures remembered."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gpu_mcp_judge.candidate import torch_extensions

from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.jobs.job_folder import JobFolder
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation import extension_builds
from gpu_mcp_server.services.evaluation.extension_builds import requests_in, tolerates_failure
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.hostd.laboratory import wrapped
from tests.judge.harness import torch_python
from tests.judge_package import JUDGE, packages
from tests.laboratory import laboratory

needs_torch = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
RELU = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""
CANDIDATE = """
import ctypes
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r'''
extern "C" void relu(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = BODY; }
'''
path = load_inline("relu", [SOURCE], no_implicit_headers=True, is_python_module=False)
library = ctypes.CDLL(path)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        library.relu(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(x.numel()))
        return y
"""
HONEST = CANDIDATE.replace("BODY", "x[i] > 0 ? x[i] : 0")
GRASPING = (
    HONEST.replace("import ctypes\n", "import ctypes, os\n")
    + "\nopen('/job/built/' + os.listdir('/job/built')[0], 'wb').write(b'mine')\n"
)
"""Overwrites the library that it was given."""
SMOKE = TimingOptions(tier="smoke")


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": torch_python()}}) as lab:
        yield lab


def as_model(text: str) -> CandidateSource:
    return CandidateSource(text, "python", "model.py")


@needs_torch
async def test_an_extension_is_built_once_and_a_candidate_cannot_change_it_for_the_next(lab: Lab):
    problem = await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU))

    async def judged(text: str):
        return await lab.evaluation.evaluator.evaluate(problem.problem_id, as_model(text), timing=SMOKE)

    grasping = await judged(GRASPING)
    assert grasping.verdict == "correct", grasping.reason
    assert "extension relu built in" in grasping.evidence["extensions"]
    honest = await judged(HONEST)
    assert (honest.verdict, honest.evidence["extensions"]) == ("correct", "extension relu as built before")

    wrong = CANDIDATE.replace("BODY", "x[i] > 0 ? nothing : 0")
    failed = await judged(wrong)
    assert (failed.status, failed.diagnostics[0].file) == ("compile_failed", "main.cpp"), failed.diagnostics
    assert "nothing" in failed.reason


LUCKLESS = """
import torch
from torch.utils.cpp_extension import load_inline

def built(name, text, **more):
    try:
        return load_inline(name, [text], no_implicit_headers=True, is_python_module=False, **more)
    except Exception:
        return None

AT_IMPORT
class ModelNew(torch.nn.Module):
    def forward(self, x):
        IN_FORWARD
        return torch.relu(x)
"""
BAD = "built('luckless', 'extern \\\"C\\\" int luckless(void) { return nothing; }')"
GOOD = "built('other', 'extern \\\"C\\\" int other(void) { return 0; }')"


@needs_torch
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("at_import", "in_forward", "words"),
    [
        (BAD, "pass", "its extension did not compile; it computed with torch"),
        ("", BAD, "its extension did not compile; it computed with torch"),
        (f"{BAD} or {GOOD}", "pass", "it says that it built another one"),
        (GOOD, "pass", ""),
        (GOOD[:-1] + ", build_directory='none')", "pass", "its extension did not compile; it computed with torch"),
    ],
)
async def test_who_goes_on_without_its_extension_is_told_so_in_the_first_line(
    lab: Lab, at_import: str, in_forward: str, words: str
):
    problem = await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU))
    text = LUCKLESS.replace("AT_IMPORT", at_import).replace("IN_FORWARD", in_forward)
    found = await lab.evaluation.evaluator.evaluate(problem.problem_id, as_model(text), timing=SMOKE)

    assert found.verdict == "correct", found.reason
    first = found.summary().partition("\n")[0]
    assert words in first and ("extension" in first) == bool(words), (first, found.evidence, found.shapes)
    (attempt, *_) = (await lab.store.experience.list("recent", problem_id=problem.problem_id)).attempts
    assert words in (attempt.reason or "")


@pytest.mark.parametrize(
    ("source", "failed", "notes", "words"),
    [
        ("import torch", True, [], "its extension did not compile; it computed with torch"),
        ("import torch, triton", True, [], "its extension did not compile; it computed without it"),
        (
            "import torch",
            False,
            ["did not compile: extension a"],
            "its extension did not compile; it computed with torch",
        ),
        ("import torch", False, ["did not compile: extension a", "was built: extension b"], ""),
        ("import torch", False, [], ""),
    ],
)
def test_a_fallback_is_told_from_what_was_built(source: str, failed: bool, notes: list[str], words: str):
    assert extension_builds.fallback_of(source, failed, notes) == words


def test_both_sides_of_the_candidates_words_on_builds_are_the_same():
    assert (extension_builds.FAILED, extension_builds.BUILT) == (
        torch_extensions.FAILED_HERE,
        torch_extensions.BUILT_HERE,
    )


async def waited(lab: Lab) -> dict[str, bool]:
    """Return of the last job that asked for extensions, and of the last that built one, whether one made ahead took it."""
    found: dict[str, bool] = {}
    for record in (await lab.hosts.call("local", "list"))[0]["records"]:
        folder = JobFolder(str(lab.settings.data_dir / "hostd" / "jobs" / record["id"]))
        made = [str(output["path"]) for output in record["outputs"]]
        if made in (["requests.json"], ["kernel.so"]) and record["purpose"] == "compile":
            found.setdefault(made[0], folder.read_notes()["groups"][0].startswith("warm-"))
    return found


@needs_torch
async def test_torch_is_imported_while_the_first_candidate_is_asked_and_before_the_next_one_comes(tmp_path: Path):
    python = wrapped(tmp_path / "state", {LOCKS: str(tmp_path / "locks")})  # while others time, nothing would be made
    host = {"kind": "local", "python": str(python), "judge_python": torch_python()}
    async with laboratory(hosts={"local": host}) as lab:
        if (await lab.hosts.link("local")).greeting["level"] not in ("full", "namespaces"):
            pytest.skip("sandboxes are made ahead only with namespaces")
        await two_candidates(lab)


async def two_candidates(lab: Lab) -> None:
    problem = await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU))

    async def judged(text: str) -> Evaluation:
        return await lab.evaluation.evaluator.evaluate(problem.problem_id, as_model(text), timing=SMOKE)

    first = await judged(HONEST)
    assert "built in" in first.evidence["extensions"]
    assert await waited(lab) == {"requests.json": False, "kernel.so": True}
    link = await lab.hosts.link("local")
    while (await link.call("hello"))[0]["warm"] < 3:  # the judge and these two
        await asyncio.sleep(0.1)
    second = await judged(HONEST.replace("x[i] > 0 ?", "x[i] > 0.0f ?"))
    assert "built in" in second.evidence["extensions"]
    assert await waited(lab) == {"requests.json": True, "kernel.so": True}


RECALLED = """
import json, os, sys
sys.path[:0] = sys.argv[1:]
import discover_extensions as asking
from gpu_mcp_judge.candidate import torch_extensions
from torch.utils import cpp_extension
step, take, asked = getattr(cpp_extension, torch_extensions.STEP), getattr(cpp_extension, asking.TAKE), []
asking.take_down_requests(torch_extensions, asked.append)
build = lambda: cpp_extension.load_inline("x", ["int f();"], no_implicit_headers=True, is_python_module=False)
build()
setattr(cpp_extension, torch_extensions.STEP, step), setattr(cpp_extension, asking.TAKE, take)
open(torch_extensions.key_of(asked[0]) + ".txt", "w").write("main.cpp:1:1: error: no luck")
cpp_extension.JIT_EXTENSION_VERSIONER.entries.clear()
torch_extensions.take_from(os.getcwd())
try:
    build()
except RuntimeError as error:
    print(error)
"""


@needs_torch
def test_a_build_that_failed_before_fails_at_once_with_the_same_words(tmp_path: Path):
    environment = {"PATH": "/usr/bin:/bin", "TORCH_EXTENSIONS_DIR": str(tmp_path / "ext")}
    done = subprocess.run(
        [torch_python(), "-c", RECALLED, packages(), str(WORKERS)],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip

    assert done.stdout.strip() == "Error building extension 'x': main.cpp:1:1: error: no luck", done.stderr


GUARDED = """
import torch
from torch.utils.cpp_extension import load_inline

def built():
    return load_inline("late", ["extern \\"C\\" int late(void) { return 0; }"], no_implicit_headers=True)

class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, size, device="cuda"))
        if torch.cuda.is_available() and torch.cuda.get_device_capability() == (8, 6):
            IN_INIT
    def forward(self, x):
        if not x.is_cuda:
            x = x.cuda()
        y = (x.to("cuda:0") @ self.weight).relu()
        if y.is_cuda and y.shape == x.shape:
            IN_FORWARD
"""
"""Of the kinds that strangers write: they build behind a look for a GPU, or in the first call."""
LARGE = "import torch\ndef get_inputs():\n    return [torch.randn(1 << 20, 1 << 20)]\n"
LARGE += "def get_init_inputs():\n    return [1 << 20]\n"
EARLY = """
import torch
from torch.utils.cpp_extension import load_inline

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
AT_IMPORT
load_inline("late", ["extern \\"C\\" int late(void) { return 0; }"], no_implicit_headers=True)
"""
CAUGHT = """
            try:
                built().late()
            except RuntimeError:
                while True: pass
"""
"""It waits for what never comes once its extension is not there."""
ASK = "import sys; sys.path[:0] = sys.argv[1:2]; import discover_extensions; discover_extensions.main(sys.argv[2:])"


@needs_torch
@pytest.mark.parametrize(
    ("in_init", "in_forward", "words", "found"),
    [
        ("built()", "pass", ["8.6"], ["late"]),
        ("pass", "built()", ["8.6"], ["late"]),
        ("pass", "pass", ["8.6"], []),
        ("built()", "built()", ["9.0"], ["late"]),
        ("built()", "built()", [], []),
    ],
)
def test_builds_behind_a_look_for_a_gpu_are_found_without_one(
    tmp_path: Path, in_init: str, in_forward: str, words: list[str], found: list[str]
):
    text = GUARDED.replace("IN_INIT", in_init).replace("IN_FORWARD", in_forward)

    assert asked_for(tmp_path, text, *words) == found


@needs_torch
@pytest.mark.parametrize(
    "at_import",
    [
        "if device.type == 'cuda': torch.cuda.get_device_properties(0)",
        "if device.type == 'cuda': torch.cuda.Stream()",
        "torch.ones(3, device=device).sum().item()",
    ],
)
def test_a_file_that_asks_more_of_its_gpu_than_there_is_is_asked_without_one(tmp_path: Path, at_import: str):
    assert asked_for(tmp_path, EARLY.replace("AT_IMPORT", at_import), "9.0") == ["late"]


@needs_torch
def test_what_a_call_asked_for_is_known_where_it_does_not_end(tmp_path: Path):
    text = GUARDED.replace("IN_INIT", "pass").replace("            IN_FORWARD", CAUGHT)

    assert asked_for(tmp_path, text.replace("y.is_cuda", "y.device.type == 'cuda'"), "8.6", call_s=1) == ["late"]


def asked_for(folder: Path, text: str, *words: str, call_s: int = 60) -> list[str]:
    """Return the names of the extensions that a file asks for where a GPU is meant, or none by no words."""
    (folder / "candidate.py").write_text(text)
    (folder / "problem.py").write_text(LARGE)
    (folder / "judge_extensions.py").write_text((JUDGE / "candidate/torch_extensions.py").read_text())
    asking = ASK.replace("discover_extensions.main", f"discover_extensions.CALL_S = {call_s}; discover_extensions.main")
    argv = [torch_python(), "-c", asking, str(WORKERS), *words]
    subprocess.run(argv, cwd=folder, env={"PATH": "/usr/bin:/bin"}, check=True)
    requests = json.loads((folder / "requests.json").read_text())
    return [request["arguments"]["name"] for request in requests]


@pytest.mark.parametrize(("text", "may"), [(HONEST, False), ("try:\n    f()\nexcept OSError:\n    pass\n", True)])
def test_a_file_that_catches_exceptions_may_live_without_an_extension(text: str, may: bool):
    assert tolerates_failure(text) == may


@pytest.mark.parametrize(
    "data",
    [
        b"no json",
        b"{}",
        b"[1]",
        b'[{"arguments": 1, "sources": [], "environment": {}}]',
        json.dumps([{"arguments": {"name": "../x"}, "sources": [], "environment": {}}]).encode(),
    ],
)
def test_what_is_no_request_is_not_built(data: bytes):
    assert requests_in(data) == []


TORCH = {
    "torch/__init__.py": "class version:\n    cuda = '13.0'\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": """
import os
CUDA_HOME = os.environ.get("CUDA_HOME")
def _write_ninja_file_and_build_library(name, sources, build_directory, verbose):
    with open(os.path.join(build_directory, name + ".so"), "w") as file:
        file.write(str(CUDA_HOME))
""",
}
BUILD = """
import os, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
IMPORTS = ("torch.utils.cpp_extension",)
import extension_build
extension_build.IMPORTS = IMPORTS
extension_build.prepare()
os.environ.update(eval(sys.argv[3]))
extension_build.main(["kernel.so"])
"""


@pytest.mark.parametrize(("then", "home"), [({"CUDA_HOME": "/opt/cuda"}, "/opt/cuda"), ({}, "/usr/somewhere")])
def test_an_extension_is_built_by_the_jobs_cuda_though_torch_was_imported_before_it(tmp_path, then, home):
    for name, text in TORCH.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    request = {"arguments": {"name": "relu"}, "sources": [["main.cpp", ""]], "environment": {}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    workers = JUDGE.parent / "workers"
    done = subprocess.run(
        [sys.executable, "-I", "-c", BUILD, str(tmp_path), str(workers), repr(then)],
        cwd=tmp_path,
        env={"CUDA_HOME": "/usr/somewhere", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernel.so").read_text() == home
