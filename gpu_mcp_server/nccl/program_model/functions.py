"""The functions of a file: kernels, device functions, methods, lambdas with a name."""

from dataclasses import dataclass
from dataclasses import field as data_field

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, enclosing, field, is_inactive, last_name, walk

DECLARATORS = ("pointer_declarator", "reference_declarator", "array_declarator", "parenthesized_declarator")
PARAMETERS = ("parameter_declaration", "optional_parameter_declaration", "variadic_parameter_declaration")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function."""

    name: str
    type_text: str
    """Without the declarator's stars: `float` of `const float* x`."""
    is_pointer: bool
    is_const: bool
    node: Node = data_field(compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Function:
    """A function with a body."""

    name: str
    source: ParsedSource = data_field(repr=False)
    node: Node = data_field(repr=False)
    body: Node = data_field(repr=False)
    parameters: tuple[Parameter, ...]
    is_kernel: bool = False
    is_device: bool = False
    is_template: bool = False
    is_lambda: bool = False
    owner: str | None = None
    """The struct or class whose method it is."""

    @property
    def line(self) -> int:
        """Return its first line."""
        return self.source.line(self.node)


def functions_of(source: ParsedSource) -> list[Function]:
    """Return the functions that are defined in a file, inactive code left out."""
    found: list[Function] = []
    for node in source.landmarks:
        made = None
        if node.type == "function_definition":
            made = _function(source, node)
        elif node.type == "lambda_expression":
            made = _lambda(source, node)
        if made is not None and not is_inactive(source, node):
            found.append(made)
    return found


def declared_identifier(node: Node | None) -> Node | None:
    """Return the identifier in a declarator."""
    while node is not None and node.type not in {"identifier", "field_identifier", "type_identifier"}:
        inner = field(node, "declarator") or field(node, "name")
        if inner is None and node.type in {*DECLARATORS, "init_declarator"}:
            inner = next((c for c in reversed(node.named_children) if c.type != "type_qualifier"), None)
        node = inner
    return node


def is_pointer(node: Node | None) -> bool:
    """Say whether a declarator makes a pointer, a reference or an array."""
    while node is not None:
        if node.type in {"pointer_declarator", "array_declarator", "reference_declarator"}:
            return True
        node = field(node, "declarator")
    return False


def parameters_of(source: ParsedSource, declarator: Node) -> tuple[Parameter, ...]:
    """Return the parameters of a function's declarator."""
    listed = field(declarator, "parameters")
    if listed is None:
        return ()
    return tuple(_parameter(source, n) for n in listed.named_children if n.type in PARAMETERS)


def _parameter(source: ParsedSource, node: Node) -> Parameter:
    kind, declarator = field(node, "type"), field(node, "declarator")
    name = declared_identifier(declarator)
    qualifiers = [source.text(c) for c in node.children if c.type == "type_qualifier"]
    pointer = is_pointer(declarator) or (
        declarator is not None and any("pointer" in c.type or "reference" in c.type for c in walk(declarator))
    )
    return Parameter(
        source.text(name) if name is not None else "",
        source.text(kind) if kind is not None else "",
        pointer,
        "const" in qualifiers,
        node,
    )


def _function(source: ParsedSource, node: Node) -> Function | None:
    body, declarator = field(node, "body"), field(node, "declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = field(declarator, "declarator") or next(
            (c for c in declarator.named_children if c.type.endswith("declarator")), None
        )
    if body is None or declarator is None:
        return None
    named = field(declarator, "declarator")
    specifiers = {c.type for c in node.children} | {source.text(c) for c in node.children if c.child_count <= 1}
    return Function(
        last_name(source, named) or (source.text(named) if named is not None else ""),
        source,
        node,
        body,
        parameters_of(source, declarator),
        is_kernel="__global__" in specifiers,
        is_device="__device__" in specifiers,
        is_template=node.parent is not None and node.parent.type == "template_declaration",
        owner=_owner(source, node, named),
    )


def _owner(source: ParsedSource, node: Node, named: Node | None) -> str | None:
    if named is not None and named.type == "qualified_identifier":
        scope = field(named, "scope")
        return last_name(source, scope) or (source.text(scope) if scope is not None else None)
    inside = enclosing(node.parent, "struct_specifier", "class_specifier", "function_definition")
    if inside is None or inside.type == "function_definition":
        return None
    name = field(inside, "name")
    return source.text(name) if name is not None else None


def _lambda(source: ParsedSource, node: Node) -> Function | None:
    parent, body = node.parent, field(node, "body")
    if parent is None or body is None or parent.type != "init_declarator":
        return None
    name, declarator = declared_identifier(field(parent, "declarator")), field(node, "declarator")
    if name is None:
        return None
    given = parameters_of(source, declarator) if declarator is not None else ()
    return Function(source.text(name), source, node, body, given, is_lambda=True)
