"""Barrier count against grid: a kernel of n blocks opens n barriers, and NCCL makes as many as were required."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.barriers import Session, sessions_of
from gpu_mcp_server.nccl.checks.findings import Finding, error, note
from gpu_mcp_server.nccl.functions import Function
from gpu_mcp_server.nccl.launches import Launch
from gpu_mcp_server.nccl.program import Program
from gpu_mcp_server.nccl.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.syntax import CALL, Source, arguments, field, name_of, walk

COUNTS = {
    "ncclLsaBarrierSession": ("lsaBarrierCount",),
    "ncclGinBarrierSession": ("worldGinBarrierCount", "railGinBarrierCount"),
    "ncclBarrierSession": ("barrierCount", "lsaBarrierCount"),
}
"""Which requirement makes the barriers of a session. Source: ncclDevCommRequirements, NCCL 2.28.9 to 2.32.3."""
_MIN = re.compile(r"(?:std::)?min(?:<[^<>]*>)?\s*\((.*)\)\s*$", re.DOTALL)


def findings(program: Program, kernels: dict[str, Function]) -> list[Finding]:
    """Return the launches that open more barriers than there are.

    Args:
        program: The program.
        kernels: Its kernels that communicate.
    """
    found: list[Finding] = []
    creates = any(c.name == "ncclDevCommCreate" for c in program.calls)
    counts = _required(program)
    for launch in program.launches:
        kernel = kernels.get(launch.kernel)
        if kernel is None:
            continue
        for session in sessions_of(kernel.source, kernel.body).values():
            found += _launched(program, launch, session, counts, creates)
    return sorted(set(found))


def _required(program: Program) -> dict[str, list[tuple[Source, Node]]]:
    """Return what is assigned to each count, wherever that is."""
    names = {n for listed in COUNTS.values() for n in listed}
    found: dict[str, list[tuple[Source, Node]]] = {}
    for source in program.sources.values():
        for node in walk(source.root):
            left = value = None
            if node.type == "assignment_expression":
                left, value = field(node, "left"), field(node, "right")
                left = field(left, "field") if left is not None and left.type == "field_expression" else None
            elif node.type == "initializer_pair":
                left, value = field(node, "designator"), field(node, "value")
            name = source.text(left).lstrip(".") if left is not None else ""
            if name in names and value is not None:
                found.setdefault(name, []).append((source, value))
    return found


def _launched(
    program: Program, launch: Launch, session: Session, counts: dict[str, list[tuple[Source, Node]]], creates: bool
) -> list[Finding]:
    wanted = COUNTS.get(session.kind, ())
    given = [pair for name in wanted for pair in counts.get(name, [])]
    title = f"{launch.kernel}<<<{launch.grid}>>>"
    if not given:
        if not creates:
            return []
        text = f"{title}: its session needs {' or '.join(wanted)}, and no such count is required of ncclDevCommCreate"
        return [error("barrier count", launch.source, launch.node, text)]
    grid = blocks_of(program, launch, session)
    fixed = program.fold(session.index)
    if fixed is not None and grid is not None and grid > 1 and session.coop in {"", "CoopCta"}:
        text = f"{title}: all {grid} blocks open barrier {fixed}; each needs its own, such as blockIdx.x"
        return [error("barrier count", launch.source, launch.node, text)]
    found: list[Finding] = []
    for source, node in given:
        made = [v for v in (bound(program, t) for t in alternatives(source, node)) if v is not None]
        if grid is not None and made:
            if grid > min(made):
                text = (
                    f"{title}: {grid} blocks need as many barriers, {min(made)} are required (line {source.line(node)})"
                )
                found.append(error("barrier count", launch.source, launch.node, text + ": it hangs"))
        elif "".join((launch.grid or "").split()) != source.squeezed(node):
            text = f"{title}: not comparable with the barrier count `{source.text(node)}`"
            found.append(note("barrier count", launch.source, launch.node, text))
    return found


def blocks_of(program: Program, launch: Launch, session: Session) -> int | None:
    """Return the most blocks of a launch that open a barrier of their own, None when it is not known."""
    text = launch.grid or ""
    node = _grid_node(launch)
    if node is not None and node.type == "identifier" and program.fold(text) is None:
        made = declaration_of(launch.source, node)
        value = initializer_of(made) if made is not None else None
        if value is not None:
            text = launch.source.text(value)
            text = f"dim3{text}" if value.type == "argument_list" else text
    x_only = re.fullmatch(r"blockIdx\.x", session.index.strip()) is not None
    parts = re.fullmatch(r"dim3\s*[({](.*)[)}]", text.strip(), re.DOTALL)
    if parts and x_only:
        text = _first(parts.group(1))
    return bound(program, text)


def bound(program: Program, text: str) -> int | None:
    """Return the value of an expression, or what it cannot exceed: `min(n, 128)` is at most 128."""
    value = program.fold(text)
    if value is not None:
        return value
    smallest = _MIN.match(text.strip())
    if smallest is None:
        return None
    known = [v for v in (bound(program, part) for part in _split(smallest.group(1))) if v is not None]
    return min(known, default=None)


def alternatives(source: Source, node: Node) -> list[str]:
    """Return the texts that an expression may be: both branches of `a ? b : c`."""
    if node.type != "conditional_expression":
        return [source.text(node)]
    branches = [b for b in (field(node, "consequence"), field(node, "alternative")) if b is not None]
    return [text for branch in branches for text in alternatives(source, branch)]


def _grid_node(launch: Launch) -> Node | None:
    configuration = next((c for c in launch.node.children if c.type == "kernel_call_syntax"), None)
    if configuration is not None:
        return next((c for c in configuration.named_children if c.type != "comment"), None)
    if launch.node.type == CALL and name_of(launch.source, launch.node).startswith("cudaLaunchKernel"):
        given = arguments(launch.node)
        return given[1] if len(given) > 4 else None
    return None


def _first(text: str) -> str:
    return _split(text)[0] if text.strip() else "1"


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
