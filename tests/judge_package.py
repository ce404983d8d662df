"""The judge's package under the name that it has on a host: for this process, for scripts, and as a tree of a job."""

import atexit
import functools
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from unittest import mock

from gpu_mcp_server.services.evaluation import judge_files as shipped
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


@contextmanager
def shipping(files: Mapping[str, str]) -> Generator[None]:
    """Let hosts get a judge in which these files are others."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "judge")
        shutil.copytree(JUDGE, tree)
        for path, text in files.items():
            (tree / path).write_text(text)
        with mock.patch.object(shipped, "JUDGE", tree):
            forget_judge()
            try:
                yield
            finally:
                forget_judge()


def forget_judge() -> None:
    """Have the files that hosts get read anew."""
    for kept in (shipped.judge_files, shipped._bytecode, shipped._refs):
        kept.cache_clear()
