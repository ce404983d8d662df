"""Rules about each kernel: barriers around accesses to peers, divergence, orders, how the communicator is passed."""

from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.findings import Finding, error
from gpu_mcp_server.nccl.checks.kernel_paths import KernelPaths
from gpu_mcp_server.nccl.checks.peer_accesses import pointer_functions
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import field

Assumed = frozenset[tuple[str, bool]]


def findings(program: ProgramModel) -> list[Finding]:
    """Return what is wrong in the kernels of a program."""
    pointers = pointer_functions(program.functions)
    device = {f.name: f for f in program.functions if f.is_device and not f.is_kernel}
    found: set[Finding] = set()
    for kernel in program.functions:
        if not kernel.is_kernel:
            continue
        for assumed in _instances(program, kernel):
            found |= set(KernelPaths(kernel, device, pointers).run(assumed))
        found |= set(_by_value(kernel))
    return sorted(found)


@lru_cache(maxsize=8)
def communicating(program: ProgramModel) -> dict[str, Function]:
    """Return the kernels that pass a barrier or touch peers' memory, by name."""
    pointers = pointer_functions(program.functions)
    device = {f.name: f for f in program.functions if f.is_device and not f.is_kernel}
    found: dict[str, Function] = {}
    for name, kernel in program.kernels.items():
        flow = KernelPaths(kernel, device, pointers)
        flow.run()
        if flow.accesses or flow.barriers:
            found[name] = kernel
    return found


def _by_value(kernel: Function) -> list[Finding]:
    return [
        error(
            "requirements",
            kernel.source,
            p.node,
            f"{kernel.name}: ncclDevComm must be passed by value, it lies in host memory",
        )
        for p in kernel.parameters
        if p.type_text == "ncclDevComm" and p.is_pointer
    ]


def _instances(program: ProgramModel, kernel: Function) -> list[Assumed]:
    """Return what is known of a template's boolean parameters at each of its launches."""
    names = _template_names(kernel)
    known = {_known(program, launch.node, names) for launch in program.launches if launch.kernel == kernel.name}
    return sorted(known, key=sorted) if names and known else [frozenset()]


def _template_names(kernel: Function) -> list[str]:
    parent = kernel.node.parent
    listed = field(parent, "parameters") if parent is not None and parent.type == "template_declaration" else None
    if listed is None:
        return []
    return [kernel.source.text(c).partition("=")[0].split()[-1] for c in listed.named_children if c.type != "comment"]


def _known(program: ProgramModel, launch: Node, names: list[str]) -> Assumed:
    callee = field(launch, "function")
    given = field(callee, "arguments") if callee is not None and callee.type == "template_function" else None
    if given is None:
        return frozenset()
    texts = [c.text.decode() if c.text else "" for c in given.named_children if c.type != "comment"]
    values = {"true": True, "false": False}
    pairs = [(n, values.get(t)) for n, t in zip(names, texts, strict=False)]
    return frozenset((n, v) for n, v in pairs if v is not None)
