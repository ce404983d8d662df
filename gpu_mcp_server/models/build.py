"""Options and results of compiling one source."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from pydantic import ValidationError

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models._base import Model, ResultModel

Language = Literal["c", "cpp", "cuda", "hip", "triton", "launcher"]
"""Languages of compile: each into a library, or a kernel of a Python file into a cubin."""
CandidateLanguage = Literal["c", "cpp", "cuda", "hip", "triton", "launcher", "python", "program"]
"""Languages of candidates: triton and launcher are Python files with a launcher, in Triton or another language; python
is one with `ModelNew`, program a project."""


JudgedKind = Literal["library", "launcher", "model"]
"""How the judge calls a candidate: by the address of its launcher, or as one of two kinds of Python files."""


class LanguageFacts(NamedTuple):
    """Facts about a language that every module shares; compilers for it are in toolchains."""

    source_name: str
    """File name of a source that is given as text; compilers know the language by its suffix."""
    suffixes: tuple[str, ...]
    """By which a file is known to be of the language; Python files are told apart by their content."""
    device: Literal["cpu", "cuda", "hip", "either"]
    """Where a candidate runs; for `hip` it is only compiled."""
    launcher: Literal["c", "cuda", "python", "none"]
    """Which launcher it defines: C's parameters, with a stream behind them, a Python function or class, or none."""
    compilers: tuple[str, ...] = ()
    """Compilers that are plain programs, best first, by the names that a host's probe gives them."""
    judged_as: JudgedKind = "library"
    called_alone: bool = False
    """Whether an attempt can be called without the judge, under a profiler or checker (`workers/run_attempt.py`)."""


LANGUAGES: Mapping[str, LanguageFacts] = {
    "c": LanguageFacts("kernel.c", (".c",), "cpu", "c", compilers=("gcc", "clang")),
    "cpp": LanguageFacts("kernel.cpp", (".cpp", ".cc", ".cxx"), "cpu", "c", compilers=("g++", "clang++")),
    "cuda": LanguageFacts("kernel.cu", (".cu",), "cuda", "cuda", called_alone=True),
    "hip": LanguageFacts("kernel.hip", (".hip",), "hip", "c"),
    "triton": LanguageFacts("kernel.py", (), "either", "python", judged_as="launcher", called_alone=True),
    "launcher": LanguageFacts("kernel.py", (), "either", "python", judged_as="launcher", called_alone=True),
    "python": LanguageFacts("model.py", (), "either", "python", judged_as="model", called_alone=True),
    "program": LanguageFacts("program.txt", (), "either", "none"),
}
"""By name, a row for each of `CandidateLanguage`."""


class Diagnostic(Model):
    """One message of a compiler."""

    severity: Literal["error", "warning", "note"]
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    code: str | None = None
    """The compiler's own name for it: `-Wunused` or `#549-D`."""
    context: list[str] = []
    """At most three lines: source line, template instantiation."""
    hint: str | None = None
    """What usually mends it, where we know."""
    doc: str | None = None
    """What explains it, for read_doc."""

    def line_text(self) -> str:
        """Say it on one line, with its context below."""
        where = f"{self.file}:{self.line}: " if self.file and self.line else (f"{self.file}: " if self.file else "")
        text = f"{where}{self.severity}: {self.message}" + (f" [{self.code}]" if self.code else "")
        return "\n".join(
            [
                *(text, *(f"    {c}" for c in self.context)),
                *([f"    hint: {self.hint}"] if self.hint else []),
                *([f"    see {self.doc}"] if self.doc else []),
            ]
        )


def diagnostic_lines(diagnostics: Sequence[Diagnostic]) -> list[str]:
    """Return the lines of messages in their order, a hint or an explanation of several at the first of them."""
    told: set[str | None] = set()
    lines: list[str] = []
    for one in diagnostics:
        again = {name: None for name in ("hint", "doc") if getattr(one, name) in told}
        lines.append(one.model_copy(update=again).line_text())
        told |= {one.hint, one.doc}
    return lines


SHOWN_NAME = 200
"""Characters of a kernel's name in a summary: those of CUTLASS have thousands."""
KEPT_DIAGNOSTICS = 20
"""With an attempt; its job's output has all."""


def kept_diagnostics(found: Sequence[Diagnostic]) -> list[dict[str, Any]]:
    """Return the first diagnostics as an attempt's evidence has them."""
    return [each.model_dump(exclude_defaults=True) for each in found[:KEPT_DIAGNOSTICS]]


class Occupancy(Model):
    """Threads of a kernel that can be resident on one multiprocessor (compute unit) at once."""

    block_threads: int
    blocks: int
    """Blocks at once."""
    percent: float
    """Of the warps (waves) that fit."""
    limiter: str
    """What ends it: registers, shared memory, warps, blocks."""


class KernelResources(Model):
    """Registers, stack and shared memory that one GPU kernel takes."""

    kernel: str
    """Demangled name."""
    registers_per_thread: int
    """AMD: vector registers."""
    spill_store_bytes: int | None = 0
    """Bytes stored to local memory per thread because registers ran out; None if the compiler did not report it."""
    spill_load_bytes: int | None = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    """Static shared memory (LDS) of a block."""
    arch: str
    scalar_registers: int | None = None
    """AMD: of a wave."""
    accumulation_registers: int | None = None
    """AMD: for matrix instructions, of a thread."""
    spilled_registers: int | None = None
    """AMD: scalar and vector registers that went to scratch memory; their bytes are in the stack."""
    occupancy: Occupancy | None = None

    def spills_text(self) -> str:
        """Say the bytes that registers of NVIDIA's spilled, stored and loaded."""
        if self.spill_store_bytes is None or self.spill_load_bytes is None:
            return "unknown"
        return f"{self.spill_store_bytes}+{self.spill_load_bytes} B"

    def line_text(self) -> str:
        """Say it on one line."""
        name = self.kernel if len(self.kernel) <= SHOWN_NAME else self.kernel[:SHOWN_NAME] + "…"
        text = f"kernel {name}: {self.registers_per_thread} registers"
        if self.scalar_registers is not None:
            text += f" + {self.accumulation_registers or 0} accumulation, {self.scalar_registers} scalar, "
            text += f"{self.spilled_registers or 0} spilled"
        else:
            text += f", spills {self.spills_text()}"
        text += f", shared {self.shared_bytes} B, stack {self.stack_bytes} B ({self.arch})"
        if self.occupancy:
            o = self.occupancy
            text += f"; {o.blocks} blocks of {o.block_threads} at once, {o.percent:g} %, limited by {o.limiter}"
        return text


class BuildOptions(Model):
    """Options of a build besides its source."""

    arch: str | None = None
    """GPU architecture; otherwise that of the host's GPU."""
    flags: tuple[str, ...] = ()
    compiler: str | None = None
    """Name of one of the compilers for the language; otherwise the best."""
    library: bool = True
    """Whether it must be a library that can be called; kernels alone may become a cubin otherwise."""
    block: int | None = None
    """Threads of a block, for the occupancy."""
    kernel: str = ""
    """Triton: the kernel's name, if the file has several. Launcher: its function's name."""
    signature: dict[str, str] = {}
    """Triton: argument types, such as `*fp32:16`. Launcher: tensors' types, such as `fp32[64,1000]`."""
    constants: dict[str, bool | int | float | str] = {}
    """Triton: constexpr values, and options such as num_warps. Launcher: its numbers."""

    def for_triton(self, given: Mapping[str, Any]) -> Self:
        """Return it with `kernel`, `signature` and `constants` as a caller gave them.

        Raises:
            BadRequest: If there is something else, or a value is of the wrong kind.
        """
        known = ("kernel", "signature", "constants")
        if not given:
            return self
        try:
            if unknown := [name for name in given if name not in known]:
                raise BadRequest(f"triton has no {', '.join(unknown)}.", hint=f"It takes {', '.join(known)}.")
            return type(self).model_validate({**self.model_dump(), **given})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BadRequest(
                f"triton: {where}: {first['msg']}.",
                hint="Such as {'signature': {'x': '*fp32:16', 'n': 'i32'}, 'constants': {'BLOCK': 1024}}.",
            ) from error


class CompileResult(ResultModel):
    """Result of compiling one source."""

    status: Literal["ok", "failed", "timeout", "oom", "broken"]
    """`ok` means that there is a binary."""
    language: Language | Literal["program"]
    compiler: str
    """Name and version."""
    arch: str | None = None
    host: str
    command: list[str] = []
    """As run, inside the workspace."""
    seconds: float | None = None
    """Of the compiler; absent when the result came from the cache."""
    phases_ms: dict[str, float] = {}
    """What each phase of the compiler took, where it says."""
    cached: bool = False
    artifact_id: str | None = None
    """The library; of kernels alone the cubin."""
    binary_bytes: int | None = None
    headers: list[str] = []
    """Trees of headers that the host has and the source reads, each with version and digest."""
    resources: list[KernelResources] = []
    stage: str | None = None
    """Where it failed: driver, front end, ptxas, device link or link."""
    diagnostics: list[Diagnostic] = []
    """At most 10, errors first, duplicates removed."""
    diagnostics_left_out: int | None = None
    log_artifact_id: str | None = None
    """The compiler's whole output."""
    listing_artifact_id: str | None = None
    """PTX or AMDGCN that came along; inspect_code shows it by kernel."""
    level: str | None = None
    """Sandbox level that the compiler ran in."""
    note: str | None = None
    attempt_id: str | None = None

    def summary(self) -> str:
        """Say whether it compiled, resources, then the messages."""
        head = f"compile {self.status}: {self.compiler}" + (f" for {self.arch}" if self.arch else "")
        head += f", at {self.stage if self.stage == 'ptxas' else 'the ' + self.stage}" if self.stage else ""
        head += " (cached)" if self.cached else ""
        head += f" in {self.seconds:.2f} s" if self.seconds is not None else ""
        lines = [head]
        if self.artifact_id:
            lines.append(f"binary: {self.artifact_id} ({self.binary_bytes} bytes)")
        lines += [r.line_text() for r in self.resources]
        lines += [f"headers: {each}" for each in self.headers]
        if self.phases_ms:
            lines.append("phases: " + ", ".join(f"{name} {ms:g} ms" for name, ms in self.phases_ms.items()))
        lines += diagnostic_lines(self.diagnostics)
        if self.diagnostics_left_out:
            lines.append(f"({self.diagnostics_left_out} more messages; read_artifact {self.log_artifact_id})")
        if self.note:
            lines.append(f"note: {self.note}")
        if self.attempt_id:
            lines.append(f"attempt: {self.attempt_id}")
        return "\n".join(lines)
