"""Collects a kernel's use of GIN: puts, waits, values read before, counters and shadows of signals."""

import re
from dataclasses import dataclass, field
from itertools import chain

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.barriers import gins_of
from gpu_mcp_server.nccl.checks.expansion import expand_variables, words_of
from gpu_mcp_server.nccl.checks.findings import Finding, error
from gpu_mcp_server.nccl.checks.window_sizes import numbers_of_ranks
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    ParsedSource,
    arguments,
    enclosing,
    name_of,
    receiver_of,
    walk,
)
from gpu_mcp_server.nccl.program_model.syntax import field as child

LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")
RANKS = re.compile(r"[\w.>()\-]*\bnRanks")
THREAD_0 = re.compile(r"\(?(?:threadIdx\.x==0|!threadIdx\.x|0==threadIdx\.x)\)?")
_ACTION = re.compile(r"Signal(?:Inc|Add)\w*\s*[{(]\s*(?:\(\w+\)\s*)?([^{},()]+(?:\([^()]*\))?)")
KEPT = {
    "put": "puts",
    "putValue": "puts",
    "waitSignal": "waits",
    "readSignal": "reads",
    "flush": "flushes",
    "flushAsync": "flushes",
    "waitCounter": "counter_waits",
    "increaseSignalShadow": "raises",
    "waitSignalMeetShadow": "meets",
}
"""Calls of a GIN context by where they are kept. Source: nccl_device/gin.h of NCCL 2.32.3."""


@dataclass
class SignalUse:
    """GIN calls in one kernel's own body."""

    kernel: Function
    puts: list[Node] = field(default_factory=list[Node])
    waits: list[Node] = field(default_factory=list[Node])
    reads: list[Node] = field(default_factory=list[Node])
    flushes: list[Node] = field(default_factory=list[Node])
    counter_waits: list[Node] = field(default_factory=list[Node])
    raises: list[Node] = field(default_factory=list[Node])
    """Increments of a signal's shadow by the number of signals to come."""
    meets: list[Node] = field(default_factory=list[Node])
    """Waits until a signal has come up to its shadow."""
    barriers: list[Node] = field(default_factory=list[Node])

    @property
    def source(self) -> ParsedSource:
        """The kernel's file."""
        return self.kernel.source


def use_of_gin(kernel: Function) -> SignalUse:
    """Return what a kernel does with GIN in its own body."""
    source, gins = kernel.source, gins_of(kernel.source, kernel.body)
    use = SignalUse(kernel)
    for node in walk(kernel.body):
        if node.type != CALL:
            continue
        name, receiver = name_of(source, node), receiver_of(source, node)
        if receiver in gins and name in KEPT:
            getattr(use, KEPT[name]).append(node)
        elif receiver not in gins and name in {"sync", "wait"} and receiver is not None:
            use.barriers.append(node)
    return use


def signal_of(use: SignalUse, put: Node) -> str | None:
    """Return the index of the signal that a put raises, as written; None where it raises none."""
    match = _ACTION.search(use.source.text(put))
    return match.group(1).strip() if match else None


def index_text(use: SignalUse, put: Node, action: str) -> str:
    """Return the index of a put's signal with local variables replaced by their values."""
    node = next(
        (n for n in walk(put) if n.type in {"identifier", "field_expression"} and use.source.text(n) == action), None
    )
    return expand_variables(use.source, node) if node is not None else "".join(action.split())


def said_of(use: SignalUse, node: Node, text: str) -> Finding:
    """Return an error about a kernel's signals."""
    return error("signals", use.source, node, f"{use.kernel.name}: {text}")


def value_text(use: SignalUse, node: Node) -> str:
    """Return the awaited value, with each variable and array element replaced by the value read into it."""
    text = expand_variables(use.source, node)
    for made in walk(use.kernel.body):
        left, right = (
            (child(made, n) for n in ("left", "right")) if made.type == "assignment_expression" else (None, None)
        )
        if left is None or right is None or not re.search(r"\bread(?:Signal|Counter)\b", use.source.text(right)):
            continue
        name = re.match(r"\w+", use.source.text(left))
        if name is not None:
            value = use.source.text_without_space(right)
            text = re.sub(rf"\b{name.group(0)}\b(?:\[[^\[\]]*\])?", lambda _, v=value: v, text)
    return text


def rest_of(text: str) -> str:
    """Return what stands beside the value before in a sum: `+1` of `gin.readSignal(i)+1`."""
    rest = re.sub(r"\(*\w+\.read(?:Signal|Counter)\((?:[^()]|\([^()]*\))*\)\)*", "", text, count=1)
    return rest if rest.strip("()") else ""


def names_of_ranks(program: ProgramModel, kernel: Function) -> set[str]:
    """Return a kernel's parameters that every launch gives the number of ranks."""
    known = numbers_of_ranks(program)
    given = [x for x in program.launches if x.kernel == kernel.name]
    return {
        p.name
        for number, p in enumerate(kernel.parameters)
        if given and all(number < len(x.nodes) and x.source.text(x.nodes[number]) in known for x in given)
    }


def replace_rank_names(text: str, names: set[str]) -> str:
    """Return a text with each name of the number of ranks replaced by `nRanks`, without brackets."""
    text = RANKS.sub("nRanks", text)
    for name in names:
        text = re.sub(rf"\b{re.escape(name)}\b", "nRanks", text)
    return re.sub(r"[()]", "", text)


def is_named_by_sender(use: SignalUse) -> bool:
    """Say whether each rank puts once, to the peer of a block's number, at a signal of the sender's rank."""
    if len(use.puts) != 1 or enclosing(use.puts[0], *LOOPS) is not None:
        return False
    put = use.puts[0]
    index, given = index_text(use, put, signal_of(use, put) or ""), arguments(put)
    peer = expand_variables(use.source, given[1]).strip("()") if len(given) > 1 else ""
    return re.search(r"\.rank\)*$", index) is not None and peer == "blockIdx.x"


def loop_of_peers(program: ProgramModel, use: SignalUse) -> Node | None:
    """Return the `for` in which a kernel's only put takes each rank in turn as its peer."""
    loop = enclosing(use.puts[0], "for_statement") if len(use.puts) == 1 else None
    start, condition = (child(loop, n) if loop is not None else None for n in ("initializer", "condition"))
    given = arguments(use.puts[0]) if loop is not None else []
    if start is None or condition is None or len(given) < 2:
        return None
    name = re.search(r"(\w+)\s*=[^=]", use.source.text(start))
    ends = replace_rank_names(expand_variables(use.source, condition), names_of_ranks(program, use.kernel))
    whole = name is not None and ends == f"{name.group(1)}<nRanks"
    return loop if whole and name is not None and name.group(1) in words_of(use.source.text(given[1])) else None


def has_signal_by_sender(program: ProgramModel, use: SignalUse) -> bool:
    """Say whether a rank gets one signal from each other, at the sender's own index."""
    return is_named_by_sender(use) or is_signalled_by_rank(program, use)


def is_signalled_by_rank(program: ProgramModel, use: SignalUse) -> bool:
    """Say whether each rank puts once to every peer, at a signal of the sender's rank."""
    if len(use.puts) != 1:
        return False
    index = index_text(use, use.puts[0], signal_of(use, use.puts[0]) or "")
    return re.search(r"\.rank\)*$", index) is not None and loop_of_peers(program, use) is not None


def uses_of_gin(program: ProgramModel) -> dict[str, SignalUse]:
    """Return the kernels that use GIN in their own body, by name."""
    found = {name: use_of_gin(kernel) for name, kernel in program.kernels.items()}
    return {n: u for n, u in found.items() if any(chain(u.puts, u.waits, u.meets, u.raises, u.counter_waits))}
