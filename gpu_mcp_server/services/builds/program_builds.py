"""Builds a project by its own command, once: what came of it is kept by content, failures too."""

import hashlib
from collections.abc import Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, ProcessSpec
from gpu_mcp_server.models.build import CompileResult
from gpu_mcp_server.models.program import ProgramProblem
from gpu_mcp_server.services.builds.build_cache import BuildCache, key_of
from gpu_mcp_server.services.builds.build_plans import LONG, compile_limits, note_of
from gpu_mcp_server.services.commands.command_runner import environment_of, min_level, roots_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.workspaces.file_archive import MAX_TREE_BYTES, ArchiveFile, Tree, pack, unpack
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.toolchains import diagnostics

MEMORY_BYTES = 8 << 30
LOG_BYTES = 1 << 20


def project_of(program: ProgramProblem) -> dict[str, ArchiveFile]:
    """Return the reference's project as it is built."""
    return {
        path: ArchiveFile(file.data(), 0o755 if file.executable else 0o644)
        for path, file in sorted(program.files.items())
    }


def candidate_tree(program: ProgramProblem, files: Tree) -> dict[str, ArchiveFile]:
    """Return the project with a candidate's files in place of its own.

    Raises:
        BadRequest: If a file of one is a folder of the other.
    """
    tree = {**project_of(program), **files}
    for path in tree:
        at = path.rpartition("/")[0]
        while at:
            if at in tree:
                raise BadRequest(f"{at!r} would be a file and, for {path!r}, a folder.", hint="Rename one of them.")
            at = at.rpartition("/")[0]
    return tree


class ProgramBuilder:
    """Builds projects, with a cache by content."""

    def __init__(self, settings: Settings, jobs: JobRunner, db: Database, artifacts: Artifacts) -> None:
        self._settings, self._jobs, self._artifacts = settings, jobs, artifacts
        self._cache = BuildCache(db, artifacts)

    async def build(self, tree: Tree, command: Sequence[str], *, host: str) -> CompileResult:
        """Return what a command makes of a project; the artifact is the whole folder afterwards.

        Raises:
            LimitExceeded: If that has more than 2,000 files or 64 MiB.
        """
        probe = await self._jobs.probe(host)
        if not command:
            artifact = await self._kept(tree)
            return CompileResult(status="ok", language="program", compiler="none", host=host, artifact_id=artifact)
        key = _key(tree, command, probe)
        cached = await self._cached(key)
        if cached is not None:
            return cached.model_copy(update={"host": host})
        spec, blobs = self._spec(tree, command, probe, host)
        done = await self._jobs.run(spec, host=host, blobs=blobs)
        result = await self._result(done, tree, command)
        if done.record.status in ("ok", "failed"):
            await self._cache.put(key, result.model_dump(mode="json"))
        return result

    async def tree(self, artifact_id: str) -> dict[str, ArchiveFile]:
        """Return a folder that `build` made."""
        return unpack(await self._artifacts.read(artifact_id))

    async def _kept(self, tree: Tree) -> str:
        return await self._artifacts.put(pack(tree), name="project.tar", media_type="application/x-tar")

    async def _cached(self, key: str) -> CompileResult | None:
        kept = await self._cache.get(key)
        if kept is None:
            return None
        return CompileResult.model_validate(kept).model_copy(update={"cached": True, "seconds": None})

    def _spec(
        self, tree: Tree, command: Sequence[str], probe: HostProbe, host: str
    ) -> tuple[JobSpec, dict[str, bytes]]:
        blobs = {hashlib.sha256(file.data).hexdigest(): file.data for file in tree.values()}
        spec = JobSpec(
            id=new_job_id(),
            purpose="compile",
            processes=(ProcessSpec(argv=tuple(command), env=environment_of(probe, {"LC_ALL": "C"})),),
            files={"main": file_refs(tree)},
            outputs=("*",),
            roots=roots_of(probe, self._settings.hosts[host].roots),
            limits=compile_limits(
                self._settings, LONG, memory_bytes=MEMORY_BYTES, output_bytes=LOG_BYTES, tmp_bytes=1 << 30
            ),
            min_level=min_level(self._settings),
        )
        return spec, blobs

    async def _result(self, done: FinishedJob, tree: Tree, command: Sequence[str]) -> CompileResult:
        record = done.record
        raise_if_not_run(record, done.host)
        said = safe_text(done.stderr + done.stdout)
        found = diagnostics.parse(said, None)
        if record.status == "failed" and not any(d.severity == "error" for d in found):
            last = diagnostics.output_tail(said)
            found = [last, *found] if last else found
        messages, left = diagnostics.first_messages(found)
        artifact: str | None = None
        note = "; ".join([note_of(record, LONG), *record.outputs_left_out[:3]]).strip("; ")
        if record.status == "ok":
            built, over = await self._built(done, tree)
            artifact = await self._kept(built)
            note = "; ".join(filter(None, [note, over]))
        status = record.status if record.status in ("ok", "failed", "timeout", "oom") else "broken"
        return CompileResult(
            status=status,  # type: ignore[arg-type]
            language="program",
            compiler=command[0],
            host=done.host,
            command=list(command),
            seconds=record.wall_s,
            level=record.level,
            note=note or None,
            diagnostics=messages,
            diagnostics_left_out=left or None,
            artifact_id=artifact,
            log_artifact_id=await self._artifacts.put(said.encode(), name="build.log", media_type="text/plain")
            if said.strip()
            else None,
        )

    async def _built(self, done: FinishedJob, tree: Tree) -> tuple[dict[str, ArchiveFile], str]:
        """Return the folder after the build, and what was left out of it."""
        built, size = dict(tree), 0
        left: list[str] = []
        for output in done.record.outputs:
            size += output.size
            if size > MAX_TREE_BYTES // 2:
                left.append(output.path)
                continue
            mode = 0o755 if output.mode & 0o111 else 0o644
            built[output.path] = ArchiveFile(await self._jobs.fetch(done.host, output.sha256), mode)
        return built, f"left out, as the build made more than 32 MiB: {', '.join(left[:5])}" if left else ""


def file_refs(tree: Tree, below: str = "") -> tuple[FileRef, ...]:
    """Return a tree as the files of a job's workspace."""
    return tuple(
        FileRef(below + path, hashlib.sha256(file.data).hexdigest(), len(file.data), file.mode)
        for path, file in tree.items()
    )


def _key(tree: Tree, command: Sequence[str], probe: HostProbe) -> str:
    """Return the address of a build: files, command, and the host's compilers and processor."""
    files = [[path, hashlib.sha256(file.data).hexdigest(), file.mode] for path, file in sorted(tree.items())]
    return key_of("program", [list(command), files], probe)
