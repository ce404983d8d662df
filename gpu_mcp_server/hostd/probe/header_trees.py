"""Trees of headers that kernels include and no system has: CUTLASS with CuTe, FlashInfer, ThunderKittens.

A tree is known by one of its headers. It is looked for in its own variables, which setup lines may set, in the
site-packages of the interpreters that are known, and where people clone it. Folders that the settings name
(`include_paths`) are trees too.

Source: the wheels nvidia-cutlass 4.2, flashinfer-python, deep_gemm and apache-tvm-ffi; CUTLASS's and ThunderKittens'
own build instructions for the variables.
"""

import glob
import hashlib
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

NAMED = "include_paths"
TREES = (
    # name, header that tells it, folders of headers beside it, variables, patterns below site-packages, below a clone
    ("cutlass", "cutlass/cutlass.h", ("../tools/util/include",), ("CUTLASS_PATH", "CUTLASS_HOME", "CUTLASS_DIR"),
     ("cutlass_library/source/include", "flashinfer/data/cutlass/include", "deep_gemm/include"), "cutlass*"),
    ("flashinfer", "flashinfer/utils.cuh", (), (), ("flashinfer/data/include",), "flashinfer*"),
    ("thunderkittens", "kittens.cuh", (), ("THUNDERKITTENS_ROOT", "THUNDERKITTENS_PATH"), (), "[Tt]hunder[Kk]ittens*"),
    ("tvm-ffi", "tvm/ffi/c_api.h", (), (), ("tvm_ffi/include",), ""),
)  # fmt: skip
VERSION_FILES = ("cutlass/version.h",)
MAX_FILES = 20_000
MAX_BYTES = 512 << 20
"""What is read of a tree for its digest."""


def probe_header_trees(named: Sequence[str], pythons: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Describe each tree that there is, those that the settings name first.

    Args:
        named: Folders of the settings.
        pythons: Interpreters, each with its `site` and its `roots`.

    Returns:
        `name`, `folders` (for the compiler), `version` (empty where no file says it), `sha256` of all names and
        contents (empty where they are too many to read), `roots` to show in the sandbox.
    """
    found = [_described(NAMED, [os.path.realpath(f)], [os.path.realpath(f)]) for f in named if os.path.isdir(f)]
    for name, header, beside, variables, patterns, clone in TREES:
        for folder, roots in _places(variables, patterns, clone, pythons):
            if os.path.isfile(os.path.join(folder, header)):
                more = [os.path.normpath(os.path.join(folder, b)) for b in beside]
                found.append(_described(name, [folder, *(m for m in more if os.path.isdir(m))], roots))
                break
    return found


def _places(
    variables: Sequence[str], patterns: Sequence[str], clone: str, pythons: Sequence[Dict[str, Any]]
) -> Iterator[Tuple[str, List[str]]]:
    for variable in variables:
        root = os.environ.get(variable, "")
        if root.startswith("/"):
            yield os.path.realpath(root + "/include"), [os.path.realpath(root)]
    for python in pythons:
        for pattern in patterns:
            yield os.path.join(python["site"], pattern), list(python["roots"])
    for top in ("/opt", "/usr/local", "/usr/local/src", os.path.expanduser("~")) if clone else ():
        for root in sorted(glob.glob(os.path.join(glob.escape(top), clone)), reverse=True):
            yield os.path.realpath(root + "/include"), [os.path.realpath(root)]


def _described(name: str, folders: List[str], roots: Sequence[str]) -> Dict[str, Any]:
    return {
        "name": name,
        "folders": folders,
        "version": _version(folders[0]),
        "sha256": _digest(folders) or "",
        "roots": [r for r in roots if not r.startswith("/usr/")],
    }


def _version(folder: str) -> str:
    """Return what a tree's own macros MAJOR, MINOR and PATCH say."""
    for name in VERSION_FILES:
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                text = file.read(100_000)
        except OSError:
            continue
        numbers = [re.search(r"#\s*define \w+_%s (\d+)" % part, text) for part in ("MAJOR", "MINOR", "PATCH")]
        return ".".join(match.group(1) for match in numbers if match)
    return ""


def _digest(folders: Sequence[str]) -> Optional[str]:
    total, count, digest = 0, 0, hashlib.sha256()
    for folder in folders:
        for at, inner, files in os.walk(folder):
            inner.sort()
            for name in sorted(files):
                path = os.path.join(at, name)
                try:
                    size = os.stat(path).st_size
                    total, count = total + size, count + 1
                    if total > MAX_BYTES or count > MAX_FILES:
                        return None
                    with open(path, "rb") as file:
                        content = hashlib.sha256(file.read()).hexdigest()
                except OSError:
                    content = "unreadable"
                digest.update(("%s\0%s\n" % (os.path.relpath(path, folder), content)).encode("utf-8", "replace"))
    return digest.hexdigest()
