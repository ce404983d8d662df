"""Barriers of a kernel: how they are declared, which order they have, what a path has seen of them."""

import re
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import declared_identifier
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, arguments, field, walk

SESSION = re.compile(r"^nccl(?:Lsa|Gin)?BarrierSession\b")
GIN = re.compile(r"^ncclGin(?:_\w+)?$")
RELEASING, ACQUIRING = frozenset({"release", "acq_rel", "seq_cst"}), frozenset({"acquire", "acq_rel", "seq_cst"})
_ORDER = re.compile(r"memory_order(?:_|::)(relaxed|acquire|release|acq_rel|seq_cst|consume)\b")


@dataclass(frozen=True)
class BarrierSession:
    """A barrier session of a kernel."""

    name: str
    node: Node
    kind: str
    """Its class."""
    coop: str
    """Who takes part on each rank: the class without `nccl`."""
    index: str
    """Which barrier it opens, as an expression."""
    team: str
    """Lsa, World, Rail or nothing that is known."""


@dataclass(frozen=True)
class PathState:
    """Barriers and accesses that a path has seen so far."""

    synced: bool = False
    """A barrier was passed."""
    dirty: bool = False
    """Memory of peers was touched since."""
    arrived: bool = False
    """Arrived at a barrier without waiting for it yet."""
    acquired: bool = False
    """The last barrier acquires."""
    order: str = ""
    """Of the last barrier."""
    line: int = 0
    """Of the last barrier."""
    assumed: frozenset[tuple[str, bool]] = frozenset()
    """Conditions that hold or do not hold on this path."""


def sessions_of(source: ParsedSource, body: Node) -> dict[str, BarrierSession]:
    """Return the barrier sessions that a function declares, by name."""
    found: dict[str, BarrierSession] = {}
    for node in walk(body):
        kind = field(node, "type") if node.type == "declaration" else None
        if kind is None or not SESSION.match(source.text(kind).rpartition("::")[2]):
            continue
        for declarator in node.named_children:
            name = declared_identifier(declarator) if declarator != kind else None
            if name is not None:
                found[source.text(name)] = _session(source, node, kind, declarator, source.text(name))
    return found


def gins_of(source: ParsedSource, body: Node) -> frozenset[str]:
    """Return the names of GIN contexts that a function declares."""
    found: set[str] = set()
    for node in walk(body):
        kind = field(node, "type") if node.type == "declaration" else None
        if kind is not None and GIN.match(source.text(kind)):
            found |= {
                source.text(n)
                for n in (declared_identifier(c) for c in node.named_children if c != kind)
                if n is not None
            }
    return frozenset(found)


def order_of(source: ParsedSource, call: Node) -> str:
    """Return the memory order that a barrier is called with; nothing when it cannot be read."""
    found = _ORDER.search(" ".join(source.text(a) for a in arguments(call)))
    return found.group(1) if found else ""


def _session(source: ParsedSource, node: Node, kind: Node, declarator: Node, name: str) -> BarrierSession:
    listed = field(declarator, "value") or field(declarator, "parameters")
    given = [source.text(c) for c in listed.named_children if c.type != "comment"] if listed is not None else []
    text = source.text(kind)
    coop = re.search(r"nccl(Coop\w+)", text) or re.search(r"nccl(Coop\w+)", " ".join(given))
    team = re.search(r"ncclTeam(?:Tag)?(Lsa|World|Rail)", " ".join(given))
    index = next((g for g in reversed(given) if g not in {"true", "false"} and not g.startswith("ncclGin")), "")
    title = text.partition("<")[0].rpartition("::")[2]
    return BarrierSession(name, node, title, coop.group(1) if coop else "", index, team.group(1) if team else "")
