"""The judge's package under the name that it has on a host: for this process, for scripts, and as a tree of a job."""

import atexit
import functools
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

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


def lay_tree(folder: Path, more: Mapping[str, str | bytes] = MappingProxyType({})) -> Path:
    """Make a tree as a job is shown one, with `more` files, or others of the same name; return its folder."""
    shutil.copytree(JUDGE, folder / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in more.items():
        (folder / NAME / name).parent.mkdir(exist_ok=True)
        (folder / NAME / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder
