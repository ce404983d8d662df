"""EVOLVE-BLOCK markers around what may change in the program itself: where it calls generated collectives.

Initialization and verification stay outside and so frozen; the generated kernels carry markers of their own.
"""

from collections.abc import Sequence
from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.feasibility import REPLACED
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.markers import EVOLVE_END, EVOLVE_START, blocks
from gpu_mcp_server.nccl.program_model.program import GENERATED, FunctionCall
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, enclosing, name_of, statement_of, walk
from gpu_mcp_server.nccl.program_model.trace_events import kind_of
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles

COLLECTIVES = frozenset(GENERATED + n for n in (*REPLACED.values(), "Sweep", "Send", "Recv"))

MAX_BETWEEN = 8
"""Statements before a call that are looked at for what computes its data."""


def add_markers(analysis: Analysis, files: EditedFiles, chosen: Sequence[FunctionCall] | None = None) -> list[str]:
    """Put markers around calls, their groups included, and return what was marked.

    Args:
        analysis: The program.
        files: Take the markers.
        chosen: These calls; the generated ones if not given.

    Raises:
        MarkerFault: If the program's own markers do not come in pairs.
    """
    done: list[str] = []
    kernels: dict[str, Function] = {}
    if chosen is None:
        chosen = [c for c in analysis.program.calls if c.full_name in COLLECTIVES]
    for path, source in analysis.program.sources.items():
        known = blocks(source.data.decode("utf-8", "surrogateescape"))
        found: dict[int, tuple[Node, Node]] = {}
        for call in (c for c in chosen if c.path == path and not c.via_macro):
            first, last = region(source, call)
            producer = _producer(analysis, source, first, call)
            if producer is not None:
                first = producer[0]
                kernels.setdefault(producer[1].name, producer[1])
            if not any(b.first_line <= source.line(first) <= b.last_line for b in known):
                found.setdefault(first.start_byte, (first, last))
        done += [_mark(files, source, first, last) for first, last in _joined([found[at] for at in sorted(found)])]
    for kernel in kernels.values():
        if not any(b.first_line <= kernel.line <= b.last_line for b in blocks(_text(kernel.source))):
            node = kernel.node
            while node.parent is not None and node.parent.type == "template_declaration":
                node = node.parent
            done.append(_mark(files, kernel.source, node, node))
    return done


def _joined(regions: list[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """Return regions with neighbours joined, so that adjacent calls can be fused; none twice."""
    found: list[tuple[Node, Node]] = []
    for first, last in regions:
        before = found[-1] if found else None
        if before is not None and before[1].next_named_sibling == first:
            found[-1] = (before[0], last)
        elif before is None or first.start_byte > before[1].end_byte:
            found.append((first, last))
    return found


def _text(source: ParsedSource) -> str:
    return source.data.decode("utf-8", "surrogateescape")


def _mark(files: EditedFiles, source: ParsedSource, first: Node, last: Node) -> str:
    edits = files.edits_of(source.path)
    indent = edits.indent(first)
    own_line = source.data[: first.start_byte].rstrip(b" \t").endswith(b"\n")
    edits.insert_before(first, f"{'' if own_line else chr(10) + indent}{EVOLVE_START}\n{indent}")
    edits.insert_after(last, f"\n{indent}{EVOLVE_END}{_rest(source, last, indent)}")
    return f"{source.path}:{source.line(first)}-{last.end_point[0] + 1} may change"


def _producer(
    analysis: Analysis, source: ParsedSource, first: Node, call: FunctionCall
) -> tuple[Node, Function] | None:
    """Return the launch right before a call that computes what it sends, so that the two can be fused.

    Between them may stand launches and events alone. A kernel that only writes makes input, and stays frozen.
    """
    sent = {source.text(n) for a in call.nodes[:1] for n in walk(a) if n.type == "identifier"}
    at = first.prev_named_sibling
    for _ in range(MAX_BETWEEN):
        while at is not None and at.type == "comment":
            at = at.prev_named_sibling
        if at is None or at.type != "expression_statement":
            return None
        inside = list(analysis.program.calls_in(source, at))
        launches = [x for c in inside if (x := analysis.program.launch_of(c)) is not None]
        for launch in launches:
            kernel = analysis.program.kernels.get(launch.kernel)
            if kernel is not None and _computes(analysis, kernel, [launch.source.text(n) for n in launch.nodes], sent):
                return at, kernel
        if not launches and not any(kind_of(c.name) == "order" for c in inside):
            return None
        at = at.prev_named_sibling
    return None


def _computes(analysis: Analysis, kernel: Function, given: list[str], sent: set[str]) -> bool:
    """Say whether a kernel writes what is sent and reads memory."""
    effects = analysis.flow.effects.effects_of(kernel)
    named = {p.name: text for p, text in zip(kernel.parameters, given, strict=False)}
    written = {named.get(name, "") for name, access in effects.items() if access.writes}
    return bool(written & sent) and any(access.reads for access in effects.values())


def region(source: ParsedSource, call: FunctionCall) -> tuple[Node, Node]:
    """Return the first and last statement of a call: with its group, where it stands in one."""
    first = last = node = statement_of(call.place)
    while True:
        start, end = _group(source, node)
        if start is not None and end is not None:
            return start, end
        loop = enclosing(node.parent, "for_statement", "function_definition", "lambda_expression")
        if loop is None or loop.type != "for_statement":
            return first, last
        node = loop


def _group(source: ParsedSource, node: Node) -> tuple[Node | None, Node | None]:
    """Return the statements that start and end a group beside a statement, if they are there."""
    statement = statement_of(node)
    if statement.parent is None:
        return None, None
    beside = _group_calls(source).get(statement.parent.id, [])
    before = [(s, name) for s, name in beside if s.start_byte < statement.start_byte]
    start = before[-1][0] if before and before[-1][1] == "GroupStart" else None
    ends = (s for s, name in beside if name == "GroupEnd" and s.start_byte > statement.start_byte)
    return start, next(ends, None)


@lru_cache(maxsize=4)
def _group_calls(source: ParsedSource) -> dict[int, list[tuple[Node, str]]]:
    """Return the statements of each block that start or end a group, by the block, in the text's order."""
    found: dict[int, list[tuple[Node, str]]] = {}
    for call in source.calls():
        name = name_of(source, call).removeprefix("nccl")
        statement = enclosing(call, "expression_statement") if name in {"GroupStart", "GroupEnd"} else None
        if statement is not None and statement.parent is not None:
            found.setdefault(statement.parent.id, []).append((statement, name))
    return found


def _rest(source: ParsedSource, last: Node, indent: str) -> str:
    """Return a line break where something follows on the statement's line."""
    follows = source.data[last.end_byte :].split(b"\n", 1)[0].strip()
    return f"\n{indent}" if follows else ""
