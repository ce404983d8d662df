"""Tells packages of a machine that do not fit each other from a candidate's mistake.

One asks another for a name that its version does not have, or refuses to be imported. The process in which that happens
says in which installed file and line. The owner reads that line itself, as a text is the candidate's own word. Also
laid into what compiles Python launchers as text: standard library alone.

Source: Python 3.12 (Objects/moduleobject.c, Python/ceval.c) for the words.
"""

import ast
import importlib
import os
import re
import sys
import sysconfig
import traceback
from typing import Any, List, Optional, Tuple

LACKED = re.compile(r"module '([\w.]{1,200})' has no attribute '(\w{1,100})'")
UNIMPORTED = re.compile(
    r"cannot import name '(\w{1,100})' from (?:partially initialized module )?'([\w.]{1,200})'"
    r"(?: \((/[^)\n]{1,400})\))?"
)
REMOVED = re.compile(r"`np\.(\w{1,100})` was removed in the NumPy \S{1,20} release")
"""How NumPy says it of names that it knows to be gone. Source: numpy/__init__.py 2.5."""
RAISED = re.compile(r"^raised in (/[^\n]{1,400}) line (\d{1,7}): ([^\n]{1,500})$", re.MULTILINE)
GETTERS = ("__getattr__", "getattr")
"""Functions by which a package answers for names that its modules do not have: who asked is around them."""
MOST_BYTES = 5 << 20
MOST_CAUSES = 5


def place_of_misfit(error: Optional[BaseException]) -> str:
    """Return the installed line that an error of packages came from, and its words; empty if it is none such."""
    for _ in range(MOST_CAUSES):
        if error is None:
            break
        try:
            # The class may be the candidate's, with a `__str__` that raises.
            words = (str(error).strip().splitlines() or [""])[0][:500]
            frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
        except Exception:
            return ""
        # A module that is missing has words of its own.
        refuses = isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError)
        if refuses or _missing_in(words)[0]:
            for frame in reversed(frames):
                if _is_said_at(frame.filename, frame.lineno or 0, words):
                    return "raised in %s line %d: %s" % (frame.filename, frame.lineno or 0, words)
                if frame.name not in GETTERS or not _root_of(frame.filename):
                    break
        error = error.__cause__
    return ""


def misfit_in(text: str) -> str:
    """Return which packages do not fit each other, by a text that has the line of `place_of_misfit`; empty if all do.

    The line is read here, and a name that a module has in this process is not missing.
    """
    found = RAISED.search(text)
    if not found or not _is_said_at(found.group(1), int(found.group(2)), found.group(3)):
        return ""
    asks = package_of_file(found.group(1))
    module, name, path = _missing_in(found.group(3))
    if not module:
        return "%s cannot be imported: %s" % (asks, found.group(3)[:300])
    if hasattr(sys.modules.get(module), name):
        return ""
    asked = package_of_file(path) if path else _package(module.partition(".")[0])
    if asks == asked:
        return "%s uses %s.%s, which it does not have: files of several versions lie there" % (asks, module, name)
    return "%s uses %s.%s, which %s does not have" % (asks, module, name, asked)


def misfit_of(error: BaseException) -> str:
    """Return which packages do not fit each other, by an error of this process; empty where it is another one."""
    found = misfit_in(place_of_misfit(error))
    return "packages do not fit each other: " + found if found else ""


def package_of_file(path: str) -> str:
    """Return the package that an installed file belongs to, with its version where that is known."""
    root = _root_of(path)
    top = os.path.relpath(os.path.realpath(path), root).partition(os.sep)[0] if root else ""
    if not root or os.path.basename(root) not in ("site-packages", "dist-packages"):
        return "Python %d.%d.%d" % sys.version_info[:3]
    return _package(top[:-3] if top.endswith(".py") else top)


def _package(module: str) -> str:
    """Return the package of a module and its version, by the module's name where neither is known."""
    name = module
    try:
        metadata: Any = importlib.import_module("importlib.metadata")  # slow, and of no use to most processes
        find: Any = getattr(metadata, "packages_distributions", None)  # from Python 3.10 on
        names = find().get(module) if find else None
        name = str(names[0]) if names else module.replace("_", "-")
        return "%s %s" % (name, str(metadata.version(name))[:40])
    except Exception:  # not there by this name, or with metadata that cannot be read
        own = module in getattr(sys, "stdlib_module_names", ())
        return "Python %d.%d.%d" % sys.version_info[:3] if own else name


def _missing_in(words: str) -> Tuple[str, str, str]:
    """Return module, name, and the module's file where it is said, of what an error's words say is missing."""
    lacked, removed, unimported = LACKED.search(words), REMOVED.search(words), UNIMPORTED.search(words)
    if lacked:
        return lacked.group(1), lacked.group(2), ""
    if removed:
        return "numpy", removed.group(1), ""
    return (unimported.group(2), unimported.group(1), unimported.group(3) or "") if unimported else ("", "", "")


def _roots() -> List[str]:
    """Return the folders of installed packages, longest first, and then of the standard library."""
    paths = sysconfig.get_paths()
    sites = [*sys.path, paths["purelib"], paths["platlib"]]
    found = {os.path.realpath(each) for each in sites if os.path.basename(each) in ("site-packages", "dist-packages")}
    library = {os.path.realpath(paths[each]) for each in ("stdlib", "platstdlib")}
    return [*sorted(found, key=len, reverse=True), *sorted(library - found, key=len, reverse=True)]


def _root_of(path: str) -> str:
    """Return the folder of installed files in which a file lies; empty where it is not installed."""
    real = os.path.realpath(path)
    return next((root for root in _roots() if real.startswith(root + os.sep)), "") if os.path.isabs(path) else ""


def _is_said_at(path: str, line: int, words: str) -> bool:
    """Say whether an installed file asks for the missing name at a line, or raises there where none is said."""
    _, name, _ = _missing_in(words)
    try:
        if not _root_of(path) or os.path.getsize(path) > MOST_BYTES:
            return False
        with open(path, "rb") as file:
            nodes: List[Any] = list(ast.walk(ast.parse(file.read())))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    at = [n for n in nodes if getattr(n, "lineno", line + 1) <= line <= (getattr(n, "end_lineno", None) or n.lineno)]
    return any(_asks_for(node, name) if name else isinstance(node, ast.Raise) for node in at)


def _asks_for(node: Any, name: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(each.name == name for each in node.names)
    return isinstance(node, ast.Attribute) and node.attr == name
