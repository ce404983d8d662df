"""Parser of GPU kernels' resources, from the words of `ptxas -v` and of clang's remarks for AMD.

Source: outputs of ptxas and nvlink 13.0. Spilled bytes stand nowhere else, not even in the cubin. For the same kernel
nvlink reports 1 KiB more of shared memory than ptxas from sm_90 on: the system keeps it for itself. The remarks are
those of -Rpass-analysis=kernel-resource-usage, clang 15 and 19.
"""

import re
from dataclasses import dataclass

from gpu_mcp_server.models.build import KernelResources
from gpu_mcp_server.toolchains.diagnostics import demangle_text

_ENTRY = re.compile(r"Compiling entry function '([^']{1,4000})' for '(sm_[^']{1,20})'")
_PROPERTIES = re.compile(r"(ptxas(?:-blackwell)?|nvlink) info\s*: Function properties for '?([^'\s]{1,4000}?)'?:?$")
_STACK = re.compile(r"(\d{1,9}) bytes stack frame, (\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads")
_USED = re.compile(r"(?:ptxas(?:-blackwell)?|nvlink) info\s*: [Uu]sed (\d{1,9}) registers(.*)$")
_SHARED = re.compile(r"(\d{1,9}) bytes smem")
_LINKED_STACK = re.compile(r", (\d{1,9}) stack\b")


@dataclass
class _Kernel:
    arch: str
    registers: int | None = None
    stack: int = 0
    stores: int = 0
    loads: int = 0
    shared: int = 0


_REMARK = re.compile(
    r"remark:.{0,400}?\s([A-Z][A-Za-z ]{2,20})(?: \[[a-z/A-Z]+\])?: (\S{1,4000}) \[-Rpass-analysis=kernel-resource"
)


def parse_amd(stderr: str, arch: str) -> list[KernelResources]:
    """Return the kernels that clang's remarks describe, in their order.

    Never raises: what is not understood is left out.
    """
    kernels: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in stderr.splitlines():
        match = _REMARK.search(line[:10_000])
        if match and match[1] == "Function Name":
            current = kernels[match[2]] = {}
        elif match and re.fullmatch(r"\d{1,9}", match[2]):
            current[match[1]] = int(match[2])
    return [
        KernelResources(
            kernel=demangle_text(name),
            registers_per_thread=found["VGPRs"],
            accumulation_registers=found.get("AGPRs"),
            scalar_registers=found.get("SGPRs"),
            spilled_registers=found.get("SGPRs Spill", 0) + found.get("VGPRs Spill", 0),
            stack_bytes=found.get("ScratchSize", 0),
            shared_bytes=found.get("LDS Size", 0),
            arch=arch,
        )
        for name, found in kernels.items()
        if "VGPRs" in found
    ]


def parse(stderr: str) -> list[KernelResources]:
    """Return the kernels that the text names, in its order; the last word about a kernel counts.

    Never raises: what is not understood is left out.
    """
    kernels: dict[tuple[str, str], _Kernel] = {}
    entry: _Kernel | None = None
    described: _Kernel | None = None
    for line in stderr.splitlines():
        line = line[:10_000]
        if match := _ENTRY.search(line):
            entry = described = kernels[match[1], match[2]] = _Kernel(match[2])
        elif match := _PROPERTIES.search(line):
            known = [k for (n, _), k in kernels.items() if n == match[2]]
            if match[1] == "nvlink":
                # With relocatable code the linker alone knows, and does not say for which architecture.
                entry = described = known[-1] if known else kernels.setdefault((match[2], ""), _Kernel(""))
            else:
                # Functions that were not inlined are described among the lines of the kernel that calls them.
                described = entry if known and known[-1] is entry else None
        elif match := _STACK.search(line):
            if described is not None:
                described.stack, described.stores, described.loads = int(match[1]), int(match[2]), int(match[3])
        elif (match := _USED.search(line)) and entry is not None:
            entry.registers = int(match[1])
            shared = _SHARED.search(match[2])
            if shared and ("nvlink" not in line or not entry.arch):
                entry.shared = int(shared[1])
            if linked := _LINKED_STACK.search(match[2]):
                entry.stack = int(linked[1])
    return [
        KernelResources(
            kernel=demangle_text(name),
            registers_per_thread=k.registers,
            spill_store_bytes=k.stores,
            spill_load_bytes=k.loads,
            stack_bytes=k.stack,
            shared_bytes=k.shared,
            arch=k.arch,
        )
        for (name, _), k in kernels.items()
        if k.registers is not None
    ]
