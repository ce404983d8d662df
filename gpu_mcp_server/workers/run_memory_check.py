"""Runs a program alone, then under a memory checker, unless that would take hours.

The run alone says whether the program works at all, and how long the checker may take.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

KEPT = 4000
"""Bytes of the end of the output of the run alone."""


def run_to_end(argv: List[str], limit_s: float, out: Optional[int]) -> Dict[str, Any]:
    """Run a command and say how it ended; one that is over its time is killed with all that it started."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    except OSError as error:
        return {"code": 127, "seconds": 0.0, "error": "%s: %s" % (argv[0], error.strerror)}
    timed_out = False
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {"code": process.returncode, "seconds": time.monotonic() - began, "timed_out": timed_out}


def main(arguments: List[str]) -> None:
    """Run both.

    Args:
        arguments: One JSON document: `command`, `checker` (put before the command), `alone_s` (limit of the run
            alone), `limit_s` (of the other), `factor` (what the checker costs at least), `most_s` (refused above),
            `about` (file for what was seen).
    """
    plan = json.loads(arguments[0])
    about: Dict[str, Any] = {}
    os.makedirs(os.path.dirname(plan["about"]), exist_ok=True)
    with open("/tmp/alone", "w+b") as kept:
        about["alone"] = run_to_end(plan["command"], plan["alone_s"], kept.fileno())
        size = kept.seek(0, os.SEEK_END)
        kept.seek(max(0, size - KEPT))
        about["alone"]["said"] = kept.read().decode("utf-8", "backslashreplace")
    expected_s = about["alone"]["seconds"] * plan["factor"]
    code = 0
    if expected_s > plan["most_s"] and not about["alone"]["timed_out"]:
        about["refused_s"] = expected_s
    else:
        about["checked"] = run_to_end(plan["checker"] + plan["command"], plan["limit_s"], None)
        code = about["checked"]["code"]
    with open(plan["about"], "w", encoding="utf-8") as out:
        json.dump(about, out)
    sys.exit(code if 0 <= code < 256 else 128 - code)
