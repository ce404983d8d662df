"""Runs a command alternately in two folders, times it from outside, and keeps its outputs.

Takes one JSON document: `argv`, `folder` for results, `before` and `after` (folders), `overlay` (goes before
the second's PYTHONPATH), `kernels` (how many it has), `pairs`, `run_s` (limit of a run), `files` (outputs, by path
in a folder).

Each run has a fresh copy of its folder at one path, and its processes are ended after it, so that a run leaves
nothing in its folder to the next. What is kept stays in memory until all runs are over. A program that
leaves its process group, or writes elsewhere in the sandbox, is not held by that.
"""

import base64
import contextlib
import glob
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional

COUNTS = "GPU_MCP_OVERLAY_COUNTS"
KEPT_BYTES = 4 << 20
"""Of an output."""
ALL_KEPT_BYTES = 24 << 20
"""Of all outputs that differ."""
WORDS = 1200
MOST_PROCESSES, COUNT_BYTES = 1000, 2000
"""Of a run, and of what each says of its calls."""


class AlternatingRuns:
    """The runs so far."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self.plan = plan
        self.folder = os.path.abspath(plan["folder"])
        self.place = os.path.abspath("program")
        """Where a run finds its files, the same on both sides: programs print their paths."""
        self.digests = {side: digest_of(str(plan[side])) for side in ("before", "after")}
        self.about: Dict[str, Any] = {"before_s": [], "after_s": [], "counts": [], "failed": "", "side": "", "said": ""}
        self.about.update(texts=[], before_outputs=[], after_outputs=[])
        self._known: Dict[bytes, int] = {}
        self._kept = 0

    def run(self, side: str) -> Optional[float]:
        """Run one side and keep what it wrote; return its seconds, None where it failed."""
        self._clean()
        shutil.copytree(str(self.plan[side]), self.place, symlinks=True)
        if digest_of(self.place) != self.digests[side]:
            return self._fail(side, "does not have its own files any more: an earlier run changed them")
        env = dict(os.environ)
        if side == "after":
            known = env.get("PYTHONPATH")
            first = os.path.join(self.place, str(self.plan["overlay"]))
            env["PYTHONPATH"] = first + (os.pathsep + known if known else "")
            env[COUNTS] = os.path.join(self.folder, "counts")
        took = self._timed(side, env)
        if took is None or not self.keep(side):
            return None
        if side == "after":
            self.about["counts"].append(counts_of(os.path.join(self.folder, "counts"), self.plan["kernels"]))
        return took

    def _clean(self) -> None:
        """Take away what a run left."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder, exist_ok=True)

    def _timed(self, side: str, env: Dict[str, str]) -> Optional[float]:
        """Run the command in its place and end all of its processes; return its seconds, None where it failed."""
        out, err = (os.path.join(self.folder, name) for name in ("stdout", "stderr"))
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            began = time.perf_counter()
            try:
                process = subprocess.Popen(
                    self.plan["argv"], cwd=self.place, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return self._fail(side, "cannot be started: %s" % error.strerror)
            code: Optional[int] = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(self.plan["run_s"])
            took = time.perf_counter() - began
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code is None:
            return self._fail(side, "ran longer than options.run_s, %g s" % self.plan["run_s"])
        return self._fail(side, "ended with %d" % code) if code else took

    def _fail(self, side: str, why: str) -> None:
        said = b""
        with contextlib.suppress(OSError), open(os.path.join(self.folder, "stderr"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - WORDS))
            said = file.read(WORDS)
        self.about.update(failed=why[:500], side=side, said=said.decode("utf-8", "replace"))

    def keep(self, side: str) -> bool:
        """Keep the outputs of a run, equal ones once; False where one is not there, or too large."""
        numbers: List[int] = []
        for name in map(str, self.plan["files"]):
            within = self.folder if name == "stdout" else self.place
            path = os.path.realpath(os.path.join(within, name))
            if not os.path.isfile(path) or not path.startswith(os.path.realpath(within) + os.sep):
                self._fail(side, "left no file %s" % name)
                return False
            with open(path, "rb") as file:
                data = file.read(KEPT_BYTES + 1)
            digest = hashlib.sha256(data).digest()
            if digest not in self._known:
                self._kept += len(data)
                self._known[digest] = len(self._known)
                self.about["texts"].append(base64.b64encode(data).decode())
            if len(data) > KEPT_BYTES or self._kept > ALL_KEPT_BYTES:
                self._fail(side, "left more than 4 MiB in %s, or than 24 MiB that differ over all runs" % name)
                return False
            numbers.append(self._known[digest])
        self.about[side + "_outputs"].append(numbers)
        return True

    def run_pairs(self) -> None:
        """Warm both sides up, then time them by turns: before, after, after, before."""
        for side in ("before", "after"):
            self._announce("first run", side)
            if self.run(side) is None:
                return
        for number in range(1, self.plan["pairs"] + 1):
            for side in ("before", "after") if number % 2 else ("after", "before"):
                self._announce("pair %d of %d" % (number, self.plan["pairs"]), side)
                took = self.run(side)
                if took is None:
                    return
                self.about[side + "_s"].append(took)

    @staticmethod
    def _announce(place: str, side: str) -> None:
        print("%s, %s the kernel" % (place, "with" if side == "after" else "without"), flush=True)

    def write_record(self) -> None:
        """Write down what was seen, in a folder that no run has touched."""
        self._clean()
        with open(os.path.join(self.folder, "about.json"), "w", encoding="utf-8") as out:
            json.dump(self.about, out)


def digest_of(folder: str) -> str:
    """Return a digest of the paths, modes and contents of all files in a folder."""
    total = hashlib.sha256()
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(where, name)
            total.update(repr((os.path.relpath(path, folder), os.lstat(path).st_mode)).encode())
            if os.path.islink(path):
                total.update(os.readlink(path).encode())
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    for part in iter(lambda: file.read(1 << 20), b""):
                        total.update(part)
    return total.hexdigest()


def counts_of(path: str, kernels: int) -> List[Dict[str, int]]:
    """Return how often each kernel ran in a run, over all of its processes."""
    found = [{"calls": 0, "passed_on": 0} for _ in range(kernels)]
    for each in glob.glob(glob.escape(path) + ".*")[:MOST_PROCESSES]:
        try:
            with open(each, encoding="utf-8") as file:
                told = json.loads(file.read(COUNT_BYTES))
            for one, said in zip(found, told):
                for name in one:
                    one[name] += max(0, int(said[name]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return found


def main(arguments: List[str]) -> None:
    """Run, and write down what was seen whatever came of it."""
    plan = json.loads(arguments[0])
    runs = AlternatingRuns(plan)
    try:
        runs.run_pairs()
    finally:
        runs.write_record()
