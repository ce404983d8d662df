"""Compile for tests, kept by all that goes in: once for a checkout, however many tests ask at once.

It lies below .venv, so that `make clean` takes it, and goes when nothing asked for it in a week. Where .venv is not
there or is somebody else's, it lasts as long as the process.
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

VENV = Path(__file__).resolve().parents[1] / ".venv"
WEEK_S = 7 * 86_400


def compiled(made: str, files: Mapping[str, str], *command: str) -> Path:
    """Return the file of that name which a command makes from files that are alone in its folder."""
    described = json.dumps([made, dict(files), command, compiler(command[0]), processor()])
    folder = kept() / hashlib.sha256(described.encode()).hexdigest()[:32]
    folder.mkdir(exist_ok=True)
    turn = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)  # who comes second waits for what the first one makes
        os.utime(folder)
        if not (folder / made).exists():
            with tempfile.TemporaryDirectory(dir=kept()) as work:
                for name, text in files.items():
                    (Path(work) / name).write_text(text)
                subprocess.run(command, cwd=work, check=True, capture_output=True)
                (Path(work) / made).replace(folder / made)
    finally:
        os.close(turn)
    return folder / made


@functools.cache
def kept() -> Path:
    """Return the folder of all that was compiled."""
    folder = VENV / "compiled"
    if VENV.is_dir():
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-compiled-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for each in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process swept it
            if each.stat().st_mtime < time.time() - WEEK_S:
                shutil.rmtree(each, ignore_errors=True)
    return folder


@functools.cache
def compiler(program: str) -> str:
    """Return what tells one compiler's version from another."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def processor() -> str:
    """Return what -march=native goes by: a checkout may be moved to another machine."""
    try:
        said = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    return "\n".join(sorted(set(re.findall(r"(?m)^(?:model name|flags|Features|CPU part)\b.*", said))))
