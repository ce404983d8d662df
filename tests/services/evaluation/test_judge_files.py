"""Files of the judge that are shipped to a host: nobody else's takes their place or is replaced by them."""

import ast
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.judge.devices.cuda_driver import CONTROL, SIGNATURES
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.evaluation.judge_binaries import JudgeBinary, _built, judge_code
from gpu_mcp_server.services.evaluation.judge_files import (
    JUDGE,
    NOT_OURS,
    PACKAGE,
    TREE,
    _bytecode,
    bytecode_path,
    judge_files,
    judge_tree,
    role_source,
)
from gpu_mcp_server.services.evaluation.judge_job import role_program
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import HONEST, PROBLEM

SOURCES = sorted(JUDGE.rglob("*.py"))
MODULES = {".".join(p.relative_to(JUDGE).with_suffix("").parts) for p in SOURCES if p.name != "__init__.py"}
PLACES = MODULES | {".".join(p.relative_to(JUDGE).parts) for p in JUDGE.rglob("*") if (p / "__init__.py").exists()}
"""What there is to import from."""
ROOMS = {name.partition(".")[0] for name in PLACES}
OWN_NAMES = sorted(ROOMS | {"compare", "random_inputs", "packet_link", "rounds", "shared_library"})
"""Names of the judge's rooms, and of some modules in them, that a problem or a workspace may have as well."""
SMOKE = TimingOptions(tier="smoke")


def laid(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def ran(program: str, tree: Path, work: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program as hostd does."""
    work.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-B", *options, "-c", program]
    env = {"TREE_JUDGE": str(tree), **env}
    return subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(JUDGE).as_posix())
def test_a_module_imports_others_of_the_judge_by_their_place_in_the_package(path: Path):
    ours = {"gpu_mcp_server", PACKAGE, *ROOMS}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & ours
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert str(node.module).partition(".")[0] not in ours
        elif isinstance(node, ast.ImportFrom):
            folders = path.relative_to(JUDGE).parent.parts
            assert node.level <= len(folders) + 1, "beyond the package"
            base = ".".join([*folders[: len(folders) + 1 - node.level], *filter(None, [node.module])])
            assert base in MODULES or {".".join(filter(None, [base, alias.name])) for alias in node.names} <= PLACES


def test_the_names_that_are_tried_are_the_judges():
    assert set(OWN_NAMES) <= {part for place in PLACES for part in place.split(".")}
    assert {"numerics", "channel", "main", "owner", "candidate", "verdicts"} <= ROOMS


@pytest.fixture
def other_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the judge's sources that is shipped instead of them."""
    folder = Path(shutil.copytree(JUDGE, tmp_path / "other" / "judge"))
    monkeypatch.setattr("gpu_mcp_server.services.evaluation.judge_files.JUDGE", folder)
    judge_files.cache_clear()
    _bytecode.cache_clear()
    yield folder
    judge_files.cache_clear()
    _bytecode.cache_clear()


HASHED = f"""
load_judge()
from {PACKAGE}.evidence import harness_hash, shipped
print(harness_hash(), *shipped())
"""


def hashed(folder: Path, python: str = "") -> tuple[str, set[str], Path]:
    """Return the hash of the judge's files as a host has them, what it covers, and where they lie."""
    tree = laid(folder / "tree", judge_files(python))
    done = ran(role_source() + HASHED, tree, folder / "work")
    digest, *covered = done.stdout.split()
    return digest, {f"{PACKAGE}/{path}" for path in covered}, tree


def test_the_hash_covers_every_file_that_is_shipped_and_no_other(tmp_path: Path):
    _, covered, _ = hashed(tmp_path, platform.python_version())
    assert covered == set(judge_files(platform.python_version()))
    assert any(path.endswith(".pyc") for path in covered)


def test_a_module_in_a_folder_is_shipped_and_imported_and_changes_the_hash(tmp_path: Path, other_judge: Path):
    folder = other_judge / "room" / "inner"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").touch()
    hashes = []
    for number in (1, 2):
        (folder / "new.py").write_text(f"from ...main import main\nNUMBER = {number}\n")
        judge_files.cache_clear()
        _bytecode.cache_clear()
        digest, covered, tree = hashed(tmp_path / str(number), platform.python_version())
        compiled = f"{PACKAGE}/room/inner/__pycache__/new.{sys.implementation.cache_tag}.pyc"
        assert {f"{PACKAGE}/room/inner/new.py", compiled} <= covered
        program = f"{role_source('room.inner.new')}\nprepare()\nprint(sys.modules['{PACKAGE}.room.inner.new'].NUMBER)"
        done = ran(program, tree, tmp_path / "imports", "-v")
        assert done.stdout == f"{number}\n", done.stderr[-2000:]
        assert f"{tree}/{compiled} matches" in done.stderr
        hashes.append(digest)
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["library", "launcher", "model", None])
def test_what_a_role_imports_ahead_of_its_job_is_there(kind: Literal["library", "launcher", "model"] | None, device):
    candidate = BuiltCandidate(kind, b"") if kind else None
    problem = Problem.model_construct(framework="torch", kind="module")
    for role in ("owner", "reference", *(["candidate"] if candidate else [])):
        ahead = ast.literal_eval(role_program(role, problem, device, candidate).partition("\n")[0].partition("= ")[2])
        assert {name.removeprefix(f"{PACKAGE}.") for name in ahead} - MODULES <= {*NOT_OURS}
        assert f"{PACKAGE}.main" in ahead


def test_a_process_made_ahead_has_its_modules_and_the_driver_and_does_not_look_for_garbage_in_them(tmp_path: Path):
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(driver)], check=True)
    tree = laid(tmp_path / "tree", judge_files())
    problem, candidate = Problem.model_construct(framework="torch", kind="module"), BuiltCandidate("library", b"")
    program = role_program("candidate", problem, "cuda", candidate)
    asked = f"import gc; print(gc.isenabled(), gc.get_freeze_count() > 0, '{PACKAGE}.candidate.shared_library' in sys.modules)"
    shown = "print('libcuda.so.1' in open('/proc/self/maps').read(), 'torch' in sys.modules, 'numpy' in sys.modules)"
    text = f"{program}\nprepare()\n{asked}\n{shown}"

    for folder in (tmp_path, tree):  # in the second there is none, unless this machine has one
        done = ran(text, tree, tmp_path / "work", LD_LIBRARY_PATH=str(folder))
        *imported_ahead, driver_there, torch_too, numpy_too = done.stdout.split()
        assert (imported_ahead, torch_too, numpy_too) == (["True"] * 3, "False", "False")
        assert driver_there == "True" or folder != tmp_path


@pytest.mark.parametrize("role", ["owner", "candidate"])
def test_a_process_made_ahead_has_no_context_on_a_gpu_that_it_is_shown(tmp_path: Path, role: str):
    called = tmp_path / "called"
    report = f'{{ FILE *f = fopen("{called}", "a"); fprintf(f, "%s ", __func__); fclose(f); return 0; }}\n'
    stub = "#include <stdio.h>\n" + "".join(f"int {name}(void) {report}" for name in SIGNATURES)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=stub, text=True, check=True)
    shown = f"import os\nthere = os.path.exists\nos.path.exists = lambda path: path == {CONTROL!r} or there(path)"
    problem = Problem.model_construct(framework="numpy", kind="function")
    program = role_program(role, problem, "cuda", BuiltCandidate("library", b""))
    tree = laid(tmp_path / "tree", judge_files())
    done = ran(f"{shown}\n{program}\nprepare()", tree, tmp_path / "work", LD_LIBRARY_PATH=str(tmp_path))

    assert called.read_text() == "cuInit ", done.stderr


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_only_a_process_that_multiplies_with_numpy_has_threads_for_it(tmp_path: Path, framework):
    program = role_program("reference", Problem.model_construct(framework=framework, kind="function"), "cuda", None)
    imports = [name for name in ast.literal_eval(program.partition("\n")[0].partition("= ")[2]) if "torch" not in name]
    text = program.replace(program.partition("\n")[0], f"IMPORTS = {[*imports, 'numpy.ma']}", 1)
    counted = "import os; print('numpy' in sys.modules, len(os.listdir('/proc/self/task')))"
    done = ran(f"{text}\nprepare()\n{counted}", laid(tmp_path / "tree", judge_files()), tmp_path / "work")
    there, count = done.stdout.split()

    # NumPy's wheels bring OpenBLAS, which starts a thread for each further core at once
    assert there == "True" and (count == "1") is (framework == "torch" or len(os.sched_getaffinity(0)) == 1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_set_of_processes_made_ahead_serves_every_kind_of_python_file(device):
    problem = Problem.model_construct(framework="torch", kind="module")
    triton, model = (
        role_program("candidate", problem, device, BuiltCandidate(kind, b"")) for kind in ("launcher", "model")
    )
    assert triton == model
    library = role_program("candidate", problem, device, BuiltCandidate("library", b""))
    assert "candidate.shared_library" in library
    assert "candidate.shared_library" not in triton


def test_the_bytecode_that_goes_along_is_what_python_runs(tmp_path: Path):
    tree = laid(tmp_path / "tree", judge_files(platform.python_version()))

    done = ran(role_source() + "\nmain(['candidate'])", tree, tmp_path / "work", "-v")

    assert "KeyError: 'LINK_OWNER'" in done.stderr
    for path in (
        "__init__.py",
        "main.py",
        "folders.py",
        "candidate/candidate_process.py",
        "channel/packet_link.py",
        "memory/mapped_file.py",
    ):
        assert f"{tree}/{PACKAGE}/{bytecode_path(path)} matches" in done.stderr


def test_a_role_that_was_not_made_ahead_imports_before_it_is_asked_and_lives_without_what_is_missing(tmp_path: Path):
    tree = laid(tmp_path / "tree", judge_files())
    show = f"print('{PACKAGE}.programs.program_runs' in sys.modules, gc.isenabled())"

    play = f"try:\n    main(['candidate'])\nfinally:\n    {show}"
    done = ran(f"{role_source('no_such_module', 'programs.program_runs')}\n{play}", tree, tmp_path / "work")
    assert done.stdout == "True True\n"
    assert "KeyError: 'LINK_OWNER'" in done.stderr


def test_bytecode_is_not_sent_to_another_python():
    assert not [path for path in judge_files("3.8.20") if path.endswith(".pyc")]


def test_a_tree_has_the_compiled_code_where_no_module_is_looked_for():
    blobs: dict[str, bytes] = {}
    refs = {ref.path: ref for ref in judge_tree("3.8.20", blobs, {"elements.so": b"compiled"})[TREE]}
    assert set(refs) == {*judge_files("3.8.20"), f"{PACKAGE}/compiled/elements.so"}
    assert {path: blobs[ref.sha256] for path, ref in refs.items()}[f"{PACKAGE}/compiled/elements.so"] == b"compiled"


INJECTED = "import os; open(os.environ['MARK'], 'a').write(__name__ + ' ')\n"


def test_nothing_in_a_workspace_takes_the_place_of_the_judge_or_of_what_it_imports(tmp_path: Path):
    tree, work, mark = laid(tmp_path / "tree", judge_files()), tmp_path / "work", tmp_path / "mark"
    own = ["sitecustomize", "usercustomize", PACKAGE, *OWN_NAMES, "json", "ctypes", "numpy", "socket"]
    version = "python{}.{}".format(*sys.version_info)
    for folder in (work, work / ".local" / "lib" / version / "site-packages"):
        laid(folder, {f"{name}.py": INJECTED.encode() for name in own})
    env = {"PYTHONPATH": str(work), "PYTHONSTARTUP": str(work / "main.py"), "HOME": str(work), "MARK": str(mark)}
    show = f"print(*[sys.modules[f'{PACKAGE}' + each].__file__ for each in ('', '.main')])"

    for role, module in {
        **dict.fromkeys(("candidate", "reference", "owner")),
        "program": "programs.program_process",
    }.items():
        play = f"prepare()\ntry:\n    main([{role!r}])\nfinally:\n    {show}"
        done = ran(f"{role_source('main', module or role)}\n{play}", tree, work, **env)
        assert done.stdout == f"{tree}/{PACKAGE}/__init__.py {tree}/{PACKAGE}/main.py\n", done.stderr

    assert not mark.exists(), mark.read_text()
    subprocess.run([sys.executable, "-c", "import json"], cwd=work, env=env, check=True)
    assert mark.exists(), "without -I it does"


IMPORTING = f"""
import os, sys
found = []
for name in {OWN_NAMES!r}:
    try:
        __import__(name)
        found.append(name)
    except ModuleNotFoundError:
        pass
assert not found, found
own = os.path.join(os.getcwd(), "own")
os.mkdir(own)
with open(os.path.join(own, "compare.py"), "w") as file:
    file.write("whose = 'mine'")
sys.path.insert(0, own)
import compare
assert compare.whose == "mine"
import numpy as np
"""


async def registered(lab: Lab, **more: str) -> str:
    tensors = {side: [TensorSpec.model_validate(t) for t in PROBLEM[side]] for side in ("inputs", "outputs")}
    return (await lab.evaluation.registry.register(**{**PROBLEM, **tensors, **more})).problem_id


async def evaluated(lab: Lab, problem_id: str, text: str = HONEST) -> Evaluation:
    return await lab.evaluation.evaluator.evaluate(
        problem_id, CandidateSource(text, "c", "candidate.c"), device="cpu", timing=SMOKE
    )


async def test_a_reference_that_imports_a_name_of_the_judges_gets_its_own_or_none(lab: Lab):
    problem_id = await registered(lab, reference=IMPORTING + PROBLEM["reference"])
    evaluation = await evaluated(lab, problem_id)
    assert evaluation.verdict == "correct", evaluation.reason


async def test_the_evidence_names_the_hash_of_the_code_that_was_mapped(lab: Lab):
    evaluation = await evaluated(lab, await registered(lab))
    evidence = json.loads(await lab.store.artifacts.read(evaluation.evidence_artifact_id))["evidence"]
    code = await judge_code(lab.builds.compiler, lab.store.artifacts, "local", "cpu", "library")
    assert {"elements.so", "calls.so"} == set(code)
    assert evidence["compiled_sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in code.items()}
    assert (evidence["elements_by"], evidence["candidate_calls_by"]) == ("compiled code", "compiled C")


async def test_a_source_in_a_folder_is_compiled_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    named: list[str] = []

    class Compiler:
        async def build(self, source: CandidateSource, **_: object) -> None:
            named.append(source.name)
            raise ToolMissing("a C compiler", "local")

    monkeypatch.setattr(
        "gpu_mcp_server.services.evaluation.judge_binaries.JUDGE", laid(tmp_path, {"room/loops.c": b"int one = 1;"})
    )

    assert await _built(Compiler(), None, "local", JudgeBinary("loops.so", "room/loops.c", "c")) is None
    assert named == ["loops.c"]


FORGING = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
static int spoiled(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/gpu_mcp_judge/%s", getenv("TREE_JUDGE"), name);
    if (access(path, R_OK)) return 78;
    chmod(path, 0666);
    return open(path, O_RDWR) >= 0 || truncate(path, 0) == 0 || unlink(path) == 0 ? 77 : 0;
}
static int forge(void) {
    int code = spoiled("compiled/elements.so");
    if (!code) code = spoiled("compiled/calls.so");
    return code ? code : spoiled("numerics/compare.py");
}
"""


async def test_a_candidate_cannot_write_the_loops_or_the_modules_that_judge_it(lab: Lab):
    text = FORGING + HONEST.replace("    for (", "    int code = forge();\n    if (code) return code;\n    for (")
    evaluation = await evaluated(lab, await registered(lab), text)
    assert evaluation.verdict == "correct", evaluation.reason
