"""Resolve a name to its declaration, at the place where it stands."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import PARAMETERS, declared_identifier, is_pointer
from gpu_mcp_server.nccl.program_model.syntax import PREPROCESSOR, STRUCTURES, Names, ParsedSource, field, walk


@dataclass(frozen=True)
class Declaration:
    """A variable or parameter."""

    source: ParsedSource
    name: str
    node: Node
    """The declaration."""
    declarator: Node
    """Its part of the declaration, with initializer."""
    scope: Node
    """The block, function or file it belongs to."""

    @property
    def key(self) -> tuple[str, int]:
        """Return a key that no other one has."""
        return self.source.path, self.declarator.start_byte

    @property
    def line(self) -> int:
        """Return the line of its declaration."""
        return self.source.line(self.declarator)

    @property
    def is_parameter(self) -> bool:
        """Return whether it is a parameter."""
        return self.node.type in PARAMETERS

    @cached_property
    def type_text(self) -> str:
        """The type without stars and qualifiers."""
        kind = field(self.node, "type")
        return self.source.text(kind) if kind is not None else ""

    @property
    def is_pointer(self) -> bool:
        """Return whether it is declared a pointer, reference or array."""
        return is_pointer(self.declarator) or "*" in self.source.text(self.declarator).partition("=")[0]


def declaration_of(source: ParsedSource, name: Node) -> Declaration | None:
    """Return the declaration that an identifier refers to, in its own file."""
    text = source.text(name)
    if name.id not in source.declarations:
        made = declaration_at(source, text, name)
        source.declarations[name.id] = (made.node, made.declarator, made.scope) if made is not None else None
    known = source.declarations[name.id]
    return Declaration(source, text, *known) if known is not None else None


def declaration_at(source: ParsedSource, text: str, place: Node) -> Declaration | None:
    """Return the declaration that a name has at a place."""
    at = place.start_byte
    node: Node | None = place.parent
    while node is not None:
        found = _declared_in(source, node, text, at)
        if found is not None:
            return found
        node = node.parent
    return None


def global_declaration(source: ParsedSource, name: str) -> Declaration | None:
    """Return the declaration of a name at the top of a file."""
    return _declared_in(source, source.root, name, source.root.end_byte)


def initializer_of(made: Declaration) -> Node | None:
    """Return the expression that a declaration starts with."""
    if made.declarator.type == "init_declarator":
        return field(made.declarator, "value")
    return None


def _declared_in(source: ParsedSource, scope: Node, name: str, before: int) -> Declaration | None:
    best: Declaration | None = None
    for start, node, declarator in _names_in(source, scope).get(name, ()):
        if start <= before:
            best = Declaration(source, name, node, declarator, scope)
    return best


def _names_in(source: ParsedSource, scope: Node) -> Names:
    """Return what a scope declares, by name, with where: collected once a scope."""
    known = source.scopes.get(scope.id)
    if known is None:
        known = source.scopes[scope.id] = {}
        for node, declarator in _declarators(scope):
            identifier = declared_identifier(declarator)
            if identifier is not None:
                made = (identifier.start_byte, node, declarator)
                known.setdefault(source.text(identifier), []).append(made)
    return known


def _declarators(scope: Node) -> list[tuple[Node, Node]]:
    """Return the declarations that stand directly in a scope, with each of their declarators."""
    if scope.type in {"function_definition", "lambda_expression"}:
        return _parameters(scope)
    if scope.type == "for_statement":
        made = field(scope, "initializer")
        return _of(made) if made is not None and made.type == "declaration" else []
    if scope.type == "for_range_loop":
        declarator = field(scope, "declarator")
        return [(scope, declarator)] if declarator is not None else []
    if scope.type in {"compound_statement", "translation_unit", "declaration_list", "case_statement"}:
        return _listed(scope)
    return []


def _listed(scope: Node) -> list[tuple[Node, Node]]:
    found: list[tuple[Node, Node]] = []
    for child in scope.named_children:
        if child.type == "declaration":
            found += _of(child)
        elif child.type in PREPROCESSOR or child.type in {"linkage_specification", "namespace_definition"}:
            inner = field(child, "body") if child.type not in PREPROCESSOR else child
            if inner is not None:
                found += _listed(inner)
    return found


def _of(node: Node) -> list[tuple[Node, Node]]:
    return [(node, c) for n, c in enumerate(node.children) if node.field_name_for_child(n) == "declarator"]


def _parameters(scope: Node) -> list[tuple[Node, Node]]:
    declarator = field(scope, "declarator")
    while declarator is not None and declarator.type not in {"function_declarator", "lambda_declarator"}:
        declarator = field(declarator, "declarator") or next(
            (c for c in declarator.named_children if c.type.endswith("declarator")), None
        )
    listed = field(declarator, "parameters") if declarator is not None else None
    if listed is None:
        return []
    found: list[tuple[Node, Node]] = []
    for node in listed.named_children:
        inner = field(node, "declarator") if node.type in PARAMETERS else None
        if inner is not None:
            found.append((node, inner))
    return found


def has_member(sources: Iterable[ParsedSource], owner: str, name: str) -> bool:
    """Say whether a structure or class has a member of a name."""
    return any(name in source.members_of(owner) for source in sources)


def declaration_used_in(source: ParsedSource, function: Node, name: str) -> Declaration | None:
    """Return what a name means somewhere in a function."""
    for inner in walk(function):
        if inner.type == "identifier" and source.text(inner) == name:
            made = declaration_of(source, inner)
            if made is not None:
                return made
    return None


def listed_members(source: ParsedSource, kind: Node | None, listed: Node) -> list[tuple[str, Node]]:
    """Return what a list such as `{a, n}` or `{.x = a}` gives each member of a structure of the same file."""
    given = [c for c in listed.named_children if c.type != "comment"]
    if any(c.type == "initializer_pair" for c in given):
        pairs = [(field(c, "designator"), field(c, "value")) for c in given]
        return [(source.text(d).lstrip("."), v) for d, v in pairs if d is not None and v is not None]
    if kind is None:
        return []
    name = source.text(field(kind, "name") or kind).split("<")[0]
    is_here = kind.type in STRUCTURES and field(kind, "body") is not None
    found = kind if is_here else source.structures.get(name)
    body = field(found, "body") if found is not None else None
    members = [m for m in body.named_children if m.type == "field_declaration"] if body is not None else []
    names = [source.text(n) for m in members for n in map(_member_name, _declared(m)) if n is not None]
    return list(zip(names, given, strict=False))


def _declared(member: Node) -> list[Node]:
    return [c for n, c in enumerate(member.children) if member.field_name_for_child(n) == "declarator"]


def _member_name(declarator: Node) -> Node | None:
    if any(c.type == "function_declarator" for c in walk(declarator)):
        return None
    return next((c for c in walk(declarator) if c.type == "field_identifier"), None)
