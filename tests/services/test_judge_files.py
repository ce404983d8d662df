"""What is sent of the judge to a host."""

import ast
import platform
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.harness import Candidate, role_program
from gpu_mcp_server.services.judge_files import JUDGE, judge_files

MODULES = {p.stem for p in JUDGE.glob("*.py")}


def imported(source: bytes) -> set[str]:
    """Return the judge's own modules that a source imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found & MODULES


@pytest.mark.parametrize("role", ["owner", "reference", "candidate", "program"])
def test_a_role_gets_whatever_it_can_come_to_import(role: str):
    files = judge_files(role)
    sources = {Path(path).stem: data for path, data in files.items() if path.endswith(".py")}

    needed = set[str]().union(*(imported(data) for name, data in sources.items() if name != "main"))

    assert needed <= set(sources)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["library", "triton", "model", None])
def test_what_a_role_imports_ahead_of_its_job_is_sent_to_it(kind: Literal["library", "triton", "model"] | None, device):
    candidate = Candidate(kind, b"") if kind else None
    problem = Problem.model_construct(framework="torch", kind="module")
    for role in ("owner", "reference", *(["candidate"] if candidate else [])):
        ahead = ast.literal_eval(role_program(role, problem, device, candidate).partition("\n")[0].partition("= ")[2])
        files = judge_files(role)
        assert {name for name in ahead if f"judge/{name}.py" not in files} <= {"torch", "triton"}


def test_a_process_made_ahead_has_its_modules_and_the_driver_and_does_not_look_for_garbage_in_them(tmp_path: Path):
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(driver)], check=True)
    for path, data in judge_files("candidate").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    problem, candidate = Problem.model_construct(framework="torch", kind="module"), Candidate("library", b"")
    program = role_program("candidate", problem, "cuda", candidate)
    asked = "import gc; print(gc.isenabled(), gc.get_freeze_count() > 0, 'candidate_library' in sys.modules)"
    shown = "print('libcuda.so.1' in open('/proc/self/maps').read(), 'torch' in sys.modules, 'numpy' in sys.modules)"
    command = [sys.executable, "-I", "-B", "-c", f"{program}\nprepare()\n{asked}\n{shown}"]

    for folder in (tmp_path, tmp_path / "judge"):  # in the second there is none, unless this machine has one
        env = {"LD_LIBRARY_PATH": str(folder)}
        ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True)
        *imported_ahead, driver_there, torch_too, numpy_too = ran.stdout.split()
        assert (imported_ahead, torch_too, numpy_too) == (["True"] * 3, "False", "False")
        assert driver_there == "True" or folder != tmp_path


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_set_of_processes_made_ahead_serves_every_kind_of_python_file(device):
    problem = Problem.model_construct(framework="torch", kind="module")
    triton, model = (role_program("candidate", problem, device, Candidate(kind, b"")) for kind in ("triton", "model"))
    assert triton == model
    assert "candidate_library" not in triton


def test_only_the_owner_gets_what_checks_answers():
    assert "judge/trials.py" in judge_files("owner")
    assert not {"judge/trials.py", "judge/check.py", "judge/owner.py", "judge/fill.py"} & set(judge_files("candidate"))


def test_the_bytecode_that_goes_along_is_what_python_runs(tmp_path: Path):
    for path, data in judge_files("candidate", platform.python_version()).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    command = [sys.executable, "-I", "-B", "-v", "judge/main.py", "candidate"]

    ran = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=False)

    assert "no LINK_OWNER" in ran.stderr
    for module in ("candidate", "link", "mapping"):
        assert f"judge/__pycache__/{module}.{sys.implementation.cache_tag}.pyc matches" in ran.stderr


def test_bytecode_is_not_sent_to_another_python():
    assert not [path for path in judge_files("candidate", "3.8.20") if path.endswith(".pyc")]
