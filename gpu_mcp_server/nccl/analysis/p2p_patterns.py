"""Sends and receives, recognised as what they are together."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_mcp_server.nccl.program_model.api_names import POINT_TO_POINT, ROLES
from gpu_mcp_server.nccl.program_model.pointer_resolution import PointerResolver
from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.trace_events import Expression, TraceEvent

_NEXT = re.compile(r"\(?(\w*rank\w*|\w*[Rr]ank\w*|me|my\w*|i|r|dev)\+1\)?%")
_PREVIOUS = re.compile(r"\((\w+)-1\+\w+\)%|\((\w+)\+\w+-1\)%|\(?\w+-1\)?%|\(\w+\+\(?\w+-1\)?\)%")
_WRAP = re.compile(r"\?.*:")


@dataclass(frozen=True)
class P2pOperation:
    """One send or receive."""

    event: TraceEvent
    role: str
    peer: str
    """The peer's expression, local names replaced by what they were set to."""
    own_peer: str
    offset: str
    count: str


@dataclass(frozen=True)
class Pattern:
    """Pattern that a set of sends and receives forms."""

    name: str
    why: str
    sent: tuple[P2pOperation, ...]
    grouped: bool


def patterns(events: Sequence[TraceEvent], places: PointerResolver) -> list[Pattern]:
    """Return the patterns of a program's sends and receives: one a group, one a function outside groups."""
    together: dict[tuple[object, ...], list[TraceEvent]] = {}
    seen: set[tuple[object, ...]] = set()
    for event in events:
        call = event.call
        if event.kind != "collective" or call is None or call.name not in POINT_TO_POINT:
            continue
        place = (call.path, call.place.start_byte, call.node.start_byte, event.frame.entry)
        if place in seen:
            continue
        seen.add(place)
        function = event.frame.function
        key = (event.group,) if event.group is not None else ("alone", id(function))
        together.setdefault(key, []).append(event)
    return [_pattern(tuple(_sent(e, places) for e in group), group[0].group is not None) for group in together.values()]


def _sent(event: TraceEvent, places: PointerResolver) -> P2pOperation:
    call = event.call
    assert call is not None
    given = dict(zip(ROLES[call.name], call.nodes, strict=False))
    role = "send" if call.name == "ncclSend" else "recv"
    refs = places.value(Expression(call.source, given[role], event.frame)) if role in given else []
    text = call.source.text_without_space
    peer = Expression(call.source, given["peer"], event.frame) if "peer" in given else None
    return P2pOperation(
        event,
        role,
        _spelled(peer, places) if peer else "",
        text(peer.node) if peer else "",
        "".join((refs[0].offset or "").split()) if refs else "",
        text(given["count"]) if "count" in given else "",
    )


def _spelled(peer: Expression, places: PointerResolver) -> str:
    """Return a peer's expression, a variable replaced by its initializer and a parameter by its argument."""
    node = peer.node
    if node.type == "identifier":
        made = declaration_of(peer.source, node)
        start = initializer_of(made) if made is not None else None
        in_loop = made is not None and made.scope.type == "for_statement"
        if start is not None and not in_loop:
            return peer.source.text_without_space(start)
        return "".join(places.spell_expression(peer).split())
    return peer.source.text_without_space(node)


def loop_variable(event: TraceEvent) -> str | None:
    """Return the variable of the innermost loop, as its header declares it."""
    if not event.loops:
        return None
    match = re.match(r"for\s*\(\s*(?:[\w:]+\s+)*(\w+)\s*=", event.loops[-1].header)
    return match.group(1) if match else None


def _pattern(sent: tuple[P2pOperation, ...], grouped: bool) -> Pattern:
    name, why = _named(sent, grouped)
    return Pattern(name, why, sent, grouped)


def _named(sent: tuple[P2pOperation, ...], grouped: bool) -> tuple[str, str]:
    sends, receives = [s for s in sent if s.role == "send"], [s for s in sent if s.role == "recv"]
    if not sends or not receives:
        one = "sends" if sends else "receives"
        return "point-to-point", f"only {one} here; the other half is elsewhere"
    if any("^" in s.peer for s in sent):
        return "hypercube", f"the peer is {sent[0].peer}"
    swept = _swept(sends, receives)
    if swept is not None:
        return swept
    conditional = [any("rank" in c.text.lower() or "==" in c.text for c in s.event.conditions) for s in sent]
    if not grouped and all(conditional):
        return "ping-pong", "sends and receives stand outside a group and depend on the rank"
    if any(conditional) and any(_follows_loop(s) for s in sent):
        many = "gather" if any(_follows_loop(s) for s in receives) else "scatter"
        return many, "one rank exchanges with each, under a condition on the rank"
    if len(sends) >= 2 and len(receives) >= 2 and len({s.peer for s in sends}) >= 2:
        return "halo", f"{len(sends)} sends and {len(receives)} receives with different neighbours"
    return _single(sends, receives)


def _swept(sends: list[P2pOperation], receives: list[P2pOperation]) -> tuple[str, str] | None:
    """Recognise a loop over all peers that sends and receives a part each."""
    variable = loop_variable(sends[0].event)
    if variable is None or len(sends) != 1 or len(receives) != 1 or loop_variable(receives[0].event) != variable:
        return None
    word = re.compile(rf"\b{variable}\b")
    if any(_is_next(s.peer) or _is_previous(s.peer) for s in (*sends, *receives)):
        return None
    if not all(word.search(s.own_peer) or word.search(s.peer) for s in (*sends, *receives)):
        return None
    one, other = sends[0], receives[0]
    if word.search(one.count) or word.search(other.count) or _by_table(one, variable) or _by_table(other, variable):
        return "all-to-all-v", f"a loop over peers with a count or an offset of its own for each {variable}"
    if {c.key for c in one.event.conditions} != {c.key for c in other.event.conditions}:
        return "all-to-all-v", "a loop over peers in which some parts may be left out"
    if word.search(one.offset) and word.search(other.offset):
        return (
            "all-to-all",
            f"a loop over all peers exchanges part {variable} with peer {variable}",
        )
    if word.search(other.offset):
        return "all-gather", f"a loop over all peers sends the same buffer to each and receives part {variable}"
    return "point-to-point", "a loop over peers whose parts do not follow the peer"


def _follows_loop(sent: P2pOperation) -> bool:
    variable = loop_variable(sent.event)
    return variable is not None and re.search(rf"\b{variable}\b", sent.own_peer) is not None


def _by_table(sent: P2pOperation, variable: str) -> bool:
    return bool(re.search(rf"\w+\[[^\]]*\b{variable}\b", sent.offset))


def _single(sends: list[P2pOperation], receives: list[P2pOperation]) -> tuple[str, str]:
    to, of = sends[0].peer, receives[0].peer
    if to == of:
        return "pairwise", f"sends to and receives from {to}"
    forward, back = _is_next(to), _is_previous(of)
    if (forward and back) or (_is_next(of) and _is_previous(to)):
        return "ring", f"sends to {to}, receives from {of}"
    return "point-to-point", f"sends to {to}, receives from {of}"


def _is_next(peer: str) -> bool:
    return bool(_NEXT.search(peer)) or "next" in peer.lower() or (_WRAP.search(peer) is not None and "+1" in peer)


def _is_previous(peer: str) -> bool:
    return bool(_PREVIOUS.search(peer)) or "prev" in peer.lower() or (_WRAP.search(peer) is not None and "-1" in peer)
