"""Compiles one translation unit into a shared library, once: results are kept by content, failures too."""

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, Limits
from gpu_mcp_server.models.build import BuildOptions, CompileResult, Diagnostic, KernelResources, kept_diagnostics
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.build_cache import BuildCache, key_of
from gpu_mcp_server.services.builds.build_plans import (
    PlannedBuild,
    build_of,
    compile_limits,
    cpu_setting,
    note_of,
    process_of,
)
from gpu_mcp_server.services.builds.candidate_source import CandidateSource, compiled_language
from gpu_mcp_server.services.commands.command_runner import min_level, roots_of
from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.toolchains import diagnostics, hiprtc, launchers, nvrtc, object_files, resources, triton
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain
from gpu_mcp_server.toolchains.occupancy import occupancy
from gpu_mcp_server.toolchains.ptxas_findings import performance_warnings

MEMORY_BYTES = 8 << 30
LOG_BYTES = 4 << 20
LONG_LOG_CHARS = 100_000
"""Longer ones are understood in a thread: two million take a second."""
TMP_BYTES = 1 << 30
LACKED = re.compile(
    r"ModuleNotFoundError|Ninja is required|CUDA_HOME environment variable is not set|: not found|\[Errno 2\]"
)


class Compiler:
    """Builds, with a cache by content."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        db: Database,
        artifacts: Artifacts,
        experience: AttemptStore,
        documents: Documents,
    ) -> None:
        self._documents = documents
        self._settings, self._jobs, self._artifacts, self._experience = settings, jobs, artifacts, experience
        self._cache = BuildCache(db, artifacts)

    async def compile(
        self,
        source: CandidateSource,
        wish: BuildOptions | None = None,
        *,
        host: str | None = None,
        parent_id: str | None = None,
        note: str | None = None,
    ) -> CompileResult:
        """Compile a source and remember the attempt.

        Raises:
            ToolMissing: If the host has no compiler for the language.
            BadRequest: If a flag or the architecture is not allowed.
        """
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        text = source.text.encode()
        keeping = asyncio.create_task(self._artifacts.put(text, name=source.name, media_type="text/plain"))
        try:
            result = await self._compiled(source, wish or BuildOptions(library=False), where)
        finally:
            source_artifact_id = await keeping
        first = result.diagnostics[0].line_text() if result.diagnostics and result.status != "ok" else None
        evidence = {
            "command": result.command,
            "headers": result.headers,
            "artifact_id": result.artifact_id,
            "listing_artifact_id": result.listing_artifact_id,
            "resources": [r.model_dump() for r in result.resources],
            "diagnostics": kept_diagnostics(result.diagnostics),
        }
        attempt_id = await self._experience.start(
            "compile",
            status=result.status,
            reason=first or result.note,
            evidence=evidence,
            parent_id=parent_id,
            note=note,
            flags=json.dumps(wish.flags if wish else ()),
            language=compiled_language(source),
            host=where,
            driver=probe.driver,
            device=result.arch or probe.cpu,
            versions={"compiler": result.compiler},
            level=result.level,
            source_hash=hashlib.sha256(text).hexdigest(),
            source_artifact_id=source_artifact_id,
        )
        return result.model_copy(update={"attempt_id": attempt_id})

    async def validate(self, source: CandidateSource, *, host: str, flags: Sequence[str] = ()) -> None:
        """Refuse now what `build` would refuse: a flag that is not allowed, a compiler that is not there.

        Raises:
            ToolMissing, BadRequest: As `compile` does.
        """
        build_of(source, await self._jobs.probe(host), host, BuildOptions(flags=tuple(flags)))

    async def has(self, source: CandidateSource, *, host: str, flags: Sequence[str] = ()) -> bool | None:
        """Say whether a source was built already as it would be on a host; None where it cannot be."""
        probe = await self._jobs.probe(host)
        try:
            build = build_of(source, probe, host, BuildOptions(flags=tuple(flags)))
        except (ToolMissing, BadRequest):
            return None
        return await self._cached(_key(build.plan, build.toolchain, probe)) is not None

    async def build(
        self,
        source: CandidateSource,
        *,
        host: str,
        flags: Sequence[str] = (),
        compiler: str | None = None,
        arch: str | None = None,
    ) -> CompileResult:
        """Make a library of a source, or return what the same compiler made of the same source before.

        NVRTC, named as the compiler, makes a cubin for the host's GPU.
        """
        return await self._compiled(source, BuildOptions(arch=arch, flags=tuple(flags), compiler=compiler), host)

    async def binary(self, artifact_id: str) -> bytes:
        """Return what a build made."""
        return await self._artifacts.read(artifact_id)

    async def _compiled(self, source: CandidateSource, wish: BuildOptions, host: str) -> CompileResult:
        """Compile; what turns out to be beyond a run-time compiler goes to the whole one, if nobody chose."""
        probe = await self._jobs.probe(host)
        build = build_of(source, probe, host, wish)
        result = await self.run_build(source, build, host, probe)
        if wish.compiler is None and _was_beyond(build.toolchain, result):
            with contextlib.suppress(ToolMissing):
                build = build_of(source, probe, host, wish.model_copy(update={"library": True}))
                result = await self.run_build(source, build, host, probe)
        result = with_occupancy(result, wish.block) if wish.block else result
        if build.note:
            result = result.model_copy(update={"note": "; ".join(n for n in (build.note, result.note) if n)})
        return await self._explained(result)

    async def _explained(self, result: CompileResult) -> CompileResult:
        """Return the result whose messages name the documentation that explains them, as far as it is indexed."""
        if not result.diagnostics:
            return result
        found = await self._documents.explain_messages([each.message for each in result.diagnostics])
        messages = [each.model_copy(update={"doc": uri}) for each, uri in zip(result.diagnostics, found, strict=True)]
        return result.model_copy(update={"diagnostics": messages})

    async def run_build(
        self, source: CandidateSource, build: PlannedBuild, host: str, probe: HostProbe
    ) -> CompileResult:
        """Carry out a build, or return what came of the same one before."""
        key = _key(build.plan, build.toolchain, probe)
        cached = await self._cached(key)
        if cached is not None:
            return cached.model_copy(update={"host": host})
        spec, blobs = self.job_of_plan(build.plan, probe, host)
        done = await self._jobs.run(spec, host=host, blobs=blobs)
        result = await self._result(done, build, source)
        lasting = build.toolchain.name != launchers.NAME and not _lacked(result)  # its packages may change unseen
        if result.status in ("ok", "failed") and done.record.status in ("ok", "failed") and lasting:
            await self._cache.put(key, result.model_dump(mode="json"))
        return result

    async def has_build(self, build: PlannedBuild, probe: HostProbe) -> bool:
        """Say whether a build was made before."""
        return await self._cached(_key(build.plan, build.toolchain, probe)) is not None

    def job_of_plan(self, plan: CompilePlan, probe: HostProbe, host: str) -> tuple[JobSpec, dict[str, bytes]]:
        """Return the job that carries a plan out, and the contents that it names."""
        blobs: dict[str, bytes] = {}
        files: list[FileRef] = []
        for name, text in plan.files.items():
            data = text.encode()
            sha256 = hashlib.sha256(data).hexdigest()
            blobs[sha256] = data
            files.append(FileRef(name, sha256, len(data)))
        usual = plan.warm and not plan.python  # one that waits has the usual sizes, unless it has a Python of its own
        tmp_bytes = Limits().tmp_bytes if usual else TMP_BYTES
        spec = JobSpec(
            id=new_job_id(),
            purpose="compile",
            processes=(process_of(plan),),
            files={"main": tuple(files)},
            outputs=(plan.output, *plan.listings),
            roots=tuple(dict.fromkeys((*roots_of(probe, self._settings.hosts[host].roots), *plan.roots))),
            limits=compile_limits(
                self._settings,
                cpu_setting(long=plan.long),
                wall_s=plan.wall_s,
                memory_bytes=MEMORY_BYTES,
                output_bytes=LOG_BYTES,
                tmp_bytes=tmp_bytes,
            ),
            min_level=min_level(self._settings),
        )
        return spec, blobs

    async def _cached(self, key: str) -> CompileResult | None:
        kept = await self._cache.get(key)
        if kept is None:
            return None
        return CompileResult.model_validate(kept).model_copy(update={"cached": True, "seconds": None})

    async def _result(self, done: FinishedJob, build: PlannedBuild, source: CandidateSource) -> CompileResult:
        record, plan = done.record, build.plan
        raise_if_not_run(record, done.host)
        said = safe_text(done.stderr + done.stdout)
        contents = await self._contents(done, plan)
        binary = contents.pop(plan.output, None)
        about = read_json(contents.pop(triton.RESULT, b"{}"))
        listing = next(((n, text.decode("utf-8", "replace")) for n, text in contents.items()), None)
        found = await parse_log(said, listing[1] if listing else None)
        if record.status == "failed" and not any(d.severity == "error" for d in found):
            last = diagnostics.output_tail(said)
            found = [last, *found] if last else found
        too_much = triton.shared_memory_error(about, build.arch or "")
        found += [too_much] if too_much else []
        messages, left = diagnostics.first_messages(found)
        status = "ok" if binary is not None else ("failed" if record.status in ("ok", "failed") else str(record.status))
        ids = await asyncio.gather(
            self._put(binary, plan.output),
            self._put(said.encode(), "compiler.log", "text/plain"),
            self._put(listing[1].encode(), listing[0], "text/plain") if listing else self._put(None, ""),
        )
        result = CompileResult(
            status=status if status in ("ok", "failed", "timeout", "oom") else "broken",  # type: ignore[arg-type]
            language=compiled_language(source),
            compiler=launchers.compiler_of(about) or build.toolchain.title,
            arch=build.arch,
            host=done.host,
            command=list(plan.argv),
            seconds=record.wall_s,
            phases_ms=nvrtc.phases_ms(said) if build.toolchain.name == "nvrtc" else {},
            level=record.level,
            note=note_of(record, cpu_setting(long=plan.long)) or None,
            resources=_resources(said, build, binary or b"", about),
            stage=diagnostics.stage_of(found) if status == "failed" else None,
            diagnostics=messages,
            diagnostics_left_out=left or None,
            artifact_id=ids[0],
            headers=list(plan.headers),
            binary_bytes=len(binary) if binary is not None else None,
            log_artifact_id=ids[1],
            listing_artifact_id=ids[2],
        )
        block = triton.block_of(about, build.arch or "")
        return with_occupancy(result, block) if block else result

    async def _contents(self, done: FinishedJob, plan: CompilePlan) -> dict[str, bytes]:
        """Return the outputs that there are, by name: the binary of a build that succeeded, and listings."""
        taken = {o.path: o for o in done.record.outputs}
        wanted = [n for n in ((plan.output,) if done.record.status == "ok" else ()) if n in taken]
        wanted += [n for n in plan.listings if n in taken]
        fetched = await asyncio.gather(*(self._jobs.fetch(done.host, taken[n].sha256) for n in wanted))
        return dict(zip(wanted, fetched, strict=True))

    async def _put(self, data: bytes | None, name: str, media_type: str | None = None) -> str | None:
        if data is None or (media_type and not data.strip()):
            return None
        return await self._artifacts.put(data, name=name, media_type=media_type)


def _was_beyond(toolchain: Toolchain, result: CompileResult) -> bool:
    """Say whether a run-time compiler failed at what the whole compiler may be able to do."""
    return (toolchain.name == "nvrtc" and nvrtc.should_retry_with_nvcc(result.diagnostics)) or (
        toolchain.name == hiprtc.NAME and result.status != "ok" and hiprtc.should_retry_with_clang(result.diagnostics)
    )


def _lacked(result: CompileResult) -> bool:
    """Say whether a Python module or a program was not there, which somebody may install: no property of the source."""
    return result.status == "failed" and any(LACKED.search(d.message) for d in result.diagnostics)


def _resources(said: str, build: PlannedBuild, binary: bytes, about: Mapping[str, Any]) -> list[KernelResources]:
    arch = build.arch or ""
    if build.toolchain.name in ("nvcc", "nvrtc"):
        return resources.parse(said)
    if build.toolchain.name == "triton":
        return triton.with_launch(resources.parse(said) or object_files.kernels_of(binary, arch), about)
    if build.toolchain.name == launchers.NAME:
        return resources.parse(said) or object_files.kernels_of(binary, arch)
    if build.toolchain.name == hiprtc.NAME:
        return object_files.kernels_of(binary, arch)
    return resources.parse_amd(said, arch) if arch else []


async def parse_log(said: str, ptx: str | None = None) -> list[Diagnostic]:
    """Return the messages of a log without holding up the server."""
    if len(said) > LONG_LOG_CHARS:
        return await asyncio.to_thread(_messages_of, said, ptx)
    return _messages_of(said, ptx)


def _messages_of(said: str, ptx: str | None) -> list[Diagnostic]:
    """Return errors, what makes kernels slow, then the rest."""
    found = diagnostics.parse(said, ptx)
    errors = [d for d in found if d.severity == "error"]
    return [*errors, *performance_warnings(said, ptx), *found[len(errors) :]]


def with_occupancy(result: CompileResult, block: int) -> CompileResult:
    """Return the result with the occupancy of each kernel at so many threads a block.

    Raises:
        BadRequest: If no block has so many.
    """
    kernels = [k.model_copy(update={"occupancy": occupancy(k, block)}) for k in result.resources]
    return result.model_copy(update={"resources": kernels})


def read_json(data: bytes) -> dict[str, Any]:
    """Return what a worker wrote about its result; nothing when that is no JSON object."""
    try:
        value: Any = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _key(plan: CompilePlan, toolchain: Toolchain, probe: HostProbe) -> str:
    """Return the address of a build: all that decides what comes out of it."""
    worker = worker_source(plan.worker) if plan.worker else None
    return key_of("unit", [plan.argv, plan.files, plan.env, plan.headers, worker, toolchain.title], probe)
