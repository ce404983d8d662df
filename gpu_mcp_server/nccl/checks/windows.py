"""Memory of windows: where it comes from, how it is aligned, how and by whom it is registered."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.checks import taint
from gpu_mcp_server.nccl.checks.findings import Finding, error, note
from gpu_mcp_server.nccl.checks.grids import alternatives
from gpu_mcp_server.nccl.checks.origins import AllocationCall, Origin, allocations_of, origins
from gpu_mcp_server.nccl.program_model.api_names import POINTER_GETTERS
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, enclosing, field, walk

ALIGNMENT_BYTES = 4096
"""Source: NCCL_WIN_REQUIRED_ALIGNMENT, nccl.h 2.28.9; measured: `Window address must be suitably aligned.`"""
REGISTER, CREATE = "ncclCommWindowRegister", "ncclDevCommCreate"
SYMMETRIC = "NCCL_WIN_COLL_SYMMETRIC"
LOOPS = ("for_statement", "for_range_loop", "while_statement", "do_statement")
_RANK = re.compile(r"\b(?:my|world|local|global)?_?(?:rank|rk|myrank)\b", re.IGNORECASE)


def findings(program: ProgramModel) -> list[Finding]:
    """Return what is wrong with the windows and device communicators of a program."""
    allocations = allocations_of(program)
    found: list[Finding] = []
    for call in program.calls:
        if call.name not in {REGISTER, CREATE}:
            continue
        found += _collective(call, any(c.name == "ncclCommInitAll" for c in program.calls))
        if call.name == REGISTER and len(call.nodes) > 4:
            found += _memory(program, call, allocations)
            for flags in alternatives(call.source, call.nodes[4]):
                if SYMMETRIC not in flags and program.constants.get(flags.strip(), "") != SYMMETRIC:
                    if _is_parameter(call, flags):
                        text = f"whether the window flag {flags} is {SYMMETRIC} depends on the callers: not understood"
                        found.append(note("windows", call.source, call.node, text))
                        continue
                    text = f"window flag {flags} is not {SYMMETRIC}: peers' addresses are only promised for that"
                    if _is_for_puts(program):
                        found.append(note("windows", call.source, call.node, f"not understood: {text}; puts need none"))
                    else:
                        found.append(error("windows", call.source, call.node, text))
    return sorted(set(found + _twice(program, allocations)))


def _twice(program: ProgramModel, allocations: list[AllocationCall]) -> list[Finding]:
    """Return a second window over a memory, where another of ncclMemAlloc's has none."""
    seen: dict[str, FunctionCall] = {}
    found: list[Finding] = []
    calls = [c for c in program.calls if c.name == REGISTER and len(c.nodes) > 4]
    named = {c.source.text_without_space(c.nodes[1]) for c in calls}
    bare = [a.target for a in allocations if a.kind == "nccl" and a.target not in named]
    for call in calls:
        within = call.function.line if call.function is not None else 0
        key = f"{call.path} {within} {call.arguments[0]} {''.join(call.arguments[1].split())}"
        if key in seen and bare and all(a.call.path == call.path for a in allocations):
            first = f"line {seen[key].line} has the first"
            said = f"a second window over {call.arguments[1]} ({first}), and none over {bare[0]}"
            found.append(error("windows", call.source, call.node, said))
        seen.setdefault(key, call)
    return found


def _memory(program: ProgramModel, call: FunctionCall, allocations: list[AllocationCall]) -> list[Finding]:
    found: list[Finding] = []
    for origin in origins(program, call.source, call.nodes[1], call.function):
        made = [a for a in allocations if a.target == origin.text]
        own = [a for a in made if a.call.function is origin.function] or made
        wrong = [a for a in own if a.kind != "nccl"]
        if not own:
            text = f"the memory of the window over {origin.text} could not be traced to its allocation"
            found.append(note("windows", call.source, call.node, text))
        for allocation in wrong:
            path = "" if len(wrong) == len(own) else "on one path "
            text = (
                f"window over {origin.text}, {path}from {allocation.call.name} (line {allocation.call.line}): only "
                "memory of ncclMemAlloc can be registered"
            )
            if path and any(a.call.name == "ncclMemAlloc" for a in own):
                found.append(note("windows", call.source, call.node, f"not understood: {text}; is that path taken?"))
            else:
                found.append(error("windows", call.source, call.node, text))
        found += _offset(program, call, origin)
        found += _size(program, call, origin, [a for a in own if a.kind == "nccl"])
    return found


def _offset(program: ProgramModel, call: FunctionCall, origin: Origin) -> list[Finding]:
    if not origin.offset:
        return []
    value = program.fold(origin.offset)
    if value is None:
        text = (
            f"the window starts {origin.offset} into {origin.text}: that must be a multiple of {ALIGNMENT_BYTES} bytes"
        )
        return [note("windows", call.source, call.node, text)]
    if value % ALIGNMENT_BYTES:
        text = f"the window starts {value} into {origin.text}, which is no multiple of {ALIGNMENT_BYTES} bytes"
        return [error("windows", call.source, call.node, text)]
    return []


def _size(program: ProgramModel, call: FunctionCall, origin: Origin, made: list[AllocationCall]) -> list[Finding]:
    wanted = program.fold(call.arguments[2])
    for allocation in made:
        size = allocation.call.source.text(allocation.size) if allocation.size is not None else ""
        there = program.fold(size)
        larger = wanted is not None and there is not None and wanted > there
        added = _added("".join(call.arguments[2].split()), "".join(size.split()))
        if larger or added:
            text = f"the window over {origin.text} has {call.arguments[2]} bytes, its memory only {size}"
            return [error("windows", call.source, call.node, text)]
    return []


def _added(window: str, memory: str) -> bool:
    """Say whether a window's size is written as the memory's size and something more."""
    return bool(re.fullmatch(re.escape(memory) + r"\+[1-9]\w*", window)) if memory else False


def _is_for_puts(program: ProgramModel) -> bool:
    """Say whether a window may serve GIN alone: kernels here use it, or none here has a pointer into a window."""
    texts = [s.data for s in program.sources.values()]
    has_pointers = any(getter.encode() in text for text in texts for getter in POINTER_GETTERS)
    return not has_pointers or any(b"ncclGin " in text or b"ncclGin{" in text for text in texts)


def _is_parameter(call: FunctionCall, name: str) -> bool:
    return call.function is not None and any(p.name == name.strip() for p in call.function.parameters)


def _collective(call: FunctionCall, one_thread: bool) -> list[Finding]:
    """Every rank must make the call, in the same order; one thread with several communicators in a group."""
    found: list[Finding] = []
    for condition in _conditions(call.node):
        text = call.source.text(condition)
        if _RANK.search(text) or "rank" in taint.dependences(call.source, condition, {}):
            said = f"{call.name} under `{text[:60]}`: it is collective, every rank must call it in the same order"
            found.append(error("windows", call.source, call.node, said))
    loop = enclosing(call.place, *LOOPS)
    variable = _loop_variable(call.source, loop) if loop is not None and call.source.path == call.path else ""
    own = call.arguments[0] if call.arguments else ""
    if variable and re.search(rf"\b{re.escape(variable)}\b", own) and not _grouped(call):
        said = f"{call.name} for {own} in a loop outside ncclGroupStart and ncclGroupEnd"
        if one_thread:
            found.append(error("windows", call.source, call.node, f"{said}: the first one never returns"))
        else:
            text = f"not understood: {said}, which hangs where the communicators are of several ranks of one thread"
            found.append(note("windows", call.source, call.node, text))
    return found


def _conditions(node: Node) -> list[Node]:
    found: list[Node] = []
    child, parent = node, node.parent
    while parent is not None and parent.type != "function_definition":
        if parent.type == "if_statement":
            condition = field(parent, "condition")
            if condition is not None and condition != child:
                found.append(condition)
        child, parent = parent, parent.parent
    return found


def _loop_variable(source: ParsedSource, loop: Node) -> str:
    made = field(loop, "initializer") if loop.type == "for_statement" else None
    if made is None:
        return ""
    return next((source.text(n) for n in walk(made) if n.type == "identifier"), "")


def _grouped(call: FunctionCall) -> bool:
    """Say whether more groups were started than ended before a call, in its function."""
    body = enclosing(call.place, "function_definition")
    if body is None:
        return False
    opened = 0
    for node in walk(body):
        if node.start_byte >= call.place.start_byte:
            break
        if node.type == "identifier":
            name = call.source.text(node)
            opened += (name == "ncclGroupStart") - (name == "ncclGroupEnd")
    return opened > 0
