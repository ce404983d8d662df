"""Device functions that only return a pointer into a window, put in where a kernel calls them."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.api_names import POINTER_GETTERS
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, arguments, name_of, parse, walk

_WORD = re.compile(r"(?<![.\w])[A-Za-z_]\w*")


def inline_pointer_helpers(program: ProgramModel) -> ProgramModel:
    """Return the program with such calls replaced on their own lines; the program itself where it has none."""
    helpers = {f.name: value for f in program.functions if (value := _returned(program, f)) is not None}
    changed: dict[str, ParsedSource] = {}
    for path, source in program.sources.items():
        data = _replaced(program, source, helpers) if helpers else source.data
        if data != source.data:
            changed[path] = parse(path, data.decode("utf-8", "surrogateescape"))
    return ProgramModel(program.sources | changed, program.main, program.missing_includes) if changed else program


def _returned(program: ProgramModel, function: Function) -> Node | None:
    """Return what a helper returns, where that is all of its body and makes a pointer into a window."""
    statements = [n for n in function.body.named_children if n.type != "comment"]
    is_single = len(statements) == 1 and statements[0].type == "return_statement" and statements[0].named_children
    if not is_single or function.is_kernel or function.owner is not None or len(program.by_name[function.name]) != 1:
        return None
    value = statements[0].named_children[0]
    has_pointer = any(n.type == CALL and name_of(function.source, n) in POINTER_GETTERS for n in walk(value))
    return value if has_pointer else None


def _replaced(program: ProgramModel, source: ParsedSource, helpers: dict[str, Node]) -> bytes:
    """Write from the last call to the first, so that places before stay; calls within a call's arguments stay too."""
    data, start = source.data, len(source.data) + 1
    calls = [n for n in walk(source.root) if n.type == CALL and name_of(source, n) in helpers]
    outer = [
        c for c in calls if not any(o.start_byte <= c.start_byte < c.end_byte <= o.end_byte for o in calls if o != c)
    ]
    for call in sorted(outer, key=lambda n: -n.start_byte):
        name = name_of(source, call)
        helper, given = program.by_name[name][0], [source.text(a) for a in arguments(call)]
        if len(given) != len(helper.parameters) or call.end_byte > start:
            continue
        start = call.start_byte
        values = {
            p.name: v if re.fullmatch(r"\w+", v) else f"({v})" for p, v in zip(helper.parameters, given, strict=True)
        }
        made = _WORD.sub(lambda m, v=values: v.get(m.group(), m.group()), helper.source.text(helpers[name]))
        lines = source.text(call).count("\n")
        text = " ".join(made.split()) + "\n" * lines
        data = data[:start] + text.encode() + data[call.end_byte :]
    return data
