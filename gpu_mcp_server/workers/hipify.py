"""Converts CUDA files to HIP by what the host has: hipify-clang, hipify-perl, or the converter inside PyTorch.

PyTorch's is taken as a package of its own, so that torch itself is not imported, which would take seconds.
"""

import importlib
import json
import os
import subprocess
import sys
from typing import Any, Dict, List

OUT = "converted"
LAUNCH = "<<<"
HIDDEN = " hipLaunchKernelGGL_hidden "
"""Stands for a launch's begin while torch 2.13 converts: it takes all back to the last space for the kernel's name, and
HIP compiles a launch as it is. The name makes the converter add HIP's header, as for a launch; the spaces keep it from
the words beside it."""


def by_program(program: str, kind: str, files: Dict[str, str], include: List[str]) -> int:
    """Convert file by file; returns the number of files that failed."""
    failed = 0
    for file, name in files.items():
        target = os.path.join(OUT, name)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        argv = (
            [program, file, "-o", target] if kind == "hipify-clang" else [program, "-print-stats", "-o", target, file]
        )
        if kind == "hipify-clang":
            argv += ["--", "-std=c++17", *("-I" + folder for folder in include)]
        failed += subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=2).returncode != 0
    return failed


def replace_in(path: str, old: str, new: str) -> None:
    """Replace words of a file, of which all else stays byte for byte."""
    with open(path, "rb") as source:
        content = source.read()
    with open(path, "wb") as out:
        out.write(content.replace(old.encode(), new.encode()))


def by_torch(utils: str, files: Dict[str, str]) -> int:
    """Convert all at once; returns 0, as it reports nothing."""
    sys.path.insert(0, utils)
    converter: Any = importlib.import_module("hipify.hipify_python")
    here = os.getcwd()
    for file in files:
        replace_in(file, LAUNCH, HIDDEN)
    sys.stdout = sys.stderr
    done = converter.hipify(
        project_directory=here,
        output_directory=os.path.join(here, "torch-out"),
        includes=["*"],
        extensions=tuple({"." + f.rpartition(".")[2] for f in files}),
        is_pytorch_extension=False,
        show_progress=False,
    )
    made = {os.path.basename(k): getattr(v, "hipified_path", None) for k, v in done.items()}
    for path, result in done.items():
        made[os.path.relpath(path, os.path.join(here, "torch-out"))] = getattr(result, "hipified_path", None)
    for file, name in files.items():
        target = os.path.join(OUT, name)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        with open(made.get(file) or file, "rb") as source, open(target, "wb") as out:
            out.write(source.read())
        replace_in(target, HIDDEN, LAUNCH)
    return 0


def main(arguments: List[str]) -> None:
    """Convert.

    Args:
        arguments: One JSON text: kind, path (program, or torch's folder `utils`), files (source to name), include.
    """
    request: Dict[str, Any] = json.loads(arguments[0])
    os.makedirs(OUT, exist_ok=True)
    if request["kind"] == "torch":
        failed = by_torch(request["path"], request["files"])
    else:
        failed = by_program(request["path"], request["kind"], request["files"], request["include"])
    sys.exit(1 if failed else 0)
