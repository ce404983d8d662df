"""Runs of a program in a workspace, with and without the kernel that an overlay puts in."""

import os
import subprocess
from pathlib import Path

from tests.services.programs.test_problem_capture import PYTHON


def run_program(folder: Path, **more: str) -> str:
    """Return what `program.py` of a folder prints, run by the Python with torch with more environment."""
    env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **more}
    command = [PYTHON, "program.py"]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def overlay_environment(folder: Path) -> dict[str, str]:
    """Return the environment with which the program has its overlay, and writes how often each kernel ran."""
    return {"PYTHONPATH": str(folder / "speedup_overlay"), "GPU_MCP_OVERLAY_COUNTS": str(folder / "counts")}
