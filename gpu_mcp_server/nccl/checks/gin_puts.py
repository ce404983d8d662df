"""GIN's puts: how often each is made, which peers get one, where each block's share goes, what counts them at home."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.expansion import expand_variables, words_of
from gpu_mcp_server.nccl.checks.findings import Finding, error
from gpu_mcp_server.nccl.checks.gin_use import (
    RANKS,
    THREAD_0,
    SignalUse,
    loop_of_peers,
    names_of_ranks,
    replace_rank_names,
    rest_of,
    said_of,
    value_text,
)
from gpu_mcp_server.nccl.checks.grids import bound
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import arguments, enclosing, field

WARP = 32
LEAST = 7
"""Arguments of a put up to its size; what follows are actions and the group of threads."""
_WARP = re.compile(r"threadIdx\.x(?:/32|>>5|/warpSize)")
_LANE = re.compile(r"threadIdx\.x(?:%32|&31|%warpSize)|[lL]ane|thread_rank|elect")
_BEYOND = re.compile(r"%(?:nRanks|[\w.>-]*lsaSize)-\d+$")
_COUNTED = re.compile(r"CounterInc\s*[{(]")


def findings(program: ProgramModel, use: SignalUse, everything: str) -> list[Finding]:
    """Return findings on the puts of one kernel.

    Args:
        program: The program.
        use: What the kernel does with GIN.
        everything: All files' text.
    """
    found: list[Finding] = []
    for put in use.puts:
        given = arguments(put)
        if len(given) < LEAST:
            continue
        found += _repeated(program, use, put)
        found += _peers(use, put)
        found += _shares(program, use, put)
    return found + _counters(program, use, everything)


def _threads(program: ProgramModel, use: SignalUse) -> int | None:
    """Return the fewest threads that a launch gives each block."""
    launches = [x for x in program.launches if x.kernel == use.kernel.name]
    known = [bound(program, x.block or "") for x in launches]
    return min((k for k in known if k is not None), default=None) if known and None not in known else None


def _guards(use: SignalUse, put: Node) -> str:
    """Return the conditions around a put, variables replaced."""
    found, branch = "", enclosing(put, "if_statement")
    while branch is not None:
        condition = field(branch, "condition")
        found += expand_variables(use.source, condition) + " " if condition is not None else ""
        branch = enclosing(branch.parent, "if_statement")
    return found


def _own_loop(use: SignalUse, put: Node) -> str:
    """Return the heads of the loops around a put, variables replaced."""
    found, loop = "", enclosing(put, "for_statement")
    while loop is not None:
        heads = (field(loop, n) for n in ("initializer", "condition", "update"))
        found += " ".join(expand_variables(use.source, h) for h in heads if h is not None) + " "
        loop = enclosing(loop.parent, "for_statement")
    return found


def _repeated(program: ProgramModel, use: SignalUse, put: Node) -> list[Finding]:
    """Find data of a warp that each lane puts, and data of a block that each warp puts."""
    threads = _threads(program, use)
    given, around = arguments(put), _guards(use, put) + _own_loop(use, put)
    where = around + " ".join(expand_variables(use.source, g) for g in given[1:LEAST])
    group = " ".join(use.source.text(g) for g in given[LEAST:])
    if threads is None or threads < 2 or re.search(r"ncclCoopCta|cooperative|[cC]oop\b", group):
        return []
    by_warp = "ncclCoopWarp" in group or "ncclCoopTile<32>" in group
    if not by_warp and _WARP.search(where) and not _LANE.search(where):
        only = re.sub(_WARP, "", where)
        if "threadIdx" not in only:
            return [said_of(use, put, "every lane of a warp makes this put, and its signal, again: give ncclCoopWarp")]
    if by_warp and threads > WARP and "threadIdx" not in where and not re.search(r"[wW]arp", where):
        return [said_of(use, put, "every warp of the block makes this put, and its signal, again")]
    return []


def _peers(use: SignalUse, put: Node) -> list[Finding]:
    """The last rank must be a peer, and each thread that stands for one must get to the put."""
    peer = expand_variables(use.source, arguments(put)[1])
    if _BEYOND.search(replace_rank_names(peer, set())):
        return [said_of(use, put, f"the peer `{peer}` is never the last rank: it gets nothing")]
    guard = _guards(use, put).strip()
    if "threadIdx.x" in peer and THREAD_0.fullmatch(guard) and enclosing(put, "for_statement") is None:
        return [said_of(use, put, "only thread 0 puts, and each thread stands for a peer: the others get nothing")]
    return []


def _shares(program: ProgramModel, use: SignalUse, put: Node) -> list[Finding]:
    """Blocks that send shares of a part: each to its own place, and none larger than a share."""
    texts = [expand_variables(use.source, arguments(put)[n]) for n in (3, 5, 6)]
    there, here, size = texts
    grids = [bound(program, x.grid or "") for x in program.launches if x.kernel == use.kernel.name]
    if not grids or max((g for g in grids if g is not None), default=1) < 2 or "blockIdx" in _guards(use, put):
        return []
    if ("blockIdx" in there) != ("blockIdx" in here):
        lost = use.source.text(arguments(put)[3 if "blockIdx" in here else 5])
        return [said_of(use, put, f"each block puts a share of its own, and the offset `{lost}` is the same for all")]
    step = re.search(r"blockIdx\.x\*(\(.*\)|\w+)", there)
    whole = size.strip("()")
    if step is not None and re.match(rf"\(*{re.escape(whole)}\)*/", step.group(1)):
        return [said_of(use, put, f"each block puts `{whole}` from its share on: beyond the end of the part")]
    return []


def _counters(program: ProgramModel, use: SignalUse, everything: str) -> list[Finding]:
    """Find waits for local completion without the counter's earlier value, or for another number of puts."""
    counted = [p for p in use.puts if _COUNTED.search(use.source.text(p))]
    if not counted:
        return []
    found: list[Finding] = []
    creates = [c for c in program.calls if c.name == "ncclDevCommCreate"]
    if creates and "ginCounterCount" not in everything:
        text = f"{use.kernel.name} counts its puts, and no ginCounterCount is asked for"
        found.append(error("signals", creates[0].source, creates[0].node, text))
    for wait in use.counter_waits:
        given = arguments(wait)
        text = value_text(use, given[2]) if len(given) > 2 else ""
        if not text or "readCounter" not in text:
            unknown = (
                words_of(text) - {"nRanks"} - names_of_ranks(program, use.kernel) - words_of("world team all comm")
            )
            if text and not unknown and "resetCounter" not in everything:
                said = "waits for a number of puts without the value before: a second launch does not wait at all"
                found.append(said_of(use, wait, said))
            continue
        rest = replace_rank_names(rest_of(text), names_of_ranks(program, use.kernel))
        if loop_of_peers(program, use) is not None and RANKS.search(rest) and rest != "+nRanks":
            found.append(said_of(use, wait, f"waits for `before {rest}` puts, and nRanks are made: it hangs"))
    return found
