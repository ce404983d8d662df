"""Recognises equipment that the machine lacks from a candidate's error, if the owner misses it too.

An error's text is the candidate's own word. So each claim is looked up here, in the owner's process, which has the same
interpreter, libraries and programs: an invented missing module gains an answer without a verdict, and no other.
"""

import ctypes
import importlib.util
import os
import re
import shutil
from importlib.machinery import PathFinder
from typing import Dict, Optional, Sequence, Tuple

from .package_misfits import misfit_in

TEXT_CHARACTERS = 4000
MODULE = re.compile(r"\bNo module named '([A-Za-z_]\w{0,60}(?:\.\w{1,60}){0,8})'")
TRITON = "Cannot find a working triton installation"
LIBRARY = re.compile(r"\b(lib[\w+-]{1,60}\.so[\w.]{0,20}): cannot open shared object file")
SYMBOL = re.compile(r"(/[^\s:]{1,300}): undefined symbol: (\w{1,200})(?:, version (lib[\w+-]{1,60}\.so[\w.]{0,20}))?")
GPU = re.compile(
    r"\b0 active drivers\b|Found no NVIDIA driver|No CUDA GPUs are available|Torch not compiled with CUDA enabled"
    r"|no CUDA-capable device is detected|CUDA driver version is insufficient|CUDA driver library cannot be found"
    r"|CUDA_HOME environment variable is not set|not supported in interpreter mode"
    r"|\b(?:must|should) be (?:an? |on (?:an? |the )?)?(?:CUDA|cuda|GPU)\b|\bof `assert [^`\n]*\b(?:is_cuda|cuda)\b"
)
"""How Triton, torch, the CUDA runtime and Numba say that there is no GPU, torch that it cannot compile for one, and
Triton's interpreter that it runs less than a GPU; and how candidates refuse a tensor that is on none, after CHECK_CUDA
of torch's tutorial on extensions. Source: triton/runtime/driver.py and interpreter.py 3.9, torch/cuda/__init__.py and
utils/cpp_extension.py 2.13, driver_types.h of CUDA 13.0, numba/cuda/cudadrv/driver.py 0.61."""
TOOLS: Sequence[Tuple[str, Sequence[str]]] = (
    ("Ninja is required to load C++ extensions", ("ninja",)),
    ("CUDA_HOME environment variable is not set", ("nvcc",)),
    ("Failed to find C compiler", ("cc", "gcc", "clang")),
    ("No working C++ compiler found", ("g++", "c++", "clang++")),
    ("'tileiras' compiler not found", ("tileiras",)),
)
"""What torch, Triton and cuTile say of a program that is not there, and which would do. Source:
torch/utils/cpp_extension.py and torch/_inductor/cpp_builder.py 2.13, triton/runtime/build.py 3.9, cuda/tile/_compile.py
of cuda-tile 1.7."""
PROGRAM = re.compile(
    r"(?:\bNo such file or directory: '|\bsh: (?:line )?\d+: |'which', ')(nvcc|ninja|gcc|cc|g\+\+|c\+\+)\b"
)

MOVED = {"numba.cuda": "numba_cuda"}
"""Modules that a package of another name puts in place when they are imported."""

Lack = Dict[str, str]


def lack_in(text: str, device: str, work: str) -> Optional[Lack]:
    """Return what is missing here by an error's text: its `kind` and `name`; `None` where it is something else.

    Args:
        text: As a process told it.
        device: On which the task is judged; only on the processor a GPU can be missing.
        work: The workspace: a library there is the candidate's own.
    """
    text = text[:TEXT_CHARACTERS]
    module = MODULE.search(text)
    name = module.group(1) if module else "triton" if TRITON in text else ""
    if name and not has_module(name):
        return {"kind": "module", "name": name}
    misfit = misfit_in(text)
    if misfit:
        return {"kind": "packages", "name": misfit}
    library = LIBRARY.search(text)
    if library and _opened(library.group(1)) is None:
        return {"kind": "library", "name": library.group(1)}
    if device == "cpu" and GPU.search(text):
        return {"kind": "gpu", "name": ""}
    for words, programs in TOOLS:
        if words in text and not any(map(shutil.which, programs)):
            return {"kind": "program", "name": programs[0]}
    program = PROGRAM.search(text)
    if program and shutil.which(program.group(1)) is None:
        return {"kind": "program", "name": program.group(1)}
    return _lacked_symbol(text, work)


def lacked_module(names: Sequence[str]) -> Optional[Lack]:
    """Return the first of some modules that is not here."""
    return next(({"kind": "module", "name": name} for name in names if not has_module(name)), None)


def package_versions(names: Sequence[str]) -> Dict[str, str]:
    """Return the versions of packages, by pip's names, as far as they are here and say so."""
    found: Dict[str, str] = {}
    for name in names:
        try:
            from importlib import metadata  # brings email and zipfile: 20 ms that most tasks have no use for

            found[name] = str(metadata.version(name))[:40]
        except Exception:  # not there by this name, or with metadata that cannot be read
            continue
    return found


def has_module(name: str) -> bool:
    """Say whether a module can be found, without importing it or a package around it."""
    whole, *inner = MOVED.get(name, name).split(".")
    try:
        spec = importlib.util.find_spec(whole)
        for part in inner:
            whole = "%s.%s" % (whole, part)
            if spec is None or spec.submodule_search_locations is None:
                return spec is not None  # a name inside of a module: not for us to know
            spec = PathFinder.find_spec(whole, spec.submodule_search_locations)
    except (ImportError, ValueError):  # `__spec__` is not set: it is there
        return True
    return spec is not None


def _opened(name: str) -> Optional[ctypes.CDLL]:
    """Return a library of the machine; names here have no folder, so it is none of the candidate's."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _lacked_symbol(text: str, work: str) -> Optional[Lack]:
    """Return a symbol that a library of the machine should have; what the candidate did not link is its own mistake."""
    found = SYMBOL.search(text)
    if not found:
        return None
    path, symbol, version = found.groups()
    if version:
        library = _opened(version)
        missing = library is None or not hasattr(library, symbol)
        return {"kind": "symbol", "name": "%s of %s" % (symbol, version)} if missing else None
    real = os.path.realpath(path)
    theirs = any(real.startswith(os.path.realpath(folder) + os.sep) for folder in (work, "/job", "/tmp"))
    if theirs or not os.path.isfile(real):
        return None
    return {"kind": "symbol", "name": "%s, which %s wants" % (symbol, os.path.basename(path)[:60])}
