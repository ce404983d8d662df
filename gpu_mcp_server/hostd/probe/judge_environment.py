"""A virtual environment for the judge on this host: made once, given packages by the host's own pip.

A person asks for it; no job and no tool can. pip reads the host's own configuration: its index, its proxy.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from .python_probe import can_jobs_reach

FOLDER = "judge-environment"
"""In the state folder. A host has one."""
NUMPY = "numpy"
"""The judge needs it, and torch does not bring it."""
VENV_S = 120
LOOK_S = 1.0
SAID_BYTES = 16 << 10
"""How much of what pip printed is kept: its end."""
BUSY = "busy"
ROOM_BYTES = 64 << 20
"""What an empty environment takes, unpacking included."""
_VERSIONS = """
import json, sys, numpy
from importlib import metadata
print(json.dumps({name: metadata.version(name) for name in sys.argv[1:]}))
"""


class StepFailed(Exception):
    """A step did not do its work."""

    def __init__(self, step: str, said: str) -> None:
        super().__init__(said)
        self.step = step


def make_judge_environment(state: str, wishes: Dict[str, Any]) -> Dict[str, Any]:
    """Make the environment if there is none, and install packages in it; takes minutes.

    Args:
        state: hostd's folder.
        wishes: `packages` (requirements, each name with its version), `names` (those names alone), `environment`
            (variables for pip), `path` (folders to look for Python in first), `limit_s` (seconds for pip).

    Returns:
        `python` (its interpreter), `packages` (name to version); or `failed` (the step: `busy`, `room`, `reach`,
        `venv`, `pip`, `limit` or `import`) and `said` (what it printed). An environment that was not there before is
        gone then.
    """
    folder = os.path.join(state, FOLDER)
    os.umask(0o022)  # jobs with uids of their own read it
    lock = os.open(folder + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return {"failed": BUSY, "said": folder}
    new = not os.path.exists(os.path.join(folder, "pyvenv.cfg"))
    try:
        return _equip(folder, new, wishes)
    except StepFailed as failure:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        return {"failed": failure.step, "said": str(failure)}


def _equip(folder: str, new: bool, wishes: Dict[str, Any]) -> Dict[str, Any]:
    environment = dict(os.environ, **wishes["environment"], TMPDIR=os.path.join(folder, "unpacked"))
    environment["PATH"] = os.pathsep.join([*wishes["path"], environment.get("PATH", os.defpath)])
    python = os.path.join(folder, "bin", "python")
    if new:
        shutil.rmtree(folder, ignore_errors=True)
        free = shutil.disk_usage(os.path.dirname(folder)).free
        if free < ROOM_BYTES:
            raise StepFailed("room", "No space left on device: %d MB are free, pip needs more" % (free >> 20))
        _make_empty(folder, environment)
    if not can_jobs_reach(python):
        raise StepFailed("reach", python)
    os.makedirs(environment["TMPDIR"], exist_ok=True)
    try:
        packages = list(dict.fromkeys([*wishes["packages"], NUMPY]))
        words = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-cache-dir"]
        options = ["--progress-bar", "off", "--retries", "2"]
        _run("pip", [python, "-I", *words, *options, *packages], environment, wishes["limit_s"])
    finally:
        shutil.rmtree(environment["TMPDIR"], ignore_errors=True)
    printed = _run("import", [python, "-I", "-c", _VERSIONS, *wishes["names"], NUMPY], environment, VENV_S)
    return {"python": python, "packages": json.loads(printed.strip().rpartition("\n")[2])}


def _make_empty(folder: str, environment: Dict[str, str]) -> None:
    """Make the environment with the first Python that can and that jobs reach."""
    first = environment["PATH"].split(os.pathsep)
    found = [shutil.which("python3", path=environment["PATH"]), sys.executable, "/usr/bin/python3"]
    refusals: List[str] = []
    for python in dict.fromkeys(p for p in found if p):
        real = _base_python(python, environment)
        if real is None or not can_jobs_reach(real):
            refusals.append("%s: jobs cannot start it" % python)
            continue
        try:
            _run("venv", [python, "-I", "-c", "import venv, ensurepip; ensurepip.version"], environment, VENV_S)
            _run("venv", [python, "-I", "-m", "venv", folder], environment, VENV_S)
            return
        except StepFailed as failure:
            shutil.rmtree(folder, ignore_errors=True)
            refusals.append("%s: %s" % (python, str(failure).strip().rpartition("\n")[2]))
    raise StepFailed("venv", "; ".join(refusals) or "no python3 in %s" % ":".join(first))


def _base_python(python: str, environment: Dict[str, str]) -> Optional[str]:
    """Return the program behind an interpreter, which may itself be one of a virtual environment."""
    code = "import os, sys; print(os.path.realpath(sys.executable))"
    try:
        return _run("venv", [python, "-I", "-c", code], environment, VENV_S).strip() or None
    except StepFailed:
        return None


def _run(step: str, words: Sequence[str], environment: Dict[str, str], limit_s: float) -> str:
    """Run a program to its end, and return what it printed; it ends with its limit, or with the channel.

    Raises:
        StepFailed: If it fails, or reaches its limit.
    """
    parent = os.getppid()
    deadline = time.monotonic() + limit_s
    log = os.memfd_create("said", os.MFD_CLOEXEC)
    try:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    except OSError as error:
        os.close(log)
        raise StepFailed(step, "%s: %s" % (words[0], error)) from None
    try:
        while True:
            try:
                process.wait(LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline or os.getppid() != parent:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    raise StepFailed("limit", "%g s" % limit_s) from None
        said = _tail(log)
    finally:
        os.close(log)
    if process.returncode:
        raise StepFailed(step, said or "it ended with %d and printed nothing" % process.returncode)
    return said


def _tail(log: int) -> str:
    size = os.fstat(log).st_size
    return os.pread(log, SAID_BYTES, max(0, size - SAID_BYTES)).decode("utf-8", "replace")
