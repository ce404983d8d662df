"""Sizes of windows against the memory under them: a factor that one lacks is a block, or bytes."""

import re
from collections import Counter

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.expansion import expand_variables, factors_of
from gpu_mcp_server.nccl.checks.findings import Finding, error
from gpu_mcp_server.nccl.checks.origins import allocations_of, origins
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel


def findings(program: ProgramModel) -> list[Finding]:
    """Hold a window's size against its memory's: a factor that one lacks is a block, or bytes."""
    found: list[Finding] = []
    allocations = allocations_of(program)
    ranks = numbers_of_ranks(program)
    for call in program.calls:
        if call.name != "ncclCommWindowRegister" or len(call.nodes) < 5:
            continue
        window = _factors(call, call.nodes[2])
        for origin in origins(program, call.source, call.nodes[1], call.function):
            made = [a for a in allocations if a.target == origin.text and a.call.function is origin.function]
            if len(made) != 1 or made[0].size is None or origin.offset:
                continue
            memory = _factors(made[0].call, made[0].size)
            divided = re.fullmatch(r"(.+)/\(?(\w+)\)?", expand_variables(call.source, call.nodes[2]))
            if memory is not None and divided and divided.group(2) in ranks:
                whole = factors_of(divided.group(1))
                if whole is not None and Counter(whole) == memory:
                    text = (
                        f"the window over {origin.text} is a {divided.group(2)}th of its memory; peers write beyond it"
                    )
                    found.append(error("offsets", call.source, call.node, text))
            if window is None or memory is None or window == memory:
                continue
            found += _compared(call, origin.text, window, memory, ranks)
    return found


def _compared(
    call: FunctionCall, name: str, window: Counter[str], memory: Counter[str], ranks: set[str]
) -> list[Finding]:
    less, more = memory - window, window - memory
    if more and not less:
        text = f"the window over {name} is {'*'.join(more)} times larger than its memory"
    elif less and not more and any("sizeof" in f or f in ranks for f in less):
        what = "; its size is in bytes" if any("sizeof" in f for f in less) else "; peers write beyond it"
        text = f"the window over {name} lacks the factor {'*'.join(less)} of its memory{what}"
    else:
        return []
    return [error("offsets", call.source, call.node, text)]


def numbers_of_ranks(program: ProgramModel) -> set[str]:
    """Return the names that hold the number of ranks: what makes communicators, or is told by them."""
    found = {"nRanks", "nranks", "size", "world_size", "n", "ranks"}
    for call in program.calls:
        which = {"MPI_Comm_size": 1, "ncclCommCount": 1, "ncclCommInitRank": 1, "ncclCommInitAll": 1}.get(call.name)
        if which is not None and which < len(call.nodes):
            found.add(call.source.text(call.nodes[which]).removeprefix("&").strip())
    return found


def _factors(call: FunctionCall, node: Node) -> Counter[str] | None:
    found = factors_of(expand_variables(call.source, node))
    return Counter(found) if found is not None else None
