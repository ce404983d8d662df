"""Shows the machine code of what was compiled, by kernel."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_mcp_server.errors import BadRequest, JobBroken, NotFound, ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.build import LANGUAGES, KernelResources
from gpu_mcp_server.models.inspection import CodeKernel, CodeListing
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.processor_code import Assembler
from gpu_mcp_server.services.commands.command_runner import min_level, roots_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.toolchains import object_files
from gpu_mcp_server.toolchains.disassembly_listings import KernelCode, View, opcode_summary, parse, view_of

LISTING = "listing.txt"
SHOWN_KERNELS = 8
SHOWN_CHARACTERS = 4500
WALL_S = 60.0
CALLED = (
    "A Python file compiles its kernels when it is called. compile_kernel of the same file, with triton for its "
    "parameters, makes an attempt that inspect_code shows."
)
MISSING: dict[View, tuple[str, str]] = {
    "sass": ("cuobjdump and nvdisasm", "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm, or triton, there."),
    "ptx": ("cuobjdump", "pip install nvidia-cuda-cuobjdump, or triton, there; or compile by NVRTC, which keeps it."),
    "amdgcn": ("llvm-objdump", "apt-get install llvm-19."),
}


@dataclass(frozen=True)
class _Listing:
    text: str
    tool: str
    artifact_id: str | None


class Inspector:
    """Disassembles, with a cache by content."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        db: Database,
        artifacts: Artifacts,
        experience: AttemptStore,
        assembler: Assembler,
    ) -> None:
        self._assembler = assembler
        self._settings, self._jobs, self._db = settings, jobs, db
        self._artifacts, self._experience = artifacts, experience

    async def inspect(
        self,
        subject: str,
        *,
        view: View | None = None,
        kernel: str | None = None,
        first_line: int = 1,
        max_lines: int = 80,
        host: str | None = None,
    ) -> CodeListing:
        """Show a kernel's instructions and what kinds there are.

        Args:
            subject: An attempt, or an artifact: a binary or a listing.
            view: sass, ptx or amdgcn; otherwise what the binary holds. asm: of a C or C++ attempt, whatever is asked.
            kernel: Part of the kernel's name; otherwise the largest.
            first_line: 1-based number of the first instruction shown.
            max_lines: Instructions shown.
            host: Whose disassembler is used.

        Raises:
            NotFound: If there is no such attempt, artifact or kernel.
            BadRequest: If it is no GPU code.
            ToolMissing: If the host has no disassembler for it.
        """
        attempt = await self._experience.get(subject) if subject.startswith("a-") else None
        if attempt is not None and attempt.language in ("c", "cpp"):
            code = await self._assembler.assemble(attempt, host)
            listing = _Listing(code.text, code.compiler, code.artifact_id)
            functions = await asyncio.to_thread(parse, code.text, "asm")  # megabytes take a second
            shown = _shown(functions, kernel, first_line, max_lines, code.artifact_id, "asm", listing, [])
            return shown.model_copy(update={"vectorization": code.report})
        if view == "asm":
            raise BadRequest(
                f"{subject} is no attempt in C or C++; the processor's assembly is made of a source.",
                hint="Give the attempt_id of compile_kernel or evaluate_kernel.",
            )
        artifact_id = await self._subject(subject, view)
        data = await self._artifacts.read(artifact_id)
        text = _text(data)
        chosen = view or (view_of(text) if text is not None else _view(data))
        if chosen is None:
            raise BadRequest(
                f"{artifact_id} is neither a GPU binary nor a listing of one.",
                hint="Give an attempt_id or artifact_id of compile_kernel for CUDA, HIP or Triton.",
            )
        if text is not None:
            listing = _Listing(text, "the compiler", artifact_id)
        else:
            listing = await self._disassembled(data, chosen, host)
        resources = [] if text is not None else object_files.kernels_of(data)
        functions = await asyncio.to_thread(parse, listing.text, chosen)
        return _shown(functions, kernel, first_line, max_lines, artifact_id, chosen, listing, resources)

    async def kernels(self, artifact_id: str, host: str) -> list[KernelCode]:
        """Return the functions in the machine code of a binary for NVIDIA's GPUs, by a host's disassembler.

        Raises:
            GpuMcpError: If it cannot be read.
        """
        listing = await self._disassembled(await self._artifacts.read(artifact_id), "sass", host)
        return await asyncio.to_thread(parse, listing.text, "sass")

    async def _subject(self, subject: str, view: View | None) -> str:
        if not subject.startswith("a-"):
            return subject
        attempt = await self._experience.get(subject)
        evidence = attempt.evidence or {}
        kept = evidence.get("listing_artifact_id") if view in ("ptx", "amdgcn") else None
        found = kept or evidence.get("artifact_id") or evidence.get("binary")
        if not found:
            facts = LANGUAGES.get(attempt.language or "")
            called = facts is not None and facts.launcher == "python" and attempt.kind != "compile"
            hint = CALLED if called else "It did not compile, or an older version made it."
            raise NotFound("binary of attempt", subject, hint=hint)
        return str(found)

    async def _disassembled(self, data: bytes, view: View, host: str | None) -> _Listing:
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        tools = probe.toolchains.tools
        paths = [tools[n].path if n in tools else "" for n in ("cuobjdump", "nvdisasm", "llvm-objdump")]
        is_cubin = object_files.machine_of(data) == object_files.MACHINE_CUDA
        enough = paths[2] if view == "amdgcn" else (paths[0] or (paths[1] if view == "sass" and is_cubin else ""))
        if not enough:
            raise ToolMissing(MISSING[view][0], where, hint=MISSING[view][1])
        name = "llvm-objdump" if view == "amdgcn" else ("nvdisasm" if view == "sass" and paths[1] else "cuobjdump")
        tool = f"{name} {tools[name].version}"
        key = hashlib.sha256(json.dumps(["listing", hashlib.sha256(data).hexdigest(), view, tool]).encode()).hexdigest()
        row = await self._db.fetch_one("SELECT value FROM builds WHERE key = ?", (key,))
        artifact_id = row["value"].decode() if row is not None else ""
        if artifact_id:
            await self._artifacts.adopt([artifact_id])
        if artifact_id and await self._artifacts.ids(artifact_id):
            return _Listing((await self._artifacts.read(artifact_id)).decode("utf-8", "replace"), tool, artifact_id)
        parts = [p for _, p in object_files.code_objects(data)] if view == "amdgcn" else [data]
        if not parts:
            raise BadRequest("It holds no code for AMD's GPUs.", hint="Compile it as HIP, or ask for another view.")
        text = await self._run(view, paths, parts, where, probe)
        artifact_id = await self._artifacts.put(text.encode(), name=f"kernel.{view}", media_type="text/plain")
        await self._db.execute(
            "INSERT OR REPLACE INTO builds (key, value, created_at) VALUES (?, ?, datetime('now'))",
            (key, artifact_id.encode()),
        )
        return _Listing(text, tool, artifact_id)

    async def _run(self, view: View, paths: list[str], parts: Sequence[bytes], host: str, probe: HostProbe) -> str:
        names = {f"part{n}.bin": part for n, part in enumerate(parts)}
        blobs = {hashlib.sha256(p).hexdigest(): p for p in parts}
        refs = tuple(FileRef(n, hashlib.sha256(p).hexdigest(), len(p)) for n, p in names.items())
        tools = probe.toolchains.tools
        shown = [r for n in ("cuobjdump", "nvdisasm", "llvm-objdump") if n in tools for r in tools[n].roots]
        argv = ("disassemble", view, *paths, *names)
        spec = JobSpec(
            id=new_job_id(),
            purpose="inspect",
            processes=(ProcessSpec(argv=argv, program=worker_source("disassemble")),),
            files={"main": refs},
            outputs=(LISTING,),
            roots=tuple(dict.fromkeys((*roots_of(probe, self._settings.hosts[host].roots), *shown))),
            limits=Limits(wall_s=WALL_S),
            min_level=min_level(self._settings),
        )
        done = await self._jobs.run(spec, host=host, blobs=blobs)
        found = next((o for o in done.record.outputs if o.path == LISTING and o.size), None)
        if found is None or done.record.status != "ok":
            said = safe_text(done.stderr).strip().rpartition("\n")[2] or done.record.note
            raise JobBroken(f"The disassembler failed: {said or 'it said nothing'}.", hint="Ask for another view.")
        return (await self._jobs.fetch(host, found.sha256)).decode("utf-8", "replace")


def _text(data: bytes) -> str | None:
    if data[:4] == object_files.ELF or b"\0" in data[:4096]:
        return None
    return data.decode("utf-8", "replace")


def _view(data: bytes) -> View | None:
    if object_files.machine_of(data) == object_files.MACHINE_CUDA or b".nv_fatbin" in data:
        return "sass"
    return "amdgcn" if next(object_files.code_objects(data), None) else None


def _shown(
    functions: list[KernelCode],
    kernel: str | None,
    first_line: int,
    max_lines: int,
    artifact_id: str,
    view: View,
    listing: _Listing,
    resources: list[KernelResources],
) -> CodeListing:
    wanted = [f for f in functions if kernel is None or kernel in f.name]
    if not wanted:
        known = ", ".join(f.name for f in functions[:20]) or "none"
        raise NotFound("kernel", kernel or "", hint=f"The {view} has: {known}.")
    chosen = next((f for f in wanted if f.name == kernel), max(wanted, key=lambda f: len(f.instructions)))
    total = len(chosen.instructions)
    if not 1 <= first_line <= total:
        raise BadRequest(f"{chosen.name} has {total} instructions.", hint=f"Choose first_line between 1 and {total}.")
    lines: list[str] = []
    room, place = SHOWN_CHARACTERS, None
    for instruction in chosen.instructions[first_line - 1 : first_line - 1 + max_lines]:
        here = (instruction.file, instruction.line)
        text = (f"@{here[0]}:{here[1]}\n" if here != place and here[1] else "") + instruction.text
        if len(text) > room:
            break
        lines.append(text)
        room, place = room - len(text) - 1, here
    last = first_line - 1 + len(lines)
    order = [chosen, *(f for f in wanted if f is not chosen)]
    return CodeListing(
        artifact_id=artifact_id,
        view=view,
        tool=listing.tool,
        arch=object_files.architecture_in(listing.text) or (resources[0].arch if resources else None) or None,
        kernels=[
            CodeKernel(name=f.name, instructions=len(f.instructions), opcodes=opcode_summary(f.instructions, view))
            for f in order[:SHOWN_KERNELS]
        ],
        kernels_left_out=max(len(order) - SHOWN_KERNELS, 0) or None,
        resources=[r for r in resources if r.kernel == chosen.name],
        kernel=chosen.name,
        first_line=first_line,
        last_line=last,
        total_lines=total,
        text="\n".join(lines),
        left_out_lines=total - last or None,
        listing_artifact_id=listing.artifact_id,
    )
