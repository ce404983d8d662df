"""Builds a project in the working folder phase by phase, and keeps what came of it.

What is wanted of each phase is said in full by its arguments; here it is run, timed, and told apart in the log by a
line `=== NAME`. Afterwards the build folder is left with programs, libraries and reports, without object files.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List

PHASES = "phases.json"
KEPT_SUFFIXES = (".so", ".a", ".xml", ".cubin", ".hsaco", ".ptx", "_tests.cmake", "_include.cmake")
"""The last two are lists of tests that CMake's gtest_discover_tests makes, for ctest."""
KEPT_NAMES = ("compile_commands.json", "CTestTestfile.cmake", PHASES)
MAX_KEPT = 200


def is_program(path: str) -> bool:
    """Say whether a file is an executable or a shared library."""
    with open(path, "rb") as head:
        start = head.read(18)
    return start[:4] == b"\x7fELF" and start[16:18] in (b"\x02\x00", b"\x03\x00")


def tidy(folder: str) -> None:
    """Delete what nobody asks for: object files and the build system's own."""
    kept = 0
    for at, folders, files in os.walk(folder, topdown=False):
        inner = os.sep + "CMakeFiles" in at
        for name in files:
            path = os.path.join(at, name)
            wanted = name in KEPT_NAMES or name.endswith(KEPT_SUFFIXES) or ".so." in name
            if not os.path.islink(path) and not inner and kept < MAX_KEPT and (wanted or is_program(path)):
                kept += 1
            else:
                os.unlink(path)
        for name in folders:
            path = os.path.join(at, name)
            if os.path.islink(path):
                os.unlink(path)
            elif not os.listdir(path):
                os.rmdir(path)


def main(arguments: List[str]) -> None:
    """Run the phases until one fails.

    Args:
        arguments: One JSON text: build (folder), tidy, phases: [{name, argv}].
    """
    request: Dict[str, Any] = json.loads(arguments[0])
    build: str = request["build"]
    done: List[Dict[str, Any]] = []
    failed = False
    os.makedirs(build, exist_ok=True)
    for phase in request["phases"]:
        sys.stderr.write("=== %s\n" % phase["name"])
        sys.stderr.flush()
        began = time.monotonic()
        code = subprocess.run(phase["argv"], stdin=subprocess.DEVNULL, stdout=2).returncode
        done.append({"name": phase["name"], "seconds": round(time.monotonic() - began, 3), "exit_code": code})
        with open(os.path.join(build, PHASES), "w") as out:
            json.dump(done, out)
        failed = failed or code != 0
        if code:
            break
    if request["tidy"]:
        tidy(build)
    sys.exit(1 if failed else 0)
