"""Python launchers in a Python that has their packages: which one that is, and compiling there without a GPU."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from tests.judge.harness import torch_python

FIND = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"


def python_for(text: str) -> str:
    """Return the Python with torch; skip where a package that the text imports is not installed in it."""
    modules = sorted({name.partition(".")[0] for name in BuiltCandidate("launcher", text.encode()).imports.needed})
    if not torch_python() or subprocess.run([torch_python(), "-c", FIND, *modules], check=False).returncode:
        pytest.skip(f"no Python with {', '.join(modules)}: set TEST_TORCH_PYTHON")
    return torch_python()


def compile_launcher(
    folder: Path,
    text: str,
    signature: Mapping[str, str],
    constants: Mapping[str, int],
    *,
    by_nvcc: bool = False,
    entry: str = "",
) -> dict[str, Any]:
    """Compile what a launcher launches for sm_90a, and return what the worker says; skip where that cannot be."""
    if by_nvcc and not shutil.which("nvcc"):
        pytest.skip("no nvcc here")
    python = python_for(text)
    (folder / "kernel.py").write_text(text)
    request = {"file": "kernel.py", "entry": entry, "arch": "sm_90a", "signature": signature, "constants": constants}
    program = worker_source("launcher_aot") + "\nimport sys\nmain(sys.argv[1:])\n"
    environment = {"HOME": str(folder), "TMPDIR": str(folder), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [python, "-I", "-c", program, json.dumps(request)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "no ptxas here takes it" in done.stderr:
        pytest.skip("no ptxas as new as the language")
    if "'tileiras' compiler not found" in done.stderr:
        pytest.skip("no tileiras: pip install cuda-tile[tileiras]")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "kernel.cubin").read_bytes().startswith(b"\x7fELF")
    said: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return said
