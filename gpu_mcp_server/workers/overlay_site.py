"""Starts an overlay: the interpreter imports it as `sitecustomize` where PYTHONPATH names the overlay's folder.

Takes no effect on a program that never imports a replaced module. An environment's own sitecustomize runs as before.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run_next() -> None:
    """Run the sitecustomize that this one stands before, if there is one."""
    others = [each for each in sys.path if os.path.abspath(each or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if importlib.util.find_spec("program_overlay") is not None:  # not where it is read as a file of the package
    import program_overlay  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    program_overlay.install()
    run_next()
