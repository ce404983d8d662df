"""A task of GPU MODE that asks for several functions: `reference_NAME` in its reference, one of the same ending each.

What only its evaluation says, as a batch size for all cases, is read there as a constant; nothing is run.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAKERS = ("generate_inputs", "generate_input")
PREFIX = "reference_"


@dataclass(frozen=True)
class TaskFunctions:
    """The functions of such a task; none where it has a `ref_kernel`."""

    functions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """NAME of each, and the places of its arguments among what the task makes."""
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes that the evaluation has for all cases."""
    rtol: float | None = None
    atol: float | None = None


def functions_of(reference: str, evaluation: str) -> TaskFunctions:
    """Return the functions that a task asks for, read out of its reference and its evaluation.

    None are found where the reference has a `ref_kernel`, is no Python, or takes what the task does not make.
    """
    try:
        tree, main = ast.parse(reference), ast.parse(evaluation)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return TaskFunctions()
    defined = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    maker = next((defined[name] for name in MAKERS if name in defined), None)
    named = {name.removeprefix(PREFIX): each for name, each in defined.items() if name.startswith(PREFIX)}
    if maker is None or not named or "ref_kernel" in defined:
        return TaskFunctions()
    made = _returned(maker)
    takes = {name: [each.arg for each in function.args.args] for name, function in named.items()}
    if not all(set(arguments) <= set(made) for arguments in takes.values()):
        return TaskFunctions()
    known = _constants(tree)
    return TaskFunctions(
        [{"name": name, "takes": [made.index(each) for each in arguments]} for name, arguments in takes.items()],
        _fixed(main, maker),
        known.get("RTOL"),
        known.get("ATOL"),
    )


def _returned(function: ast.FunctionDef) -> list[str]:
    """Return the names of the tuple that a function returns at its end."""
    last = function.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
        return []
    return [each.id if isinstance(each, ast.Name) else "" for each in last.value.elts]


def _constants(tree: ast.Module) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in tree.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            value: Any = each.value.value
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found |= {target.id: value for target in each.targets if isinstance(target, ast.Name)}
    return found


def _fixed(main: ast.Module, maker: ast.FunctionDef) -> dict[str, int]:
    """Return the arguments that are constants of the evaluation where it calls the maker."""
    known, parameters = _constants(main), [each.arg for each in maker.args.args]
    for call in ast.walk(main):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == maker.name:
            given = {
                **dict(zip(parameters, call.args, strict=False)),
                **{k.arg: k.value for k in call.keywords if k.arg},
            }
            sizes = {name: known.get(each.id) for name, each in given.items() if isinstance(each, ast.Name)}
            return {name: size for name, size in sizes.items() if isinstance(size, int)}
    return {}
