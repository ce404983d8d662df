"""Runs a command alternately in two folders, times it from outside, and keeps its outputs.

Takes one JSON document: `argv`, `folder` for results, `before` and `after` (folders), `overlay` (goes before
the second's PYTHONPATH), `pairs`, `run_s` (limit of a run), `files` (outputs, by their path in a folder).
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

COUNTS = "GPU_MCP_OVERLAY_COUNTS"
KEPT_BYTES = 4 << 20
"""Bytes kept of an output file."""
WORDS = 1200


class AlternatingRuns:
    """The runs so far."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self.plan = plan
        self.folder = os.path.abspath(plan["folder"])
        self.about: Dict[str, Any] = {"before_s": [], "after_s": [], "counts": [], "failed": "", "side": ""}

    def run(self, side: str, number: int) -> Optional[float]:
        """Run one side; return its seconds, None where it failed."""
        where = os.path.abspath(str(self.plan[side]))
        env = dict(os.environ)
        counts = os.path.join(self.folder, "counts-%s-%d" % (side, number))
        if side == "after":
            known = env.get("PYTHONPATH")
            env["PYTHONPATH"] = os.path.join(where, str(self.plan["overlay"])) + (os.pathsep + known if known else "")
            env[COUNTS] = counts
        out, err = (os.path.join(self.folder, "%s.%s" % (side, name)) for name in ("stdout", "stderr"))
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            began = time.perf_counter()
            try:
                process = subprocess.Popen(
                    self.plan["argv"], cwd=where, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
                )
            except OSError as error:
                return self._fail(side, "cannot be started: %s" % error.strerror, err)
            try:
                code = process.wait(self.plan["run_s"])
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return self._fail(side, "ran longer than options.run_s, %g s" % self.plan["run_s"], err)
            took = time.perf_counter() - began
        if code:
            return self._fail(side, "ended with %d" % code, err)
        if side == "after":
            self.about["counts"].append(counts_of(counts))
        return took

    def _fail(self, side: str, why: str, err: str) -> None:
        with open(err, "rb") as file:
            file.seek(max(0, os.path.getsize(err) - WORDS))
            said = file.read().decode("utf-8", "replace")
        self.about.update(failed=why, side=side, said=said)

    def keep(self, side: str) -> bool:
        """Keep the outputs of a side's last run; False where one is not there, or too large."""
        for number, name in enumerate(self.plan["files"]):
            path = os.path.join(str(self.plan[side]), str(name))
            if name == "stdout":
                path = os.path.join(self.folder, side + ".stdout")
            if not os.path.isfile(path) or os.path.getsize(path) > KEPT_BYTES:
                why = "left no file %s" if not os.path.isfile(path) else "left more than 4 MiB in %s"
                self.about.update(failed=why % name, side=side, said="")
                return False
            shutil.copyfile(path, os.path.join(self.folder, "%s-%d.out" % (side, number)))
        return True

    def go(self) -> None:
        """Warm both sides up, keep their outputs, then time them by turns: before, after, after, before."""
        for side in ("before", "after"):
            if self.run(side, 0) is None or not self.keep(side):
                return
        for number in range(1, self.plan["pairs"] + 1):
            for side in ("before", "after") if number % 2 else ("after", "before"):
                took = self.run(side, number)
                if took is None:
                    return
                self.about[side + "_s"].append(took)


def counts_of(path: str) -> Dict[str, int]:
    """Return how often the kernel ran in a run, over all of its processes."""
    found = {"calls": 0, "passed_on": 0}
    for each in glob.glob(glob.escape(path) + ".*"):
        try:
            with open(each, encoding="utf-8") as file:
                told = json.load(file)
            for name in found:
                found[name] += int(told[name])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        os.unlink(each)
    return found


def main(arguments: List[str]) -> None:
    """Run, and write down what was seen whatever came of it."""
    plan = json.loads(arguments[0])
    os.makedirs(plan["folder"], exist_ok=True)
    runs = AlternatingRuns(plan)
    try:
        runs.go()
    finally:
        with open(os.path.join(runs.folder, "about.json"), "w", encoding="utf-8") as out:
            json.dump(runs.about, out)


if __name__ == "__main__":
    main(sys.argv[1:])
