"""GIN's signals: each put that must be seen has one, each is waited for, with its value before and its own index."""

import re

from gpu_mcp_server.nccl.checks import gin_puts, gin_waits
from gpu_mcp_server.nccl.checks.expansion import expand_variables, words_of
from gpu_mcp_server.nccl.checks.findings import Finding, error
from gpu_mcp_server.nccl.checks.gin_use import (
    RANKS,
    THREAD_0,
    SignalUse,
    has_signal_by_sender,
    index_text,
    is_named_by_sender,
    is_signalled_by_rank,
    loop_of_peers,
    names_of_ranks,
    replace_rank_names,
    rest_of,
    said_of,
    signal_of,
    use_of_gin,
    uses_of_gin,
    value_text,
)
from gpu_mcp_server.nccl.checks.grids import bound, is_part_of
from gpu_mcp_server.nccl.checks.protocols import OWN, text_below
from gpu_mcp_server.nccl.checks.window_sizes import numbers_of_ranks
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import arguments, enclosing, field, walk

COOP = 9
"""The place of the group of threads among a put's arguments; it is one thread unless given. Source: NCCL 2.32.3."""
_COUNT = re.compile(r"\bginSignalCount\s*=\s*([^;,}]+)")


def findings(program: ProgramModel) -> list[Finding]:
    """Return what is wrong with the signals of kernels that put; kernels with protocols of their own are left out."""
    device = {f.name: f for f in program.functions if f.is_device and not f.is_kernel}
    everything = "\n".join(s.data.decode("utf-8", "replace") for s in program.sources.values())
    found: list[Finding] = []
    for kernel in program.kernels.values():
        use = use_of_gin(kernel)
        below = text_below(kernel, device, program.macros)
        if not use.puts or OWN.search(below):
            continue
        helpers = below.count("Signal") > kernel.source.text(kernel.body).count("Signal")
        if not helpers:
            found += _sent_and_waited(use, everything)
            found += _values(program, use, everything)
            found += _senders(program, use)
        found += _indices(program, use, everything)
        found += _flushed(use, below)
        found += _threads(use)
        found += gin_puts.findings(program, use, everything)
        found += _of_all_threads(program, use) if not helpers else []
    found += gin_waits.findings(program, everything)
    return sorted(set(found + _connections(program, everything)))


def _sent_and_waited(use: SignalUse, everything: str) -> list[Finding]:
    text = use.source.text(use.kernel.body)
    sent = [p for p in use.puts if signal_of(use, p) is not None] or re.search(r"\.signal\s*\(", text)
    others = everything.count("waitSignal") > len(use.waits) or "readSignal" in everything.replace(text, "")
    elsewhere = re.search(r"Signal(?:Inc|Add)|\.signal\s*\(", everything.replace(text, ""))
    if not sent and use.waits and elsewhere is None:
        return [said_of(use, use.waits[0], "waits for a signal that no put sends: it hangs")]
    if not sent and not use.waits and not use.barriers:
        return [said_of(use, use.puts[0], "puts without a signal: the receiver cannot tell when the data is there")]
    if sent and not use.waits and not others:
        return [said_of(use, use.puts[0], "nothing waits for the signal of this put: the data may not be there yet")]
    return []


def _values(program: ProgramModel, use: SignalUse, everything: str) -> list[Finding]:
    """Hold what is waited for against the value before, and against how many puts there are."""
    found: list[Finding] = []
    parameters = {p.name for p in use.kernel.parameters if p.type_text not in {"ncclDevComm", "ncclWindow_t"}}
    for wait in use.waits:
        given = arguments(wait)
        if len(given) < 3:
            continue
        text = value_text(use, given[2])
        if "readSignal" not in text:
            if not words_of(text) & parameters and "resetSignal" not in everything and "[" not in text:
                said = "waits for a number of signals without the value before: a second launch does not wait at all"
                found.append(said_of(use, wait, said))
            continue
        rest = rest_of(text)
        if not rest:
            found.append(said_of(use, wait, "waits for the value that the signal had before: it does not wait at all"))
            continue
        wanted = _counted(use)
        numbers = replace_rank_names(rest, names_of_ranks(program, use.kernel))
        if wanted is not None and re.fullmatch(r"[+\-*]?(?:\d+|nRanks|[+\-*])*", numbers) and numbers != "+nRanks":
            said = f"waits for `before {numbers}` signals, and each of nRanks ranks sends one"
            found.append(said_of(use, wait, said))
        elif has_signal_by_sender(program, use) and re.fullmatch(r"\+(?:[2-9]|\d\d+|nRanks)", numbers):
            said = f"waits for `before {numbers}` signals, and one rank sends one here: it hangs"
            found.append(said_of(use, wait, said))
    found += _other_signal(use)
    first = min((p.start_byte for p in (*use.puts, *use.barriers)), default=0)
    for read in use.reads:
        if read.start_byte > first and enclosing(read, "while_statement", "do_statement") is None:
            said = "reads a signal's value after the first barrier or put: signals of peers may have come by then"
            found.append(said_of(use, read, said))
    return found


def _senders(program: ProgramModel, use: SignalUse) -> list[Finding]:
    """Find signals of single senders that nothing waits for, or that the receiver's number indexes."""
    put_loop = loop_of_peers(program, use)
    wait_loop = enclosing(use.waits[0], "for_statement") if len(use.waits) == 1 else None
    start, condition = (field(wait_loop, n) if wait_loop is not None else None for n in ("initializer", "condition"))
    if put_loop is None or start is None or condition is None:
        return []
    waited = "".join(use.source.text(arguments(use.waits[0])[1]).split())
    first = re.search(r"(\w+)\s*=\s*(.+?)\s*;?$", use.source.text(start))
    if first is None or first.group(1) not in words_of(waited):
        return []
    put, ranks = use.puts[0], names_of_ranks(program, use.kernel)
    action = signal_of(use, put)
    peer = use.source.text_without_space(arguments(put)[1])
    if action is not None and words_of(action) == words_of(peer) and not is_signalled_by_rank(program, use):
        text = (
            f"the signal {action} is the receiver's number: a receiver waits for one of each sender, and gets but one"
        )
        return [said_of(use, put, f"{text}: it hangs")]
    if not is_signalled_by_rank(program, use):
        return []
    begins = use.source.text(field(put_loop, "initializer") or put_loop)
    ends = replace_rank_names(expand_variables(use.source, condition), ranks)
    if (first.group(2) == "1" and not re.search(r"=\s*1\b", begins)) or re.search(r"<nRanks-[1-9]", ends):
        return [said_of(use, use.waits[0], "the loop over senders leaves one out: its data may not be there yet")]
    return []


def _other_signal(use: SignalUse) -> list[Finding]:
    """One put and one wait in a kernel must mean one signal."""
    if len(use.puts) != 1 or len(use.waits) != 1:
        return []
    action, given = signal_of(use, use.puts[0]), arguments(use.waits[0])
    if action is None or len(given) < 2:
        return []
    sent, waited = (
        t.replace("(", "").replace(")", "")
        for t in (index_text(use, use.puts[0], action), expand_variables(use.source, given[1]))
    )
    if re.fullmatch(r".+\.rank", sent) and sent == waited and is_named_by_sender(use):
        return [said_of(use, use.waits[0], "waits at the signal of the own rank, and peers put at that of theirs")]
    if sent == waited or words_of(sent) - {"blockIdx", "x"} or words_of(waited) - {"blockIdx", "x"}:
        return []
    return [said_of(use, use.waits[0], f"waits for signal {waited}, and its puts send signal {sent}")]


def _counted(use: SignalUse) -> int | None:
    """Return how many signals more than the number of ranks a rank gets in a launch; None where it cannot be told."""
    if len(use.puts) != 1 or re.search(r"\.rank\)*$", index_text(use, use.puts[0], signal_of(use, use.puts[0]) or "")):
        return None
    put = use.puts[0]
    loop = enclosing(put, "for_statement")
    condition = field(loop, "condition") if loop is not None else None
    start = field(loop, "initializer") if loop is not None else None
    body = field(loop, "body") if loop is not None else None
    if condition is None or start is None or body is None or loop is None:
        return None
    inside = [n for n in walk(body) if n.type in {"if_statement", "continue_statement"}]
    text = use.source.text_without_space(condition)
    first = re.search(r"=(.*?);?$", use.source.text_without_space(start))
    starts = first.group(1) if first else ""
    if inside or not re.fullmatch(rf"\w+<{RANKS.pattern}", text) or not re.fullmatch(r"0|threadIdx\.x", starts):
        return None
    return 0


def _indices(program: ProgramModel, use: SignalUse, everything: str) -> list[Finding]:
    """Each block that puts to all peers needs a signal of its own, and so many must have been asked for."""
    found: list[Finding] = []
    grids = [bound(program, x.grid or "") for x in program.launches if x.kernel == use.kernel.name]
    grid = max((g for g in grids if g is not None), default=None)
    counts = [bound(program, m) for m in _COUNT.findall(everything)]
    written = ["".join(m.split()) for m in _COUNT.findall(everything)]
    for launch in (x for x in program.launches if x.kernel == use.kernel.name and is_named_by_sender(use)):
        if written and all(is_part_of(w, "".join((launch.grid or "").split())) for w in written):
            said = f"a signal for each of {launch.grid} ranks is used, and {written[0]} are asked for by ginSignalCount"
            found.append(said_of(use, use.puts[0], said))
    if written and is_signalled_by_rank(program, use):
        part = next((n for n in sorted(numbers_of_ranks(program)) if all(is_part_of(w, n) for w in written)), None)
        if part is not None:
            said = f"a signal for each of {part} ranks is used, and {written[0]} are asked for by ginSignalCount"
            found.append(said_of(use, use.puts[0], said))
    for put in use.puts:
        action = signal_of(use, put)
        if action is None or grid is None:
            continue
        index = index_text(use, put, action)
        if re.fullmatch(r"\(*blockIdx\.x\)*", index) and counts and all(c is not None and c < grid for c in counts):
            said = f"{grid} blocks use signals 0 to {grid - 1}, and {counts[0]} are asked for by ginSignalCount"
            found.append(said_of(use, put, said))
        loop = enclosing(put, "for_statement")
        start = field(loop, "initializer") if loop is not None else None
        each = start is not None and "blockIdx" not in expand_variables(use.source, start)
        waited = "".join(expand_variables(use.source, w) for w in use.waits)
        branch = enclosing(put, "if_statement")
        if each and grid > 1 and "blockIdx" not in index and re.fullmatch(r"[\w()]+", index):
            guarded = branch is not None and "blockIdx" in use.source.text(branch)
            if not guarded and "gridDim" not in waited and use.waits and not _is_parameter(use, index):
                said = f"all {grid} blocks put to all peers with signal {index}: a block is woken by another's puts"
                found.append(said_of(use, put, said))
    return found


def _flushed(use: SignalUse, below: str) -> list[Finding]:
    if use.flushes or re.search(r"\bflush\w*\s*\(|waitCounter|while\s*\([^;{]*readCounter|\.wait\s*\(", below):
        return []
    said = "nothing flushes these puts: the source may still be read when the kernel ends and it is written again"
    return [said_of(use, use.puts[0], said)]


def _threads(use: SignalUse) -> list[Finding]:
    """A loop over peers that starts at the thread's number, where only thread 0 goes, reaches one peer alone."""
    found: list[Finding] = []
    for put in use.puts:
        loop = enclosing(put, "for_statement")
        branch = enclosing(loop, "if_statement") if loop is not None else None
        condition = field(branch, "condition") if branch is not None else None
        start, ends = (field(loop, n) if loop is not None else None for n in ("initializer", "condition"))
        if start is None or "threadIdx" not in expand_variables(use.source, start):
            continue
        alone = THREAD_0.fullmatch(expand_variables(use.source, condition)) if condition is not None else None
        parts = re.split(r"&&", expand_variables(use.source, ends)) if ends is not None else []
        if alone or any(THREAD_0.fullmatch(part) for part in parts):
            said = "only thread 0 puts, in a loop that strides over all threads: the other peers get nothing"
            found.append(said_of(use, put, said))
    return found


def _of_all_threads(program: ProgramModel, use: SignalUse) -> list[Finding]:
    """A put that names no group is a thread's own: all threads of a block repeat it where nothing picks one."""
    launches = [x for x in program.launches if x.kernel == use.kernel.name]
    threads = [bound(program, x.block or "") for x in launches]
    text = use.source.text(use.kernel.body)
    if (
        not threads
        or any(t is None or t < 2 for t in threads)
        or re.search(r"threadIdx|[lL]ane|thread_rank|elect", text)
    ):
        return []
    said = "every thread of the block makes this put, and its signal, again: no group of threads is given"
    return [said_of(use, put, said) for put in use.puts if len(arguments(put)) in range(7, COOP + 1)]


def _is_parameter(use: SignalUse, index: str) -> bool:
    return bool(words_of(index) & {p.name for p in use.kernel.parameters})


def _is_new(everything: str) -> bool:
    """Say whether a program is for versions that know ginConnectionType: it needs what came with them, or before."""
    initializer = "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER"
    return "worldGinBarrierCount" in everything or (
        initializer in everything and re.search(rf"#\s*if(?:def|\s+defined).*{initializer}", everything) is None
    )


def _connections(program: ProgramModel, everything: str) -> list[Finding]:
    """From NCCL 2.29.7 on GIN has no connections unless they are asked for."""
    found: list[Finding] = []
    creates = [c for c in program.calls if c.name == "ncclDevCommCreate"]
    uses = any(use_of_gin(k).puts for k in program.kernels.values())
    if not creates or not uses:
        return []
    kinds = re.findall(r"ginConnectionType\s*=\s*(\w+)", everything)
    if kinds and all(k.endswith("_NONE") for k in kinds):
        text = f"kernels put by GIN, and ginConnectionType is {kinds[0]}: there are no connections"
        found.append(error("signals", creates[0].source, creates[0].node, text))
    elif kinds and all(k.endswith("_RAIL") for k in kinds) and _puts_to_world(program):
        text = f"kernels put to ranks of the world, and {kinds[0]} connects those of one rail"
        found.append(error("signals", creates[0].source, creates[0].node, text))
    elif not kinds and "ginForceEnable" not in everything and _is_new(everything):
        text = "kernels put by GIN, and ginConnectionType is not set: there are no connections"
        found.append(error("signals", creates[0].source, creates[0].node, text))
    return found


def _puts_to_world(program: ProgramModel) -> bool:
    for use in uses_of_gin(program).values():
        for put in use.puts:
            given = arguments(put)
            if given and re.search(r"ncclTeam(?:Tag)?World", expand_variables(use.source, given[0])):
                return True
    return False
