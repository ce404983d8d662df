"""Machine code as an agent sees it."""

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.build import KernelResources


class CodeKernel(Model):
    """One kernel or device function of a binary."""

    name: str
    instructions: int
    opcodes: dict[str, int]
    """Kind of instruction to how many: tensor, global load 128 bit, local memory, atomic ..."""


class CodeListing(ResultModel):
    """Lines of one kernel's machine code, and what kinds of instructions all kernels are made of."""

    artifact_id: str
    """The disassembled file."""
    view: str
    """sass, ptx, amdgcn, or asm of the processor."""
    tool: str
    """What made the listing."""
    arch: str | None = None
    kernels: list[CodeKernel]
    """At most 8, the one that is shown first."""
    kernels_left_out: int | None = None
    resources: list[KernelResources] = []
    kernel: str | None = None
    """Whose lines are shown."""
    first_line: int
    last_line: int
    total_lines: int
    text: str
    """Instructions; `@LINE` before those of another source line."""
    left_out_lines: int | None = None
    listing_artifact_id: str | None = None
    """The whole listing."""
    vectorization: list[str] = []
    """Of the processor: what the compiler says of each loop, with its line."""

    def summary(self) -> str:
        """Say the kinds of instructions, then the lines."""
        lines = [f"{self.view} of {self.artifact_id}" + (f" for {self.arch}" if self.arch else "") + f" by {self.tool}"]
        for kernel in self.kernels:
            kinds = ", ".join(f"{kind} {count}" for kind, count in kernel.opcodes.items())
            lines.append(f"{kernel.name}: {kernel.instructions} instructions: {kinds}")
        if self.kernels_left_out:
            lines.append(f"({self.kernels_left_out} more functions; name one with kernel)")
        lines += [r.line_text() for r in self.resources]
        lines += self.vectorization
        lines.append(f"--- {self.kernel}, instructions {self.first_line}-{self.last_line} of {self.total_lines}")
        lines.append(self.text)
        if self.left_out_lines:
            lines.append(f"({self.left_out_lines} left out; continue with first_line={self.last_line + 1})")
        return "\n".join(lines)
