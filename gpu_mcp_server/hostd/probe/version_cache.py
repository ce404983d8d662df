"""Remembers compilers' answers for an hour: asking thirty of them takes a second of processor time.

An answer holds for the files that it was asked of, so a compiler that was replaced is asked again at once. The hour is
for programs that hand on to others, as hipcc and wrapper scripts do.
"""

import json
import os
import shutil
import stat
import subprocess
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

TIMEOUT_S = 20
HOLDS_S = 3600
MOST_CHARACTERS = 1 << 16
MOST_BYTES = 4 << 20
MOST = 200
SURROUNDINGS = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "ROCM_PATH", "HIP_PATH")
"""Variables that decide which program a wrapper hands on to."""


class VersionCache:
    """Asks programs; used by several threads."""

    def __init__(self, path: str = "") -> None:
        """Read what is known; a file that is missing, damaged, or that others could have written counts for nothing.

        Args:
            path: Where answers are kept; nowhere if empty.
        """
        self._path = path
        self._known: Dict[str, Dict[str, Any]] = _read(path) if path else {}
        self._told: Dict[Tuple[str, ...], str] = {}
        self._new = False

    def successful_output(self, argv: Sequence[str]) -> str:
        """Return what a program prints; nothing when it fails, cannot be run or takes too long."""
        return self._answer(argv, None, "", fails=False)

    def output_of(self, argv: Sequence[str], env: Optional[Dict[str, str]] = None, stdin: str = "") -> str:
        """Return what a program prints, whatever it exits with; nothing when it cannot be run or takes too long."""
        return self._answer(argv, env, stdin, fails=True)

    def uncached_output(self, argv: Sequence[str]) -> str:
        """As `successful_output`, asked once by each probe: what an interpreter has changes without its file."""
        key = tuple(argv)
        if key not in self._told:
            text, failed = _ask(argv, None, "")
            self._told[key] = "" if failed else text
        return self._told[key]

    def _answer(self, argv: Sequence[str], env: Optional[Dict[str, str]], stdin: str, *, fails: bool) -> str:
        # The environment is part of the key: a wrapper hands on to another compiler when it changes.
        key = json.dumps([list(argv), env, stdin, [os.environ.get(name) for name in SURROUNDINGS]])
        files = _files(argv) if self._path else []
        known = self._known.get(key)
        if files and known and known["files"] == files and 0 <= time.time() - known["asked"] < HOLDS_S:
            return str(known["said"]) if fails or not known["failed"] else ""
        text, failed = _ask(argv, env, stdin)
        if files and text and len(text) <= MOST_CHARACTERS:
            self._known[key] = {"files": files, "asked": time.time(), "said": text, "failed": failed}
            self._new = True
        return text if fails or not failed else ""

    def keep(self) -> None:
        """Write what was learned; a folder that cannot be written costs the next look a second, and nothing else."""
        if not (self._path and self._new):
            return
        newest = sorted(self._known.items(), key=lambda item: -float(item[1]["asked"]))[:MOST]
        aside = "%s.%d" % (self._path, os.getpid())
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(dict(newest), file)
            # Several hostds may write at once: readers see one whole file or another.
            os.replace(aside, self._path)
        except OSError:
            _unlink(aside)


def _read(path: str) -> Dict[str, Dict[str, Any]]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            ours = about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not (ours and stat.S_ISREG(about.st_mode) and about.st_size <= MOST_BYTES):
                return {}
            known = json.load(file)
        return {key: row for key, row in known.items() if {"files", "asked", "said", "failed"} <= row.keys()}
    except (OSError, ValueError, AttributeError):
        return {}


def _files(argv: Sequence[str]) -> List[List[int]]:
    """Return what the files of a command line are by inode, size and time; nothing if the program is none of them."""
    program = shutil.which(argv[0]) if argv else None
    found: List[List[int]] = []
    for path in [program or "", *(word for word in argv[1:] if word.startswith("/"))]:
        try:
            about = os.stat(path)
        except OSError:
            return []
        if stat.S_ISREG(about.st_mode):
            # Package managers set mtime to the build's; ctime cannot be set and tells of a replacement.
            found.append([about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns])
    return found


def _ask(argv: Sequence[str], env: Optional[Dict[str, str]], stdin: str) -> Tuple[str, bool]:
    try:
        done = subprocess.run(
            list(argv),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            input=stdin.encode(),
            timeout=TIMEOUT_S,
            env=dict(os.environ, LC_ALL="C", **(env or {})),
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "", True
    return done.stdout.decode("utf-8", "replace"), done.returncode != 0


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
