"""Calls of NCCL in the text against calls that were understood: what the grammar lost is said, not left out."""

import re
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.program_model.api_names import ROLES
from gpu_mcp_server.nccl.program_model.split_conditions import blank_quiet
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, enclosing, is_inactive

_TOKEN = re.compile(rb"\b(" + b"|".join(sorted((n.encode() for n in ROLES), key=len, reverse=True)) + rb")\s*\(")
_NAMED = re.compile(rb"\b(" + b"|".join(sorted((n.encode() for n in ROLES), key=len, reverse=True)) + rb")\b(?!\s*\()")
"""A name whose address is taken."""
_DECLARED = re.compile(rb"(?:\bncclResult_t|\bvoid|\bint|\bauto|::|[*&]|\bdefine|\bNCCL_API\s*\([^()]*)\s*$")
"""What stands before a name that is declared or defined, not called."""


@dataclass(frozen=True)
class LostToken:
    """A call in the text that no site stands for."""

    name: str
    path: str
    line: int
    why: str

    def text(self) -> str:
        """Say it."""
        return f"{self.path}:{self.line}: {self.name} stands here and is not among the sites: {self.why}"


def missing_tokens(analysis: Analysis) -> list[LostToken]:
    """Return each `nccl…(` of the program's files that is neither a site nor a declaration, in the text's order."""
    sites = {(s.call.path, s.call.line) for s in (*analysis.sites, *analysis.other_sites)}
    traced = {(e.call.path, e.call.node.start_byte) for e in analysis.events("collective") if e.call is not None}
    hidden = {m.name for m in analysis.program.macros.values()}
    found: list[LostToken] = []
    for path, source in analysis.program.sources.items():
        bare = blank_quiet(source.data)
        for match in _TOKEN.finditer(bare):
            line = bare.count(b"\n", 0, match.start()) + 1
            if (path, line) in sites or (path, match.start()) in traced:
                continue
            why = _reason(source, bare, match.start(), hidden)
            if why:
                found.append(LostToken(f"{match.group(1).decode()}(", path, line, why))
        found += _addresses(source, bare, sites)
    return found


def _addresses(source: ParsedSource, bare: bytes, sites: set[tuple[str, int]]) -> list[LostToken]:
    """Return each function of NCCL whose address goes where it is not followed: an argument, a table, an assignment."""
    found: list[LostToken] = []
    for match in _NAMED.finditer(bare):
        line = bare.count(b"\n", 0, match.start()) + 1
        node = source.root.descendant_for_byte_range(match.start(), match.end() - 1)
        while node is not None and node.type in {"identifier", "pointer_expression", "cast_expression"}:
            node = node.parent
        if node is None or (source.path, line) in sites or is_inactive(source, node):
            continue
        if node.type in {"argument_list", "initializer_list", "initializer_pair", "assignment_expression"}:
            why = "its address is taken here, and where it is called by that is not followed"
            found.append(LostToken(match.group(1).decode(), source.path, line, why))
    return found


def _reason(source: ParsedSource, bare: bytes, at: int, macros: set[str]) -> str:
    """Return why a token is no site; nothing if it should be none."""
    node = source.root.descendant_for_byte_range(at, at + 1)
    if node is None:
        return "the grammar does not understand this place"
    if is_inactive(source, node):
        return ""
    directive = enclosing(node, "preproc_def", "preproc_function_def")
    if directive is not None or _in_define(bare, at):
        return ""  # seen where the macro is used
    before = bare[max(0, at - 200) : at]
    if _DECLARED.search(before) and not re.search(rb"\b(?:return|=)\s*[*&]?\s*$", before):
        return ""
    if _has_error(node):
        return "the grammar does not understand the code around it"
    called = enclosing(node, "call_expression")
    if called is None or called.start_byte > at:
        return "it is not understood as a call"
    lambda_or_function = enclosing(node, "function_definition", "lambda_expression")
    if lambda_or_function is None:
        return "it stands in no function"
    return "no way from an entry function to it was followed"


def _in_define(bare: bytes, at: int) -> bool:
    start = at
    while True:
        start = bare.rfind(b"\n", 0, start) if start > 0 else -1
        if start <= 0 or not bare[:start].endswith(b"\\"):
            return re.match(rb"\s*#\s*define\b", bare[start + 1 : at]) is not None


def _has_error(node: Node | None) -> bool:
    while node is not None and node.type not in {"function_definition", "translation_unit"}:
        if node.type == "ERROR":
            return True
        node = node.parent
    return node is not None and node.type == "function_definition" and node.has_error
