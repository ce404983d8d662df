"""Resolve an expression to the memory it means: aliases, offsets, casts, members, parameters, helper functions.

A *place* is where a pointer is kept: a variable, a member, an element. Two expressions mean the same buffer if they
lead to the same places. The analysis knows no order within a function: a pointer that is assigned twice means both.
"""

from dataclasses import replace

from gpu_mcp_server.nccl.program_model import api_names
from gpu_mcp_server.nccl.program_model.array_elements import element_of, listed_values
from gpu_mcp_server.nccl.program_model.library_calls import DESCRIPTORS
from gpu_mcp_server.nccl.program_model.memory_model import (
    CYCLE,
    TRANSPARENT,
    Allocation,
    MemoryLocation,
    Ref,
    is_number_like,
    is_view,
    merge_locations,
    place_of,
    plain_type,
    uncast,
)
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.returned_values import is_own_method, returned_values
from gpu_mcp_server.nccl.program_model.scopes import (
    Declaration,
    declaration_of,
    declaration_used_in,
    global_declaration,
    has_member,
    initializer_of,
    listed_members,
)
from gpu_mcp_server.nccl.program_model.syntax import CALL, arguments, name_of, walk
from gpu_mcp_server.nccl.program_model.syntax import field as child
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, Expression, TraceEvent

MAX_STEPS = 40
MOST_VALUES = 300
"""Values that are followed for one question: pointers that are assigned to each other have no end of ways."""
NULLS = frozenset(
    {"null", "number_literal", "true", "false", "string_literal", "initializer_list", "lambda_expression"}
)


class PointerResolver:
    """Resolves expressions of a traced program."""

    def __init__(self, program: ProgramModel, trace: Trace) -> None:
        """Collect what is assigned and what is allocated."""
        self.program = program
        self.trace = trace
        self._assigned: dict[MemoryLocation, list[Expression]] = {}
        self.is_cut, self._followed_now = False, 0
        self._members: dict[MemoryLocation, list[MemoryLocation]] = {}
        self.allocations: dict[MemoryLocation, list[Allocation]] = {}
        for event in trace.events:
            if event.kind == "assign" and event.left is not None and event.right is not None:
                for place in self.lvalue(event.left):
                    self._assigned.setdefault(place, []).append(event.right)
            elif event.kind == "window" and event.call is not None and len(event.call.nodes) > 3:
                given = [Expression(event.call.source, n, event.frame) for n in event.call.nodes]
                for place in self.location(given[3]):
                    self._assigned.setdefault(place, []).append(given[1])
            elif event.kind == "aggregate" and event.left is not None and event.right is not None:
                self._fill(event.left, event.right)
            elif event.kind == "library" and event.call is not None and event.call.name in DESCRIPTORS:
                self._describe(event)
        for event in trace.events:
            if event.kind == "alloc":
                self._allocate(event)

    def _fill(self, left: Expression, right: Expression) -> None:
        """Let the members of a structure mean what the list that it starts with gives them."""
        made = declaration_of(left.source, left.node)
        kind = child(made.node, "type") if made is not None else None
        for name, node in listed_members(left.source, kind, right.node):
            for place in self.lvalue(left):
                self._assigned.setdefault(place.member(f".{name}"), []).append(replace(right, node=node))

    def members_of(self, place: MemoryLocation) -> list[MemoryLocation]:
        """Return the memory to which members of an object were made to point."""
        if place not in self._members:
            inside = [p for p in self._assigned if p.key == place.key and p.path.startswith(f"{place.path}.")]
            refs = [r for p in inside for g in self._assigned[p] for r in self.value(g)]
            self._members[place] = merge_locations(self.canonical(r.place) for r in refs)
        return self._members[place]

    def _describe(self, event: TraceEvent) -> None:
        """Let a library's descriptor mean the pointers that it is made with."""
        assert event.call is not None
        call = event.call
        target, values = DESCRIPTORS[call.name]
        given = [Expression(call.source, n, event.frame) for n in call.nodes]
        for number in (v for v in values if v < len(given)):
            for place in self.location(given[target]):
                self._assigned.setdefault(place, []).append(given[number])

    def value(self, of: Expression, steps: int = MAX_STEPS) -> list[Ref]:
        """Return the memory into which a pointer expression may point."""
        self._followed_now = 0
        found = [r for r in self._value(of, frozenset(), steps) if r.place != CYCLE]
        return list({(r, r.place.element): r for r in found}.values())

    def origins(self, of: Expression, member: str = "") -> list[MemoryLocation]:
        """Return the places of a pointer expression, or of a member (`.send`) of an object, offsets forgotten."""
        self._followed_now = 0
        places = self.lvalue(of) if member else []
        refs = [r for p in places for r in self._followed(p.member(member), of, frozenset(), MAX_STEPS)]
        return merge_locations(self.canonical(r.place) for r in (refs if member else self.value(of)))

    def canonical(self, place: MemoryLocation) -> MemoryLocation:
        """Return the allocated place that one of another instance stands for: same type, same member."""
        if place in self.allocations or not place.path:
            return place
        kind = plain_type(place.type_text)
        for other in self.allocations:
            if other.path == place.path and kind and plain_type(other.type_text) == kind:
                return replace(other, element=place.element)
        return place

    def location(self, of: Expression, steps: int = MAX_STEPS) -> list[MemoryLocation]:
        """Return the places that a pointer to a pointer points to, as the target of cudaMalloc does."""
        node = uncast(of.node)
        here = replace(of, node=node)
        if not steps:
            return []
        if node.type == "pointer_expression" and node.children[0].type == "&":
            inner = child(node, "argument")
            return self.lvalue(replace(of, node=inner), steps - 1) if inner is not None else []
        if node.type == "binary_expression":
            left = child(node, "left")
            return [p.member("[]") for p in self._object(replace(of, node=left), steps - 1)] if left is not None else []
        if node.type == "identifier":
            bound = self._bound(here)
            if bound is not None:
                return self.location(bound, steps - 1)
            made = declaration_of(of.source, node)
            start = initializer_of(made) if made is not None else None
            if start is not None and start.type not in NULLS:
                return self.location(replace(of, node=start), steps - 1)
            return [p.member("*") for p in self.lvalue(here, steps - 1)]
        return self.lvalue(here, steps - 1)

    def lvalue(self, of: Expression, steps: int = MAX_STEPS) -> list[MemoryLocation]:
        """Return the places that an expression names."""
        node = uncast(of.node)
        here = replace(of, node=node)
        if not steps:
            return []
        if node.type in {"identifier", "this", "field_identifier"}:
            return self._named(here, steps)
        if node.type == "field_expression":
            return self._member(here, steps)
        if node.type == "subscript_expression":
            inner = child(node, "argument")
            which = element_of(self.program, here, self._bound)
            return [p.member("[]", which) for p in self._object(replace(of, node=inner), steps - 1)] if inner else []
        if node.type == "pointer_expression":
            inner = child(node, "argument")
            if inner is None:
                return []
            inside = replace(of, node=inner)
            return self.location(inside, steps - 1) if node.children[0].type == "*" else self.lvalue(inside, steps - 1)
        if node.type == CALL:
            return self._returned_places(here, steps - 1)
        return []

    # --- allocations

    def _allocate(self, event: TraceEvent) -> None:
        call = event.call
        if call is None:
            return
        target, size, kind = api_names.ALLOCATIONS[call.full_name]
        if target < 0 or len(call.nodes) <= max(target, size):
            return
        amount = Expression(call.source, call.nodes[size], event.frame)
        for place in self.location(Expression(call.source, call.nodes[target], event.frame)):
            made = Allocation(place, call.full_name, kind, self.spell_expression(amount), event, amount)
            self.allocations.setdefault(place, []).append(made)

    def spell_expression(self, of: Expression) -> str:
        """Return an expression's text, a parameter replaced by what the caller gave."""
        node = of.node
        while node.type == "identifier":
            bound = self._bound(replace(of, node=node))
            if bound is None:
                break
            of, node = bound, bound.node
        return " ".join(of.source.text(node).split())

    # --- values

    def _value(self, of: Expression, seen: frozenset[MemoryLocation], steps: int) -> list[Ref]:
        node = uncast(of.node)
        here = replace(of, node=node)
        self._followed_now += 1
        self.is_cut = self.is_cut or self._followed_now > MOST_VALUES
        if not steps or node.type in NULLS or self._followed_now > MOST_VALUES:
            return []
        if node.type == "conditional_expression":
            parts = [child(node, "consequence"), child(node, "alternative")]
            return [r for p in parts if p is not None for r in self._value(replace(of, node=p), seen, steps - 1)]
        if node.type == "binary_expression":
            return self._moved(here, seen, steps)
        if node.type == "assignment_expression" and (right := child(node, "right")) is not None:
            return self._value(replace(of, node=right), seen, steps - 1)
        if node.type == "pointer_expression" and node.children[0].type == "&":
            return self._address(here, seen, steps)
        if node.type == CALL:
            return self._called(here, seen, steps)
        if node.type == "identifier" and (bound := self._bound(here)) is not None and is_view(bound):
            return self._value(bound, seen, steps - 1)
        if is_view(here):
            inside = child(node, "value")
            first = inside.named_children[0] if inside is not None and inside.named_children else None
            return self._value(replace(of, node=first), seen, steps - 1) if first is not None else []
        return [r for p in self.lvalue(here, steps - 1) for r in self._followed(p, here, seen, steps - 1)]

    def _moved(self, of: Expression, seen: frozenset[MemoryLocation], steps: int) -> list[Ref]:
        """Resolve `base + offset`, whichever side the pointer is on."""
        left, right, operator = child(of.node, "left"), child(of.node, "right"), child(of.node, "operator")
        if left is None or right is None or operator is None or operator.type not in {"+", "-"}:
            return []
        base, offset = (right, left) if is_number_like(left) and not is_number_like(right) else (left, right)
        text = " ".join(of.source.text(offset).split())
        refs = self._value(replace(of, node=base), seen, steps - 1)
        return [Ref(r.place, f"{r.offset} + {text}" if r.offset else text) for r in refs]

    def _address(self, of: Expression, seen: frozenset[MemoryLocation], steps: int) -> list[Ref]:
        inner = child(of.node, "argument")
        if inner is None:
            return []
        inside = replace(of, node=uncast(inner))
        if inside.node.type != "subscript_expression":
            return [Ref(p) for p in self.lvalue(inside, steps - 1)]
        base, index = child(inside.node, "argument"), child(inside.node, "indices")
        text = of.source.text(index).strip("[] ") if index is not None else None
        if base is None:
            return []
        return [replace(r, offset=text) for r in self._value(replace(of, node=base), seen, steps - 1)]

    def _called(self, of: Expression, seen: frozenset[MemoryLocation], steps: int) -> list[Ref]:
        name, given = name_of(of.source, of.node), arguments(of.node)
        if name in api_names.POINTER_GETTERS or (name in TRANSPARENT and given):
            return self._value(replace(of, node=given[0]), seen, steps - 1) if given else []
        if name in TRANSPARENT and not is_own_method(self.program, of):
            callee = child(of.node, "function")
            owner = child(callee, "argument") if callee is not None else None
            if owner is None:
                return []
            places = self._object(replace(of, node=owner), steps - 1)
            if not places:  # a view, such as std::span{p, n}
                return self._value(replace(of, node=owner), seen, steps - 1)
            return [r for p in places for r in self._followed(p, replace(of, node=owner), seen, steps - 1)]
        refs: list[Ref] = []
        for returned in returned_values(self.program, of):
            refs += self._value(returned, seen, steps - 1)
        return refs

    def _followed(
        self, place: MemoryLocation, of: Expression, seen: frozenset[MemoryLocation], steps: int
    ) -> list[Ref]:
        """Return what a place was given: by its caller, its initializer, assignments; itself where nothing is known."""
        if place in seen or not steps:
            return [Ref(CYCLE)] if steps else []
        seen |= {place}
        refs = [Ref(place)] if place in self.allocations else []
        for given in self._given(place, of):
            found = self._value(given, seen, steps - 1)
            if given.node.type == CALL and self._is_wrapped_allocation(given, found):
                self._adopt(place, given, found)
                found = [Ref(place)]
            refs += found
        known = [r for r in refs if r.place != CYCLE]
        return known or (refs if len(seen) > 1 and refs else [Ref(place)])

    def _given(self, place: MemoryLocation, of: Expression) -> list[Expression]:
        found = list(self._assigned.get(place, []))
        if of.node.type == "identifier" and not place.path:
            if (bound := self._bound(of)) is not None:
                found.append(bound)
            made = declaration_of(of.source, of.node)
            start = initializer_of(made) if made is not None else None
            if start is not None and start.type != "argument_list":
                found.append(replace(of, node=start))
        elif place.path == "[]":
            found += listed_values(of, place.element)
        return [f for f in found if uncast(f.node).type not in NULLS]

    def _is_wrapped_allocation(self, given: Expression, found: list[Ref]) -> bool:
        names = {f.name for f in self.program.by_name.get(name_of(given.source, given.node), [])}
        made = [a for r in found for a in self.allocations.get(r.place, [])]
        return bool(made) and all(a.event.frame.function and a.event.frame.function.name in names for a in made)

    def _adopt(self, place: MemoryLocation, given: Expression, found: list[Ref]) -> None:
        if place in self.allocations:
            return
        for ref in found:
            for made in self.allocations.get(ref.place, []):
                self.allocations.setdefault(place, []).append(replace(made, place=place))

    def _named(self, of: Expression, steps: int) -> list[MemoryLocation]:
        node, source = of.node, of.source
        if node.type == "this":
            return self._this(of.frame, steps)
        made = declaration_of(source, node)
        if made is None and source.path not in self.program.sources and of.frame.function is not None:
            inside = of.frame.function
            made = declaration_used_in(inside.source, inside.node, source.text(node))
        name = source.text(node)
        if (
            made is not None
            and made.node.type == "for_range_loop"
            and (listed := child(made.node, "right")) is not None
        ):
            inside = self._object(replace(of, source=made.source, node=listed), steps - 1)
            if inside:
                return [p.member("[]") for p in inside]
        if made is not None and made.scope.type not in {"translation_unit", "declaration_list"}:
            inner = self._referred(made, of)
            if inner is not None:
                return self.lvalue(inner, steps - 1)
            return [place_of(made)]
        owner = of.frame.function.owner if of.frame.function is not None else None
        if made is None and owner and has_member(self.program.sources.values(), owner, name):
            return [p.member(f".{name}") for p in self._this(of.frame, steps)]
        if made is None:
            made = next((d for s in self.program.sources.values() if (d := global_declaration(s, name))), None)
        if made is not None:
            return [replace(place_of(made), kind="global", key=("global " + name, 0))]
        return [MemoryLocation(("unknown " + name, 0), "", name, "", "unknown")]

    def _referred(self, made: Declaration, of: Expression) -> Expression | None:
        """Return what a reference refers to."""
        is_reference = any(c.type == "reference_declarator" for c in walk(made.declarator))
        if not is_reference:
            return None
        if made.is_parameter:
            return of.frame.bindings.get(made.name)
        start = initializer_of(made)
        return replace(of, source=made.source, node=start) if start is not None else None

    def _bound(self, of: Expression) -> Expression | None:
        """Return what the caller gave for a parameter."""
        name = of.source.text(of.node)
        if name not in of.frame.bindings:
            return None
        made = declaration_of(of.source, of.node)
        return of.frame.bindings[name] if made is None or made.is_parameter else None

    def _this(self, frame: CallFrame, steps: int) -> list[MemoryLocation]:
        if isinstance(frame.receiver, Declaration):
            return [place_of(frame.receiver)]
        if frame.receiver is not None:
            return self._object(frame.receiver, steps - 1)
        owner = frame.function.owner if frame.function is not None else None
        return [MemoryLocation(("type " + (owner or "?"), 0), "", owner or "this", owner or "", "member")]

    def _member(self, of: Expression, steps: int) -> list[MemoryLocation]:
        owner, name = child(of.node, "argument"), child(of.node, "field")
        if owner is None or name is None:
            return []
        return [p.member(f".{of.source.text(name)}") for p in self._object(replace(of, node=owner), steps - 1)]

    def _object(self, of: Expression, steps: int) -> list[MemoryLocation]:
        """Return the object that an expression is or points to: pointers to objects are seen through."""
        node = uncast(of.node)
        here = replace(of, node=node)
        if not steps:
            return []
        if node.type == "pointer_expression":
            inner = child(node, "argument")
            return self._object(replace(of, node=inner), steps - 1) if inner is not None else []
        if node.type == "identifier":
            if (bound := self._bound(here)) is not None:
                return self._object(bound, steps - 1)
            made = declaration_of(of.source, node)
            start = initializer_of(made) if made is not None and made.is_pointer else None
            if start is not None and uncast(start).type in {"pointer_expression", "identifier", "field_expression"}:
                return self._object(replace(of, node=start), steps - 1)
        if node.type == CALL and name_of(of.source, node) in TRANSPARENT:
            callee = child(node, "function")
            owner = child(callee, "argument") if callee is not None else None
            return self._object(replace(of, node=owner), steps - 1) if owner is not None else []
        return self.lvalue(here, steps - 1)

    # --- calls

    def _returned_places(self, of: Expression, steps: int) -> list[MemoryLocation]:
        if name_of(of.source, of.node) in TRANSPARENT:
            return self._object(of, steps)
        found: list[MemoryLocation] = []
        for returned in returned_values(self.program, of):
            found += self.lvalue(returned, steps - 1)
        return found
