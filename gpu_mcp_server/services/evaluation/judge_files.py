"""The judge as a read-only tree of a job: its package, bytecode for the host's Python, code compiled for the host."""

import functools
import hashlib
import platform
import py_compile
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.package_files import JUDGE, worker_source

PACKAGE = "gpu_mcp_judge"
"""Its name on a host."""
TREE = "judge"
"""The name of its tree."""
SHIPPED = (".py", ".ptx", ".c")
NOT_OURS = ("numpy.ma", "torch", "triton")


@functools.cache
def judge_files(python: str = "") -> dict[str, bytes]:
    """Return the judge's files by their path in its tree.

    Where the host's Python is of our version, bytecode goes along, which Python takes as it is: compiling it would take
    each process longer than all else at its start but NumPy, and nobody on the host can change the one or the other.

    Args:
        python: Version of the host's judge Python.
    """
    found = sorted(path for path in JUDGE.rglob("*") if path.suffix in SHIPPED)
    sources = {path.relative_to(JUDGE).as_posix(): path.read_bytes() for path in found}
    files = {f"{PACKAGE}/{name}": data for name, data in sources.items()}
    if python.split(".")[:2] == platform.python_version().split(".")[:2]:
        files |= {f"{PACKAGE}/{bytecode_path(name)}": _bytecode(name) for name in sources if name.endswith(".py")}
    return files


def judge_sha256() -> str:
    """Return the hash of the judge's own files, whatever the host compiles for it."""
    digest = hashlib.sha256()
    for name, data in sorted(judge_files().items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return digest.hexdigest()


def bytecode_path(name: str) -> str:
    """Return where Python looks for the bytecode of a module."""
    path = PurePosixPath(name)
    return str(path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc")


@functools.cache
def _bytecode(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "bytecode"
        py_compile.compile(
            str(JUDGE / name),
            str(target),
            dfile=f"{PACKAGE}/{name}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        return target.read_bytes()


@functools.cache
def _refs(python: str) -> tuple[FileRef, ...]:
    return tuple(_ref(path, data) for path, data in judge_files(python).items())


def judge_tree(
    python: str, blobs: dict[str, bytes], code: Mapping[str, bytes] = MappingProxyType({})
) -> dict[str, tuple[FileRef, ...]]:
    """Return the tree that a job of the judge is shown, and add its contents to `blobs`.

    Args:
        python: Version of the host's judge Python.
        blobs: Contents by sha256.
        code: Compiled code of the judge's own, by file.
    """
    built = tuple(_ref(f"{PACKAGE}/compiled/{name}", data) for name, data in sorted(code.items()))
    contents = [*judge_files(python).values(), *(data for _, data in sorted(code.items()))]
    refs = (*_refs(python), *built)
    blobs.update((ref.sha256, data) for ref, data in zip(refs, contents, strict=True))
    return {TREE: refs}


def role_source(*modules: str) -> str:
    """Return the program of a role, which imports modules ahead of its job: the judge's own, torch, Triton."""
    names = [module if module in NOT_OURS else f"{PACKAGE}.{module}" for module in modules]
    return f"IMPORTS = {names!r}\n{worker_source('judge_role')}"


def _ref(path: str, data: bytes) -> FileRef:
    return FileRef(path, hashlib.sha256(data).hexdigest(), len(data))
