"""Stage A: communicated buffers in windows, a device communicator; the host's collectives stay as they are."""

from collections.abc import Iterable
from posixpath import basename, dirname, relpath

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.feasibility import is_plain_window, own_windows, stage_a, window_group_end
from gpu_mcp_server.nccl.program_model.edits import Edits
from gpu_mcp_server.nccl.program_model.memory_model import MemoryLocation
from gpu_mcp_server.nccl.program_model.program import FunctionCall, includes_of
from gpu_mcp_server.nccl.program_model.syntax import BLOCKS, field
from gpu_mcp_server.nccl.program_model.trace_events import Expression
from gpu_mcp_server.nccl.stages.error_macros import ErrorMacros
from gpu_mcp_server.nccl.stages.setup_location import SetupLocation, anchors
from gpu_mcp_server.nccl.templates import INFRASTRUCTURE

CONVERTED = {"cudaMalloc", "ncclMemAlloc"}
FREED = {"cudaFree", "ncclMemFree"}


class EditedFiles:
    """The edits of all files of a program."""

    def __init__(self, analysis: Analysis) -> None:
        """Start with none."""
        self.analysis = analysis
        self._edits: dict[str, Edits] = {}

    def edits_of(self, path: str) -> Edits:
        """Return the edits of a file."""
        return self._edits.setdefault(path, Edits(self.analysis.program.sources[path]))

    def changed_texts(self) -> dict[str, str]:
        """Return the new texts."""
        return {p: e.apply() for p, e in self._edits.items() if e.edits}


def is_done(analysis: Analysis) -> bool:
    """Say whether a program has the infrastructure already."""
    return any(c.full_name in {"ncclx::dev_init", "ncclx::register_all"} for c in analysis.program.calls)


def add_infrastructure(analysis: Analysis, files: EditedFiles) -> list[str]:
    """Edit a program for stage A and return what was done.

    Raises:
        NoSetupLocation: If there is no place for the set-up.
    """
    sites = [s for s in analysis.sites if not stage_a(analysis, s)]
    if not sites:
        return []
    found = anchors(analysis, sites)
    own = own_windows(analysis)
    places = {p for s in sites for b in s.buffers for p in b.places} - set(own)
    done = [f"{p} from ncclMemAlloc" for p in sorted(places, key=str)]
    done += [f"{p} keeps its own window" for p in sorted(own, key=str)]
    for call in _windows(analysis) if own else ():
        name = "window_register" if call.name == "ncclCommWindowRegister" else "window_deregister"
        _swap(analysis, files, call, f"ncclx::{name}")
    in_groups = [e for events in own.values() for e in events if e.group is not None]
    for call in _once(c for e in in_groups if (c := window_group_end(analysis, e)) is not None):
        _swap(analysis, files, call, "ncclx::window_group_end")
    for call in _allocations(analysis, places):
        _swap(analysis, files, call, "ncclx::mem_alloc")
    for call in _frees(analysis, places):
        _swap(analysis, files, call, "ncclx::buf_free")
    for anchor in found:
        _set_up(analysis, files, anchor)
        done.append(
            f"windows and device communicator before {anchor.source.path}:{anchor.source.line(anchor.statement)}"
        )
    ends = _ends(analysis)
    for call in ends:
        _tear_down(analysis, files, call)
    if not ends:
        done.append("no ncclCommDestroy is here: dev_fini must be called before the communicator goes")
    for path in sorted(files.changed_texts()):
        include(analysis, files, path)
    return done


def include(analysis: Analysis, files: EditedFiles, path: str) -> None:
    """Include the infrastructure after a file's own includes, once."""
    source = analysis.program.sources[path]
    if any(basename(name) == INFRASTRUCTURE for name in includes_of(source)):
        return
    folder = dirname(analysis.program.main)
    line = f'#include "{relpath(f"{folder}/{INFRASTRUCTURE}" if folder else INFRASTRUCTURE, dirname(path) or ".")}"'
    tops = [n for n in source.root.children if n.type == "preproc_include"]
    if tops:
        ends = source.text(tops[-1]).endswith("\n")
        files.edits_of(path).insert_after(tops[-1], f"{line}\n" if ends else f"\n{line}")
    elif source.root.children:
        files.edits_of(path).insert_before(source.root.children[0], f"{line}\n")


def _windows(analysis: Analysis) -> list[FunctionCall]:
    """Return the calls that register and deregister windows."""
    plain = [c for c in analysis.program.calls if not c.via_macro]
    made = [c for c in plain if c.name == "ncclCommWindowRegister" and is_plain_window(c)]
    return _once([*made, *(c for c in plain if c.name == "ncclCommWindowDeregister")])


def _allocations(analysis: Analysis, places: set[MemoryLocation]) -> list[FunctionCall]:
    made = [a.event.call for p in places for a in analysis.places.allocations[p]]
    return _once(c for c in made if c is not None and c.name in CONVERTED)


def _frees(analysis: Analysis, places: set[MemoryLocation]) -> list[FunctionCall]:
    """Return the frees that may concern a converted buffer: buf_free leaves to CUDA what is not ours."""
    found: list[FunctionCall] = []
    for event in analysis.events("free"):
        call = event.call
        if call is None or call.name not in FREED or not call.nodes or call.via_macro:
            continue
        origins = analysis.places.origins(Expression(call.source, call.nodes[0], event.frame))
        unknown = [p for p in origins if p not in analysis.places.allocations]
        if set(origins) & places or unknown:
            found.append(call)
    return _once(found)


def _once(calls: Iterable[FunctionCall]) -> list[FunctionCall]:
    return list({(c.path, c.node.start_byte): c for c in calls}.values())


def _swap(analysis: Analysis, files: EditedFiles, call: FunctionCall, name: str) -> None:
    """Let a call of CUDA's allocator become one of ours, with the check macro that goes with it."""
    if call.name.startswith("nccl"):
        callee = field(call.node, "function")
        if callee is not None:
            files.edits_of(call.path).replace(callee, name)
        return
    listed = field(call.node, "arguments")
    if listed is None:
        return
    node, text = ErrorMacros(analysis.program, call.path).replacement(call, name + call.source.text(listed))
    files.edits_of(call.path).replace(node, text)


def _set_up(analysis: Analysis, files: EditedFiles, anchor: SetupLocation) -> None:
    edits, checked = files.edits_of(anchor.source.path), ErrorMacros(analysis.program, anchor.source.path)
    indent = edits.indent(anchor.statement)
    lines: list[str] = []
    for name in ("dev_init", "register_all"):
        call = checked.statement(f"ncclx::{name}({anchor.comm})")
        if anchor.loop is None:
            lines.append(call)
        else:
            lines += [
                checked.statement("ncclGroupStart()"),
                f"{anchor.loop} {call}",
                checked.statement("ncclGroupEnd()"),
            ]
    insert_before(edits, anchor.statement, lines, indent)


def insert_before(edits: Edits, statement: Node, lines: list[str], indent: str) -> None:
    """Put lines before a statement that stands in a block."""
    edits.insert_before(statement, "".join(f"{line}\n{indent}" for line in lines))


def _ends(analysis: Analysis) -> list[FunctionCall]:
    """Return the first call in each function that ends each communicator."""
    seen: set[tuple[str, int, str]] = set()
    found: list[FunctionCall] = []
    for call in sorted(analysis.ends, key=lambda c: (c.path, c.place.start_byte)):
        key = (call.path, call.function.node.start_byte if call.function else 0, "".join(call.arguments[:1]))
        if key not in seen and call.arguments:
            seen.add(key)
            found.append(call)
    return found


def _tear_down(analysis: Analysis, files: EditedFiles, call: FunctionCall) -> None:
    edits, checked = files.edits_of(call.path), ErrorMacros(analysis.program, call.path)
    text = checked.statement(f"ncclx::dev_fini({call.arguments[0]})")
    statement = _innermost_statement(call.place)
    if statement.parent is not None and statement.parent.type not in BLOCKS:
        edits.insert_before(statement, f"{{ {text} ")
        edits.insert_after(statement, " }")
    else:
        insert_before(edits, statement, [text], edits.indent(statement))


def _innermost_statement(node: Node) -> Node:
    """Return the statement right around a call, which may be the only one in a loop without braces."""
    while node.type not in {"expression_statement", "declaration", "return_statement", "if_statement"}:
        if node.parent is None or node.parent.type in BLOCKS:
            return node
        node = node.parent
    return node
