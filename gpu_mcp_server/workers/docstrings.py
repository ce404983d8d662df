"""Prints the documented objects of an installed Python package as JSON, by importing it.

Decorators make docstrings that no parser of source text sees: 40 of 115 functions of triton.language. Importing runs
the package's code, so this is a process of its own. Runs under the interpreter that has the package; Python 3.8.

Arguments: MODULE=PREFIX ... ; what is found in MODULE is named PREFIX.name.
"""

import importlib
import inspect
import json
import sys
from typing import Any, Dict, Iterator, Tuple

MOST_OBJECTS = 3000
LONGEST = 20000


Found = Tuple[str, str, str, str, str, int]


def _signature(value: Any) -> str:
    try:
        shown = str(inspect.signature(getattr(value, "fn", value)))
    except (TypeError, ValueError):
        return ""
    hidden = ("_semantic", "_generator", "_builder")
    parts = [p for p in shown.split(", ") if not any(h in p for h in hidden)]
    text = ", ".join(parts)
    return text if text.endswith(")") or "->" in text else text + ")"


def _place(value: Any) -> Tuple[str, int]:
    try:
        target = inspect.unwrap(getattr(value, "fn", value))
        return inspect.getsourcefile(target) or "", inspect.getsourcelines(target)[1]
    except (TypeError, OSError, ValueError):
        return "", 0


def _objects(module: Any, prefix: str) -> Iterator[Found]:
    for name in sorted(dir(module)):
        if name.startswith("_"):
            continue
        try:
            value = getattr(module, name)
            doc = inspect.getdoc(value) or ""
        except Exception:
            continue
        if inspect.ismodule(value) or not (callable(value) or inspect.isclass(value)):
            continue
        own = getattr(getattr(value, "fn", value), "__module__", "") or ""
        if not own.startswith(module.__name__.split(".")[0]) or not doc:
            continue
        place, line = _place(value)
        kind = "type" if inspect.isclass(value) else "function"
        yield prefix + "." + name, kind, _signature(value), doc[:LONGEST], place, line
        if inspect.isclass(value):
            for found in _methods(value, prefix + "." + name):
                yield found


def _methods(cls: Any, prefix: str) -> Iterator[Found]:
    for name in sorted(cls.__dict__):
        value: Any = cls.__dict__[name]
        function = getattr(value, "fn", value)
        doc = inspect.getdoc(function) if callable(function) else None
        if name.startswith("_") or not doc:
            continue
        place, line = _place(value)
        yield prefix + "." + name, "function", _signature(value), doc[:LONGEST], place, line


def main() -> None:
    """Print a JSON list of [name, kind, signature, docstring, file, line]."""
    found: Dict[str, Found] = {}
    for argument in sys.argv[1:]:
        module, _, prefix = argument.partition("=")
        try:
            loaded = importlib.import_module(module)
        except Exception as error:
            sys.stderr.write("%s: %s\n" % (module, error))
            continue
        for each in _objects(loaded, prefix):
            found.setdefault(each[0], each)
            if len(found) >= MOST_OBJECTS:
                break
    json.dump(list(found.values()), sys.stdout)


if __name__ == "__main__":
    main()
