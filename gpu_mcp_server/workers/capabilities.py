"""Tries what a host can do with tiny programs, in a sandbox as jobs have it, and prints it as JSON.

Each answer is `{name: [able, what was found]}`.
"""

import contextlib
import glob
import json
import re
import subprocess
import sys
from typing import Any, Dict, List, Tuple

TIMEOUT_S = 25
PERMISSION = "ERR_NVGPUCTRPERM"


def run_command(argv: List[str]) -> Tuple[int, str]:
    """Run a command; return its exit code and all that it printed."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, "no end within %d s" % TIMEOUT_S
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def last(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:200]


def nccl_header(folders: List[str]) -> str:
    """Return NCCL's version by its header."""
    for path in [f + "/nccl.h" for folder in folders for f in glob.glob(folder)]:
        try:
            with open(path, encoding="utf-8", errors="replace") as text:
                found = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH) +(\d+)", text.read(200_000)))
        except OSError:
            continue
        if len(found) == 3:
            return "%(MAJOR)s.%(MINOR)s.%(PATCH)s" % found
    return ""


def nccl_runtime(python: str, libraries: List[str]) -> str:
    """Return NCCL's version by its library, loaded in a process of its own."""
    text = (
        "import ctypes, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        lib = ctypes.CDLL(name)\n    except OSError:\n        continue\n"
        "    v = ctypes.c_int()\n    lib.ncclGetVersion(ctypes.byref(v))\n    print(v.value)\n    break\n"
    )
    code, out = run_command([python, "-I", "-c", text, "libnccl.so.2", *[f for p in libraries for f in glob.glob(p)]])
    number = last(out)
    if code or not number.isdecimal():
        return ""
    value = int(number)
    return "%d.%d.%d" % (value // 10000, value // 100 % 100, value % 100)


def gpu(plan: Dict[str, Any]) -> Dict[str, Any]:
    """Try the GPU, its counters, the sanitizer, and how memory can be shared."""
    tiny = [plan["python"], plan["tiny"]]
    found: Dict[str, Any] = {}
    code, out = run_command([*tiny, "about"])
    found["kernel launch"] = [code == 0, "" if code == 0 else last(out)]
    if code:
        return found
    with contextlib.suppress(ValueError):
        found.update({name: [not why, why] for name, why in json.loads(last(out)).items()})
    if plan.get("ncu"):
        code, out = run_command([plan["ncu"], "--metrics", "sm__cycles_elapsed.max", "-c", "1", *tiny])
        able = code == 0 and "sm__cycles_elapsed" in out
        why = PERMISSION if PERMISSION in out else next((x for x in out.splitlines() if "==ERROR==" in x), last(out))
        found["counters"] = [able, "" if able else why[:200]]
    if plan.get("sanitizer"):
        code, out = run_command([plan["sanitizer"], "--tool", "memcheck", *tiny])
        able = "ERROR SUMMARY: 0 errors" in out
        found["sanitizer"] = [able, "" if able else last(out)]
    return found


def main(arguments: List[str]) -> None:
    """Try all of it.

    Args:
        arguments: One JSON document: `python`, `tiny` (the program), `gpu`, `ncu`, `sanitizer`, `mpirun`, `headers` and
            `libraries` (patterns for NCCL).
    """
    plan = json.loads(arguments[0])
    found: Dict[str, Any] = gpu(plan) if plan.get("gpu") else {}
    if plan.get("mpirun"):
        mpi = ["env", "OMPI_MCA_plm=isolated", "OMPI_MCA_rmaps_base_oversubscribe=1", plan["mpirun"]]
        code, out = run_command([*mpi, "-n", "2", "echo", "here"])
        able = code == 0 and out.count("here") == 2
        found["MPI"] = [able, "" if able else last(out)]
    header, runtime = nccl_header(plan["headers"]), nccl_runtime(plan["python"], plan["libraries"])
    if header or runtime:
        versions = ["header " + header if header else "no header", "library " + runtime if runtime else "no library"]
        found["NCCL"] = [bool(runtime), ", ".join(versions)]
    json.dump(found, sys.stdout)
