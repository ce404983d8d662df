"""The judge's package under the name that it has on a host: for this process, for scripts, and as a tree of a job."""

import atexit
import functools
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gpu_mcp_server.services.evaluation.judge_files import bytecode_path, judge_files

JUDGE = Path(__file__).resolve().parents[1] / "gpu_mcp_server" / "judge"
NAME = "gpu_mcp_judge"


def load() -> None:
    """Let this process import it."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, JUDGE / "__init__.py", submodule_search_locations=[str(JUDGE)]
        )
        sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


@functools.cache
def packages() -> str:
    """Return a folder for the path of modules of a script that imports it; it is there until the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="judge-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / NAME).symlink_to(JUDGE)
    return str(folder)


def judge_tree(more: Mapping[str, str | bytes] = MappingProxyType({})) -> Path:
    """Return a tree as a job is shown one, with `more` files, or others of the same name.

    Those of one content share it, as on a host: to write it takes longer than to register a problem. It has the
    bytecode that goes to a host: to compile the package takes a process longer than most judgements.
    """
    files = {**judge_files(platform.python_version())}
    for name, content in more.items():
        files.pop(f"{NAME}/{bytecode_path(name)}", None)  # Python would believe it
        files[f"{NAME}/{name}"] = content if isinstance(content, bytes) else content.encode()
    return _lay_tree(tuple(sorted(files.items())))


@functools.cache
def _lay_tree(files: tuple[tuple[str, bytes], ...]) -> Path:
    """Write files below a new folder, which is there until the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="judge-tree-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for parent in sorted({(folder / name).parent for name, _ in files}):
        parent.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        (folder / name).write_bytes(content)
    return folder
