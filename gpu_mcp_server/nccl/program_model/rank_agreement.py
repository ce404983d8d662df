"""Rules on which all ranks must agree: calls made, their count, type, operation and root, and sizes of windows.

NCCL leaves it undefined otherwise: it hangs, or is wrong without a word (nccl.h, and NVIDIA/nccl#1417).
"""

import re
from itertools import product

from gpu_mcp_server.nccl.program_model.api_names import COMM_SPLIT, ONE_SIDED, POINT_TO_POINT, ROLES, plain_collective
from gpu_mcp_server.nccl.program_model.memory_model import Allocation
from gpu_mcp_server.nccl.program_model.rank_dependence import (
    condition_dependence,
    event_dependence,
    loop_dependence,
    rank_dependence,
)
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import Condition, Expression, TraceEvent

AGREED = ("count", "type", "op", "root")
SWEEP = ("send", "recv", "count", "type", "peers", "comm", "stream")
"""Arguments of the generated exchange with all peers."""
MOST_TESTS = 5
"""Tests of the rank whose outcomes are combined."""


def roles_of(event: TraceEvent) -> tuple[str, ...]:
    """Return what the arguments of a collective are, written for the host or for the generated block."""
    name = event.call.name if event.call is not None else ""
    return SWEEP if event.kind == "wrapper" and name == "Sweep" else ROLES.get(name) or ROLES.get("nccl" + name, ())


def is_collective(event: TraceEvent) -> bool:
    """Say whether all ranks must make a call: not so a send, a receive or a put."""
    if event.call is None or event.kind not in {"collective", "wrapper"}:
        return False
    return plain_collective(event.call.name).removeprefix("nccl") not in {
        n.removeprefix("nccl") for n in (*POINT_TO_POINT, *ONE_SIDED)
    }


def disagreements(trace: Trace, event: TraceEvent) -> list[str]:
    """Return in what the ranks differ at a collective; empty where nothing says that they do."""
    call = event.call
    if call is None or not is_collective(event):
        return []
    found: list[str] = []
    for role, node in zip(roles_of(event), call.nodes, strict=False):
        why = rank_dependence(Expression(call.source, node, event.frame)) if role in AGREED else None
        if why is not None:
            text = " ".join(call.source.text(node).split())
            found.append(f"its {role} {text} depends on the rank ({why}), and NCCL demands one {role} on all ranks")
    loop = loop_dependence(event)
    if loop is not None and not _has_own_communicator(trace, event):
        found.append(
            f"it stands in a loop whose turns depend on the rank ({loop}): all ranks must call it equally often"
        )
    under = event_dependence(event)
    if under is not None and not _is_made_by_all(trace, event) and not _has_own_communicator(trace, event):
        one_call = not _has_counterpart(trace, event)
        demand = "make the call" if one_call else "make the same calls in one order, and equally often"
        found.append(f"it stands under `{under[0]}`, which depends on the rank ({under[1]}): all ranks must {demand}")
    return found


def allocation_disagreements(trace: Trace, made: Allocation) -> list[str]:
    """Return why a window over an allocation would not be the same on all ranks."""
    found: list[str] = []
    why = rank_dependence(made.expression) if made.expression is not None else None
    if why is not None:
        found.append(
            f"{made.place}: its size {made.bytes} depends on the rank ({why}); windows need one size on all ranks"
        )
    under = event_dependence(made.event)
    own = under is None or _has_counterpart(trace, made.event) or _has_own_communicator(trace, made.event)
    if under is not None and not own:
        found.append(
            f"{made.place}: allocated under `{under[0]}`, which depends on the rank ({under[1]}); windows are for all"
        )
    return found


def _is_made_by_all(trace: Trace, event: TraceEvent) -> bool:
    """Say whether the ranks make the same calls in one order, whatever a test of the rank around this one tells.

    Tests of the rank are taken apart by their text, so that `if (x) ... if (!x) ...` is one test. Other tests, and a
    loop's number of turns where it is written as a number, are part of a call.
    """
    if not _tests(event):
        return _has_counterpart(trace, event)
    own = {text for text, _ in _tests(event)}
    calls = [e for e in trace.events if is_collective(e)]
    calls = [e for e in calls if not _tests(e) or own & {text for text, _ in _tests(e)}]
    texts = sorted({text for e in calls for text, _ in _tests(e)})
    if len(texts) > MOST_TESTS:
        return False
    made: set[tuple[object, ...]] = set()
    for outcome in product((True, False), repeat=len(texts)):
        holds = dict(zip(texts, outcome, strict=True))
        made.add(tuple(_call(e) for e in calls if all(holds[text] == taken for text, taken in _tests(e))))
    return len(made) == 1


def _tests(event: TraceEvent) -> list[tuple[str, bool]]:
    """Return the tests of the rank around an event, each with the outcome that leads to it."""
    return [_plain(c) for c in event.conditions if condition_dependence(c) is not None]


def _call(event: TraceEvent) -> tuple[object, ...]:
    """Return what all ranks must have in common of a call: its name, the other tests around it, turns of its loops."""
    name = plain_collective(event.call.name) if event.call is not None else ""
    others = tuple(_plain(c) for c in event.conditions if condition_dependence(c) is None)
    turns = tuple(re.findall(r"[<>]=?\s*(\d+)\b", loop.header) for loop in event.loops)
    return name, others, tuple(bounds[0] if len(bounds) == 1 else "" for bounds in turns)


def _plain(condition: Condition) -> tuple[str, bool]:
    """Return a test without its negations, and the outcome that leads on."""
    text, taken = re.sub(r"\s+", "", condition.text), condition.taken
    negated = re.fullmatch(r"not\((.*)\)", text)
    if negated is not None:  # the text of a branch that is taken where the test fails
        text = negated[1]
    while (inner := re.fullmatch(r"!\((.*)\)|!(\w+)|\(([^()]*)\)", text)) is not None:
        taken = taken if inner[3] else not taken
        text = inner[1] or inner[2] or inner[3]
    if "&&" not in text and "||" not in text and text.count("!=") == 1:
        return text.replace("!=", "=="), not taken
    return (f"{text}==0", not taken) if re.fullmatch(r"\w+(?:%\w+)?", text) else (text, taken)


def _has_counterpart(trace: Trace, event: TraceEvent) -> bool:
    """Say whether the other side of each of an event's branches does the same."""
    name = plain_collective(event.call.name) if event.call is not None else ""
    target = _first_argument(event) if event.kind == "alloc" else ""
    for other in trace.events:
        if other.call is None or other.kind != event.kind or plain_collective(other.call.name) != name:
            continue
        sides = {c.key: c.taken for c in other.conditions}
        opposite = any(c.key in sides and sides[c.key] != c.taken for c in event.conditions)
        if opposite and (not target or _first_argument(other) == target):
            return True
    return False


def _first_argument(event: TraceEvent) -> str:
    call = event.call
    return call.source.text_without_space(call.nodes[0]) if call is not None and call.nodes else ""


def _has_own_communicator(trace: Trace, event: TraceEvent) -> bool:
    """Say whether a communicator may hold just the ranks that come here: split off, or made under the condition."""
    keys = {(c.key, c.taken) for c in event.conditions}
    inits = [e for e in trace.events if e.kind == "comm_init" and e.call is not None]
    return (
        any(
            (e.call is not None and e.call.name in COMM_SPLIT) or keys & {(c.key, c.taken) for c in e.conditions}
            for e in inits
        )
        or len({e.call.place.start_byte for e in inits if e.call is not None}) > 1
    )
