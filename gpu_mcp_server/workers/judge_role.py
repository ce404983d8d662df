"""A role of the judge, whose package is loaded from a read-only tree; what it imports may be imported ahead of its job.

IMPORTS (names of modules) is put before this source. `TREE_JUDGE` says where the tree is.
"""

import gc
import importlib
import importlib.util
import os
import sys
import time
from typing import Any, List, Sequence

IMPORTS: Sequence[str] = globals().get("IMPORTS", ())
PACKAGE = "gpu_mcp_judge"
TREE = "TREE_JUDGE"
BEGAN = "JUDGE_BEGAN_S"
"""Environment variable that says when a process began to work, on the clock since boot, if that was not its start."""
BYTECODE, BYTECODE_OF = "JUDGE_BYTECODE", "JUDGE_BYTECODE_OF"
"""Environment variables: a folder with bytecode, and whose it is."""


class BytecodeFolder:
    """A finder that finds nothing: asked first for each module, it says where Python looks for the bytecode of that."""

    def __init__(self, folder: str, packages: Sequence[str]) -> None:
        self._folder, self._packages = folder, frozenset(packages)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Choose between the folder and the `__pycache__` beside the source; leave the search to the others."""
        sys.pycache_prefix = self._folder if name.partition(".")[0] in self._packages else None


def load_judge() -> bool:
    """Load the judge's package from its tree, whatever else can be found under its name; False when it was already.

    The tree is on no path of modules: none of the judge's is in the way of somebody else's.
    """
    if PACKAGE in sys.modules:
        return False
    folder = os.path.join(os.environ[TREE], PACKAGE)
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    module = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return True


def prepare() -> None:
    """Import, and let modules prepare what every task needs."""
    load_judge()
    import_ahead(prepares=True)


def import_ahead(*, prepares: bool) -> None:
    """Import what the role will need, as far as it is there; what cannot be is told where it is asked for.

    Nothing of what is imported is ever garbage: looking for some while torch is imported takes an eighth of the time
    that it takes (1.5 s of the processor instead of 1.7), and looking through it all later would be within the clock.

    Args:
        prepares: Whether modules prepare what every task needs, and a module that cannot be imported ends the process.
    """
    gc.disable()
    if os.environ.get(BYTECODE):
        finder: Any = BytecodeFolder(os.environ[BYTECODE], os.environ.get(BYTECODE_OF, "").split())
        sys.meta_path.insert(0, finder)
    try:
        for name in IMPORTS:
            try:
                module = importlib.import_module(name)
            except Exception:
                if prepares:
                    raise
                continue
            if prepares and hasattr(module, "prepare"):
                module.prepare()
    finally:
        gc.freeze()
        gc.enable()


def main(arguments: List[str]) -> None:
    """Play the role that is named."""
    if load_judge():
        import_ahead(prepares=False)
    else:
        os.environ[BEGAN] = repr(time.clock_gettime(time.CLOCK_BOOTTIME))
    sys.exit(importlib.import_module(PACKAGE + ".main").main(arguments))
