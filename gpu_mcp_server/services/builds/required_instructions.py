"""Looks up in a candidate's machine code whether it has the tensor core instructions that its problem requires.

It shows that they are there, not that they did the work.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.services.builds.disassembly import Inspector
from gpu_mcp_server.toolchains.disassembly_listings import KernelCode, tensor_types

NOT_READ = "not read"
"""In the evidence where the disassembler failed: such a verdict is not kept."""
HOW = "write them in CUDA, as a source or by load_inline, which are compiled before"


@dataclass(frozen=True)
class LookUp:
    """Finding about required instructions in machine code; one of the three is not empty."""

    found: str = ""
    """The tensor core instructions that there are, all required ones among them."""
    lack: str = ""
    """Why the candidate does not comply."""
    doubt: str = ""
    """Why that is not known."""
    failed: bool = False
    """Whether it is not known as the disassembler failed this time."""


async def look_up(inspector: Inspector, requires: Sequence[str], context: Mapping[str, Any], host: str) -> LookUp:
    """Look for required instructions in what a candidate compiled, by a host's disassembler.

    Args:
        inspector: The disassembler.
        requires: As `Problem.requires`.
        context: Of the judge's job: `device`, `binaries` (artifacts), `unread` (what may compute besides).
        host: Where.
    """
    wanted = f"the problem requires {', '.join(requires)}"
    if context["device"] != "cuda":
        return LookUp(doubt=f"{wanted}, which only NVIDIA's GPUs have: judge it on one")
    if not context["binaries"]:
        return LookUp(doubt=f"{wanted}, and {context['unread']} cannot be read: {HOW}")
    try:
        read = await asyncio.gather(*(inspector.kernels(binary, host) for binary in context["binaries"]))
    except GpuMcpError as error:
        return LookUp(doubt=f"{wanted}, and its machine code cannot be read: {error}", failed=True)
    kernels = [kernel for each in read for kernel in each]
    opcodes = _opcodes_by_type(kernels)
    said = ", ".join(f"{' or '.join(types)} ({opcode})" for types, opcode in opcodes.items())
    missing = [each for each in requires if not any(each.split()[0] in types for types in opcodes)]
    if not missing:
        return LookUp(found=said)
    code = f"the machine code of {len(kernels)} kernel{'s' * (len(kernels) != 1)} has "
    code += f"{said} instead" if said else "no tensor core instruction"
    why = f"the problem requires {', '.join(missing)}; {code}"
    return (
        LookUp(doubt=f"{why}, and {context['unread']} cannot be read: {HOW}") if context["unread"] else LookUp(lack=why)
    )


def _opcodes_by_type(kernels: Sequence[KernelCode]) -> dict[tuple[str, ...], str]:
    """Return the first tensor core instruction of each type."""
    found: dict[tuple[str, ...], str] = {}
    for kernel in kernels:
        for instruction in kernel.instructions:
            if types := tensor_types(instruction.opcode):
                found.setdefault(types, instruction.opcode[:60])
    return found
