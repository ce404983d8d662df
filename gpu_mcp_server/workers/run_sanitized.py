"""Compiles a program with the compiler's sanitizers where it is told to, runs it, and keeps what it printed."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List

KEPT = 1 << 20
"""Bytes of the beginning of what the program printed."""


def run_to_end(argv: List[str], limit_s: float, path: str) -> Dict[str, Any]:
    """Run a command with its output in a file; one that is over its time is killed with all that it started."""
    began = time.monotonic()
    timed_out = False
    with open(path, "wb") as out:
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        except OSError as error:
            return {"code": 127, "seconds": 0.0, "error": "%s: %s" % (argv[0], error.strerror)}
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    cut = os.path.getsize(path) > KEPT
    if cut:
        os.truncate(path, KEPT)
    return {"code": process.returncode, "seconds": time.monotonic() - began, "timed_out": timed_out, "cut": cut}


def main(arguments: List[str]) -> None:
    """Run both.

    Args:
        arguments: One JSON document: `compile` (a command, or nothing), `command`, `limit_s` (of each), `log` (file
            for what is printed), `about` (file for what was seen).
    """
    plan = json.loads(arguments[0])
    os.makedirs(os.path.dirname(plan["about"]), exist_ok=True)
    about: Dict[str, Any] = {}
    if plan["compile"]:
        about["compiled"] = run_to_end(plan["compile"], plan["limit_s"], plan["log"])
    code = about["compiled"]["code"] if about else 0
    if code == 0:
        about["checked"] = run_to_end(plan["command"], plan["limit_s"], plan["log"])
        code = about["checked"]["code"]
    with open(plan["about"], "w", encoding="utf-8") as out:
        json.dump(about, out)
    sys.exit(code if 0 <= code < 256 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
