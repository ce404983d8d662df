"""The stress build: edits of a program's syntax tree that poison, skew, guard, record, and leave communication out.

What the edits call is in `stress.cuh`. Lines keep their numbers, so that messages of compiler and checker stay true.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as data_field
from importlib import resources

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.barriers import sessions_of
from gpu_mcp_server.nccl.checks.communication import GENERATED, SWEEP, CommunicationSite, plain_name, sites_of
from gpu_mcp_server.nccl.program_model.edits import Edits
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, field, name_of, receiver_of, walk

HEADER = "gmcp_stress.cuh"
RENAMED = {
    "cudaMalloc": "gmcp::cuda_malloc",
    "cudaFree": "gmcp::cuda_free",
    "ncclMemAlloc": "gmcp::nccl_malloc",
    "ncclMemFree": "gmcp::nccl_free",
    "ncclCommInitRank": "gmcp::init_rank",
    "ncclCommDestroy": "gmcp::comm_destroy",
}
WRAPPED = {
    "ncclAlltoAll": "gmcp::all_to_all",
    "ncclAllGather": "gmcp::all_gather",
    "ncclReduceScatter": "gmcp::reduce_scatter",
    "ncclAllReduce": "gmcp::all_reduce",
    "ncclSend": "gmcp::send",
    "ncclRecv": "gmcp::recv",
    SWEEP: "gmcp::sweep",
}
DIFFERENTIAL = frozenset(
    {"ncclAlltoAll", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "ncclReduce"}
    | {"ncclGather", "ncclScatter", "ncclSend"}
)
"""Collectives that the differential program knows; ncclSend stands for a group of sends and receives."""
SAME = {"ncclBcast": "ncclBroadcast", "ncclRecv": "ncclSend", SWEEP: "ncclAlltoAll"}
"""Collectives that one of these stands for."""
LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})


@dataclass(frozen=True)
class Instrumented:
    """A program made ready for stress."""

    files: dict[str, str]
    left_out: list[str] = data_field(default_factory=list[str])
    """What could not be instrumented, and why."""


def instrument_program(program: ProgramModel, kernels: Mapping[str, Function]) -> Instrumented:
    """Return the files of a program with all edits.

    Args:
        program: The program.
        kernels: Its kernels that communicate.
    """
    edits = {path: Edits(source) for path, source in program.sources.items()}
    left_out: list[str] = []
    for call in program.calls:
        if call.path.rpartition("/")[2] in GENERATED:
            continue
        if call.source.path != call.path:
            if call.name in RENAMED or call.name in WRAPPED:
                left_out.append(f"{call.path}:{call.line}: {call.name} is hidden in macro {call.via_macro}")
            continue
        _renamed(edits[call.path], call)
    for site in sites_of(program, dict(kernels)):
        left_out += _site(edits, site)
    for kernel in kernels.values():
        left_out += delay_kernel(edits[kernel.source.path], kernel)
    files: dict[str, str] = {}
    for path, source in program.sources.items():
        if edits[path].edits:
            _included(edits[path], source)
        files[path] = edits[path].apply()
    return Instrumented({**files, HEADER: header()}, sorted(set(left_out)))


def header() -> str:
    """Return the text that every stress build includes."""
    return _data("stress.cuh")


def differential() -> str:
    """Return the program that holds the generated collectives against host NCCL."""
    return _data("differential.cu")


def _data(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _renamed(edits: Edits, call: FunctionCall) -> None:
    callee = field(call.node, "function")
    if callee is None:
        return
    if call.name in RENAMED and callee.type == "identifier":
        edits.replace(callee, RENAMED[call.name])
    elif plain_name(call) == "mem_alloc" and call.nodes:
        name = call.source.text(callee)
        edits.replace(callee, "gmcp::allocated")
        edits.insert_before(call.nodes[0], f"[&](auto... given) {{ return {name}(given...); }}, ")
    elif plain_name(call) == "buf_free" and call.nodes:
        edits.insert_before(call.node, f"(gmcp::leaving({call.arguments[0]}), ")
        edits.insert_after(call.node, ")")


def _site(edits: dict[str, Edits], site: CommunicationSite) -> list[str]:
    call, where = site.call, f"{site.call.path}:{site.call.line}"
    if call.source.path != call.path:
        return [f"{where}: hidden in macro {call.via_macro}"]
    own = edits[call.path]
    left: list[str] = []
    callee = field(call.node, "function")
    if site.kind == "kernel":
        name = launch_name(call)
        nothing = "(void)0" if name is not None else "cudaSuccess"
        own.insert_before(call.node, f'(gmcp::at("{name or call.name} {where}"), gmcp::silent() ? {nothing} : ')
        own.insert_after(call.node, ")")
    elif site.collective in WRAPPED and callee is not None and call.via_pointer is None:
        name = call.source.text(callee)
        call_it = (
            f'{WRAPPED[site.collective]}([&](auto... given) {{ gmcp::at("{name} {where}"); return {name}(given...); }}'
        )
        own.replace(callee, call_it.split("(", 1)[0])
        listed = field(call.node, "arguments")
        if listed is not None and listed.named_children:
            own.insert_before(listed.named_children[0], call_it.split("(", 1)[1] + ", ")
    else:
        left.append(f"{where}: {site.collective} is neither poisoned nor left out")
    if not _skewed(own, call):
        left.append(f"{where}: in no loop, so ranks are not skewed ahead of it")
    return left


def launch_name(call: FunctionCall) -> str | None:
    """Return the kernel's name where a call is `kernel<<<...>>>(...)`, which has no value; None for library calls."""
    return call.name if any(c.type == "kernel_call_syntax" for c in call.node.children) else None


def _skewed(edits: Edits, call: FunctionCall) -> bool:
    """Skew at the start of the outermost loop around a site, once a loop."""
    loop: Node | None = None
    parent = call.node.parent
    while parent is not None and parent.type != "function_definition":
        loop = parent if parent.type in LOOPS else loop
        parent = parent.parent
    body = field(loop, "body") if loop is not None else None
    if body is None:
        return False
    text = " { static int gmcp_turn = 0; gmcp::skew(gmcp_turn++); } "
    known = {(e.start, e.text) for e in edits.edits}
    if body.type == "compound_statement":
        brace = body.children[0]
        if (brace.end_byte, text) not in known:
            edits.insert_after(brace, text)
    elif (body.start_byte, "{" + text) not in known:
        edits.insert_before(body, "{" + text)
        edits.insert_after(body, " }")
    return True


def delay_kernel(edits: Edits, kernel: Function) -> list[str]:
    """Make a kernel late after its first barrier, and let it say which barrier it passed last."""
    source, sessions = kernel.source, sessions_of(kernel.source, kernel.body)
    rank = next((p.name for p in kernel.parameters if p.type_text == "ncclDevComm"), "")
    passed = [
        n
        for n in walk(kernel.body)
        if n.type == CALL and (receiver_of(source, n) or "") in sessions and name_of(source, n) in {"sync", "wait"}
    ]
    if not passed or not rank:
        why = (
            "its barrier is in a helper"
            if rank and "BarrierSession" in source.text(kernel.node)
            else "it has no barrier"
        )
        return [f"{source.path}:{kernel.line}: {kernel.name} is not made late, {why}"]
    for number, call in enumerate(passed):
        statement = _own_statement(call)
        if statement is None:
            return [f"{source.path}:{kernel.line}: {kernel.name} is not made late, its barrier is no statement"]
        lateness = f" gmcp::late({rank}.lsaRank);" if number == 0 else ""
        edits.insert_before(statement, "{ ")
        edits.insert_after(statement, f" gmcp::passed({source.line(call)});{lateness} }}")
    return []


def _own_statement(call: Node) -> Node | None:
    parent = call.parent
    return parent if parent is not None and parent.type == "expression_statement" else None


def _included(edits: Edits, source: ParsedSource) -> None:
    includes = [n for n in source.root.named_children if n.type == "preproc_include"]
    name = source.path.replace("\\", "/")
    text = f'#include "{HEADER}"\n'
    if includes and source.path.rpartition("/")[2] not in GENERATED:
        line = includes[-1].end_point[0] + 1
        edits.insert_after(includes[-1], f'{text}#line {line} "{name}"\n')
    else:
        first = source.root.children[0] if source.root.children else source.root
        edits.insert_before(first, f'{text}#line {source.line(first)} "{name}"\n')


def used_collectives(program: ProgramModel) -> list[str]:
    """Return the collectives that a program calls through the generated block, for the differential program."""
    names = {SAME.get(s.collective, s.collective) for s in sites_of(program, {}) if s.kind == "wrapper"}
    return sorted(names & DIFFERENTIAL)
