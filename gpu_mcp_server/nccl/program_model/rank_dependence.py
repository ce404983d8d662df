"""Values of the host's code that differ between ranks: the result of MPI_Comm_rank, and all computed from it."""

import re
from dataclasses import dataclass, replace
from dataclasses import field as data_field
from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import Function, functions_of
from gpu_mcp_server.nccl.program_model.scopes import Declaration, declaration_of, initializer_of, listed_members
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, arguments, enclosing, field, name_of, walk
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, Condition, Expression, TraceEvent
from gpu_mcp_server.nccl.program_model.variable_changes import Changes, addressed_variable, changes_in

MAX_STEPS = 10
"""Values from values that are followed."""
MOST_NAMES = 2000
"""Names that are followed for one question."""
RANK_GETTERS = frozenset({"Get_rank", "nvshmem_my_pe", "shmem_my_pe", "omp_get_thread_num"})
"""Functions that return the rank, or the number of a thread that drives a GPU of its own."""
SIZE_CALLS = {"MPI_Comm_size": 1, "ncclCommCount": 1}
"""Function: the argument that receives the number of ranks."""
WAYS_OUT = frozenset({"return_statement", "continue_statement", "break_statement", "goto_statement"})
_RANK = re.compile(
    r"(?:my|world|local|global|mpi|nccl|proc|device|lsa)?_?(?:rank|rk|rank_?id|mype|myid)", re.IGNORECASE
)
_RANGE = re.compile(r"\w*rank\w*(?:<|>=|<=)(?:0|n\w*|\w*size|world\w*)", re.IGNORECASE)
_IN_RANGE = re.compile(r"\(*!?\(*\w+(?:<|>=)(0|\w+)\)*")
_SIZE = re.compile(r"(?:n|num|world|comm|total)?_?(?:ranks?|procs?|gpus?|devices?|pes|world_?size|size)", re.IGNORECASE)
_RANK_VARIABLE = re.compile(r"RANK|PROCID|LOCALID|VPID|PMI_ID")
"""Variables of the environment in which launchers name a process."""
_STATUS = re.compile(r"(?:MPI_(?!W)|nccl[A-Z]|cuda[A-Z]|cu[A-Z]|hip[A-Z])\w*")
"""Functions that return whether they succeeded, whatever they get."""
_SUCCESS = re.compile(r"[Ss]uccess|SUCCESS|nullptr|NULL|\berr(?:or)?\b")
"""Tests of an answer: what is asked for may depend on the rank, that it succeeds does not."""


@dataclass(frozen=True)
class RankDependence:
    """Reason for which a value differs between ranks."""

    name: str
    line: int

    def __str__(self) -> str:
        """Say where it comes from."""
        return f"`{self.name}`, line {self.line}"


@dataclass(frozen=True)
class _Trail:
    """Way from a question to a name: the steps that are left, and names followed from as far or nearer before."""

    steps: int = MAX_STEPS
    seen: dict[tuple[object, ...], int] = data_field(default_factory=dict[tuple[object, ...], int])

    def further(self) -> "_Trail":
        """Return the trail with a step less."""
        return replace(self, steps=self.steps - 1)

    def is_new(self, frame: CallFrame, *key: object) -> bool:
        """Say whether a name is worth following, and note it: variables made of each other have no end of ways."""
        if self.seen.get((frame, *key), 0) >= self.steps or len(self.seen) >= MOST_NAMES:
            return False
        self.seen[(frame, *key)] = self.steps
        return True


def rank_dependence(of: Expression) -> RankDependence | None:
    """Return why an expression differs between ranks, None where nothing says that it does."""
    return _dependence(of, _Trail())


def _dependence(of: Expression, trail: _Trail) -> RankDependence | None:
    pending = [of.node]
    while pending:
        inner = pending.pop()
        if inner.type == CALL:
            found = _asked(of.source, inner)
            if found is None and _STATUS.match(name_of(of.source, inner)):
                continue
        else:
            found = _named(Expression(of.source, inner, of.frame), trail)
        if found is not None:
            return found
        pending.extend(reversed(inner.children))
    return None


def condition_dependence(condition: Condition) -> RankDependence | None:
    """Return why a branch is taken by some ranks only; a test that a rank is in range, or of success, is none."""
    text = condition.text.removeprefix("not (").rstrip(")")
    if condition.expression is None or _SUCCESS.search(text) or _is_range(condition.expression, text):
        return None
    return rank_dependence(condition.expression)


def loop_dependence(event: TraceEvent) -> RankDependence | None:
    """Return why a loop around an event turns more often on some ranks than on others."""
    frame: CallFrame | None = event.frame
    node = event.call.place if event.call is not None else None
    while frame is not None and frame.function is not None:
        loop = enclosing(node, "for_statement", "while_statement", "do_statement")
        while loop is not None:
            why = _turns(frame.function.source, loop, frame)
            if why is not None:
                return why
            loop = enclosing(loop.parent, "for_statement", "while_statement", "do_statement")
        frame, node = frame.parent, frame.place
    return None


def _turns(source: ParsedSource, loop: Node, frame: CallFrame) -> RankDependence | None:
    """Return why a loop's turns depend on the rank: by its end or its start, not by both, which may be as far apart."""
    start, end, step = (
        rank_dependence(Expression(source, part, frame)) if part is not None else None
        for part in (field(loop, "initializer"), field(loop, "condition"), field(loop, "update"))
    )
    if start is not None and end is None:
        update = field(loop, "update")
        return start if update is not None and update.type == "update_expression" else None
    if end is None or start is not None:
        return None
    condition = field(loop, "condition")
    text = source.text_without_space(condition).removeprefix("(").removesuffix(")") if condition is not None else ""
    return None if step is not None or _SUCCESS.search(text) else end


def _is_range(of: Expression, text: str) -> bool:
    """Say whether a test is that a rank is one of the communicator's."""
    if _RANGE.fullmatch(text):
        return True
    for part in re.split(r"&&|\|\|", text):
        found = _IN_RANGE.fullmatch(part)
        name = found[1] if found is not None else ""
        if not (name == "0" or _SIZE.fullmatch(name) or (name and is_rank_count(of.source, of.node, name))):
            return False
    return True


def is_rank_count(source: ParsedSource, place: Node, name: str) -> bool:
    """Say whether a function asks NCCL or MPI for the number of ranks by the address of a variable."""
    function = enclosing(place, "function_definition", "lambda_expression")
    for call in source.effects_in(function) if function is not None else ():
        where = SIZE_CALLS.get(name_of(source, call)) if call.type == CALL else None
        given = arguments(call) if where is not None else []
        if where is not None and where < len(given) and addressed_variable(source, given[where]) == name:
            return True
    return False


def _asked(source: ParsedSource, call: Node) -> RankDependence | None:
    """Return that a call asks for the rank."""
    name = name_of(source, call)
    if name in RANK_GETTERS or (name == "getenv" and _RANK_VARIABLE.search(source.text(call))):
        return RankDependence(source.text_without_space(call), source.line(call))
    return None


def event_dependence(event: TraceEvent) -> tuple[str, RankDependence] | None:
    """Return the condition under which only some ranks come to an event: around it, or with a way out before it."""
    for condition in event.conditions:
        why = condition_dependence(condition)
        if why is not None:
            return condition.text, why
    frame: CallFrame | None = event.frame
    place = event.call.place if event.call is not None else None
    while frame is not None and place is not None and frame.function is not None:
        left = _way_out(frame.function.source, place, frame)
        if left is not None:
            return left
        frame, place = frame.parent, frame.place
    return None


def _way_out(source: ParsedSource, place: Node, frame: CallFrame) -> tuple[str, RankDependence] | None:
    """Return the test of the rank alone that leaves a block before a place, as `if (rank) return;` does."""
    node: Node | None = place
    while node is not None and node.type not in {"function_definition", "lambda_expression", "translation_unit"}:
        block = node.parent
        for test in reversed(_lone_tests(source).get(block.id, ()) if block is not None else ()):
            condition, taken = field(test, "condition"), field(test, "consequence")
            if test.start_byte >= node.start_byte or condition is None or taken is None:
                continue
            if _leaves(source, taken, place):
                why = _own_test(Expression(source, condition, frame))
                if why is not None:
                    text = source.text_without_space(condition).removeprefix("(").removesuffix(")")
                    return f"not ({text})", why
        node = block
    return None


def _own_test(of: Expression) -> RankDependence | None:
    """Return why a way out is taken by some ranks only, each part of a disjunction by itself."""
    node = of.node
    while node.type in {"condition_clause", "parenthesized_expression"} and len(node.named_children) == 1:
        node = node.named_children[0]
    if node.type == "binary_expression" and node.children[1].type == "||":
        sides = (replace(of, node=n) for n in (field(node, "left"), field(node, "right")) if n is not None)
        return next((why for side in sides if (why := _own_test(side)) is not None), None)
    text = of.source.text_without_space(node)
    is_plain = not re.search(r"&&|argc", text) and not _SUCCESS.search(text)
    return rank_dependence(replace(of, node=node)) if is_plain and not _is_range(of, text) else None


@lru_cache(maxsize=16)
def _lone_tests(source: ParsedSource) -> dict[int, list[Node]]:
    """Return each block's ifs without an else, by the block, in the text's order; a label may stand before them."""
    found: dict[int, list[Node]] = {}
    for node in source.landmarks:
        if node.type != "if_statement" or field(node, "alternative") is not None:
            continue
        labeled = node.parent if node.parent is not None and node.parent.type == "labeled_statement" else None
        block = (labeled or node).parent
        if block is not None:
            found.setdefault(block.id, []).append(node)
    return found


def _leaves(source: ParsedSource, taken: Node, place: Node) -> bool:
    """Say whether a branch does not come to a place behind it."""
    last = taken.named_children[-1] if taken.type == "compound_statement" and taken.named_children else taken
    if last.type == "goto_statement" and last.named_children:
        function = enclosing(last, "function_definition", "lambda_expression") or source.root
        marks = [n.start_byte for n in source.labels.get(source.text(last.named_children[0]), ())]
        at = next((mark for mark in marks if mark > function.start_byte), 0)
        return place.start_byte < at < function.end_byte
    ended = re.fullmatch(r"(?:std::)?(?:_|quick_)?exit\((?:0|EXIT_SUCCESS)\);", source.text_without_space(last))
    return last.type in WAYS_OUT or ended is not None


def _named(of: Expression, trail: _Trail) -> RankDependence | None:
    node, source = of.node, of.source
    if node.type == "field_identifier":
        text = source.text(node)
        is_called = node.parent is not None and node.parent.parent is not None and node.parent.parent.type == CALL
        return RankDependence(text, source.line(node)) if _RANK.fullmatch(text) and not is_called else None
    if node.type != "identifier" or not trail.steps:
        return None
    if node.parent is not None and node.parent.type == "field_expression":
        return _member(of, trail)
    name = source.text(node)
    bound = of.frame.bindings.get(name)
    made = declaration_of(source, node)
    if bound is not None and (made is None or made.is_parameter):
        return _dependence(bound, trail.further()) if trail.is_new(of.frame, name) else None
    if made is None or made.scope.type == "translation_unit":
        return RankDependence(name, source.line(node)) if _RANK.fullmatch(name) else None
    return _variable(of, made, trail)


def _part(of: Expression, trail: _Trail) -> RankDependence | None:
    """Follow a member or an element: what is assigned to just that text; which element another means is not known."""
    whole = of.node.parent
    function = enclosing(of.node, "function_definition", "lambda_expression")
    if whole is None or function is None or whole.type not in {"field_expression", "subscript_expression"}:
        return None
    text = of.source.text_without_space(whole)
    if not trail.is_new(of.frame, of.source.path, function.id, text):
        return None
    for inner in of.source.effects_in(function):
        left = field(inner, "left") if inner.type == "assignment_expression" else None
        right = field(inner, "right") if left is not None else None
        if left is None or right is None or of.source.text_without_space(left) != text:
            continue
        inside = right.start_byte <= of.node.start_byte < right.end_byte
        for value in [] if inside else [right, *_branch_tests(inner, function)]:
            why = _dependence(Expression(of.source, value, of.frame), trail.further())
            if why is not None:
                return replace(why, line=of.source.line(right))
    return None


def _branch_tests(assignment: Node, function: Node) -> list[Node]:
    """Return the tests of the branches of a function under which an assignment stands, the innermost first."""
    found: list[Node] = []
    branch = enclosing(assignment.parent, "if_statement", "function_definition", "lambda_expression")
    while branch is not None and branch.type == "if_statement" and branch.start_byte > function.start_byte:
        condition = field(branch, "condition")
        found += [condition] if condition is not None else []
        branch = enclosing(branch.parent, "if_statement", "function_definition", "lambda_expression")
    return found


def _member(of: Expression, trail: _Trail) -> RankDependence | None:
    """Follow a member of an object, which may hold the rank beside what is meant."""
    made = declaration_of(of.source, of.node)
    start = initializer_of(made) if made is not None else None
    whole = of.node.parent
    member = field(whole, "field") if whole is not None else None
    key = (made.declarator.id if made is not None else 0, of.source.text_without_space(whole or of.node))
    if not trail.is_new(of.frame, of.source.path, "member", *key):
        return None
    found = _part(of, trail)
    if found is None and made is not None and start is not None and start.type == "initializer_list":
        listed = listed_members(of.source, field(made.node, "type"), start)
        values = [v for n, v in listed if member is not None and n == of.source.text(member)]
        return next((w for v in values if (w := _dependence(replace(of, node=v), trail.further())) is not None), None)
    callee = field(start, "function") if start is not None and start.type == CALL else None
    if found is not None or start is None or member is None or callee is None or callee.type != "identifier":
        return found
    return _returned_member(of, start, of.source.text(member), trail)


def _returned_member(of: Expression, call: Node, member: str, trail: _Trail) -> RankDependence | None:
    """Follow a member of the structure that a function of the same file returns."""
    source, name = of.source, name_of(of.source, call)
    function = _functions(source).get(name)
    is_deep = of.frame.depth > trail.steps
    if function is None or is_deep or not trail.is_new(of.frame, source.path, call.id, member):
        return None
    bound = {p.name: replace(of, node=g) for p, g in zip(function.parameters, arguments(call), strict=False)}
    frame = CallFrame(function, of.frame, bound, entry=of.frame.entry)
    for value in _member_values(source, function, member):
        why = _dependence(Expression(source, value, frame), trail.further())
        if why is not None:
            return replace(why, line=source.line(call))
    return None


@lru_cache(maxsize=4)
def _functions(source: ParsedSource) -> dict[str, Function]:
    """Return a file's functions by name; looking through the whole file again for each member costs seconds."""
    return {f.name: f for f in functions_of(source) if not f.is_lambda}


def _member_values(source: ParsedSource, function: Function, member: str) -> list[Node]:
    """Return what a function gives a member of the structure that it returns: in a list, or by assignment."""
    kind = field(function.node, "type")
    found: list[Node] = []
    for node in walk(function.body):
        left = field(node, "left") if node.type == "assignment_expression" else None
        right = field(node, "right")
        if left is not None and right is not None and source.text_without_space(left).endswith(f".{member}"):
            found.append(right)
        if node.type == "initializer_list" and node.parent is not None:
            of_result = node.parent.type in {"return_statement", "compound_literal_expression"}
            found += [v for n, v in listed_members(source, kind, node) if n == member] if of_result else []
    return found


def _variable(of: Expression, made: Declaration, trail: _Trail) -> RankDependence | None:
    """Follow a variable: what it starts with, what it is assigned, and calls that give it a value."""
    is_element = of.node.parent is not None and of.node.parent.type == "subscript_expression"
    if is_element and (found := _element(of, made, trail)) is not None:
        return found
    if any(c.type == "array_declarator" for c in walk(made.declarator)):
        return None
    if not trail.is_new(of.frame, of.source.path, made.declarator.id):
        return None
    name, function = made.name, enclosing(made.declarator, "function_definition", "lambda_expression")
    changes = changes_in(of.source, function) if function is not None else Changes()
    given = False
    for call, is_rank in changes.answers.get(name, ())[:1]:
        return RankDependence(name, of.source.line(call)) if is_rank else None
    start = initializer_of(made)
    values = [start] if start is not None else []
    for inner in changes.assignments.get(name, ()):
        right = field(inner, "right")
        if right is None:
            continue
        values.append(right)
        branch = enclosing(inner, "if_statement", "function_definition", "lambda_expression")
        condition = field(branch, "condition") if branch is not None and branch.type == "if_statement" else None
        if condition is not None and branch is not None and branch.start_byte > made.declarator.start_byte:
            values.append(condition)
    for value in values:
        given = True
        if value.start_byte <= of.node.start_byte < value.end_byte:
            continue  # x = x + 1 says nothing new
        why = _dependence(Expression(of.source, value, of.frame), trail.further())
        if why is not None:
            return replace(why, line=of.source.line(value)) if why.name != name else why
    is_rank = _RANK.fullmatch(name) is not None and (not given or made.is_parameter)
    return RankDependence(name, of.source.line(made.declarator)) if is_rank else None


def _element(of: Expression, made: Declaration, trail: _Trail) -> RankDependence | None:
    """Follow an element of an array or a vector, unless all ranks share the whole by MPI."""
    function = enclosing(made.declarator, "function_definition", "lambda_expression")
    answers = changes_in(of.source, function).answers if function is not None else {}
    names = (made.name, f"{made.name}.data()", f"{made.name}[0]")
    shared = any(not is_rank for name in names for _, is_rank in answers.get(name, ()))
    whole = of.node.parent
    is_argument = whole is not None and field(whole, "argument") == of.node
    return None if shared or not is_argument else _part(of, trail)
