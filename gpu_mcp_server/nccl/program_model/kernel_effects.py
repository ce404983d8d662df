"""Effects of a kernel on each of its pointers, read off its body: position among the parameters means nothing."""

from dataclasses import dataclass, replace

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model import api_names
from gpu_mcp_server.nccl.program_model.functions import Function, declared_identifier, is_pointer
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    ParsedSource,
    arguments,
    field,
    is_cast,
    name_of,
    receiver_of,
    walk,
)

MAX_DEPTH = 6
READERS = frozenset({"__ldg", "__ldcs", "__ldca", "__ldcg", "__ldcv", "__ldlu", "__nv_ptr_builtin_ocg_ld", "load"})
WRITERS = frozenset({"__stcs", "__stcg", "__stwb", "__stwt", "store"})
ACCESSES = frozenset({"subscript_expression", "pointer_expression", "field_expression"})
MEMBERS = frozenset({"data", "get", "lsaPtr", "localPtr", "peerPtr", "begin"})


@dataclass(frozen=True)
class ParameterAccess:
    """Accesses to the memory behind a parameter."""

    reads: bool = False
    writes: bool = False
    is_peer: bool = False
    """Through a pointer to another rank's memory."""
    is_unknown: bool = False
    """The body does not tell: a function that is not here gets the pointer."""

    def __or__(self, other: "ParameterAccess") -> "ParameterAccess":
        """Both."""
        return ParameterAccess(
            self.reads or other.reads,
            self.writes or other.writes,
            self.is_peer or other.is_peer,
            self.is_unknown or other.is_unknown,
        )


READ, WRITE, BOTH = ParameterAccess(reads=True), ParameterAccess(writes=True), ParameterAccess(reads=True, writes=True)


class Effects:
    """The accesses of a program's device functions, by parameter."""

    def __init__(self, program: ProgramModel) -> None:
        """Compute nothing yet."""
        self._program = program
        self._known: dict[Function, dict[str, ParameterAccess]] = {}

    def effects_of(self, function: Function) -> dict[str, ParameterAccess]:
        """Return what a kernel or device function does with each pointer it gets; what it leaves alone is not there."""
        return self._of(function, MAX_DEPTH)

    def _of(self, function: Function, depth: int) -> dict[str, ParameterAccess]:
        if function not in self._known:
            self._known[function] = {}  # a recursion sees itself as doing nothing more
            self._known[function] = _Body(self, function, depth).accesses
        return self._known[function]

    def effects_of_call(self, name: str, given: int, depth: int) -> tuple[Function, dict[str, ParameterAccess]] | None:
        """Return the accesses of a function that a body calls, if it is here."""
        found = self._program.by_name.get(name, [])
        fitting = [f for f in found if len(f.parameters) >= given] or found
        if not fitting or not depth:
            return None
        return fitting[0], self._of(fitting[0], depth - 1)


class _Body:
    """One body."""

    def __init__(self, effects: Effects, function: Function, depth: int) -> None:
        self.effects, self.function, self.depth = effects, function, depth
        self.source: ParsedSource = function.source
        self.accesses: dict[str, ParameterAccess] = {}
        self.aliases: dict[str, set[str]] = {p.name: {p.name} for p in function.parameters if p.name}
        self.references: set[str] = {p.name for p in function.parameters if "&" in self.source.text(p.node)}
        self.peers: set[str] = set()
        for _ in range(3):  # an alias of an alias of an alias
            self._collect_aliases()
        for node in walk(function.body):
            self._visit(node)

    def _collect_aliases(self) -> None:
        for node in walk(self.function.body):
            if node.type == "init_declarator":
                name, value = declared_identifier(field(node, "declarator")), field(node, "value")
                if name is None or value is None or not self._keeps_pointer(node, value):
                    continue
                self._alias(self.source.text(name), value)
                if any(c.type == "reference_declarator" for c in walk(node)):
                    self.references.add(self.source.text(name))
            elif node.type == "assignment_expression":
                left, right = field(node, "left"), field(node, "right")
                if left is not None and right is not None and left.type == "identifier":
                    name = self.source.text(left)
                    if name in self.aliases and name not in self.references:
                        self._alias(name, right)

    def _alias(self, name: str, value: Node) -> None:
        roots = self.roots(value)
        if not roots:
            return
        self.aliases.setdefault(name, set()).update(roots)
        if self._is_peer(value):
            self.peers.add(name)

    def _keeps_pointer(self, node: Node, value: Node) -> bool:
        """Say whether a declaration makes a pointer, not a copy of what one points to."""
        if is_pointer(field(node, "declarator")):
            return True
        kind = field(node.parent, "type") if node.parent is not None else None
        if kind is None or "auto" not in self.source.text(kind):
            return False
        return value.type not in {"subscript_expression"} and not (
            value.type == "pointer_expression" and value.children[0].type == "*"
        )

    def roots(self, node: Node | None) -> set[str]:
        """Return the parameters that an expression's pointer comes from."""
        if node is None:
            return set()
        if node.type == "identifier":
            return self.aliases.get(self.source.text(node), set())
        if node.type == CALL:
            return self._roots_of_call(node)
        if node.type == "conditional_expression":
            return self.roots(field(node, "consequence")) | self.roots(field(node, "alternative"))
        if node.type == "binary_expression":
            return self.roots(field(node, "left")) or self.roots(field(node, "right"))
        if node.type == "parenthesized_expression":
            return self.roots(next((c for c in node.named_children if c.type != "comment"), None))
        return self.roots(field(node, "argument") or field(node, "value"))

    def _roots_of_call(self, node: Node) -> set[str]:
        given, name = arguments(node), name_of(self.source, node)
        if is_cast(node) or name in api_names.POINTER_GETTERS:
            return self.roots(given[0]) if given else set()
        callee = field(node, "function")
        if callee is not None and callee.type == "field_expression" and name in MEMBERS:
            return self.roots(field(callee, "argument"))
        return set[str]().union(*(self.roots(g) for g in given)) if name in {"assume_aligned", "ncclSymPtr"} else set()

    def _is_peer(self, node: Node) -> bool:
        for inner in walk(node):
            if inner.type == CALL and name_of(self.source, inner) in {*api_names.PEER_POINTERS, "lsaPtr", "peerPtr"}:
                return True
            if inner.type == "identifier" and self.source.text(inner) in self.peers:
                return True
        return False

    def _visit(self, node: Node) -> None:
        if node.type == "assignment_expression":
            self._assigned(node)
        elif node.type == "update_expression":
            self._note(field(node, "argument"), BOTH)
        elif node.type == CALL:
            self._called(node)
        elif node.type in ACCESSES and not self._is_target(node) and self._is_access(node):
            self._note(node, READ)
        elif node.type in {"gnu_asm_expression", "asm_statement"}:
            for inner in walk(node):
                if inner.type == "identifier":
                    self._note(inner, replace(BOTH, is_unknown=True), is_access=True)

    def _assigned(self, node: Node) -> None:
        left, operator = field(node, "left"), field(node, "operator")
        if left is None:
            return
        plain = operator is None or operator.type == "="
        self._note(left, WRITE if plain else BOTH)

    def _called(self, node: Node) -> None:
        name, given = name_of(self.source, node), arguments(node)
        if name.startswith("atomic") or name in {"fetch_add", "fetch_sub", "exchange", "compare_exchange_strong"}:
            target = given[0] if given and name.startswith("atomic") else field(node, "function")
            self._note(target, BOTH, is_access=True)
        elif name in READERS or name in WRITERS:
            self._note(given[0] if given else None, READ if name in READERS else WRITE, is_access=True)
        elif name in {"memcpy", "__builtin_memcpy", "memcpy_async"} and len(given) > 1:
            self._note(given[0], WRITE, is_access=True)
            self._note(given[1], READ, is_access=True)
        elif name == "put" and len(given) > 4 and receiver_of(self.source, node):
            self._note(given[2], replace(WRITE, is_peer=True), is_access=True)
            self._note(given[4], READ, is_access=True)
        elif not is_cast(node) and name not in api_names.POINTER_GETTERS:
            self._handed_on(name, given)

    def _handed_on(self, name: str, given: list[Node]) -> None:
        """Follow pointers into another function of the program."""
        inside = self.effects.effects_of_call(name, len(given), self.depth)
        for number, node in enumerate(given):
            if not self.roots(node) or self._is_scalar(node):
                continue
            if inside is None:
                if self._is_pointer_value(node):
                    self._note(node, replace(READ, is_unknown=True), is_access=True)
            elif number < len(inside[0].parameters):
                access = inside[1].get(inside[0].parameters[number].name)
                if access is not None:
                    self._note(node, access, is_access=True)

    def _note(self, node: Node | None, access: ParameterAccess, is_access: bool = False) -> None:
        if node is None or not (is_access or self._is_access(node)):
            return
        if self._is_peer(node):
            access = replace(access, is_peer=True)
        for root in self.roots(node):
            self.accesses[root] = self.accesses.get(root, ParameterAccess()) | access

    def _is_access(self, node: Node) -> bool:
        """Say whether an expression is memory behind a pointer, not the pointer itself."""
        if node.type == "subscript_expression":
            return not self._is_address(node)
        if node.type == "pointer_expression":
            return node.children[0].type == "*"
        if node.type == "field_expression":
            inner = field(node, "argument")
            arrow = any(c.type == "->" for c in node.children)
            return arrow or (inner is not None and self._is_access(inner))
        if node.type == "identifier":
            return self.source.text(node) in self.references
        if node.type == "parenthesized_expression":
            return any(self._is_access(c) for c in node.named_children)
        return False

    def _is_address(self, node: Node) -> bool:
        parent = node.parent
        return parent is not None and parent.type == "pointer_expression" and parent.children[0].type == "&"

    def _is_target(self, node: Node) -> bool:
        """Say whether an expression is (part of) what an assignment writes, or an object whose member is meant."""
        child, parent = node, node.parent
        while parent is not None and (parent.type in ACCESSES or parent.type == "parenthesized_expression"):
            if parent.type == "subscript_expression" and field(parent, "argument") != child:
                return False
            child, parent = parent, parent.parent
        if parent is None:
            return False
        if parent.type == "assignment_expression":
            return field(parent, "left") == child
        if parent.type == "init_declarator":
            return any(c.type == "reference_declarator" for c in parent.children)
        if parent.type == CALL and field(parent, "function") == child:
            return child != node
        return parent.type == "update_expression"

    def _is_scalar(self, node: Node) -> bool:
        """Say whether an argument is a value read from memory; the reading is noted elsewhere."""
        return self._is_access(node)

    def _is_pointer_value(self, node: Node) -> bool:
        name = next((p for p in self.function.parameters if p.name in self.roots(node)), None)
        return name is not None and name.is_pointer
