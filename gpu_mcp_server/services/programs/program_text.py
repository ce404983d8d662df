"""A program's own text as the reference of a problem: its modules, and its script without what it does when it runs."""

import ast
from collections.abc import Iterable, Mapping

from gpu_mcp_server.errors import BadRequest

PLAIN_CALLS = ("torch.device", "int", "float", "str", "bool", "tuple", "list", "dict", "range", "len", "min", "max")
"""Calls that a script's assignment may make and still be a definition."""


def definitions_of(text: str) -> str:
    """Return a script's imports, functions, classes and plain assignments, without its other statements.

    Raises:
        BadRequest: If it is no Python.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRequest(
            f"The script is no Python: {str(error)[:200]}.", hint="Correct its syntax, then call again."
        ) from error
    lines = text.splitlines()
    kept = [_lines(lines, each) for each in body if _is_definition(each)]
    return "\n".join(kept) + "\n"


def _lines(lines: list[str], node: ast.stmt) -> str:
    decorators: Iterable[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return "\n".join(lines[first - 1 : node.end_lineno])


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Try):
        return all(map(_is_definition, [*node.body, *node.orelse, *(s for h in node.handlers for s in h.body)]))
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return node.value is not None and all(_is_plain(each) for each in ast.walk(node.value))
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Pass))


def _is_plain(node: ast.AST) -> bool:
    return not isinstance(node, ast.Call) or ast.unparse(node.func) in PLAIN_CALLS


def module_files(loaded: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the file of each of the program's modules in a workspace, by import name."""
    there = set(names)
    found: dict[str, str] = {}
    for module, path in loaded.items():
        if path in there and not module.startswith("__"):
            ending = "/__init__.py" if path.endswith("__init__.py") else ".py"
            found[module.replace(".", "/") + ending] = path
    return found


def import_text(name: str) -> str:
    """Return the line that makes `call` of `module:function` or `module:Class.function`."""
    where, _, inside = name.partition(":")
    first, _, rest = inside.partition(".")
    return f"from {where} import {first} as call\n" + (f"\ncall = call.{rest}\n" if rest else "")
