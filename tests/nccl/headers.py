"""Real NCCL headers: of the interpreter's own nvidia-nccl-cu13, and of other versions that TEST_NCCL names."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest


def homes() -> list[Path]:
    """Folders with include/nccl_device.h: TEST_NCCL (colons between them) before the installed package."""
    named = [Path(p) for p in os.environ.get("TEST_NCCL", "").split(":") if p]
    spec = importlib.util.find_spec("nvidia")
    found = [Path(p) / "nccl" for p in (spec.submodule_search_locations or [])] if spec else []
    return [h for h in (*named, *found) if (h / "include/nccl_device.h").is_file()]


def nvcc() -> str:
    """The compiler, or a skip that says what is missing."""
    found = shutil.which("nvcc")
    if found is None or not homes():
        pytest.skip("needs nvcc and nvidia-nccl-cu13 (make test installs the headers, not the compiler)")
    return found


def compiled(folder: Path, main: str, home: Path | None = None, *flags: str) -> str:
    """Compile to PTX, the host's part checked too; return the diagnostics, "" if there are none."""
    command = [
        nvcc(),
        "-std=c++17",
        "-arch=sm_90",
        f"-I{(home or homes()[0]) / 'include'}",
        *(flags or ("-O0", "-ptx")),
    ]
    done = subprocess.run([*command, main, "-o", "out"], cwd=folder, capture_output=True, text=True, timeout=110)
    return done.stdout + done.stderr if done.returncode or "warning" in done.stderr else ""
