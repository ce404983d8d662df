"""The judge as files of a job: what each of its processes can import, and no more."""

import functools
import platform
import py_compile
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

JUDGE = Path(__file__).parents[1] / "judge"
LEADER = "owner"
"""Gets all files, because it says in its evidence what they were."""

ENTRIES = {"program": "program_player"}
"""The module that `main.py` starts for a role, where it has another name."""
_IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)


@functools.cache
def judge_files(role: str, python: str = "") -> dict[str, bytes]:
    """Return the harness's files for a role by their path in a workspace.

    Where the host's Python is of our version, bytecode goes along, which Python checks against the source by its hash:
    compiling it would take each process longer than all else at its start but NumPy.

    Args:
        role: One that `main.py` can start.
        python: Version of the host's judge Python.
    """
    whole = {p.name: p.read_bytes() for p in sorted(JUDGE.iterdir()) if p.suffix in (".py", ".ptx", ".c")}
    modules = _imported({name[:-3]: data.decode() for name, data in whole.items() if name.endswith(".py")}, role)
    chosen = list(whole) if role == LEADER else [f"{module}.py" for module in modules]
    files = {f"judge/{name}": whole[name] for name in chosen}
    if python.split(".")[:2] == platform.python_version().split(".")[:2]:
        tag = sys.implementation.cache_tag
        files |= {f"judge/__pycache__/{m}.{tag}.pyc": _bytecode(m) for m in modules if m != "main"}
    return files


def _imported(sources: Mapping[str, str], role: str) -> list[str]:
    """Return the modules that a role can come to import, itself and `main` among them."""
    found: set[str] = {"main"}
    todo = [ENTRIES.get(role, role)]
    while todo:
        name = todo.pop()
        if name in sources and name not in found:
            found.add(name)
            todo += _IMPORT.findall(sources[name])
    return sorted(found)


@functools.cache
def _bytecode(module: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "bytecode"
        py_compile.compile(
            str(JUDGE / f"{module}.py"),
            str(target),
            dfile=f"/job/judge/{module}.py",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
        return target.read_bytes()
