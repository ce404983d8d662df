"""The program in the order in which it runs: functions put in where they are called, loops gone through once.

Each event knows the frame it happens in, so that a helper's parameters mean what this caller gave it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model import api_names
from gpu_mcp_server.nccl.program_model.branches import Branch, branches_of, jumped_label, loop_header
from gpu_mcp_server.nccl.program_model.functions import Function, declared_identifier
from gpu_mcp_server.nccl.program_model.library_calls import DESCRIPTORS, is_harmless, letters_of, qualified_name
from gpu_mcp_server.nccl.program_model.objects import ObjectModel
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.scopes import Declaration
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    ParsedSource,
    arguments,
    is_inactive,
    name_of,
    receiver_of,
    strip_casts,
)
from gpu_mcp_server.nccl.program_model.syntax import field as child
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, Condition, Expression, Loop, TraceEvent, kind_of

MAX_DEPTH = 12
MAX_EVENTS = 20_000
MAX_FRAMES = 5_000
"""Calls that are gone into; what comes after is left out, and that is said."""
MAX_NESTING = 500
"""Nodes within nodes that are followed, calls included: half of Python's own limit."""
POINTER_LIKE = frozenset(
    {"identifier", "binary_expression", "field_expression", "subscript_expression", "pointer_expression"}
    | {"initializer_list", "compound_literal_expression", "conditional_expression", CALL}
)
"""Expressions that may be pointers, or hold some."""
CLOCK_KINDS = frozenset({"timer", "assign", "library", "sync", "order"})
"""Of these is a helper that reads the clock and does no more, such as `double seconds()`."""
_CLOCK_NAME = re.compile(r"start|stop|begin|end|tic|toc|reset|lap|record|elapsed|time|clock", re.IGNORECASE)
EVENTFUL = frozenset({CALL, "assignment_expression", "init_declarator"})


class Trace:
    """All events of a program, entry function by entry function."""

    def __init__(self, program: ProgramModel) -> None:
        """Walk the program."""
        self.program = program
        self.events: list[TraceEvent] = []
        self.is_cut = False
        self.entries: list[str] = []
        self._seen: set[Function] = set()
        self._silent: set[Function] = set()
        self._frames = 0
        self._nested = 0
        self._eventful: dict[int, list[Node]] = {}
        self._lambdas_run: set[int] = set()
        self._objects = ObjectModel(program)
        self._groups: list[int] = []
        self._next_group = 0
        for function in _entries(program):
            if function not in self._seen:
                self.entries.append(function.name)
                self._groups = []
                self._enter(function, CallFrame(function, entry=function.name), (), ())

    @cached_property
    def by_kind(self) -> dict[str, list[TraceEvent]]:
        """All events, sorted by kind; in each the order is that of the program."""
        found: dict[str, list[TraceEvent]] = {}
        for event in self.events:
            found.setdefault(event.kind, []).append(event)
        return found

    def _add(self, event: TraceEvent) -> None:
        if len(self.events) >= MAX_EVENTS:
            self.is_cut = True
            return
        event.number = len(self.events)
        event.group = self._groups[-1] if self._groups else None
        self.events.append(event)

    def _enter(
        self, function: Function, frame: CallFrame, loops: tuple[Loop, ...], conditions: tuple[Condition, ...]
    ) -> None:
        self._seen.add(function)
        initializers = next((c for c in function.node.children if c.type == "field_initializer_list"), None)
        if initializers is not None:
            self._walk(function.source, initializers, frame, loops, conditions)
        self._walk(function.source, function.body, frame, loops, conditions)

    def _walk(
        self,
        source: ParsedSource,
        node: Node,
        frame: CallFrame,
        loops: tuple[Loop, ...],
        conditions: tuple[Condition, ...],
    ) -> None:
        if node.type in {"lambda_expression", "function_definition"} and (
            _is_named(node) or self._is_handed_on(source, node)
        ):
            return
        if self._nested >= MAX_NESTING:
            self.is_cut = True
            return
        if node.type.startswith("preproc_if") and is_inactive(source, node):
            return
        label = jumped_label(source, node)
        if label is not None:
            name = source.text(label).partition(":")[0].strip()
            loops = (*loops, Loop((source.path, label.start_byte, id(frame)), f"goto {name}"))
        header = loop_header(source, node, self.program.macros)
        if header is not None:
            loops = (*loops, Loop((source.path, node.start_byte, id(frame)), header))
        branches = {inner.id: _under(source, under, frame) for inner, under in branches_of(source, node)}
        is_call = self.program.is_call(source, node) and not is_inactive(source, node)
        calls = self.program.calls_at(source, node) if is_call else []
        first = _calls_before_arguments(calls)
        for call in calls[:first]:
            self._call(call, frame, loops, conditions)
        self._nested += 1
        for inner in self._parts(source, node):
            self._walk(source, inner, frame, loops, (*conditions, *branches.get(inner.id, ())))
        self._nested -= 1
        for call in calls[first:]:
            self._call(call, frame, loops, conditions)
        if node.type == "declaration":
            for made, function, given in self._objects.made_by(source, node):
                self._inline(function, source, given, made, frame, node, loops, conditions)
        elif node.type == "compound_statement":
            for inner in reversed(self._parts(source, node)):
                for made, function in self._objects.ended_by(source, inner):
                    self._inline(function, source, [], made, frame, inner, loops, conditions)
        elif node.type == "assignment_expression" and not is_inactive(source, node):
            self._assign(source, child(node, "left"), child(node, "right"), frame, loops, conditions)
        elif node.type == "init_declarator":
            self._construct(source, node, frame, loops, conditions)

    def _parts(self, source: ParsedSource, node: Node) -> list[Node]:
        """Return the children of a node in or below which something may happen: found once for all ways to it."""
        if node.id not in self._eventful:
            order = [(node, -1)]
            for at, (above, _) in enumerate(order):
                order += [(below, at) for below in above.named_children]
            parts: list[list[Node]] = [[] for _ in order]
            for at in range(len(order) - 1, 0, -1):
                below, parent = order[at]
                parts[at].reverse()
                self._eventful[below.id] = parts[at]
                if parts[at] or self._is_eventful(source, below):
                    parts[parent].append(below)
            self._eventful[node.id] = parts[0][::-1]
        return self._eventful[node.id]

    def _is_eventful(self, source: ParsedSource, node: Node) -> bool:
        if node.type in EVENTFUL or self.program.is_call(source, node):
            return True
        return self._objects.is_eventful(source, node)

    def _assign(
        self,
        source: ParsedSource,
        left: Node | None,
        right: Node | None,
        frame: CallFrame,
        loops: tuple[Loop, ...],
        conditions: tuple[Condition, ...],
    ) -> None:
        if left is not None and right is not None and left.type == CALL and right.type == CALL:
            for one, other in zip(arguments(left), arguments(right), strict=False):  # std::tie(a, b) = std::tuple(b, a)
                self._assign(source, one, other, frame, loops, conditions)
        elif left is not None and right is not None:
            to, of = Expression(source, left, frame), Expression(source, right, frame)
            self._add(TraceEvent("assign", frame, loops, conditions, left=to, right=of))

    def _construct(
        self,
        source: ParsedSource,
        node: Node,
        frame: CallFrame,
        loops: tuple[Loop, ...],
        conditions: tuple[Condition, ...],
    ) -> None:
        """Run the constructor of `Buffer b(bytes);`."""
        value, name, parent = child(node, "value"), declared_identifier(child(node, "declarator")), node.parent
        kind = child(parent, "type") if parent is not None else None
        if value is None or name is None or kind is None or parent is None:
            return
        if value.type not in {"argument_list", "initializer_list"}:
            return
        made = Declaration(source, source.text(name), parent, node, parent)
        given = [c for c in value.named_children if c.type != "comment"]
        constructor = self._objects.constructor(source.text(kind), len(given))
        if constructor is not None:
            self._inline(constructor, source, given, made, frame, node, loops, conditions)
            return
        if any(strip_casts(n).type in POINTER_LIKE or n.type == "initializer_pair" for n in given):
            left, right = Expression(source, name, frame), Expression(source, value, frame)
            self._add(TraceEvent("aggregate", frame, loops, conditions, left=left, right=right))

    def _call(
        self, call: FunctionCall, frame: CallFrame, loops: tuple[Loop, ...], conditions: tuple[Condition, ...]
    ) -> None:
        launch = self.program.launch_of(call)
        kind = "launch" if launch is not None else kind_of(call.full_name)
        if kind == "group_start":
            self._next_group += 1
            self._groups.append(self._next_group)
        if kind:
            self._add(TraceEvent(kind, frame, loops, conditions, call=call, launch=launch))
        if kind == "group_end" and self._groups:
            self._groups.pop()
        if not kind:
            self._other(call, frame, loops, conditions)

    def _other(
        self, call: FunctionCall, frame: CallFrame, loops: tuple[Loop, ...], conditions: tuple[Condition, ...]
    ) -> None:
        """Go into a function of the program: called, or handed to a thread with its arguments."""
        if call.name == "swap" and len(call.nodes) == 2:
            for left, right in (call.nodes, call.nodes[::-1]):
                self._assign(call.source, left, right, frame, loops, conditions)
            return
        if call.name == "exchange" and len(call.nodes) == 2:
            self._assign(call.source, call.nodes[0], call.nodes[1], frame, loops, conditions)
            return
        if self._run_given(call, frame, loops, conditions):
            return
        given, function = call.nodes, self._chosen(call.name, len(call.nodes))
        for number, node in enumerate(call.nodes):
            if function is None and node.type == "identifier":
                function = self._chosen(call.source.text(node), len(call.nodes) - number - 1)
                given = call.nodes[number + 1 :]
        if function is None:
            self._outside(call, frame, loops, conditions)
            return
        receiver = None
        if function.owner and receiver_of(call.source, call.node) is not None:
            callee = child(call.node, "function")
            owner = child(callee, "argument") if callee is not None else None
            receiver = Expression(call.source, owner, frame) if owner is not None else None
        elif function.owner:
            receiver = frame.receiver
        before = len(self.events)
        self._inline(function, call.source, given, receiver, frame, call.place, loops, conditions)
        inside = {e.kind for e in self.events[before:]}
        if "timer" in inside and inside <= CLOCK_KINDS and _reads_clock(call):
            self._add(TraceEvent("timer", frame, loops, conditions, call=call))
        for node in map(strip_casts, call.nodes):
            if node.type == "lambda_expression" and node.id not in self._lambdas_run:
                self._walk_lambda(Expression(call.source, node, frame), frame, loops, conditions)

    def _run_given(
        self, call: FunctionCall, frame: CallFrame, loops: tuple[Loop, ...], conditions: tuple[Condition, ...]
    ) -> bool:
        """Run the function that a caller gave, where a parameter is called; say whether there is one."""
        given, callee = frame.bindings.get(call.name), child(call.node, "function")
        if given is None or callee is None or callee.type != "identifier":
            return False
        given = _given_function(given)
        node = given.node
        if node.type == "lambda_expression":
            if frame.depth < MAX_DEPTH and not self.is_cut:
                own = given.frame
                inner = CallFrame(own.function, frame, own.bindings, own.receiver, frame.entry, call.place)
                self._walk_lambda(given, inner, loops, conditions)
            return True
        function = self._chosen(given.source.text(node), len(call.nodes)) if node.type == "identifier" else None
        if function is None:
            return False
        self._inline(function, call.source, call.nodes, frame.receiver, frame, call.place, loops, conditions)
        return True

    def _is_function(self, given: Expression) -> bool:
        """Say whether an argument is a function of the program."""
        node = given.node
        named = node.type == "identifier" and given.source.text(node) in self.program.by_name
        return named or node.type == "lambda_expression"

    def _walk_lambda(
        self, of: Expression, frame: CallFrame, loops: tuple[Loop, ...], conditions: tuple[Condition, ...]
    ) -> None:
        body = child(of.node, "body")
        self._lambdas_run.add(of.node.id)
        if body is not None:
            self._walk(of.source, body, frame, loops, conditions)

    def _is_handed_on(self, source: ParsedSource, node: Node) -> bool:
        """Say whether a lambda is an argument of a function of the program, so that it runs where that calls it."""
        listed = node.parent
        call = listed.parent if listed is not None and listed.type == "argument_list" else None
        if node.type != "lambda_expression" or call is None or call.type != CALL:
            return False
        return self._chosen(name_of(source, call), len(arguments(call))) is not None

    def _outside(
        self, call: FunctionCall, frame: CallFrame, loops: tuple[Loop, ...], conditions: tuple[Condition, ...]
    ) -> None:
        """Note a call whose body is not here, if it may touch memory behind a pointer that it gets."""
        known = letters_of(qualified_name(call.source, call.node)) is not None or call.name in DESCRIPTORS
        if not known:
            if any(call.source.text(n).removeprefix("::") in api_names.ROLES for n in call.nodes):
                return  # `std::invoke(ncclBcast, ...)` is a site of its own, or is noted
            is_macro = call.name in self.program.macros and call.via_macro is None
            if is_macro or not _may_point(call) or is_harmless(call.source, call.node):
                return
        self._add(TraceEvent("library", frame, loops, conditions, call=call))

    def _chosen(self, name: str, given: int) -> Function | None:
        candidates = [f for f in self.program.by_name.get(name, []) if not f.is_kernel]
        exact = [f for f in candidates if len(f.parameters) == given]
        return (exact or candidates or [None])[0]

    def _inline(
        self,
        function: Function,
        source: ParsedSource,
        given: list[Node],
        receiver: "Expression | Declaration | None",
        frame: CallFrame,
        place: Node,
        loops: tuple[Loop, ...],
        conditions: tuple[Condition, ...],
    ) -> None:
        calls_back = any(self._is_function(_given_function(Expression(source, n, frame))) for n in given)
        if function in self._silent and not calls_back:
            return
        if frame.runs(function) or frame.depth >= MAX_DEPTH or self.is_cut:
            return
        self._frames += 1
        if self._frames > MAX_FRAMES:
            self.is_cut = True
            return
        bindings = {
            p.name: Expression(source, n, frame) for p, n in zip(function.parameters, given, strict=False) if p.name
        }
        inner = CallFrame(function, frame, bindings, receiver, frame.entry, place)
        before = len(self.events)
        self._enter(function, inner, loops, conditions)
        if len(self.events) == before and not calls_back:
            self._silent.add(function)  # nothing in it matters, so it need not be gone into again


def _reads_clock(call: FunctionCall) -> bool:
    """Say whether a helper with a clock in it is asked for the time: one that prints a log's line is not."""
    is_used = call.node.parent is not None and call.node.parent.type != "expression_statement"
    return is_used or _CLOCK_NAME.search(call.name) is not None


def _given_function(given: Expression) -> Expression:
    """Return an argument without what hands it on: parameters, `std::move(f)`, `std::forward<F>(f)`, `&f`."""
    while True:
        node = strip_casts(given.node)
        while node.type == CALL and name_of(given.source, node) in {"move", "forward", "ref"} and arguments(node):
            node = strip_casts(arguments(node)[0])
        bound = given.frame.bindings.get(given.source.text(node)) if node.type == "identifier" else None
        if bound is None:
            return replace(given, node=node)
        given = bound


def _calls_before_arguments(calls: list[FunctionCall]) -> int:
    """Return how many of a macro's calls come before its arguments: those up to the start of a group."""
    starts = [n for n, c in enumerate(calls) if c.via_macro is not None and c.name == "ncclGroupStart"]
    return starts[0] + 1 if starts else 0


def _may_point(call: FunctionCall) -> bool:
    """Say whether a call gets anything that may be, or hold, a pointer."""
    return any(strip_casts(n).type in POINTER_LIKE for n in call.nodes)


def _entries(program: ProgramModel) -> Iterator[Function]:
    """Yield main, then what nobody calls, then all others: what was gone through meanwhile is left out later."""
    host = [f for f in program.functions if not f.is_kernel and not (f.is_device and not f.is_lambda)]
    mentioned = {c.name for c in program.calls} | {c.source.text(n) for c in program.calls for n in c.nodes}
    yield from (f for f in host if f.name == "main")
    yield from (f for f in host if f.name not in mentioned and not f.is_lambda)
    yield from (f for f in host if not f.is_lambda)
    yield from host


def _under(source: ParsedSource, branches: list[Branch], frame: CallFrame) -> tuple[Condition, ...]:
    """Return branches as conditions of a frame."""
    tested = [Expression(source, b.tested, frame) if b.tested is not None else None for b in branches]
    return tuple(Condition(b.key, b.taken, b.text, of) for b, of in zip(branches, tested, strict=True))


def _is_named(node: Node) -> bool:
    """Say whether a lambda has a name, so that it runs where it is called."""
    return node.type == "function_definition" or (node.parent is not None and node.parent.type == "init_declarator")
