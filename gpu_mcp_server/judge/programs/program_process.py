"""A program's process: lays a fresh folder, runs somebody's program in it when the owner says so, hands over its files.

Reference and candidate run this same file. What the candidate's says is not believed: the owner takes the time, freezes
everything here before it reads a byte, and looks at each descriptor that it is handed.
"""

import ctypes
import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..channel.packet_link import Link
from ..folders import WORK

Reply = Dict[str, Any]
Answer = Tuple[Reply, List[int]]

KEPT = ".gpu-mcp-judge"
"""Folder in the workspace that is no program's: the project as it was built, and what a run says."""
PROJECT = os.path.join(WORK, KEPT, "project")
GRACE_S = 0.3
"""How long processes may take to end after the program that started them."""
PYTHON = "{python}"
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 1 << 30


def opened(folder: str, path: str) -> int:
    """Open a regular file below a folder, never through a link and never waiting for another end.

    Raises:
        ValueError: Saying why it is none.
    """
    whole = os.path.join(folder, path)
    if os.path.realpath(os.path.dirname(whole)) != os.path.normpath(os.path.dirname(whole)):
        raise ValueError("lies behind a symbolic link")
    try:
        fd = os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("is a symbolic link") from None
        words = {errno.ENOENT: "is not there", errno.ENXIO: "is a socket or a device"}
        raise ValueError(words.get(error.errno or 0, "cannot be opened: %s" % os.strerror(error.errno or 0))) from None
    # fstat looks at what was opened; a stat of the path could look at something else by then.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("is a folder, a FIFO or a device")
    return fd


def remove(path: str) -> None:
    """Remove a file, a link or a folder with all in it."""
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def below() -> List[int]:
    """Return the processes that this one has to wait for; orphans among them."""
    found: List[int] = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/children" % task, encoding="ascii") as text:
                found += [int(word) for word in text.read().split()]
        except OSError:
            continue
    return found


def reap() -> None:
    """Let go of processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


class ProgramPlayer:
    """Answers the owner's requests."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.files: Sequence[str] = ()
        # Where it was built, too: paths of shared libraries and data may be fixed in what a build makes.
        self.folder = WORK
        self.said = [os.path.join(WORK, KEPT, name) for name in ("stdout", "stderr")]

    def serve(self) -> None:
        """Answer until the owner closes the link."""
        verbs: Dict[str, Callable[[Dict[str, Any], List[int]], Answer]] = {
            "hello": self.hello, "prepare": self.prepare, "run": self.run, "look": self.look, "left": self.left,
            "clean": self.clean,
        }  # fmt: skip
        for message, descriptors in self.link.requests():
            try:
                reply, files = verbs[message["do"]](message, descriptors)
            except OSError as error:
                reply, files = {"error": "%s: %s" % (message["do"], error)}, []
            reply["seq"] = message["seq"]
            self.link.send(reply, files)
            for fd in [*files, *descriptors]:
                os.close(fd)

    def hello(self, message: Dict[str, Any], descriptors: List[int]) -> Answer:
        """Take the limit on files, for this process and all that it starts."""
        most = int(message["file_bytes"])
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        # Orphans are handed to this process instead of init, so a daemonised child stays visible.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return {"versions": {"python": sys.version.split()[0]}}, []

    def prepare(self, message: Dict[str, Any], descriptors: List[int]) -> Answer:
        """Lay a fresh copy of the project, without what the next run is to write; tell which of that lay there."""
        for name in os.listdir(self.folder):
            if name != KEPT:
                remove(os.path.join(self.folder, name))
        moment = time.time()

        def copy(source: str, target: str) -> None:
            shutil.copy(source, target)
            # One time for all: a run by `make` finds nothing older than what it is made of.
            os.utime(target, (moment, moment))

        shutil.copytree(PROJECT, self.folder, copy_function=copy, dirs_exist_ok=True)
        stale: List[str] = []
        for path in message["fresh"]:
            whole = os.path.join(self.folder, path)
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            if os.path.lexists(whole):
                stale.append(path)
                remove(whole)
        return {"stale": stale}, []

    def run(self, message: Dict[str, Any], descriptors: List[int]) -> Answer:
        """Lay the inputs, run the program, wait for it, and hand over what it wrote."""
        self.files = message["files"]
        for path, fd in zip(message["inputs"], descriptors):
            self._lay(path, fd)
        stdin = message["stdin"]
        argv = [sys.executable if word == PYTHON else word for word in message["argv"]]
        source = os.path.join(self.folder, stdin) if stdin else os.devnull
        with open(source, "rb") as given, open(self.said[0], "wb") as out, open(self.said[1], "wb") as err:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("LINK_")}
            try:
                program = subprocess.Popen(argv, cwd=self.folder, stdin=given, stdout=out, stderr=err, env=environment)
            except OSError as error:
                return {"error": "cannot start %s: %s" % (argv[0], error.strerror)}, []
            code = program.wait()
        reply, files = self._files()
        reply["code"] = code
        return reply, files

    def _lay(self, path: str, fd: int) -> None:
        size = os.fstat(fd).st_size
        with open(os.path.join(self.folder, path), "wb") as file:
            at = 0
            while at < size:
                # The kernel copies inputs without a way through this process's memory; one call moves at most 2 GiB.
                at += os.sendfile(file.fileno(), fd, at, min(_CHUNK, size - at))

    def look(self, message: Dict[str, Any], descriptors: List[int]) -> Answer:
        """Hand over the files as they are now."""
        return self._files()

    def _files(self) -> Answer:
        handed: List[Optional[str]] = []
        files: List[int] = []
        declared = [(self.folder, path) for path in self.files]
        for folder, path in [*map(os.path.split, self.said), *declared]:
            try:
                files.append(opened(folder, path))
                handed.append(None)
            except ValueError as error:
                handed.append(str(error))
        return {"files": handed}, files

    def left(self, message: Dict[str, Any], descriptors: List[int]) -> Answer:
        """Tell how many processes outlived the program, after a moment's grace."""
        deadline = time.monotonic() + GRACE_S
        while True:
            reap()
            remaining = below()
            if not remaining or time.monotonic() > deadline:
                return {"left": len(remaining)}, []
            time.sleep(0.005)

    def clean(self, message: Dict[str, Any], descriptors: List[int]) -> Answer:
        """End what is left."""
        deadline = time.monotonic() + GRACE_S
        # A process that forks as it is killed leaves a child behind, so killing goes round until none is left.
        while below() and time.monotonic() < deadline:
            for pid in below():
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
            reap()
        return {}, []


def main() -> int:
    """Serve the owner."""
    ProgramPlayer(Link.from_environment("owner")).serve()
    return 0
