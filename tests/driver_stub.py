"""A stub of libcuda for the linker, as toolkits have one and NVIDIA's wheels have none: made of the names in cuda.h."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compiled import compiled


def toolkit_include() -> Path:
    """Return the folder of cuda.h; skips where there is no nvcc."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    said = subprocess.run([nvcc, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=True)
    top = re.search(r" _?TOP_?=(\S+)|\bTOP=(\S+)", said.stderr)
    assert top is not None, said.stderr
    return Path(top[1] or top[2]) / "include"


def driver_stub(folder: Path) -> Path:
    """Make `libcuda.so` in a folder: every function of cuda.h by the name that a program asks the driver for."""
    folder.mkdir(parents=True, exist_ok=True)
    header = ["gcc", "-E", "-P", "-x", "c", f"-I{toolkit_include()}", str(toolkit_include() / "cuda.h")]
    text = subprocess.run(header, capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text)))
    assert "cuInit" in names and "cuTensorMapEncodeTiled" in names, len(names)
    source = "".join(f"void {name}(void) {{}}\n" for name in names)
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so", "stub.c"]
    return shutil.copy(compiled("libcuda.so", {"stub.c": source}, *command), folder / "libcuda.so")
