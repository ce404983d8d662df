"""Find Pythons for the judge on this machine, if the settings name none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

GIT_S = 10
OWN = "the server's own Python"


def local_judge_pythons(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return interpreters of this machine, the first to be looked at first, and what each of them is.

    hostd takes the first with torch, else the first with NumPy.

    Args:
        folder: Where the server was started.
        environment: Its variables.
    """
    found: dict[str, str] = {}
    places = [
        *((environment.get(name, ""), f"the active environment, {name}") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")),
        ("" if is_tracked(folder, ".venv") else str(folder / ".venv"), ".venv of the working folder"),
    ]
    for prefix, what in places:
        python = os.path.join(prefix, "bin", "python")  # noqa: PTH118 - links are kept: they make the environment
        if prefix and os.access(python, os.X_OK):
            found.setdefault(python, what)
    found.setdefault(sys.executable, OWN)
    if on_path := shutil.which("python3", path=environment.get("PATH", os.defpath)):
        found.setdefault(on_path, "python3 on PATH")
    return found


def is_tracked(folder: Path, name: str) -> bool:
    """Return whether git brought `name`: then it is a stranger's program, and hostd must not start it."""
    if not (folder / name).exists() or not any((each / ".git").exists() for each in [folder, *folder.parents]):
        return False
    command = ["git", "-C", str(folder), "ls-files", "--", name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return True  # it cannot be told
    return done.returncode != 0 or bool(done.stdout.strip())
