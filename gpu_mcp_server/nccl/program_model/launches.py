"""Kernel launches in all their spellings."""

import re
from dataclasses import dataclass
from dataclasses import field as data_field
from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.api_names import LAUNCH_CALLS
from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import (
    ParsedSource,
    arguments,
    enclosing,
    field,
    last_name,
    name_of,
    strip_casts,
    walk,
)

PACKED_LAST = frozenset({"cuLaunchKernel", "cuLaunchCooperativeKernel", "hipModuleLaunchKernel"})
"""Launches of the driver: three numbers each for grid and block, and the kernel's arguments by a list of addresses."""
_ELEMENT = re.compile(r"(\w+)\[(\d{1,4})\]")


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """A kernel launch."""

    kernel: str
    source: ParsedSource = data_field(repr=False)
    node: Node = data_field(repr=False)
    grid: str | None
    block: str | None
    shared: str | None
    stream: str | None
    arguments: list[str]
    nodes: list[Node] = data_field(repr=False)
    """The arguments' expressions, in `source`."""
    api: str = "<<<>>>"
    via_macro: str | None = None
    line: int = 0


def launch_at(source: ParsedSource, call: Node) -> KernelLaunch | None:
    """Read a call as a launch, if it is one."""
    configuration = next((c for c in call.children if c.type == "kernel_call_syntax"), None)
    if configuration is not None:
        return _chevron(source, call, configuration)
    name = name_of(source, call)
    return _library(source, call, name) if name in LAUNCH_CALLS else None


def _chevron(source: ParsedSource, call: Node, configuration: Node) -> KernelLaunch:
    given = [source.text(c) for c in configuration.named_children if c.type != "comment"]
    given += [""] * (4 - len(given))
    nodes = arguments(call)
    return KernelLaunch(
        name_of(source, call),
        source,
        call,
        given[0] or None,
        given[1] or None,
        given[2] or None,
        given[3] or None,
        [source.text(n) for n in nodes],
        nodes,
        line=source.line(call),
    )


def _library(source: ParsedSource, call: Node, name: str) -> KernelLaunch | None:
    nodes = arguments(call)
    which, first = LAUNCH_CALLS[name]
    if len(nodes) <= which:
        return None
    kernel = last_name(source, strip_casts(nodes[which]))
    grid = block = shared = stream = None
    own = nodes[first:] if first is not None else []
    if name in {"cudaLaunchKernel", "cudaLaunchCooperativeKernel"} and len(nodes) >= 4:
        grid, block = source.text(nodes[1]), source.text(nodes[2])
        shared = source.text(nodes[4]) if len(nodes) > 4 else None
        stream = source.text(nodes[5]) if len(nodes) > 5 else None
        own = _packed(source, nodes[3])
    elif name in PACKED_LAST and len(nodes) > 9:
        grid, block = (", ".join(source.text(n) for n in part) for part in (nodes[1:4], nodes[4:7]))
        shared, stream = source.text(nodes[7]), source.text(nodes[8])
        own = _packed(source, nodes[9])
    elif name in {"cudaLaunchKernelExC", "cuLaunchKernelEx"} and len(nodes) > 2:
        own = _packed(source, nodes[2])
    if name.startswith("cudaLaunchKernelEx"):
        grid, block, shared, stream = _configured(source, nodes[0])
    texts = [source.text(n) for n in own]
    return KernelLaunch(kernel, source, call, grid, block, shared, stream, texts, own, name, line=source.line(call))


def _packed(source: ParsedSource, node: Node) -> list[Node]:
    """Return what `void* args[] = {&a, &b}` points to, where the array's initializer can be seen."""
    node = strip_casts(node)
    listed: Node | None = node if node.type == "initializer_list" else None
    if node.type == "identifier":
        made = declaration_of(source, node)
        value = initializer_of(made) if made is not None else None
        listed = value if value is not None and value.type == "initializer_list" else None
    if listed is None:
        return _filled(source, node)
    return [strip_casts(c) for c in listed.named_children if c.type != "comment"]


def _filled(source: ParsedSource, array: Node) -> list[Node]:
    """Return what `args[0] = &a; args[1] = &b;` points to, in the order of the indices."""
    function = enclosing(array, "function_definition", "lambda_expression")
    if function is None or array.type != "identifier":
        return []
    found = _elements(source, function).get(source.text(array), {})
    return [found[number] for number in sorted(found)] if sorted(found) == list(range(len(found))) else []


@lru_cache(maxsize=16)
def _elements(source: ParsedSource, function: Node) -> dict[str, dict[int, Node]]:
    """Return what a function assigns to elements by numbers, by the array's name: read once for all its launches."""
    found: dict[str, dict[int, Node]] = {}
    for node in source.effects_in(function):
        left, right = field(node, "left"), field(node, "right")
        element = _ELEMENT.fullmatch(source.text_without_space(left)) if left is not None else None
        if element is not None and right is not None:
            found.setdefault(element[1], {})[int(element[2])] = strip_casts(right)
    return found


def _configured(source: ParsedSource, node: Node) -> tuple[str | None, str | None, str | None, str | None]:
    """Find what is assigned to the fields of a cudaLaunchConfig_t."""
    name = source.text_without_space(strip_casts(node))
    found: dict[str, str] = {}
    for inner in walk(source.root):
        if inner.type != "assignment_expression":
            continue
        left, right = field(inner, "left"), field(inner, "right")
        if left is not None and right is not None and left.type == "field_expression":
            owner, member = field(left, "argument"), field(left, "field")
            if owner is not None and member is not None and source.text_without_space(owner) == name:
                found[source.text(member)] = source.text(right)
    return found.get("gridDim"), found.get("blockDim"), found.get("dynamicSmemBytes"), found.get("stream")
