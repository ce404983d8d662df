"""Looks for installations of NCCL on a host: headers, library, and the versions that both of them tell.

The library is loaded in a process of its own; it needs neither GPU nor driver for that. Headers of one version over
the library of another give illegal addresses in device code without any word, so both are asked.
"""

import glob
import json
import os
import re
import subprocess
import sys
from typing import Any, Dict, List

TIMEOUT_S = 30
_ASK = (
    "import ctypes, sys\nlib = ctypes.CDLL(sys.argv[1])\nv = ctypes.c_int()\n"
    "lib.ncclGetVersion(ctypes.byref(v))\nprint(v.value)\n"
)


def header_version(folder: str) -> str:
    """Return NCCL's version by nccl.h, nothing if it does not say."""
    try:
        with open(os.path.join(folder, "nccl.h"), encoding="utf-8", errors="replace") as text:
            found = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH) +(\d+)", text.read(200000)))
    except OSError:
        return ""
    return "%(MAJOR)s.%(MINOR)s.%(PATCH)s" % found if len(found) == 3 else ""


def runtime_version(library: str) -> str:
    """Return NCCL's version by its library, nothing if it cannot be loaded."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _ASK, library],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
        value = int(done.stdout.decode().strip() or 0)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return "%d.%d.%d" % (value // 10000, value // 100 % 100, value % 100) if value > 9999 else ""


def mpi_flags() -> Dict[str, List[str]]:
    """Return how programs are built against MPI here; empty without its compiler."""
    found: Dict[str, List[str]] = {}
    for key in ("compile", "link"):
        try:
            done = subprocess.run(
                ["mpicxx", "--showme:" + key], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        flags = done.stdout.decode("utf-8", "replace").split()
        found[key] = [f for f in flags if re.match(r"-[IL]/[\w./+-]+$|-l[\w+-]+$", f)]
    return found


def main(arguments: List[str]) -> None:
    """Print what was found as JSON.

    Args:
        arguments: One JSON document: `pairs`, a list of [include folder, library folder], patterns allowed.
    """
    found: List[Dict[str, Any]] = []
    for include_pattern, library_pattern in json.loads(arguments[0])["pairs"]:
        for include in sorted(glob.glob(include_pattern)):
            version = header_version(include)
            libraries = [p for f in sorted(glob.glob(library_pattern)) for p in glob.glob(f + "/libnccl.so.2")]
            if not version or not libraries:
                continue
            found.append(
                {
                    "include": include,
                    "library": libraries[0],
                    "header": version,
                    "runtime": runtime_version(libraries[0]),
                    "device_api": os.path.exists(os.path.join(include, "nccl_device.h")),
                }
            )
    json.dump({"installs": found, "mpi": mpi_flags()}, sys.stdout)
