"""One file as a syntax tree. Offsets are bytes, lines count from 1.

The grammar is tree-sitter-cuda: it knows `<<<>>>`, survives code that does not compile, needs no headers and sees
both branches of an `#if`. (Measured on 46 public files with 125 calls: regular expressions found 116 and invented 2,
libclang without the includes found 38.)
"""

import re
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property, lru_cache
from typing import Any, TypeVar

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Tree

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.nccl.program_model.split_conditions import Span, choose_branches, join_arguments

CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast", "dynamic_cast"})
BLOCKS = frozenset({"compound_statement", "translation_unit", "declaration_list", "case_statement"})
PREPROCESSOR = frozenset({"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_elifdef"})
STRUCTURES = frozenset({"struct_specifier", "class_specifier"})
CALL = "call_expression"
LANDMARKS = STRUCTURES | {
    *(CALL, "function_definition", "lambda_expression", "init_declarator", "preproc_include", "preproc_def"),
    *("preproc_function_def", "if_statement"),
}
"""Nodes that several readers look for in a whole file."""
KEPT_CHARACTERS = 40_000
"""A file of up to so many stays as it was read, as generated ones do: 150 bytes a character, 192 MB in all."""
MOST_KEPT = 32
CHUNK = 1 << 16
MOST_S = 10.0
"""Processor time for a file. 1 MiB of code takes half a second; a text that is no code could take hours."""

_FIXED = re.compile(rb"#\s*(?:el)?if[\s(]+(?:\d|true|false)")
Read = TypeVar("Read")
Names = dict[str, list[tuple[int, Node, Node]]]
"""Names of a scope: where each is declared, its declaration, its declarator."""


@cache
def _language() -> Language:
    return Language(tree_sitter_cuda.language())


def _tree_of(path: str, data: bytes) -> Tree:
    """Return a text's tree.

    Raises:
        BadRequest: If that takes more than MOST_S.
    """
    began = time.thread_time()

    def read(offset: int, _: object) -> bytes:
        return data[offset : offset + CHUNK]

    def is_over(*_: object) -> bool:
        return time.thread_time() - began > MOST_S

    try:
        return Parser(_language()).parse(read, progress_callback=is_over)
    except ValueError as error:
        raise BadRequest(
            f"{path} took more than {MOST_S:g} s to parse: its text is no C++ that ends, such as a comment left open.",
            hint="Leave this file out, or give one that compiles.",
        ) from error


class ParsedSource:
    """The text of a file and its tree."""

    def __init__(self, path: str, data: bytes, branch: int = 0) -> None:
        """Parse; of conditions that split a statement with the first branch, or with the last where `branch` is -1."""
        self.path = path
        self.data = data
        self._tree = _tree_of(path, data)
        self.split_spans: list[Span] = []
        """Conditions of the preprocessor that split statements, so that another branch would give another tree."""
        chosen = choose_branches(data, branch) if self._tree.root_node.has_error else None
        text = data
        if chosen is not None:
            text, self.split_spans = chosen
            self._tree = _tree_of(path, text)
        if self._tree.root_node.has_error and (joined := join_arguments(text)) != text:
            self._tree = _tree_of(path, joined)
        self.root: Node = self._tree.root_node
        self.has_fixed_conditions = _FIXED.search(data) is not None
        """Whether there is an `#if 0` or the like at all."""
        self.scopes: dict[int, Names] = {}
        """What each scope declares, kept by `scopes`."""
        self.declarations: dict[int, tuple[Node, Node, Node] | None] = {}
        """What each name stands for: declaration, declarator, scope; kept by `scopes`."""
        self._members: dict[str, frozenset[str]] = {}
        self._read: dict[tuple[Callable[..., Any], int], Any] = {}

    def text(self, node: Node) -> str:
        """Return the text of a node."""
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def text_without_space(self, node: Node) -> str:
        """Return the text of a node without white space."""
        return "".join(self.text(node).split())

    def line(self, node: Node) -> int:
        """Return the line on which a node starts."""
        return node.start_point[0] + 1

    def read_once(self, read: Callable[["ParsedSource", Node], Read], node: Node) -> Read:
        """Return what a reader finds in a node. It reads each node once: rules come to the same one again and again."""
        key = read, node.id
        if key not in self._read:
            self._read[key] = read(self, node)
        return self._read[key]

    def effects_in(self, function: Node) -> list[Node]:
        """Return the calls and assignments of a function, in the text's order."""
        return self.read_once(_effects_of, function)

    @cached_property
    def landmarks(self) -> list[Node]:
        """Nodes of the types in LANDMARKS, in the text's order: collected once for all readers."""
        return [node for node in walk(self.root) if node.type in LANDMARKS]

    @cached_property
    def jumps(self) -> dict[str, list[Node]]:
        """Every `goto`, by the label that it names, in the text's order."""
        found: dict[str, list[Node]] = {}
        for node in walk(self.root) if b"goto" in self.data else ():
            if node.type == "goto_statement" and node.named_children:
                found.setdefault(self.text(node.named_children[0]), []).append(node)
        return found

    @cached_property
    def labels(self) -> dict[str, list[Node]]:
        """Every statement with a label to which something jumps, by that label, in the text's order."""
        found: dict[str, list[Node]] = {}
        for node in walk(self.root) if self.jumps else ():
            name = field(node, "label") if node.type == "labeled_statement" else None
            if name is not None and self.text(name) in self.jumps:
                found.setdefault(self.text(name), []).append(node)
        return found

    @cached_property
    def structures(self) -> dict[str, Node]:
        """Structures and classes with a body, by name; the first of each."""
        found: dict[str, Node] = {}
        for node in self.landmarks:
            name = field(node, "name") if node.type in STRUCTURES and field(node, "body") is not None else None
            if name is not None:
                found.setdefault(self.text(name), node)
        return found

    def members_of(self, name: str) -> frozenset[str]:
        """Return the names of the members of a structure or class of this file."""
        if name not in self._members:
            body = self.structures.get(name)
            inside = walk(body) if body is not None else ()
            self._members[name] = frozenset(self.text(n) for n in inside if n.type == "field_identifier")
        return self._members[name]

    def calls(self) -> Iterator[Node]:
        """Every call, in the text's order, inactive code included."""
        return (node for node in self.landmarks if node.type == CALL)


Parse = Callable[[str, str, int], ParsedSource]
"""A function with arguments and result of `parse`; a caller that reads texts twice gives `functools.cache(parse)`."""


def parse(path: str, text: str, branch: int = 0) -> ParsedSource:
    """Parse a file; a small one, such as those that are generated for each program, once."""
    return _parsed_once(path, text, branch) if len(text) <= KEPT_CHARACTERS else _parsed(path, text, branch)


def _parsed(path: str, text: str, branch: int) -> ParsedSource:
    return ParsedSource(path, text.encode("utf-8", "surrogateescape"), branch)


_parsed_once = lru_cache(MOST_KEPT)(_parsed)


def _effects_of(_: ParsedSource, function: Node) -> list[Node]:
    return [n for n in walk(function) if n.type in {CALL, "assignment_expression"}]


def walk(node: Node) -> Iterator[Node]:
    """Go through a node and all below it, in the text's order."""
    pending = [node]
    while pending:
        top = pending.pop()
        yield top
        if children := top.children:  # most nodes have none
            pending += children[::-1]


def field(node: Node, name: str) -> Node | None:
    """Return a named child."""
    return node.child_by_field_name(name)


def arguments(call: Node) -> list[Node]:
    """Return the arguments of a call, comments left out."""
    listed = field(call, "arguments")
    return [] if listed is None else [c for c in listed.named_children if c.type != "comment"]


def enclosing(node: Node | None, *types: str) -> Node | None:
    """Return the nearest node of one of the types, from the node itself upwards."""
    while node is not None and node.type not in types:
        node = node.parent
    return node


def statement_of(node: Node) -> Node:
    """Return the statement around a node that stands directly in a block."""
    while node.parent is not None and node.parent.type not in BLOCKS and node.parent.type not in PREPROCESSOR:
        node = node.parent
    return node


def last_name(source: ParsedSource, node: Node | None) -> str:
    """Return the identifier that a callee ends with: `step` of `ns::step<float>`, `sync` of `bar.sync`."""
    while node is not None:
        if node.type in {"identifier", "field_identifier", "type_identifier"}:
            return source.text(node)
        inner = field(node, "field") or field(node, "name")
        if inner is None and node.type in {"parenthesized_expression", "pointer_expression"}:
            inner = node.named_children[0] if node.named_children else None
        node = inner
    return ""


def name_of(source: ParsedSource, call: Node) -> str:
    """Return the name that a call calls, without namespace and template arguments."""
    return last_name(source, field(call, "function"))


def receiver_of(source: ParsedSource, call: Node) -> str | None:
    """Return `bar` of `bar.sync(…)`."""
    callee = field(call, "function")
    if callee is None or callee.type != "field_expression":
        return None
    owner = field(callee, "argument")
    return None if owner is None else source.text_without_space(owner)


def strip_casts(node: Node) -> Node:
    """Take casts of C and C++, parentheses and `&` off an expression."""
    while True:
        inner: Node | None = None
        if node.type == "parenthesized_expression":
            inner = next((c for c in node.named_children if c.type != "comment"), None)
        elif node.type == "cast_expression":
            inner = field(node, "value")
        elif node.type == "pointer_expression" and node.children[0].type == "&":
            inner = field(node, "argument")
        elif node.type == CALL and is_cast(node):
            given = arguments(node)
            inner = given[0] if given else None
        if inner is None:
            return node
        node = inner


def is_cast(call: Node) -> bool:
    """Say whether a call is a C++ cast."""
    callee = field(call, "function")
    if callee is None or callee.type != "template_function":
        return False
    name = field(callee, "name")
    return name is not None and name.text is not None and name.text.decode() in CASTS


def is_inactive(source: ParsedSource, node: Node) -> bool:
    """Say whether a node lies where the preprocessor never lets the compiler see it, as under `#if 0`.

    Only conditions that are plain numbers are judged; code under any other condition counts as active.
    """
    if not source.has_fixed_conditions:
        return False
    child, parent = node, node.parent
    while parent is not None:
        if parent.type in {"preproc_if", "preproc_elif"}:
            condition = field(parent, "condition")
            value = _number(source.text(condition)) if condition is not None else None
            if value is not None and (value == 0) != (field(parent, "alternative") == child):
                return True
        child, parent = parent, parent.parent
    return False


def conditions_of(source: ParsedSource, node: Node) -> list[str]:
    """Return the preprocessor's conditions above a node, the outermost first."""
    found: list[str] = []
    child, parent = node, node.parent
    while parent is not None:
        if parent.type in {"preproc_if", "preproc_ifdef", "preproc_elif"}:
            condition = field(parent, "condition") or field(parent, "name")
            if condition is not None and not _is_guard(source, parent):
                negated = field(parent, "alternative") == child
                found.append(("not " if negated else "") + source.text_without_space(condition))
        child, parent = parent, parent.parent
    return found[::-1]


def _is_guard(source: ParsedSource, node: Node) -> bool:
    """Say whether `#ifndef X … #define X` is the guard of a header."""
    if node.type != "preproc_ifdef" or node.children[0].type != "#ifndef":
        return False
    name = field(node, "name")
    first = next((c for c in node.named_children[1:] if c.type != "comment"), None)
    if name is None or first is None or first.type != "preproc_def":
        return False
    defined = field(first, "name")
    return defined is not None and source.text(defined) == source.text(name)


def _number(text: str) -> int | None:
    text = text.strip().strip("()").strip()
    if text in {"false", "true"}:
        return int(text == "true")
    return int(text) if text.isdigit() else None
