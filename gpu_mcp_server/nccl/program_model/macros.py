"""Macros of a program: what they hide, and their bodies with the arguments put in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_mcp_server.nccl.program_model.api_names import INTERESTING
from gpu_mcp_server.nccl.program_model.library_calls import LIBRARIES, letters_of, qualified_name
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, field, is_inactive, name_of, walk

NESTING = 6
"""Macros within macros that are followed."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_]\w*|##|#')


@dataclass(frozen=True)
class Macro:
    """A `#define`."""

    name: str
    parameters: tuple[str, ...] | None
    """Absent when it takes no parentheses."""
    body: str
    path: str
    line: int


def macros_of(source: ParsedSource) -> list[Macro]:
    """Return the macros that a file defines."""
    found: list[Macro] = []
    for node in source.landmarks:
        if node.type not in {"preproc_def", "preproc_function_def"} or is_inactive(source, node):
            continue
        name, value, given = field(node, "name"), field(node, "value"), field(node, "parameters")
        if name is None:
            continue
        parameters = None if given is None else tuple(source.text(c) for c in given.children if c.type not in "(),")
        body = re.sub(r"/\*.*?(?:\*/|\Z)|//[^\n]*$", " ", source.text(value), flags=re.S) if value is not None else ""
        found.append(
            Macro(source.text(name), parameters, body.replace("\\\n", "\n").strip(), source.path, source.line(node))
        )
    return found


def macros_with_calls(macros: Mapping[str, Macro]) -> set[str]:
    """Return the names of the macros whose bodies hold calls that matter, other macros followed."""
    found: set[str] = set()
    for _ in range(NESTING):
        grown = {m.name for m in macros.values() if _hides(m, found)}
        if grown == found:
            break
        found = grown
    return found


def _hides(macro: Macro, known: set[str]) -> bool:
    words = set(_WORD.findall(macro.body))
    if not (
        "<<<" in macro.body
        or "##" in macro.body
        or words & INTERESTING
        or words & known
        or LIBRARIES.search(macro.body)
    ):
        return False
    inside = ParsedSource(macro.name, f"void _(){{{macro.body};}}".encode("utf-8", "surrogateescape"))
    for node in walk(inside.root):
        if node.type == "kernel_call_syntax":
            return True
        if node.type == CALL and (name_of(inside, node) in INTERESTING or name_of(inside, node) in known):
            return True
        if node.type == CALL and letters_of(qualified_name(inside, node)) is not None:
            return True
    return "##" in macro.body and "(" in macro.body and "nccl" in macro.body


def expand_macro(macro: Macro, given: list[str]) -> str:
    """Return a macro's body with its arguments in place, as the preprocessor would, but for stringizing."""
    values: dict[str, str] = {}
    parameters = macro.parameters or ()
    for number, name in enumerate(parameters):
        if name == "...":
            values["__VA_ARGS__"] = ", ".join(given[number:])
        elif number < len(given):
            values[name] = given[number]

    def put(match: "re.Match[str]") -> str:
        return values.get(match.group(), match.group())

    return re.sub(r"\s*##\s*", "", _TOKENS.sub(put, macro.body))
