"""Builds a workspace by its own build system, in one job, phase by phase."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, Limits, OutputFile, ProcessSpec
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.job import OutputRef, TestReport
from gpu_mcp_server.models.project import Phase, ProjectBuild
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds import sycl_checks
from gpu_mcp_server.services.builds.build_cache import BuildCache, key_of
from gpu_mcp_server.services.builds.build_plans import nvidia_target, resolve_arch
from gpu_mcp_server.services.builds.compiler import parse_log
from gpu_mcp_server.services.commands import run_traces
from gpu_mcp_server.services.commands.command_runner import environment_of, min_level, roots_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces, checked_path
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains import diagnostics, junit, sycl_runtime
from gpu_mcp_server.toolchains.architectures import CompileTarget
from gpu_mcp_server.toolchains.base import Toolchain, toolchains_of
from gpu_mcp_server.toolchains.kernel_places import SUFFIXES, needs_place, with_places
from gpu_mcp_server.toolchains.projects import (
    BUILD,
    JUNIT,
    MISSING,
    SYCL_COMPILERS,
    SYCL_SUFFIXES,
    Project,
    System,
    phases,
    system_of,
    validate_project,
)

MEMORY_BYTES = 8 << 30
LOG_BYTES = 4 << 20
SHOWN_PRODUCTS = 20
READ_BYTES = 8 << 20
"""Of sources, to find the kernel that a message names."""
ENVIRONMENT = {"LC_ALL": "C", "HIP_PLATFORM": "amd", "CLICOLOR_FORCE": "0"}


class Projects:
    """Builds of whole workspaces."""

    def __init__(
        self, settings: Settings, jobs: JobRunner, workspaces: Workspaces, artifacts: Artifacts, cache: BuildCache
    ) -> None:
        self._settings, self._jobs, self._workspaces, self._artifacts = settings, jobs, workspaces, artifacts
        self._cache = cache

    async def build(
        self,
        workspace_id: str,
        *,
        system: System | None = None,
        folder: str = ".",
        targets: Sequence[str] = (),
        options: Sequence[str] = (),
        arch: str | None = None,
        tests: bool = False,
        timeout_s: float = 600.0,
        host: str | None = None,
    ) -> ProjectBuild:
        """Configure, build and test a workspace; what was made becomes part of it, below `build`.

        A build without tests of the same files, in the same way, by the same compilers is not run again.

        Raises:
            ToolMissing: If the host lacks the build system or compiler.
            BadRequest: If an option, target or folder cannot be used.
        """
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        manifest = await self._workspaces.manifest(workspace_id)
        folder = "." if folder in ("", ".") else checked_path(folder)
        paths = [f.path for f in manifest]
        chosen = system or system_of(paths, folder)
        target = _target(arch, probe, where)
        project = Project(chosen, folder, targets, options, target.arch or None, tests)
        validate_project(project, _gpu_compilers(probe))
        request: dict[str, object] = {
            "build": BUILD if chosen in ("cmake", "sycl") else folder,
            "tidy": chosen in ("cmake", "sycl"),
        }
        sources = _sources(paths, project)
        check = await self._sycl(project, probe, where, sources)
        plan = check.whole if check else phases(project, _tools(probe, chosen, where), max(1, probe.cores), sources)
        request["phases"] = plan
        key = None if tests else _key(manifest, request, probe)
        kept = await self._kept(key, workspace_id) if key else None
        if kept is not None:
            return kept
        run = {**request, "phases": check.phases} if check else request
        spec = self._spec(run, (*manifest, *(check.files if check else ())), probe, where, timeout_s)
        blobs = {f.sha256: self._artifacts.blob_path(f.sha256) for f in manifest} | (check.blobs if check else {})
        done = await self._jobs.run(spec, host=where, blobs=blobs, workspace_id=workspace_id)
        result = await self._result(done, project, workspace_id, str(request["build"]))
        if check:
            await sycl_checks.cache_driver(check, done.record.outputs, self._cache)
        notes = (sycl_runtime.NOTE if check else "", target.note, result.note)
        result = result.model_copy(update={"note": "; ".join(n for n in notes if n) or None})
        return await self._kept_now(result, key, request, probe, done)

    async def _sycl(
        self, project: Project, probe: HostProbe, host: str, sources: Sequence[str]
    ) -> sycl_checks.SyclCheckPlan | None:
        """Return what checks SYCL kernels where no compiler does; None for all else."""
        runtime = sycl_checks.runtime_at(probe) if project.system == "sycl" else None
        if runtime is None:
            return None
        return await sycl_checks.plan_check(runtime, probe, host, sources, self._artifacts, self._cache)

    async def _kept_now(
        self, result: ProjectBuild, key: str | None, request: Mapping[str, object], probe: HostProbe, done: FinishedJob
    ) -> ProjectBuild:
        workspace_id = result.workspace_id
        if key and result.status in ("ok", "failed"):
            made = [o._asdict() for o in done.record.outputs if not run_traces.is_trace(o.path)]
            after = _key(await self._workspaces.manifest(workspace_id), request, probe)
            for each in dict.fromkeys((key, after)):  # nothing is left to do in what was just built
                await self._cache.put(each, {"result": result.model_dump(mode="json"), "made": made})
        return result

    async def _kept(self, key: str, workspace_id: str) -> ProjectBuild | None:
        """Return what the same build made before, its files laid into the workspace; None if it was never made."""
        kept = await self._cache.get(key)
        made = [OutputFile(**o) for o in kept["made"]] if kept else []
        if kept is None or not all(self._artifacts.has(o.sha256) for o in made):
            return None
        await self._workspaces.adopt(workspace_id, made)
        result = ProjectBuild.model_validate(kept["result"])
        return result.model_copy(update={"cached": True, "seconds": None, "workspace_id": workspace_id})

    def _spec(
        self, request: Mapping[str, object], manifest: Sequence[FileRef], probe: HostProbe, host: str, timeout_s: float
    ) -> JobSpec:
        runtime = sycl_checks.runtime_at(probe)
        more = runtime.environment if runtime and sycl_runtime.DRIVER in str(request["phases"]) else {}
        return JobSpec(
            id=new_job_id(),
            purpose="build",
            processes=(
                ProcessSpec(
                    argv=("project", json.dumps(request)),
                    env=environment_of(probe, {**ENVIRONMENT, **more}),
                    program=worker_source("build_project"),
                ),
            ),
            files={"main": tuple(manifest)},
            outputs=("*",),
            roots=_roots(probe, (*self._settings.hosts[host].roots, *(runtime.roots if runtime and more else ()))),
            limits=Limits(wall_s=timeout_s, memory_bytes=MEMORY_BYTES, output_bytes=LOG_BYTES, tmp_bytes=1 << 30),
            min_level=min_level(self._settings),
        )

    async def _result(self, done: FinishedJob, project: Project, workspace_id: str, build: str) -> ProjectBuild:
        record = done.record
        raise_if_not_run(record, done.host)
        said = safe_text(done.stderr + done.stdout)
        ran = [Phase.model_validate(p) for p in await self._json(done, f"{build}/phases.json".removeprefix("./"))]
        failed = next((p.name for p in ran if p.exit_code), None)
        if record.status != "ok" and failed is None:
            names = [line.removeprefix("=== ") for line in said.splitlines() if line.startswith("=== ")]
            failed = names[-1] if names else None
        report = await self._report(done, f"{BUILD}/{JUNIT}")
        found = await self._placed([_inside(d) for d in await parse_log(said)], said, workspace_id)
        if record.status == "failed" and failed != "test" and not any(d.severity == "error" for d in found):
            last = diagnostics.output_tail(said)
            found = [last, *found] if last else found
        messages, left = diagnostics.first_messages(found)
        for output in record.outputs:
            await self._content(done, output)
        refused = await self._workspaces.adopt(
            workspace_id, [o for o in record.outputs if not run_traces.is_trace(o.path)]
        )
        notes = [record.note, *record.outputs_left_out[:3], *refused[:3]]
        status = record.status if record.status in ("ok", "failed", "timeout", "oom") else "broken"
        log = await self._artifacts.put(said.encode(), name="build.log", media_type="text/plain") if said else None
        return ProjectBuild(
            status=status,  # type: ignore[arg-type]
            system=project.system,
            host=done.host,
            workspace_id=workspace_id,
            job_id=record.id,
            stage=failed if status != "ok" else None,
            phases=ran,
            seconds=record.wall_s,
            diagnostics=messages,
            diagnostics_left_out=left,
            tests=report,
            products=await self._products(done, build),
            log_artifact_id=log,
            level=record.level,
            note="; ".join(n for n in notes if n) or None,
        )

    async def _placed(self, found: list[Diagnostic], said: str, workspace_id: str) -> list[Diagnostic]:
        """Return the messages, those of ptxas with the file of the kernel as far as it can be told."""
        if not needs_place(found):
            return found
        room, sources = READ_BYTES, dict[str, str]()
        for file in await self._workspaces.manifest(workspace_id):
            if file.path.endswith(SUFFIXES) and file.size <= room:
                room -= file.size
                data = await self._workspaces.read_bytes(workspace_id, file.path)
                sources[file.path] = data.decode("utf-8", "replace")
        return with_places(found, said, sources)

    async def _products(self, done: FinishedJob, build: str) -> list[OutputRef]:
        made = [o for o in done.record.outputs if build == "." or o.path.startswith(build + "/")]
        made = [o for o in made if o.mode & 0o111 or ".so" in o.path or o.path.endswith((".a", ".xml"))]
        return [
            OutputRef(
                path=o.path,
                artifact_id=await self._artifacts.put(self._artifacts.blob_path(o.sha256), name=o.path),
                size_bytes=o.size,
            )
            for o in made[:SHOWN_PRODUCTS]
        ]

    async def _content(self, done: FinishedJob, output: OutputFile) -> bytes:
        if not self._artifacts.has(output.sha256):
            await self._artifacts.put_blob(await self._jobs.fetch(done.host, output.sha256))
        return self._artifacts.blob_path(output.sha256).read_bytes()

    async def _json(self, done: FinishedJob, path: str) -> list[Any]:
        output = next((o for o in done.record.outputs if o.path == path), None)
        if output is None:
            return []
        try:
            value: Any = json.loads(await self._content(done, output))
        except ValueError:
            return []
        return cast("list[Any]", value) if isinstance(value, list) else []

    async def _report(self, done: FinishedJob, path: str) -> TestReport | None:
        output = next((o for o in done.record.outputs if o.path == path), None)
        return junit.parse(await self._content(done, output)) if output else None


def _key(manifest: Sequence[FileRef], request: Mapping[str, object], probe: HostProbe) -> str:
    """Return the address of a build: every file of the workspace, what is done with them, and by which tools."""
    files = [[f.path, f.sha256, f.mode] for f in sorted(manifest, key=lambda f: f.path)]
    return key_of("project", [files, request, ENVIRONMENT, worker_source("build_project")], probe)


def _target(arch: str | None, probe: HostProbe, host: str) -> CompileTarget:
    """Return what to build for: of `native` all that the host's device can do, nothing where the files say it."""
    named = resolve_arch(arch, probe, host) or ""
    nvidia = toolchains_of(probe.model_dump(), "cuda")
    is_own = arch == "native" and named.startswith("sm_") and nvidia
    return nvidia_target(arch, probe, host, nvidia[0]) if is_own else CompileTarget(named)


def _gpu_compilers(probe: HostProbe) -> list[Toolchain]:
    about = probe.model_dump()
    return [*toolchains_of(about, "cuda"), *toolchains_of(about, "hip")]


def _tools(probe: HostProbe, system: System, host: str) -> dict[str, str]:
    tools = {name: tool.path for name, tool in probe.toolchains.tools.items()}
    needed = SYCL_COMPILERS if system == "sycl" else (system,)
    if not any(name in tools for name in needed):
        raise ToolMissing(" or ".join(needed), host, hint=MISSING[system])
    return tools


def _sources(paths: Sequence[str], project: Project) -> list[str]:
    if project.system != "sycl":
        return []
    prefix = "" if project.folder == "." else project.folder + "/"
    found = [p for p in paths if p.startswith(prefix) and p.endswith(SYCL_SUFFIXES)]
    if not found:
        raise BadRequest(f"There is no C++ source in {project.folder!r}.", hint="write_files puts them there.")
    return found


def _roots(probe: HostProbe, more: Sequence[str]) -> tuple[str, ...]:
    found = [r for h in probe.toolchains.hip for r in h.roots]
    found += [r for t in probe.toolchains.tools.values() for r in t.roots]
    return tuple(dict.fromkeys((*roots_of(probe, more), *found)))


def _inside(diagnostic: Diagnostic) -> Diagnostic:
    """Return the message with the path as the workspace has it."""
    file = diagnostic.file
    return diagnostic.model_copy(update={"file": file.removeprefix("/job/")}) if file else diagnostic
