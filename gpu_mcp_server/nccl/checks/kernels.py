"""Rules about each kernel: barriers around accesses to peers, divergence, orders, how the communicator is passed."""

from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.checks.findings import Finding, error, note
from gpu_mcp_server.nccl.checks.kernel_paths import KernelPaths
from gpu_mcp_server.nccl.checks.peer_accesses import pointer_functions
from gpu_mcp_server.nccl.checks.protocols import demote_unsure_findings
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import field

Assumed = frozenset[tuple[str, bool]]


def findings(program: ProgramModel) -> list[Finding]:
    """Return what is wrong in the kernels of a program."""
    found: set[Finding] = set()
    pointers, device = _surroundings(program)
    for kernel, walked in _walked_kernels(program):
        own: set[Finding] = set()
        for assumed in _instances(program, kernel):
            own |= set(KernelPaths(kernel, device, pointers).run(assumed)) if assumed else walked.findings
        found |= demote_unsure_findings(kernel, own, device, program.macros) if own else own
        found |= set(_by_value(program, kernel))
    return sorted(found)


def communicating(program: ProgramModel) -> dict[str, Function]:
    """Return the kernels that pass a barrier or touch peers' memory, by name."""
    walked = [(k, w) for k, w in _walked_kernels(program) if program.kernels[k.name] is k]
    return {kernel.name: kernel for kernel, paths in walked if paths.accesses or paths.barriers}


def _surroundings(program: ProgramModel) -> tuple[frozenset[str], dict[str, Function]]:
    """Return the calls that yield pointers to peers' memory, and device functions by name."""
    device = {f.name: f for f in program.functions if f.is_device and not f.is_kernel}
    return pointer_functions(program.functions), device


@lru_cache(maxsize=8)
def _walked_kernels(program: ProgramModel) -> list[tuple[Function, KernelPaths]]:
    """Return each kernel with its paths, walked with nothing assumed."""
    pointers, device = _surroundings(program)
    found = [(kernel, KernelPaths(kernel, device, pointers)) for kernel in program.functions if kernel.is_kernel]
    for _, paths in found:
        paths.run()
    return found


def _by_value(program: ProgramModel, kernel: Function) -> list[Finding]:
    """Device communicators that are passed by pointer: the host's own is an error, of another nothing is known."""
    found: list[Finding] = []
    for number, parameter in enumerate(kernel.parameters):
        if parameter.type_text != "ncclDevComm" or not parameter.is_pointer:
            continue
        given = [x.nodes[number] for x in program.launches if x.kernel == kernel.name and number < len(x.nodes)]
        is_host = any(n.type == "pointer_expression" and n.children[0].type == "&" for n in given)
        is_reference = "&" in kernel.source.text(parameter.node)
        if is_host or is_reference:
            text = f"{kernel.name}: ncclDevComm must be passed by value, it lies in host memory"
            found.append(error("requirements", kernel.source, parameter.node, text))
        else:
            text = f"not understood: {kernel.name} gets ncclDevComm by pointer, which must lie in device memory"
            found.append(note("requirements", kernel.source, parameter.node, text))
    return found


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
