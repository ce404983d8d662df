"""The program's own macros around calls of CUDA and NCCL, and how to keep them right when a call changes sides."""

from collections import Counter

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import CALL, name_of


def wrapper_of(program: ProgramModel, call: FunctionCall) -> tuple[str, Node] | None:
    """Return the macro directly around a call, and its use."""
    outer = call.node.parent
    if outer is None or outer.type != "argument_list" or outer.parent is None or outer.parent.type != CALL:
        return None
    name = name_of(call.source, outer.parent)
    known = name in program.macros or name in program.by_name
    looks_so = name.isupper() and len(outer.named_children) == 1  # from a header that is not here
    return (name, outer.parent) if known or looks_so else None


def nccl_wrapper(program: ProgramModel, path: str) -> str | None:
    """Return the macro that a file (or the program) puts around calls of NCCL."""
    seen: Counter[str] = Counter()
    for call in program.calls:
        if call.name.startswith("nccl") and call.via_macro is None:
            found = wrapper_of(program, call)
            if found is not None:
                seen[found[0]] += 1 + 1000 * (call.path == path)
    return seen.most_common(1)[0][0] if seen else None


class ErrorMacros:
    """Spells calls of NCCL in a file as the program itself would."""

    def __init__(self, program: ProgramModel, path: str) -> None:
        """Look for the macro."""
        self.program = program
        self.name = nccl_wrapper(program, path)

    def statement(self, call: str) -> str:
        """Return a call as a statement."""
        return f"{self.name}({call});" if self.name else f"{call};"

    def replacement(self, call: FunctionCall, text: str) -> tuple[Node, str]:
        """Return what to replace for a CUDA call that becomes one of NCCL's, and by what."""
        wrapped = wrapper_of(self.program, call)
        if wrapped is not None:
            name, use = wrapped
            if name == self.name:
                return call.node, text
            return (use, f"{self.name}({text})") if self.name else (call.node, f"ncclx::as_cuda({text})")
        parent = call.node.parent
        if parent is not None and parent.type == "expression_statement":
            return call.node, text
        return call.node, f"ncclx::as_cuda({text})"
