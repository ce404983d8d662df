"""EVOLVE-BLOCK markers around what may change in the program itself: where it calls generated collectives.

Initialization and verification stay outside and so frozen; the generated kernels carry markers of their own.
"""

from collections.abc import Sequence

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.feasibility import REPLACED
from gpu_mcp_server.nccl.program_model.markers import EVOLVE_END, EVOLVE_START, blocks
from gpu_mcp_server.nccl.program_model.program import GENERATED, FunctionCall
from gpu_mcp_server.nccl.program_model.syntax import BLOCKS, CALL, ParsedSource, enclosing, name_of, statement_of, walk
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles

COLLECTIVES = frozenset(GENERATED + n for n in (*REPLACED.values(), "Sweep", "Send", "Recv"))


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
    if chosen is None:
        chosen = [c for c in analysis.program.calls if c.full_name in COLLECTIVES]
    for path, source in analysis.program.sources.items():
        known = blocks(source.data.decode("utf-8", "surrogateescape"))
        calls = [c for c in chosen if c.path == path and not c.via_macro]
        seen: set[int] = set()
        for call in calls:
            first, last = region(source, call)
            inside = any(b.first_line <= source.line(first) <= b.last_line for b in known)
            if inside or first.start_byte in seen:
                continue
            seen.add(first.start_byte)
            edits = files.edits_of(path)
            indent = edits.indent(first)
            own_line = source.data[: first.start_byte].rstrip(b" \t").endswith(b"\n")
            edits.insert_before(first, f"{'' if own_line else chr(10) + indent}{EVOLVE_START}\n{indent}")
            edits.insert_after(last, f"\n{indent}{EVOLVE_END}{_rest(source, last, indent)}")
            done.append(f"{path}:{source.line(first)}-{last.end_point[0] + 1} may change")
    return done


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
    start, end = statement.prev_named_sibling, statement.next_named_sibling
    while start is not None and not _calls(source, start, "GroupStart"):
        if _calls(source, start, "GroupEnd") or (start.parent is None or start.parent.type not in BLOCKS):
            return None, None
        start = start.prev_named_sibling
    while end is not None and not _calls(source, end, "GroupEnd"):
        end = end.next_named_sibling
    return start, end


def _calls(source: ParsedSource, statement: Node, name: str) -> bool:
    return statement.type == "expression_statement" and any(
        n.type == CALL and name_of(source, n).removeprefix("nccl") == name for n in walk(statement)
    )


def _rest(source: ParsedSource, last: Node, indent: str) -> str:
    """Return a line break where something follows on the statement's line."""
    follows = source.data[last.end_byte :].split(b"\n", 1)[0].strip()
    return f"\n{indent}" if follows else ""
