"""Kernels that wait for what another kernel puts, and shadows of signals, which say how many have come before."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.expansion import expand_variables
from gpu_mcp_server.nccl.checks.findings import Finding, error
from gpu_mcp_server.nccl.checks.gin_use import (
    LOOPS,
    SignalUse,
    index_text,
    loop_of_peers,
    names_of_ranks,
    replace_rank_names,
    said_of,
    signal_of,
    uses_of_gin,
)
from gpu_mcp_server.nccl.checks.grids import bound
from gpu_mcp_server.nccl.program_model.launches import KernelLaunch
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import arguments, enclosing, field

_BLOCK = re.compile(r"\(*blockIdx\.x\)*")
_ORDERS = re.compile(r"cudaStreamWaitEvent|cuda(?:Stream|Device|Event)Synchronize")
_SHADOW = re.compile(r"\b(?:increaseSignalShadow|getSignalShadowPtr|waitSignalFollowShadow)\b")


def findings(program: ProgramModel, everything: str) -> list[Finding]:
    """Return findings between kernels that put and kernels that only wait.

    Args:
        program: The program.
        everything: All files' text.
    """
    uses = uses_of_gin(program)
    putting = [u for u in uses.values() if u.puts]
    waiting = [u for u in uses.values() if not u.puts and (u.waits or u.meets)]
    found = [f for u in uses.values() for f in _shadows(program, u, putting, everything)]
    for use in waiting:
        if len(putting) == 1:
            found += _pair(program, putting[0], use, everything)
    return found


def _pair(program: ProgramModel, put: SignalUse, wait: SignalUse, everything: str) -> list[Finding]:
    """Hold the launches of a kernel that waits against those of the one that puts."""
    sent = any(signal_of(put, p) is not None for p in put.puts) or re.search(r"\.signal\s*\(", everything)
    if not sent:
        return [said_of(wait, (wait.waits + wait.meets)[0], "waits for a signal that no put sends: it hangs")]
    puts, waits = (_launches(program, u) for u in (put, wait))
    if puts and not waits:
        text = f"{wait.kernel.name}, which waits for its signals, is never launched: the data may not be there yet"
        return [said_of(put, put.puts[0], text)]
    if len(puts) != 1 or len(waits) != 1 or puts[0].source is not waits[0].source:
        return []
    return [*_order(puts[0], waits[0], wait), *_blocks(program, put, wait, puts[0], waits[0])]


def _launches(program: ProgramModel, use: SignalUse) -> list[KernelLaunch]:
    return [x for x in program.launches if x.kernel == use.kernel.name]


def _order(put: KernelLaunch, wait: KernelLaunch, use: SignalUse) -> list[Finding]:
    """A kernel that waits comes behind the one that puts, where the same stream or an event makes its users wait."""
    if enclosing(put.node, *LOOPS) != enclosing(wait.node, *LOOPS):
        return []
    name, text = use.kernel.name, put.source.data.decode("utf-8", "replace")
    if wait.node.start_byte < put.node.start_byte and wait.stream == put.stream:
        said = f"{name} waits for signals of {put.kernel}, which is launched behind it on the same stream: it hangs"
        return [error("signals", wait.source, wait.node, said)]
    between = text[put.node.end_byte :]
    loop = enclosing(wait.node, *LOOPS)
    between = put.source.text(loop) if loop is not None else between
    if wait.stream != put.stream and not _ORDERS.search(between):
        said = f"{name} waits on another stream than {put.kernel}: what reads the data behind that does not wait"
        return [error("streams", wait.source, wait.node, said)]
    return []


def _blocks(
    program: ProgramModel, put: SignalUse, wait: SignalUse, sent: KernelLaunch, met: KernelLaunch
) -> list[Finding]:
    """Find signals numbered by block where fewer or more blocks wait than put."""
    raised = {index_text(put, p, signal_of(put, p) or "") for p in put.puts}
    awaited = {expand_variables(wait.source, arguments(w)[1]) for w in wait.waits + wait.meets if len(arguments(w)) > 1}
    blocks = [bound(program, x.grid or "") for x in (sent, met)]
    if not all(_BLOCK.fullmatch(i) for i in raised) or None in blocks or not awaited:
        return []
    if all(_BLOCK.fullmatch(i) for i in awaited) and (blocks[1] or 0) < (blocks[0] or 0):
        said = f"{blocks[0]} blocks put, each with a signal of its own, and {blocks[1]} wait"
        return [error("signals", met.source, met.node, f"{wait.kernel.name}: {said}: some data may not be there yet")]
    if all(re.fullmatch(r"\d+", i) for i in awaited) and len(awaited) < (blocks[0] or 0):
        said = f"{blocks[0]} blocks put, each with a signal of its own, and only {', '.join(awaited)} is waited for"
        return [error("signals", met.source, met.node, f"{wait.kernel.name}: {said}")]
    return []


def _shadows(program: ProgramModel, use: SignalUse, putting: list[SignalUse], everything: str) -> list[Finding]:
    """A shadow is raised once a block, by what comes, at the signal that is met."""
    if use.meets and not use.raises:
        if _SHADOW.search(everything):
            return []
        return [said_of(use, use.meets[0], "the signal's shadow is never raised: nothing is waited for")]
    found: list[Finding] = []
    for raised in use.raises:
        given = arguments(raised)
        if len(given) < 2:
            continue
        if _is_by_every_thread(program, use, raised):
            found.append(said_of(use, raised, "every thread raises the signal's shadow: it is beyond what comes"))
        index = expand_variables(use.source, given[0])
        met = [expand_variables(use.source, arguments(m)[1]) for m in use.meets if len(arguments(m)) > 1]
        if len(use.raises) == 1 and met and index not in met:
            found.append(
                said_of(use, use.meets[0], f"meets the shadow of signal {met[0]}, and that of {index} is raised")
            )
        count = replace_rank_names(expand_variables(use.source, given[1]), names_of_ranks(program, use.kernel))
        if len(putting) == 1 and re.fullmatch(r"\d+|nRanks[+-]\d+", count) and _puts_to_each(program, putting[0]):
            said = f"raises the shadow by {count}, and each of nRanks ranks sends one signal"
            found.append(said_of(use, raised, said))
    return found


def _is_by_every_thread(program: ProgramModel, use: SignalUse, call: Node) -> bool:
    branch = enclosing(call, "if_statement")
    condition = field(branch, "condition") if branch is not None else None
    guarded = condition is not None and "threadIdx" in expand_variables(use.source, condition)
    threads = [bound(program, x.block or "") for x in _launches(program, use)]
    text = use.source.text(use.kernel.body)
    picked = guarded or re.search(r"\breturn\b|thread_rank|elect|[lL]ane", text)
    return bool(threads) and all(t is not None and t > 1 for t in threads) and not picked


def _puts_to_each(program: ProgramModel, use: SignalUse) -> bool:
    """Say whether each rank puts once to every rank: in a loop, or a thread a peer."""
    if len(use.puts) != 1:
        return False
    put = use.puts[0]
    branch = enclosing(put, "if_statement")
    condition = field(branch, "condition") if branch is not None else None
    ranks = names_of_ranks(program, use.kernel)
    text = replace_rank_names(expand_variables(use.source, condition), ranks) if condition is not None else ""
    by_threads = text == "threadIdx.x<nRanks" and "threadIdx.x" in expand_variables(use.source, arguments(put)[1])
    return by_threads or (loop_of_peers(program, use) is not None and branch is None)
