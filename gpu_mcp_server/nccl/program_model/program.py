"""A program: the files that its main file reaches by includes, with functions, macros, calls and launches."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as data_field
from functools import cached_property
from posixpath import basename, dirname, join, normpath, splitext

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.api_names import ROLES
from gpu_mcp_server.nccl.program_model.constants import constants_of, fold_constant
from gpu_mcp_server.nccl.program_model.functions import Function, functions_of
from gpu_mcp_server.nccl.program_model.launches import KernelLaunch, launch_at
from gpu_mcp_server.nccl.program_model.macros import Macro, expand_macro, macros_of, macros_with_calls
from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    Parse,
    ParsedSource,
    arguments,
    enclosing,
    field,
    is_inactive,
    name_of,
    parse,
    strip_casts,
    walk,
)

LEAST_ARGUMENTS = 3
"""Arguments after the name of a collective that show a call; fewer may only hand its address on."""
NESTING = 4
"""Macros within macros whose calls are followed."""
SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hh", ".cpp", ".cc", ".cxx", ".c", ".inl", ".inc")
DEVICE = ".device"
"""In the name of a file that a transformation made, before its suffix."""
GENERATED = "ncclx::"
"""The namespace of generated infrastructure."""
CONSTRUCTOR = re.compile(r"\b(\w+)\s*::\s*\1\s*\(")
NAMES = frozenset({"identifier", "type_identifier"})
UNITS = (".cu", ".cpp", ".cc", ".cxx", ".c")


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A call in active code."""

    name: str
    """Without namespace and template arguments; a macro or function pointer that stands for it is seen through."""
    source: ParsedSource = data_field(repr=False)
    """Holds the nodes of the arguments: the file, or the text of an expanded macro."""
    node: Node = data_field(repr=False)
    """The call, in `source`."""
    nodes: list[Node] = data_field(repr=False)
    place: Node = data_field(repr=False)
    """Where it stands in the file: the call, or the use of the macro."""
    path: str
    line: int
    function: Function | None = data_field(default=None, repr=False)
    via_macro: str | None = None
    via_pointer: str | None = None

    @property
    def full_name(self) -> str:
        """The name, with the prefix if it is a call of generated infrastructure."""
        callee = field(self.node, "function")
        generated = callee is not None and self.source.text(callee).startswith(GENERATED)
        return GENERATED + self.name if generated else self.name

    @property
    def arguments(self) -> list[str]:
        """The arguments' texts."""
        return [self.source.text(n) for n in self.nodes]


class ProgramModel:
    """Functions, kernels, calls and launches of a set of files."""

    def __init__(self, sources: dict[str, ParsedSource], main: str, missing: list[str]) -> None:
        """Keep the parsed files."""
        self.sources = sources
        self.main = main
        self.missing_includes = missing
        self.functions: list[Function] = [f for s in sources.values() for f in functions_of(s)]
        self.macros: dict[str, Macro] = {m.name: m for s in sources.values() for m in macros_of(s)}
        self.constants: dict[str, str] = constants_of(sources.values(), self.macros)
        self._hiding = macros_with_calls(self.macros)
        self._calls_at: dict[int, list[FunctionCall]] = {}

    @classmethod
    def read(
        cls, files: Mapping[str, str], main: str | None = None, branch: int = 0, parse: Parse = parse
    ) -> "ProgramModel":
        """Parse the files that belong together.

        Args:
            files: Text by path.
            main: The file to start from; includes within `files` are followed, and so are files that define a function
                which is called but not defined so far. Absent: all sources.
            branch: Which branch of conditions of the preprocessor that split a statement: 0 the first, -1 the last.
            parse: Parses a file, or remembers how it did.
        """
        if main is None:
            return cls({p: parse(p, t, branch) for p, t in sorted(files.items()) if p.endswith(SUFFIXES)}, "", [])
        sources: dict[str, ParsedSource] = {}
        missing: list[str] = []
        pending = [main]
        while pending:
            path = pending.pop(0)
            sources[path] = parse(path, files[path], branch)
            for name in includes_of(sources[path]):
                found = resolve_include(name, path, files)
                if found is None:
                    missing.append(name)
                else:
                    pending.append(found)
            pending = [p for p in dict.fromkeys(pending) if p not in sources] or defining_files(
                sources, _generation_of(main, files), parse
            )
        return cls(sources, main, list(dict.fromkeys(missing)))

    @cached_property
    def kernels(self) -> dict[str, Function]:
        """Kernels with a body, by name."""
        return {f.name: f for f in self.functions if f.is_kernel}

    @cached_property
    def by_name(self) -> dict[str, list[Function]]:
        """Functions by name."""
        found: dict[str, list[Function]] = {}
        for function in self.functions:
            found.setdefault(function.name, []).append(function)
        return found

    @cached_property
    def calls(self) -> list[FunctionCall]:
        """Calls in active code, in the text's order; those that macros hide are put in where the macro is used."""
        return [c for s in self.sources.values() for c in self.calls_in(s, s.root)]

    @cached_property
    def launches(self) -> list[KernelLaunch]:
        """Launches in active code."""
        found = [self.launch_of(c) for c in self.calls]
        return [launch for launch in found if launch is not None]

    def calls_in(self, source: ParsedSource, node: Node) -> Iterator[FunctionCall]:
        """Calls below a node of a file."""
        for inner in source.read_once(_calls_and_names, node):
            if not is_inactive(source, inner):
                yield from self.calls_at(source, inner)

    def calls_at(self, source: ParsedSource, node: Node) -> list[FunctionCall]:
        """Return the calls that a node of a file is: itself, and what a macro there hides."""
        if node.type != CALL and source.text(node) not in self._hiding:
            return []
        if node.id not in self._calls_at:
            self._calls_at[node.id] = list(self._read_calls(source, node))
        return self._calls_at[node.id]

    def is_call(self, source: ParsedSource, node: Node) -> bool:
        """Say whether a node of a file is a call, or hides some."""
        return node.type == CALL or (node.type in NAMES and source.text(node) in self._hiding)

    def _read_calls(self, source: ParsedSource, node: Node) -> Iterator[FunctionCall]:
        function = self.function_at(source, node)
        if node.type == CALL:
            yield self._call(source, node, node, source.path, function, None)
            yield from self._handed(source, node, function)
        yield from self._hidden(source, node, node, source.path, function, NESTING)

    def launch_of(self, call: FunctionCall) -> KernelLaunch | None:
        """Read a call as a launch, if it is one."""
        made = launch_at(call.source, call.node)
        if made is None:
            return None
        return replace(made, via_macro=call.via_macro, line=call.line)

    def function_at(self, source: ParsedSource, node: Node) -> Function | None:
        """Return the function around a node."""
        inside = enclosing(node, "function_definition")
        return self._bodies.get((source.path, inside.start_byte)) if inside is not None else None

    def fold(self, text: str) -> int | None:
        """Return the value of an integer expression, as far as the program's constants say it."""
        return fold_constant(text, self.constants)

    @cached_property
    def _bodies(self) -> dict[tuple[str, int], Function]:
        return {(f.source.path, f.node.start_byte): f for f in self.functions if not f.is_lambda}

    def _call(
        self, source: ParsedSource, node: Node, place: Node, path: str, function: Function | None, via: str | None
    ) -> FunctionCall:
        name, pointer = name_of(source, node), None
        alias = self.macros.get(name)
        if alias is not None and alias.parameters is None and re.fullmatch(r"\w+", alias.body):
            via, name = via or name, alias.body
        elif name not in ROLES and name not in self.by_name:
            named = _pointed(source, node)
            if named is not None:
                pointer, name = name, named
        line = place.start_point[0] + 1
        return FunctionCall(name, source, node, arguments(node), place, path, line, function, via, pointer)

    def _handed(self, source: ParsedSource, node: Node, function: Function | None) -> Iterator[FunctionCall]:
        """Yield the collective that a call gets by name with its arguments, as `std::invoke(ncclBcast, ...)` does."""
        given = arguments(node)
        for number, value in enumerate(given):
            name = source.text(strip_casts(value)).removeprefix("::")
            if name in ROLES and len(given) > number + 1 + LEAST_ARGUMENTS:
                line, by = node.start_point[0] + 1, name_of(source, node)
                rest = given[number + 1 :]
                yield FunctionCall(name, source, node, rest, node, source.path, line, function, None, by)

    def _hidden(
        self, source: ParsedSource, node: Node, place: Node, path: str, function: Function | None, depth: int
    ) -> Iterator[FunctionCall]:
        macro = self.macros.get(name_of(source, node) if node.type == CALL else source.text(node))
        if macro is None or macro.name not in self._hiding or not depth:
            return
        if (macro.parameters is None) != (node.type != CALL) or macro.name == source.path:
            return
        given = [source.text(n) for n in arguments(node)] if node.type == CALL else []
        inside = ParsedSource(macro.name, f"void _(){{{expand_macro(macro, given)};}}".encode())
        argument_texts = "".join("".join(t.split()) for t in given)
        for inner in walk(inside.root):
            if inner.type == CALL and inside.text_without_space(inner) not in argument_texts:
                yield self._call(inside, inner, place, path, function, macro.name)
                yield from self._hidden(inside, inner, place, path, function, depth - 1)


def _calls_and_names(_: ParsedSource, node: Node) -> list[Node]:
    return [inner for inner in walk(node) if inner.type in {CALL, "identifier"}]


def includes_of(source: ParsedSource) -> list[str]:
    """Return the names that a file includes."""
    found: list[str] = []
    for node in source.landmarks:
        if node.type == "preproc_include" and not is_inactive(source, node):
            path = field(node, "path")
            if path is not None:
                found.append(source.text(path).strip('<>"'))
    return found


def resolve_include(name: str, includer: str, files: Mapping[str, str]) -> str | None:
    """Return the file that an include means: beside the includer, from the root, or the only one that ends so."""
    for folder in (dirname(includer), "", "include", "src"):
        path = normpath(join(folder, name))
        if path in files:
            return path
    ending = [p for p in files if p.endswith("/" + name.lstrip("./"))]
    return ending[0] if len(ending) == 1 else None


def device_name(path: str) -> str:
    """Return the name of a new file beside a given one; what has it already keeps it."""
    stem, suffix = splitext(path)
    if stem.endswith(DEVICE):
        return path
    return stem + DEVICE + (".cu" if suffix in {".cc", ".cpp", ".cxx", ".c"} else suffix)


def _generation_of(main: str, files: Mapping[str, str]) -> dict[str, str]:
    """Return files without the other generation of each: a transformed program's originals, an original's new files."""
    if DEVICE in basename(main):
        old = {p for p in files if device_name(p) != p and device_name(p) in files}
    else:
        old = {device_name(p) for p in files if device_name(p) != p}
    return {p: t for p, t in files.items() if p not in old}


def units_of(files: Mapping[str, str], main: str, parse: Parse = parse) -> list[str]:
    """Return the files of a program that are compiled each by itself: the main one, and others that no file includes.

    Another file with a `main` is another program's.
    """
    parsed = {p: parse(p, t, 0) for p, t in files.items() if p.endswith(SUFFIXES)}
    included = {resolve_include(n, p, files) for p, s in parsed.items() for n in includes_of(s)}
    others = sorted(p for p in parsed if p.endswith(UNITS) and p != main and p not in included)
    return [main, *(p for p in others if all(f.name != "main" for f in functions_of(parsed[p])))]


def defining_files(sources: Mapping[str, ParsedSource], files: Mapping[str, str], parse: Parse = parse) -> list[str]:
    """Return the files with functions, and methods of classes they name, that the sources call and do not define.

    Constructors count as called, as objects are made in too many ways to look for.
    """
    others = {p: t for p, t in files.items() if p not in sources and p.endswith(UNITS)}
    if not others:
        return []
    called = {name_of(s, c) for s in sources.values() for c in s.calls()} - {"", "main"}
    defined = {(f.owner, f.name) for s in sources.values() for f in functions_of(s)}
    free = called - {name for _, name in defined}
    scopes = {word for s in sources.values() for word in re.findall(r"\w+", s.data.decode("utf-8", "replace"))}
    found: list[str] = []
    for path, text in others.items():
        if not called.intersection(re.findall(r"\b(\w+)\s*\(", text)) and not CONSTRUCTOR.search(text):
            continue
        for f in functions_of(parse(path, text, 0)):
            method = f.owner in scopes and f.name in {*called, f.owner} and (f.owner, f.name) not in defined
            if f.name in free if f.owner is None else method:
                found.append(path)
                break
    return found


def _pointed(source: ParsedSource, call: Node) -> str | None:
    """Return the collective that a function pointer was initialized with."""
    callee = field(call, "function")
    if callee is None or callee.type != "identifier":
        return None
    made = declaration_of(source, callee)
    value = initializer_of(made) if made is not None else None
    name = source.text(strip_casts(value)) if value is not None else ""
    return name if name in ROLES else None
