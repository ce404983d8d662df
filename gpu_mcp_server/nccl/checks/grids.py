"""Barrier count against grid: a kernel of n blocks opens n barriers, and NCCL makes as many as were required."""

import math
import re

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.barriers import BarrierSession, sessions_of
from gpu_mcp_server.nccl.checks.findings import Finding, Severity
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.launches import KernelLaunch
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.rank_dependence import is_rank_count
from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, arguments, field, name_of, walk

DEPTH = 4
"""Helper functions within helper functions."""
COUNTS = {
    "ncclLsaBarrierSession": ("lsaBarrierCount",),
    "ncclGinBarrierSession": ("worldGinBarrierCount", "railGinBarrierCount"),
    "ncclBarrierSession": ("barrierCount", "lsaBarrierCount"),
}
"""Which requirement makes the barriers of a session. Source: ncclDevCommRequirements, NCCL 2.28.9 to 2.32.3."""
_MIN = re.compile(r"(?:std::)?min(?:<[^<>]*>)?\s*\((.*)\)\s*$", re.DOTALL)


def findings(program: ProgramModel, kernels: dict[str, Function]) -> list[Finding]:
    """Return the launches that open more barriers than there are.

    Args:
        program: The program.
        kernels: Its kernels that communicate.
    """
    found: list[Finding] = []
    creates = any(c.name == "ncclDevCommCreate" for c in program.calls)
    counts = _required(program)
    for call in program.calls:
        launch = program.launch_of(call)
        kernel = kernels.get(launch.kernel) if launch is not None else None
        if launch is None or kernel is None:
            continue
        for session in sessions_of(kernel.source, kernel.body).values():
            said = _launched(program, launch, session, counts, creates)
            found += [Finding(call.path, call.line, "barrier count", severity, text) for severity, text in said]
    return sorted(set(found))


def _required(program: ProgramModel) -> dict[str, list[tuple[ParsedSource, Node]]]:
    """Return what is assigned to each count, wherever that is."""
    names = {n for listed in COUNTS.values() for n in listed}
    found: dict[str, list[tuple[ParsedSource, Node]]] = {}
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
    program: ProgramModel,
    launch: KernelLaunch,
    session: BarrierSession,
    counts: dict[str, list[tuple[ParsedSource, Node]]],
    creates: bool,
) -> list[tuple[Severity, str]]:
    wanted = COUNTS.get(session.kind, ())
    given = [pair for name in wanted for pair in counts.get(name, [])]
    title = f"{launch.kernel}<<<{launch.grid}>>>"
    if not given:
        missing = (
            f"{title}: its session needs {' or '.join(wanted)}, and no such count is required of ncclDevCommCreate"
        )
        return [("error", missing)] if creates else []
    grid = blocks_of(program, launch, session)
    fixed = program.fold(session.index)
    if fixed is not None and grid is not None and grid > 1 and session.coop in {"", "CoopCta"}:
        return [("error", f"{title}: all {grid} blocks open barrier {fixed}; each needs its own, such as blockIdx.x")]
    if grid != 1 and re.search(r"\b(?:lsaRank|rank)\b", session.index) and "blockIdx" not in session.index:
        return [("error", f"{title}: barrier {session.index} follows from the rank: ranks meet at no common barrier")]
    found: list[tuple[Severity, str]] = []
    for source, node in given:
        made = [v for v in (bound(program, t) for t in alternatives(source, node)) if v is not None]
        if grid is not None and made:
            if grid > min(made):
                need = f"{grid} blocks need as many barriers, {min(made)} are required (line {source.line(node)})"
                found.append(("error", f"{title}: {need}: it hangs"))
        elif (
            grid is None and min(made, default=0) == 1 and is_rank_count(launch.source, launch.node, launch.grid or "")
        ):
            need = f"as many blocks as ranks need as many barriers, 1 is required (line {source.line(node)})"
            found.append(("error", f"{title}: {need}: it hangs"))
        elif is_part_of(source.text_without_space(node), "".join((launch.grid or "").split())):
            need = f"{launch.grid} blocks need as many barriers, {source.text(node)} are required"
            found.append(("error", f"{title}: {need} (line {source.line(node)}): it hangs"))
        elif "".join((launch.grid or "").split()) != source.text_without_space(node):
            found.append(("note", f"{title}: not comparable with the barrier count `{source.text(node)}`"))
    return found


def is_part_of(count: str, grid: str) -> bool:
    """Say whether a count is written as a part of the grid: `blocks / 2` or `blocks - 1` of `blocks`."""
    return bool(re.fullmatch(r"\w+", grid) and re.fullmatch(rf"{grid}(?:/[2-9]\d*|-[1-9]\d*|>>[1-9])", count))


def blocks_of(program: ProgramModel, launch: KernelLaunch, session: BarrierSession) -> int | None:
    """Return the most blocks of a launch that open a barrier of their own, None when it is not known."""
    node = _grid_node(launch)
    if node is None:
        return bound(program, launch.grid or "")
    x_only = re.fullmatch(r"blockIdx\.x", session.index.strip()) is not None
    return upper_bound(program, launch.source, node, x_only)


def upper_bound(
    program: ProgramModel, source: ParsedSource, node: Node, x_only: bool, depth: int = DEPTH
) -> int | None:
    """Return what an expression cannot exceed: through variables, helper functions, `?:` and min."""
    text = source.text(node).strip()
    parts = re.fullmatch(r"dim3\s*[({](.*)[)}]", text, re.DOTALL)
    value = bound(program, _first(parts.group(1)) if parts and x_only else text)
    if value is not None or not depth:
        return value
    if node.type == "identifier":
        made = declaration_of(source, node)
        start = initializer_of(made) if made is not None else None
        if start is None:
            return None
        if start.type in {"argument_list", "initializer_list"}:
            given = [c for c in start.named_children if c.type != "comment"]
            values = [upper_bound(program, source, c, x_only, depth - 1) for c in (given[:1] if x_only else given)]
            return _product(values)
        return upper_bound(program, source, start, x_only, depth - 1)
    if node.type == "conditional_expression":
        branches = [b for b in (field(node, "consequence"), field(node, "alternative")) if b is not None]
        return _greatest([upper_bound(program, source, b, x_only, depth - 1) for b in branches])
    if node.type == CALL:
        called = program.by_name.get(name_of(source, node), [])
        returns = [(f, r.named_children[0]) for f in called for r in walk(f.body) if _returns(r)]
        return _greatest([upper_bound(program, f.source, r, x_only, depth - 1) for f, r in returns])
    return None


def _returns(node: Node) -> bool:
    return node.type == "return_statement" and bool(node.named_children)


def _greatest(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return max(known) if known and len(known) == len(values) else None


def _product(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return math.prod(known) if len(known) == len(values) else None


def bound(program: ProgramModel, text: str) -> int | None:
    """Return the value of an expression, or what it cannot exceed: `min(n, 128)` is at most 128."""
    value = program.fold(text)
    if value is not None:
        return value
    smallest = _MIN.match(text.strip())
    if smallest is None:
        return None
    known = [v for v in (bound(program, part) for part in _split(smallest.group(1))) if v is not None]
    return min(known, default=None)


def alternatives(source: ParsedSource, node: Node) -> list[str]:
    """Return the texts that an expression may be: both branches of `a ? b : c`."""
    if node.type != "conditional_expression":
        return [source.text(node)]
    branches = [b for b in (field(node, "consequence"), field(node, "alternative")) if b is not None]
    return [text for branch in branches for text in alternatives(source, branch)]


def _grid_node(launch: KernelLaunch) -> Node | None:
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
