"""The libraries of NVIDIA that a host has to link with: of a toolkit, of its distribution, of wheels.

A toolkit has a stub of libcuda for the linker alone; the driver's own is loaded when the program runs. Wheels have
libraries with a number in their name only (`libnccl.so.2`), which `-lnccl` does not find.
"""

import glob
import os
import platform
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..gpus.nvml import driver_library

HEADERS = {
    "cuda": "cuda.h",
    "nvrtc": "nvrtc.h",
    "nvJitLink": "nvJitLink.h",
    "cublas": "cublas_v2.h",
    "cublasLt": "cublasLt.h",
    "cufft": "cufft.h",
    "curand": "curand.h",
    "cusparse": "cusparse.h",
    "cusolver": "cusolverDn.h",
    "cudnn": "cudnn.h",
    "nccl": "nccl.h",
}
"""By library, as `-l` names it."""
DRIVER = "cuda"
Place = Tuple[str, List[str]]
"""A folder, and what a sandbox must be shown for it."""


def probe_libraries(
    toolkits: Sequence[str], pythons: Sequence[Dict[str, Any]], shown: Sequence[str] = ()
) -> Dict[str, Any]:
    """Describe each library, and say where it was looked for.

    Args:
        toolkits: Roots of CUDA toolkits, best first.
        pythons: Interpreters, each with its `site` and its `roots`.
        shown: Folders that every sandbox is shown; what LD_LIBRARY_PATH names outside of them and of /usr is left out.

    Returns:
        `places`, folders; `found`, by name: `path`, `run` (folder for the loader, empty where it knows it), `include`
        (folder of headers, empty where nvcc knows it), `roots`.
    """
    places = _places(toolkits, pythons, shown)
    known = [r + "/include" for r in toolkits[:1]] + ["/usr/include"]
    libraries: Dict[str, Any] = {}
    for name, header in HEADERS.items():
        about = _library(name, places)
        if about is not None:
            near = [os.path.dirname(os.path.dirname(about["path"])) + "/include"]
            where = next((f for f in known + near if os.path.exists(os.path.join(f, header))), "")
            libraries[name] = dict(about, include="" if where in known else where)
    return {"places": [folder for folder, _ in places], "found": libraries}


def _places(toolkits: Sequence[str], pythons: Sequence[Dict[str, Any]], shown: Sequence[str]) -> List[Place]:
    """Return the folders to look in that there are, best first."""
    places: List[Place] = []
    for name in ("LIBRARY_PATH", "LD_LIBRARY_PATH"):
        named = [os.path.normpath(f) for f in os.environ.get(name, "").split(":") if f.startswith("/")]
        places += [(f, []) for f in named if any((f + "/").startswith(s.rstrip("/") + "/") for s in ("/usr", *shown))]
    for root in toolkits:
        places += [(f, [root]) for f in (root + "/lib64", *sorted(glob.glob(root + "/targets/*/lib")), root + "/lib")]
    system = "/usr/lib/%s-linux-gnu" % platform.machine()
    places += [(f, []) for f in (system, "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/lib/wsl/lib")]
    for python in pythons:
        wheels = sorted(glob.glob(glob.escape(python["site"]) + "/nvidia/*/lib"), reverse=True)
        places += [(f, list(python["roots"])) for f in wheels]
    first: Dict[str, Place] = {}
    for folder, roots in places:
        if os.path.isdir(folder):
            # /usr/lib64, /lib64 and versioned toolkits are often links to one folder, which is looked at once.
            first.setdefault(os.path.realpath(folder), (folder, roots))
    return list(first.values())


def _library(name: str, places: Sequence[Place]) -> Optional[Dict[str, Any]]:
    """Find one: under its plain name or with the fewest numbers, in the first folder that has it."""
    stubs = [(f + "/stubs", r) for f, r in places] if name == DRIVER else []
    for folder, roots in [*stubs, *places]:
        path = _file(folder, name)
        if path:
            run = "" if name == DRIVER or re.match(r"/(?:usr/)?lib(?:64)?(?:/[^/]*-linux-gnu)?$", folder) else folder
            return {"path": path, "run": run, "roots": [r for r in roots if not r.startswith("/usr/")]}
    driver = driver_library() if name == DRIVER else None
    return {"path": driver[0], "run": "", "roots": []} if driver else None


def _file(folder: str, name: str) -> str:
    start = os.path.join(glob.escape(folder), "lib" + name + ".so")
    numbered = sorted(glob.glob(start + ".[0-9]*"), key=lambda p: (p.count("."), len(p), p))
    return next((p for p in [os.path.join(folder, "lib" + name + ".so"), *numbered] if os.path.exists(p)), "")
