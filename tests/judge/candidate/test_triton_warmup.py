"""Triton's compiler is used once before there is a job, without a GPU; what it made is found by the job's first launch."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.judge_package import packages

HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()
"""Which Triton's module includes; without them there is none before the job, and no launch in it."""
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import triton
from gpu_mcp_judge.candidate import launcher_file
launcher_file.prepare()
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
from gpu_mcp_judge.candidate import triton_warmup
triton.compile(ASTSource(triton_warmup.scale, triton_warmup.SIGNATURE, {}), target=GPUTarget("cuda", 90, 32))
from triton.runtime.cache import triton_key
assert triton_key() == triton.__version__, "it hashed 0.4 GB of itself"
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a workspace with the candidate's modules and a driver that only has the names that Triton wants."""
    (tmp_path / "cuda").mkdir()
    command = ["gcc", "-shared", "-x", "c", "-", "-o", str(tmp_path / "cuda" / "libcuda.so.1")]
    subprocess.run(command, input=b"", check=True)
    return tmp_path


def made(work: Path, **environment: str) -> list[str]:
    """Return the names of what is in Triton's cache after a process was prepared, a kernel's for each of its targets."""
    told = {**os.environ, "TRITON_LIBCUDA_PATH": str(work / "cuda"), **environment}
    subprocess.run([sys.executable, "-c", PROGRAM, packages()], cwd=work, env=told, check=True, timeout=100)
    found = [path.name for path in (work / ".cache" / "triton").rglob("*")]
    return [name.split(".")[0] for name in found if name.endswith((".cubin", ".so"))]


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="no Triton here")
@pytest.mark.parametrize(("compiler", "has_module"), [("gcc", HEADERS), ("false", False)])
def test_a_kernel_and_tritons_own_module_are_made_ahead(work, compiler, has_module):
    names = made(work, CC=compiler)

    assert names.count("scale") == 2, "compiled ahead, and again for another GPU after it, without a GPU"
    assert ("cuda_utils" in names) == has_module
