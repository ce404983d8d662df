"""The program's own verification: a PASS that depends on nothing that was computed proves nothing."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.communication import COLLECTIVES
from gpu_mcp_server.nccl.checks.findings import Finding, error, note
from gpu_mcp_server.nccl.program_model.functions import declared_identifier
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, arguments, field, is_inactive, name_of, walk

PRINTS = frozenset({"printf", "fprintf", "puts", "fputs", "print", "println", "format"})
PASSES = re.compile(
    r"\b(?:(?-i:PASS)|PASSED|SUCCESS|verified)\b|\bpass(?=\s*(?:[!.\"\\]|$))|\bverification:?\s*(?:ok|passed|succeeded)\b",
    re.IGNORECASE,
)
RANKS = re.compile(
    r"^(?:my|world|local|global)?_?(?:rank|rk|myrank|procid|proc_id|id|mpi_rank|localRank|argc|argv|verbose)$"
)
_SET_UP = re.compile(
    r"\b(?:argc|argv|cudaGetDeviceCount|nDev|devCount|numDevices|cudaSuccess|ncclSuccess|MPI_SUCCESS|lsaSize)\b"
)
LITERALS = frozenset({"number_literal", "string_literal", "true", "false", "char_literal", "null"})


def findings(program: ProgramModel, original: ProgramModel | None = None) -> list[Finding]:
    """Return prints of success that come whatever was computed; those that the original has too are notes."""
    before = {s.text_without_space(n) for s, n in _unfounded(original)} if original is not None else set[str]()
    found: list[Finding] = []
    for source, node in _unfounded(program):
        said = "success is printed whatever was computed"
        if source.text_without_space(node) in before:
            found.append(note("verification text", source, node, f"{said}, as the original does: it proves nothing"))
        else:
            found.append(error("verification text", source, node, said))
    return found


def _unfounded(program: ProgramModel) -> Iterator[tuple[ParsedSource, Node]]:
    for source, node in _prints(program):
        body = _function_body(node)
        if body is not None and not _depends(source, node, body) and not _ways_out(source, node, body):
            yield source, node


def _prints(program: ProgramModel) -> Iterator[tuple[ParsedSource, Node]]:
    """Calls and streams that print a word of success."""
    for call in program.calls:
        if call.name in PRINTS and call.source.path == call.path and _says(call):
            yield call.source, call.node
    for source in program.sources.values():
        for node in walk(source.root):
            if node.type != "expression_statement" or is_inactive(source, node):
                continue
            text = source.text(node)
            if re.match(r"\s*(?:std::)?(?:cout|cerr|clog)\s*<<", text) and PASSES.search(_strings(source, node)):
                yield source, node


def _says(call: FunctionCall) -> bool:
    return any(PASSES.search(_strings(call.source, n)) for n in call.nodes)


def _strings(source: ParsedSource, node: Node) -> str:
    """Return the string literals in an expression; a table of words to choose from counts as a choice elsewhere."""
    return " ".join(source.text(n) for n in walk(node) if n.type in {"string_literal", "raw_string_literal"})


def _depends(source: ParsedSource, node: Node, body: Node) -> bool:
    """Say whether what is printed, or whether it is, follows from a value that is computed."""
    for condition in _conditions(source, node):
        if _computed(source, condition, body):
            return True
    for inner in walk(node):
        if inner.type == "conditional_expression":
            condition = field(inner, "condition")
            if condition is not None and _computed(source, condition, body):
                return True
    return False


def _conditions(source: ParsedSource, node: Node) -> Iterator[Node]:
    child, parent = node, node.parent
    while parent is not None and parent.type not in {"function_definition", "lambda_expression"}:
        if parent.type in {"if_statement", "while_statement", "switch_statement", "conditional_expression"}:
            condition = field(parent, "condition")
            if condition is not None and condition != child:
                yield condition
        child, parent = parent, parent.parent


def _ways_out(source: ParsedSource, node: Node, body: Node) -> bool:
    """Say whether something computed may end the function between the last communication and the print."""
    since = _last_communication(source, node, body)
    for inner in walk(body):
        if inner.start_byte >= node.start_byte:
            return False
        if inner.type != "if_statement" or inner.start_byte < since:
            continue
        condition, then = field(inner, "condition"), field(inner, "consequence")
        if condition is None or then is None or inner.end_byte > node.start_byte:
            continue
        leaves = any(
            n.type == "return_statement"
            or (n.type == "call_expression" and name_of(source, n) in {"exit", "abort", "_exit", "MPI_Abort"})
            for n in walk(then)
        )
        if leaves and _computed(source, condition, body) and not _is_usage(source, condition):
            return True
    return False


def _last_communication(source: ParsedSource, node: Node, body: Node) -> int:
    """Return where the last launch or collective before a print stands: what is checked earlier is only set-up."""
    found = 0
    for inner in walk(body):
        if inner.type == "call_expression" and inner.end_byte < node.start_byte:
            launch = any(c.type == "kernel_call_syntax" for c in inner.children)
            if launch or name_of(source, inner) in COLLECTIVES:
                found = max(found, inner.start_byte)
    return found


def _is_usage(source: ParsedSource, condition: Node) -> bool:
    """Say whether a condition is about arguments, devices or error codes, not about data."""
    return bool(_SET_UP.search(source.text(condition)))


def _computed(source: ParsedSource, condition: Node, body: Node) -> bool:
    """Say whether a condition is about anything but the rank, constants, and variables that never change."""
    for inner in walk(condition):
        if inner.type == "call_expression":
            return True
        if inner.type in {"subscript_expression", "field_expression"} and not _about_rank(source, inner):
            return True
        if inner.type == "identifier":
            name = source.text(inner)
            if not RANKS.match(name) and not name.isupper() and not _constant(source, name, body):
                return True
    return False


def _about_rank(source: ParsedSource, node: Node) -> bool:
    return bool(re.search(r"rank", source.text(node), re.IGNORECASE))


def _constant(source: ParsedSource, name: str, body: Node) -> bool:
    """Say whether a local variable holds the literal it starts with wherever it is used."""
    literal = False
    for node in walk(body):
        if node.type == "init_declarator":
            own, value = declared_identifier(field(node, "declarator")), field(node, "value")
            if own is not None and source.text(own) == name:
                if value is None or value.type not in LITERALS:
                    return False
                literal = True
        elif node.type == "assignment_expression":
            left, right = field(node, "left"), field(node, "right")
            if left is not None and source.text(left) == name:
                plain = any(c.type == "=" for c in node.children)
                if right is None or right.type not in LITERALS or not plain or _conditional(node, body):
                    return False
        elif (node.type in {"update_expression", "pointer_expression"} and _names(source, node, name)) or (
            node.type in {"call_expression", "lambda_expression"} and _given(source, node, name)
        ):
            return False
    return literal


def _conditional(node: Node, body: Node) -> bool:
    parent = node.parent
    while parent is not None and parent != body:
        if parent.type in {"if_statement", "for_statement", "while_statement"}:
            return True
        parent = parent.parent
    return False


def _names(source: ParsedSource, node: Node, name: str) -> bool:
    return any(n.type == "identifier" and source.text(n) == name for n in walk(node))


def _given(source: ParsedSource, node: Node, name: str) -> bool:
    """Say whether a variable is handed to a call that may change it, or caught by a lambda."""
    if node.type == "lambda_expression":
        return _names(source, node, name)
    if name_of(source, node) in PRINTS:
        return False
    return any(source.text(a).lstrip("&( ").rstrip(")") == name for a in arguments(node))


def _function_body(node: Node) -> Node | None:
    parent = node.parent
    while parent is not None:
        if parent.type == "function_definition":
            return field(parent, "body")
        parent = parent.parent
    return None
