"""Puts something in place of a function of a program that is about to run: by its module's import, or in its script.

Laid beside a program whose calls are recorded, and into an overlay. Python 3.7, standard library alone.
"""

import ast
import contextlib
import functools
import importlib.util
import io
import sys
from typing import Any, Callable, Dict, List, Optional

Wrap = Callable[[Any], Any]
MAIN: Dict[str, Wrap] = {}
"""Wrapper of each of the script's own functions to replace, by name."""


class ImportWatch:
    """Calls back once a module was imported, before other modules have names of it."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act, self._busy = name, act, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        """Return the module's own spec, whose loader calls back at its end."""
        if name != self._name or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        loader: Any = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return None
        run, act = loader.exec_module, self._act

        @functools.wraps(run)
        def exec_module(module: Any) -> None:
            run(module)
            act(module)

        loader.exec_module = exec_module
        return spec


def watch_import(name: str, act: Callable[[Any], None]) -> None:
    """Call back when a module was imported, at once if it is there."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        finder: Any = ImportWatch(name, act)
        sys.meta_path.insert(0, finder)


def replace_function(module: Any, name: str, wrap: Wrap) -> bool:
    """Put `wrap(function)` in a function's place, wherever modules have it by now; say whether there is one."""
    owner: Any = module
    *before, last = name.split(".")
    for part in before:
        owner = getattr(owner, part, None)
    function = getattr(owner, last, None)
    if not callable(function) and not is_kernel(function):
        return False
    instead = wrap(function)
    is_bound = isinstance(owner, type) and isinstance(owner.__dict__.get(last), (staticmethod, classmethod))
    setattr(owner, last, staticmethod(instead) if is_bound else instead)  # an object that is asked does not go along
    for other in list(sys.modules.values()):
        for known, value in list(getattr(other, "__dict__", {}).items()):
            if value is function:
                setattr(other, known, instead)
    return True


def is_kernel(value: Any) -> bool:
    """Say whether a value is a Triton kernel; one behind triton.heuristics or triton.autotune cannot be called."""
    return hasattr(value, "arg_names") and hasattr(value.__class__, "__getitem__")


def why_no_function(value: Any, target: str) -> str:
    """Say why nothing can stand in a function's place; empty if something can."""
    if is_kernel(value):
        return "it is a Triton kernel: %s[grid] names its launches" % target
    if not isinstance(value, type):
        return ""
    if any(base.__module__ == "torch.autograd.function" for base in value.__mro__):
        return "it is an autograd.Function: name a function that its forward calls, or that applies it"
    return "it is a class: name its modules by their path, as find_hotspots shows them"


def stand_in(function: Any, call: Wrap) -> Any:
    """Return `call` with the name and public attributes of what it stands for: `cache_clear`, `register_fake`."""
    functools.update_wrapper(call, function)
    for name in dir(function):
        if not name.startswith("_") and not hasattr(call, name):
            with contextlib.suppress(Exception):  # of a property that has no value
                setattr(call, name, getattr(function, name))
    return call


def source_lines(text: str) -> List[str]:
    """Return lines with their ends, as ast counts them: str.splitlines also splits at form feeds and U+2028."""
    return list(io.StringIO(text, newline=""))


def definition_end(text: str, name: str) -> Optional[int]:
    """Return the last line of a function or class at the top level of a script; None if it has none of that name."""
    for each in ast.parse(text).body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and each.name == name:
            return int(getattr(each, "end_lineno", 0)) or None
    return None


def hooked_script(text: str, name: str, line: str) -> Optional[str]:
    """Return a script with a line after a definition; None where there is no such definition."""
    end = definition_end(text, name)
    if end is None:
        return None
    lines = source_lines(text)
    lines[end - 1] = lines[end - 1].rstrip("\r\n") + "\n"
    return "".join([*lines[:end], line + "\n", *lines[end:]])


def run_hooked(path: str, arguments: List[str], name: str) -> bool:
    """Run a script whose function `name` is replaced as `MAIN` says; False, and not run, if it defines none."""
    import os
    import types

    with open(path, encoding="utf-8") as file:
        text = hooked_script(file.read(), name, "%s = __import__('program_hooks').MAIN[%r](%s)" % (name, name, name))
    if text is None:
        return False
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    exec(compile(text, path, "exec"), module.__dict__)
    return True
