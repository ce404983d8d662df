"""Compiles the bytecode of packages that have none beside them, for the processes of the judge.

Images often leave it out (`uv pip install`, PYTHONDONTWRITEBYTECODE), and a job may not write it: without this each
process would compile torch's source again, which takes 2 to 3 s. Nothing of the packages is run for it, and nothing
that a job can write is read.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from typing import Any, Dict

from ..protocol import LEVELS

FOLDER = "bytecode"
MADE = "made.json"
"""What was compiled, by folder and version; written at the end."""
LOCK = "lock"
KEEP_S = 30 * 86400
LEAST_LEVEL = "landlock"
"""Below it a job could write what the next one imports."""
COMPILE = """
import compileall, json, os, re, sys
folder, name, made = sys.argv[1:]
sys.pycache_prefix = folder
os.umask(0o022)
try:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
except OSError:
    os.nice(19)
tests = r"/(?:.*/)?(?:tests?|testing/_internal)/"
for package in json.loads(made):
    compileall.compile_dir(package, quiet=2, rx=re.compile(re.escape(package) + tests))
with open(os.path.join(folder, name + ".part"), "w") as file:
    file.write(made)
os.replace(os.path.join(folder, name + ".part"), os.path.join(folder, name))
"""


def bytecode_of(state: str, level: str, path: str, uncompiled: Dict[str, Any]) -> str:
    """Return the folder with an interpreter's bytecode, which is made meanwhile; what is not there yet is no error.

    Args:
        state: hostd's folder.
        level: Of the host's sandbox.
        path: The interpreter.
        uncompiled: Folder and version of each of its packages without bytecode, by name.

    Returns:
        The folder, empty where none is wanted or it cannot be made.
    """
    if not uncompiled or LEVELS.index(level) < LEVELS.index(LEAST_LEVEL):
        return ""
    folder = os.path.join(state, FOLDER, hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16])
    made = json.dumps(dict(sorted(uncompiled.values())))
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        for each in (os.path.dirname(folder), folder):
            os.chmod(each, 0o755)  # whatever the umask: jobs have uids of their own
        os.utime(folder)
        if _read(os.path.join(folder, MADE)) != made:
            _start(path, folder, made)
        _sweep(os.path.dirname(folder))
    except OSError:
        return ""
    return folder


def _start(path: str, folder: str, made: str) -> None:
    """Start the compiler in the background, unless one holds the lock of this folder."""
    lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in set(os.listdir(folder)) - {LOCK}:  # of other versions; who reads there compiles for itself
            _remove(os.path.join(folder, name))
        os.set_inheritable(lock, True)
        argv = [path, "-I", "-S", "-c", COMPILE, folder, MADE, made]
        quiet = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in range(3)]
        os.posix_spawn(path, argv, os.environ, file_actions=quiet)  # init takes its end: the probe is over by then
    except BlockingIOError:
        pass
    finally:
        os.close(lock)  # the compiler's own copy keeps it locked


def _sweep(home: str) -> None:
    """Remove what was made for interpreters that no probe has seen for long."""
    for name in os.listdir(home):
        folder = os.path.join(home, name)
        if time.time() - os.stat(folder).st_mtime > KEEP_S:
            _remove(folder)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
