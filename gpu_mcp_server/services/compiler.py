"""Compiles one translation unit into a shared library, once: results are kept by content, failures too."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] - it ships none

from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.build import CompileResult, KernelResources
from gpu_mcp_server.services.experience import Experience
from gpu_mcp_server.services.hosts import HostProbe
from gpu_mcp_server.services.jobs import FinishedJob, JobRunner, new_job_id, raise_if_not_run
from gpu_mcp_server.services.output import safe_text
from gpu_mcp_server.services.plans import Build, Wish, build_of, command_of, worker_source
from gpu_mcp_server.services.runner import min_level, roots_of
from gpu_mcp_server.services.sources import Source, compiled
from gpu_mcp_server.settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.toolchains import diagnostics, resources
from gpu_mcp_server.toolchains.base import BuildPlan, Toolchain

WALL_S = 180.0
MEMORY_BYTES = 8 << 30
LOG_BYTES = 1 << 20
CACHE_FORMAT = 2
_msgpack = cast("Any", msgpack)


class Compiler:
    """Builds, with a cache by content."""

    def __init__(
        self, settings: Settings, jobs: JobRunner, db: Database, artifacts: Artifacts, experience: Experience
    ) -> None:
        self._settings, self._jobs, self._db, self._artifacts, self._experience = (
            settings,
            jobs,
            db,
            artifacts,
            experience,
        )

    async def compile(
        self,
        source: Source,
        *,
        host: str | None = None,
        arch: str | None = None,
        flags: Sequence[str] = (),
        compiler: str | None = None,
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
        result = await self.build(source, host=where, arch=arch, flags=flags, compiler=compiler)
        attempt_id = await self._experience.start(
            "compile",
            parent_id=parent_id,
            note=note,
            language=compiled(source),
            host=where,
            driver=probe.driver,
            device=result.arch or probe.cpu,
            versions={"compiler": result.compiler},
            level=result.level,
            source_hash=hashlib.sha256(source.text.encode()).hexdigest(),
            source_artifact_id=await self._artifacts.put(
                source.text.encode(), name=source.name, media_type="text/plain"
            ),
        )
        first = result.diagnostics[0].line_text() if result.diagnostics and result.status != "ok" else None
        evidence = {
            "command": result.command,
            "artifact_id": result.artifact_id,
            "resources": [r.model_dump() for r in result.resources],
        }
        await self._experience.finish(attempt_id, status=result.status, reason=first or result.note, evidence=evidence)
        return result.model_copy(update={"attempt_id": attempt_id})

    async def build(
        self,
        source: Source,
        *,
        host: str,
        arch: str | None = None,
        flags: Sequence[str] = (),
        compiler: str | None = None,
    ) -> CompileResult:
        """Compile a source, or return what the same compiler made of the same source before."""
        probe = await self._jobs.probe(host)
        build = build_of(source, probe, host, Wish(arch, flags, compiler))
        toolchain, plan = build.toolchain, build.plan
        key = _key(plan, toolchain, probe)
        cached = await self._cached(key)
        if cached is not None:
            return cached.model_copy(update={"host": host})
        spec, blobs = self._spec(plan, probe, host)
        done = await self._jobs.run(spec, host=host, blobs=blobs)
        result = await self._result(done, build, source)
        if result.status in ("ok", "failed") and done.record.status in ("ok", "failed"):
            value = cast("bytes", _msgpack.packb({"format": CACHE_FORMAT, "result": result.model_dump(mode="json")}))
            await self._db.execute(
                "INSERT OR REPLACE INTO builds (key, value, created_at) VALUES (?, ?, datetime('now'))", (key, value)
            )
        return result

    def _spec(self, plan: BuildPlan, probe: HostProbe, host: str) -> tuple[JobSpec, dict[str, bytes]]:
        blobs: dict[str, bytes] = {}
        files: list[FileRef] = []
        for name, text in plan.files.items():
            data = text.encode()
            sha256 = hashlib.sha256(data).hexdigest()
            blobs[sha256] = data
            files.append(FileRef(name, sha256, len(data)))
        spec = JobSpec(
            id=new_job_id(),
            purpose="compile",
            processes=(ProcessSpec(argv=command_of(plan), env=dict(plan.env)),),
            files={"main": tuple(files)},
            outputs=(plan.output, *plan.listings),
            roots=tuple(dict.fromkeys((*plan.roots, *roots_of(probe, self._settings.hosts[host].roots)))),
            limits=Limits(wall_s=WALL_S, memory_bytes=MEMORY_BYTES, output_bytes=LOG_BYTES, tmp_bytes=1 << 30),
            min_level=min_level(self._settings),
        )
        return spec, blobs

    async def _cached(self, key: str) -> CompileResult | None:
        row = await self._db.fetch_one("SELECT value FROM builds WHERE key = ?", (key,))
        if row is None:
            return None
        value = cast("dict[str, Any]", _msgpack.unpackb(row["value"]))
        if value.get("format") != CACHE_FORMAT:
            return None
        result = CompileResult.model_validate(value["result"])
        if result.artifact_id is not None:
            path = await self._artifacts.path(result.artifact_id)
            if not path.exists():
                return None
        return result.model_copy(update={"cached": True, "seconds": None})

    async def _result(self, done: FinishedJob, build: Build, source: Source) -> CompileResult:
        record, plan = done.record, build.plan
        raise_if_not_run(record, done.host)
        said = safe_text(done.stderr + done.stdout)
        taken = {o.path: o for o in record.outputs}
        library = (
            await self._jobs.fetch(done.host, taken[plan.output].sha256)
            if plan.output in taken and record.status == "ok"
            else None
        )
        listing = None
        for name in plan.listings:
            if name in taken:
                listing = (await self._jobs.fetch(done.host, taken[name].sha256)).decode("utf-8", "replace")
        found = diagnostics.parse(said, listing)
        if record.status == "failed" and not any(d.severity == "error" for d in found):
            last = diagnostics.last_words(said)
            found = [last, *found] if last else found
        messages, left = diagnostics.top(found)
        kernels: list[KernelResources] = resources.parse(said) if source.language == "cuda" else []
        if source.language == "hip":
            kernels = resources.parse_amd(said, build.arch or "")
        status = (
            "ok" if library is not None else ("failed" if record.status in ("ok", "failed") else str(record.status))
        )
        return CompileResult(
            status=status if status in ("ok", "failed", "timeout", "oom") else "broken",  # type: ignore[arg-type]
            language=compiled(source),
            compiler=build.toolchain.title,
            arch=build.arch,
            host=done.host,
            command=list(plan.argv),
            seconds=record.wall_s,
            level=record.level,
            note=record.note or None,
            resources=kernels,
            diagnostics=messages,
            diagnostics_left_out=left or None,
            artifact_id=await self._artifacts.put(library, name=plan.output) if library is not None else None,
            binary_bytes=len(library) if library is not None else None,
            log_artifact_id=await self._artifacts.put(said.encode(), name="compiler.log", media_type="text/plain")
            if said.strip()
            else None,
        )


def _key(plan: BuildPlan, toolchain: Toolchain, probe: HostProbe) -> str:
    """Return the address of a build: all that decides what comes out of it.

    `-march=native` makes the processor part of it, and system headers the host.
    """
    worker = worker_source(plan.worker) if plan.worker else None
    parts = [
        CACHE_FORMAT,
        plan.argv,
        plan.files,
        plan.env,
        worker,
        toolchain.title,
        probe.nvcc.build if probe.nvcc else None,
    ]
    parts += [{n: c.version for n, c in probe.compilers.items()}, probe.machine, probe.cpu, probe.hostname]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=dict).encode()).hexdigest()
