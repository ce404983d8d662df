"""Walks the paths of a kernel: are there barriers around every access to peers, and do all threads reach them?"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from dataclasses import field as data_field

from tree_sitter import Node

from gpu_mcp_server.nccl.checks import taint
from gpu_mcp_server.nccl.checks.barriers import ACQUIRING, RELEASING, PathState, gins_of, order_of, sessions_of
from gpu_mcp_server.nccl.checks.findings import Finding, Rule, Severity
from gpu_mcp_server.nccl.checks.peer_accesses import (
    is_array_of_pointers,
    is_collective_call,
    is_gin,
    is_signalled,
    use_of,
    writes,
)
from gpu_mcp_server.nccl.checks.taint import NOTHING, Dependence, Names
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    PREPROCESSOR,
    ParsedSource,
    arguments,
    field,
    is_inactive,
    name_of,
    receiver_of,
)

DEPTH = 4
"""Device functions within device functions are followed so far."""
MOST_POINTS = 64
"""Paths that differ; beyond it what was assumed on them is forgotten."""
BARRIER_CALLS = frozenset({"sync", "arrive", "wait"})
LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})
Points = frozenset[PathState]
NO_PATH: Points = frozenset()


@dataclass
class PathFrame:
    """A function while it is walked."""

    function: Function
    sessions: dict[str, str]
    """Name to coop."""
    gins: frozenset[str]
    depends: Names
    assigned: frozenset[str]
    depth: int = 0
    peers: set[str] = data_field(default_factory=set[str])
    arrays: set[str] = data_field(default_factory=set[str])
    passed: dict[int, set[int]] = data_field(default_factory=dict[int, set[int]])
    """By call: the arguments that point into peers' memory."""
    returned: set[PathState] = data_field(default_factory=set[PathState])


class KernelPaths:
    """All paths of one kernel."""

    def __init__(self, kernel: Function, device: dict[str, Function], pointers: frozenset[str]) -> None:
        """Prepare.

        Args:
            kernel: Where the paths begin.
            device: Device functions that are followed, by name.
            pointers: Calls that yield a pointer into a peer's memory.
        """
        self.kernel, self._device, self._pointers = kernel, device, pointers
        self.findings: set[Finding] = set()
        self.accesses = 0
        self.barriers = 0
        self._conditions: list[tuple[frozenset[Dependence], str]] = []
        self._left: list[tuple[frozenset[Dependence], str, int]] = []

    def run(self, assumed: frozenset[tuple[str, bool]] = frozenset()) -> list[Finding]:
        """Walk it; `assumed` are conditions that are known, as from template arguments."""
        frame = self._frame(self.kernel, {}, {}, frozenset(), 0)
        ends = self._walk(frame, self.kernel.body, frozenset({PathState(assumed=assumed)}))
        for point in ends | frozenset(frame.returned):
            self._at_end(frame, point)
        return sorted(self.findings)

    def _frame(
        self, function: Function, names: Names, sessions: dict[str, str], gins: frozenset[str], depth: int
    ) -> PathFrame:
        source, body = function.source, function.body
        own = {name: s.coop for name, s in source.read_once(sessions_of, body).items()}
        depends = taint.names_of(source, body, names)
        every, assigned = {**sessions, **own}, source.read_once(taint.assigned_names, body)
        return PathFrame(function, every, gins | source.read_once(gins_of, body), depends, assigned, depth)

    def _say(self, frame: PathFrame, node: Node, rule: Rule, text: str, severity: Severity = "error") -> None:
        source = frame.function.source
        self.findings.add(Finding(source.path, source.line(node), rule, severity, f"{self.kernel.name}: {text}"))

    def _at_end(self, frame: PathFrame, point: PathState) -> None:
        end = self.kernel.body.children[-1]
        if point.arrived:
            self._say(frame, end, "barriers", "arrives at a barrier and never waits for it")
        elif point.dirty:
            self._say(frame, end, "barriers", "no barrier after the last access to peers: it may end before theirs")

    # Statements

    def _walk(self, frame: PathFrame, node: Node, points: Points) -> Points:
        """Follow one statement; returns where paths stand after it."""
        kind = node.type
        if not points or is_inactive(frame.function.source, node):
            return points
        if kind in {"compound_statement", "else_clause", "case_statement", "declaration_list"}:
            return self._sequence(frame, node.named_children, points)
        if kind == "if_statement":
            return self._if(frame, node, points)
        if kind in LOOPS:
            return self._loop(frame, node, points)
        if kind == "switch_statement":
            return self._switch(frame, node, points)
        if kind in PREPROCESSOR:
            return self._preprocessor(frame, node, points)
        points = self._events(frame, node, points)
        if kind in {"return_statement", "break_statement", "continue_statement", "goto_statement"}:
            self._leave(frame, node)
            if kind == "return_statement":
                frame.returned |= points
                return NO_PATH
        return points

    def _sequence(self, frame: PathFrame, nodes: Iterable[Node], points: Points) -> Points:
        for node in nodes:
            points = self._walk(frame, node, points)
        return self._bounded(points)

    def _if(self, frame: PathFrame, node: Node, points: Points) -> Points:
        condition, then, other = (field(node, n) for n in ("condition", "consequence", "alternative"))
        text = frame.function.source.text_without_space(condition).strip() if condition is not None else ""
        text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
        depends: frozenset[Dependence] = NOTHING
        if condition is not None:
            points = self._events(frame, condition, points)
            depends = taint.dependences(frame.function.source, condition, frame.depends)
        stable = not depends and condition is not None and not self._changes(frame, condition)
        yes, no = _split(points, text) if stable else (points, points)
        self._conditions.append((depends, text))
        yes = self._walk(frame, then, yes) if then is not None else yes
        no = self._walk(frame, other, no) if other is not None else no
        self._conditions.pop()
        return yes | no

    def _changes(self, frame: PathFrame, condition: Node) -> bool:
        return any(not name or name in frame.assigned for _, name in frame.function.source.read_once(_uses, condition))

    def _loop(self, frame: PathFrame, node: Node, points: Points) -> Points:
        source, body = frame.function.source, field(node, "body")
        heads = [n for n in (field(node, f) for f in ("initializer", "condition", "update", "right")) if n is not None]
        depends: frozenset[Dependence] = NOTHING
        for head in heads:
            points = self._events(frame, head, points)
            depends |= taint.dependences(source, head, frame.depends)
        text = source.text(heads[1] if len(heads) > 1 else heads[0])[:60] if heads else ""
        self._conditions.append((depends, text))
        left = len(self._left)
        once = self._walk(frame, body, points) if body is not None else points
        twice = self._walk(frame, body, points | once) if body is not None else points
        del self._left[left:]
        self._conditions.pop()
        return (once | twice) if node.type == "do_statement" else points | once | twice

    def _switch(self, frame: PathFrame, node: Node, points: Points) -> Points:
        condition, body = field(node, "condition"), field(node, "body")
        if condition is None or body is None:
            return points
        points = self._events(frame, condition, points)
        depends = taint.dependences(frame.function.source, condition, frame.depends)
        self._conditions.append((depends, frame.function.source.text(condition)))
        out = points
        for case in body.named_children:
            out |= self._walk(frame, case, points | out)
        self._conditions.pop()
        return out

    def _preprocessor(self, frame: PathFrame, node: Node, points: Points) -> Points:
        other = field(node, "alternative")
        own = [c for c in node.named_children if c != other and not _is_head(node, c)]
        taken = self._sequence(frame, own, points)
        if node.type in {"preproc_else"}:
            return taken
        return taken | (self._walk(frame, other, points) if other is not None else points)

    def _leave(self, frame: PathFrame, node: Node) -> None:
        for depends, text in self._conditions:
            if depends & {"thread", "rank"}:
                self._left.append((depends, text, frame.function.source.line(node)))

    # Expressions

    def _events(self, frame: PathFrame, node: Node, points: Points) -> Points:
        """Follow what an expression does, inner parts first."""
        for inner, name in frame.function.source.read_once(_uses, node):
            if not name:
                points = self._call(frame, inner, points)
            elif name in frame.peers and not _is_bound(inner):
                points = self._pointer(frame, inner, points)
        return points

    def _call(self, frame: PathFrame, call: Node, points: Points) -> Points:
        source = frame.function.source
        name, receiver = name_of(source, call), receiver_of(source, call)
        if receiver in frame.sessions and name in BARRIER_CALLS:
            return self._barrier(frame, call, name, frame.sessions[receiver or ""], points)
        if name in {"waitSignal", "waitCounter"} and receiver in frame.gins:
            return frozenset(replace(p, synced=True, dirty=False, acquired=True, order="acquire") for p in points)
        if is_gin(source, call, frame.gins) or is_collective_call(source, call):
            return self._access(frame, call, points)
        if name in self._pointers:
            return self._pointer(frame, call, points)
        called = self._device.get(name)
        if called is not None and frame.depth < DEPTH and called is not frame.function:
            return self._inlined(frame, call, called, points)
        return self._access(frame, call, points) if frame.passed.get(call.id) else points

    def _pointer(self, frame: PathFrame, node: Node, points: Points) -> Points:
        source, body = frame.function.source, frame.function.body
        use = use_of(source, node, frozenset(frame.arrays))
        if use.kind == "bind" and use.name:
            frame.peers.add(use.name)
            if is_array_of_pointers(source, body, use.name):
                frame.arrays.add(use.name)
        elif use.kind == "pass" and use.call is not None:
            frame.passed.setdefault(use.call.id, set()).add(use.position)
        elif use.kind == "access":
            return self._access(frame, node, points)
        return points

    def _inlined(self, frame: PathFrame, call: Node, called: Function, points: Points) -> Points:
        source, given = frame.function.source, arguments(call)
        pairs = list(zip(called.parameters, given, strict=False))
        names = {p.name: taint.dependences(source, a, frame.depends) for p, a in pairs}
        sessions = {p.name: frame.sessions[source.text(a)] for p, a in pairs if source.text(a) in frame.sessions}
        gins = frozenset(p.name for p, a in pairs if source.text(a) in frame.gins)
        inner = self._frame(called, names, sessions, gins, frame.depth + 1)
        passed = frame.passed.get(call.id, set())
        inner.peers |= {p.name for n, (p, _) in enumerate(pairs) if n in passed}
        left = len(self._left)
        ends = self._walk(inner, called.body, points)
        del self._left[left:]
        return self._bounded(ends | frozenset(inner.returned))

    def _access(self, frame: PathFrame, node: Node, points: Points) -> Points:
        self.accesses += 1
        for point in points:
            if not point.synced:
                self._say(
                    frame, node, "barriers", "no barrier before this access to peers: they may still use that memory"
                )
            elif not point.acquired and (point.order == "relaxed" or not writes(frame.function.source, node)):
                self._say(
                    frame,
                    node,
                    "orders",
                    f"access to peers after a barrier (line {point.line}) with order {point.order or 'unknown'}, which "
                    "does not acquire; acq_rel is right at every place",
                )
        if is_signalled(frame.function.source, node):
            return points  # its receiver waits for the signal, and a flush or a counter says when the source is free
        return frozenset(replace(p, dirty=True) for p in points)

    def _barrier(self, frame: PathFrame, call: Node, name: str, coop: str, points: Points) -> Points:
        self.barriers += 1
        source = frame.function.source
        order, line = order_of(source, call), source.line(call)
        self._divergence(frame, call, coop)
        if not order and name != "wait":
            self._say(frame, call, "orders", "the order of this barrier cannot be read", "note")
        releases, acquires = not order or order in RELEASING, not order or order in ACQUIRING
        if name != "wait" and not releases and any(p.dirty for p in points):
            self._say(
                frame,
                call,
                "orders",
                f"a barrier with order {order} releases nothing: peers may not see what was written",
            )
        if name == "arrive":
            return frozenset(replace(p, arrived=True, dirty=False) for p in points)
        return frozenset(PathState(True, False, False, acquires, order, line, p.assumed) for p in points)

    def _divergence(self, frame: PathFrame, call: Node, coop: str) -> None:
        conditions = [(d, t, "is under") for d, t in self._conditions]
        conditions += [(d, t, f"comes after a way out (line {n}) under") for d, t, n in self._left]
        for depends, text, how in conditions:
            if "thread" in depends and (coop in {"", "CoopCta"} or not taint.by_warp(text)):
                self._say(
                    frame, call, "divergence", f"a barrier {how} `{text[:60]}`, which differs between threads: it hangs"
                )
            elif "rank" in depends:
                self._say(
                    frame,
                    call,
                    "divergence",
                    f"a barrier {how} `{text[:60]}`, which differs between ranks: each must reach it equally often",
                )
            elif "memory" in depends:
                self._say(
                    frame, call, "divergence", f"a barrier {how} `{text[:60]}`, read from memory: not judged", "note"
                )

    def _bounded(self, points: Points) -> Points:
        return points if len(points) <= MOST_POINTS else frozenset(replace(p, assumed=frozenset()) for p in points)


def _uses(source: ParsedSource, node: Node) -> list[tuple[Node, str]]:
    """Return the calls, and the identifiers with their names, within an expression, inner ones first."""
    found = [each for child in node.named_children for each in _uses(source, child)]
    if node.type == CALL:
        found.append((node, ""))
    elif node.type == "identifier":
        found.append((node, source.text(node)))
    return found


def _split(points: Points, text: str) -> tuple[Points, Points]:
    """Return the paths on which a condition holds, and those on which it does not."""
    negated = text.startswith("!") and "&" not in text and "|" not in text
    name = text.lstrip("!").strip("()") if negated else text
    yes = frozenset(replace(p, assumed=p.assumed | {(name, True)}) for p in points if (name, False) not in p.assumed)
    no = frozenset(replace(p, assumed=p.assumed | {(name, False)}) for p in points if (name, True) not in p.assumed)
    return (no, yes) if negated else (yes, no)


def _is_head(node: Node, child: Node) -> bool:
    return child in (field(node, "condition"), field(node, "name"))


def _is_bound(node: Node) -> bool:
    """Say whether an identifier is what is declared or assigned here, not what is used."""
    child, parent = node, node.parent
    while parent is not None and parent.type in {"pointer_declarator", "array_declarator", "init_declarator"}:
        if parent.type == "init_declarator":
            return field(parent, "declarator") == child
        child, parent = parent, parent.parent
    return parent is not None and (
        parent.type == "declaration" or (parent.type == "assignment_expression" and field(parent, "left") == node)
    )
