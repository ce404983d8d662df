"""Objects that declarations make and blocks end, with the constructors and destructors that run."""

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import Function, declared_identifier, is_pointer
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.scopes import Declaration
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, field


class ObjectModel:
    """Constructors and destructors of a program's classes."""

    def __init__(self, program: ProgramModel) -> None:
        """Find the classes that have any."""
        self._program = program
        self._destructors = {f.owner: f for f in program.functions if f.name.startswith("~")}
        self._classes = {*self._destructors, *(f.owner for f in program.functions if f.owner == f.name)}

    def constructor(self, kind: str, given: int) -> Function | None:
        """Return the constructor of a class that takes as many arguments; of several the first."""
        functions = self._program.by_name.get(kind.split("<")[0], [])
        own = [f for f in functions if f.owner == f.name and len(f.parameters) >= given]
        return next((f for f in own if len(f.parameters) == given), own[0] if own and given else None)

    def is_eventful(self, source: ParsedSource, node: Node) -> bool:
        """Say whether a node declares an object whose constructor or destructor is in the program."""
        return node.type == "declaration" and self._kind(source, node) in self._classes

    def made_by(self, source: ParsedSource, node: Node) -> list[tuple[Declaration, Function, list[Node]]]:
        """Return the objects that a declaration makes without `=`, with the constructor and what it gets.

        The grammar takes `Buffer b(n);` for a function that takes an n.
        """
        found: list[tuple[Declaration, Function, list[Node]]] = []
        for declarator in _declarators(node) if self.is_eventful(source, node) else ():
            listed = field(declarator, "parameters") if declarator.type == "function_declarator" else None
            given = [field(p, "type") or p for p in listed.named_children] if listed is not None else []
            is_call = bool(given) and listed is not None and all(p.child_count == 1 for p in listed.named_children)
            name, constructor = declared_identifier(declarator), self.constructor(self._kind(source, node), len(given))
            if name is not None and constructor is not None and (is_call or declarator.type == "identifier"):
                found.append((Declaration(source, source.text(name), node, declarator, node), constructor, given))
        return found

    def ended_by(self, source: ParsedSource, node: Node) -> list[tuple[Declaration, Function]]:
        """Return the objects of a declaration that end with its block, the last one first, with their destructors."""
        destructor = self._destructors.get(self._kind(source, node)) if node.type == "declaration" else None
        found: list[tuple[Declaration, Function]] = []
        for declarator in reversed(_declarators(node)) if destructor is not None else ():
            name = declared_identifier(declarator)
            if destructor is not None and name is not None and not is_pointer(declarator):
                found.append((Declaration(source, source.text(name), node, declarator, node), destructor))
        return found

    @staticmethod
    def _kind(source: ParsedSource, node: Node) -> str:
        kind = field(node, "type")
        return source.text(kind).split("<")[0] if kind is not None else ""


def _declarators(node: Node) -> list[Node]:
    return [c for n, c in enumerate(node.children) if node.field_name_for_child(n) == "declarator"]
