"""Facts read from a reference's text: its library, its function, its words. Nothing of it is run."""

import ast
import keyword
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.models.problem import Problem

MAX_REFERENCE_BYTES = 2**20


@dataclass(frozen=True)
class ReferenceFacts:
    """Facts read from a reference's text."""

    framework: Literal["numpy", "torch"]
    """torch if it imports torch anywhere."""
    entry: str
    """`reference`, or the only public function."""
    description: str
    """Docstring of that function."""


def read(source: str) -> ReferenceFacts:
    """Read a reference.

    Raises:
        BadRequest: If it is not Python, or leaves open which function computes.
    """
    module = parse_reference(source)
    functions = {node.name: node for node in module.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    public = [name for name in functions if not name.startswith("_")]
    defined = _definitions(module)
    entry = "reference" if "reference" in defined or len(public) != 1 else public[0]
    if entry not in defined:
        raise BadRequest(
            f"The reference defines {', '.join(public) or 'no function'}; the server cannot tell which one computes.",
            hint="Call that one `reference`, or begin the others' names with _.",
        )
    return ReferenceFacts(_framework(module), entry, _words(functions.get(entry)))


def framework_of(source: str) -> Literal["numpy", "torch"]:
    """Return the library of a reference.

    Raises:
        BadRequest: If it is not Python.
    """
    return _framework(parse_reference(source))


def _framework(module: ast.Module) -> Literal["numpy", "torch"]:
    return "torch" if any(_imports_torch(node) for node in ast.walk(module)) else "numpy"


def _words(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> str:
    return (ast.get_docstring(function) or "") if function is not None else ""


def _imports_torch(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "torch" for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"


def check_reference(problem: Problem) -> None:
    """Refuse a reference that cannot be what its problem says; nothing is run.

    Raises:
        BadRequest: If it is not Python, or its function is missing or does not take the inputs.
        LimitExceeded: If it has more than 1 MiB.
    """
    source, entry = problem.reference, problem.entry
    if len(source.encode()) > MAX_REFERENCE_BYTES:
        raise LimitExceeded(
            f"The reference has {len(source.encode())} bytes; the limit is {MAX_REFERENCE_BYTES}.", hint="Shorten it."
        )
    if not entry.isidentifier() or keyword.iskeyword(entry):
        raise BadRequest(f"entry {entry!r} is no Python name.", hint="Name the function of the reference.")
    defined = _definitions(parse_reference(source))
    if entry not in defined:
        raise BadRequest(
            f"The reference does not define {entry!r} at its top level.",
            hint=f"It defines {', '.join(sorted(defined)) or 'nothing'}; set entry to the one that computes.",
        )
    function = defined[entry]
    if isinstance(function, ast.AsyncFunctionDef):
        raise BadRequest(f"{entry!r} is an async function.", hint="Make it an ordinary one.")
    given = problem.inputs[: problem.backward or None]
    if isinstance(function, ast.FunctionDef) and not _takes(function.args, len(given)):
        takes = f"Let it take {', '.join(tensor.name for tensor in given)}"
        named = _keywords_required(function.args)
        count = f"{len(given)} input{'s' * (len(given) != 1)}"
        raise BadRequest(
            f"{entry!r} cannot be called with {count}, which it gets in order.",
            hint=f"{takes}; give {', '.join(named)} a default." if named else f"{takes}.",
        )


def parse_reference(source: str) -> ast.Module:
    """Return the syntax tree of a reference.

    Raises:
        BadRequest: If it is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        raise BadRequest(
            f"The reference is not Python: line {error.lineno}: {error.msg}.", hint="Correct it and register again."
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadRequest(
            f"The reference is not Python that can be read: {error or type(error).__name__}.", hint="Send plain source."
        ) from error


def _definitions(module: ast.Module) -> dict[str, Any]:
    """Return the names that the top level of a module defines."""
    defined: dict[str, Any] = {}
    for statement in module.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defined[statement.name] = statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defined.update({target.id: None for target in targets if isinstance(target, ast.Name)})
    return defined


def _takes(arguments: ast.arguments, count: int) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    in_order = required <= count and (count <= positional or arguments.vararg is not None)
    return in_order and not _keywords_required(arguments)


def _keywords_required(arguments: ast.arguments) -> list[str]:
    """Return the keyword-only parameters without a default."""
    defaults = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [each.arg for each, default in defaults if default is None]
