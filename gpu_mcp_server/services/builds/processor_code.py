"""Makes the processor's assembly of a C or C++ attempt, from its source with its flags."""

import json
from dataclasses import dataclass, replace

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.build_plans import build_of
from gpu_mcp_server.services.builds.candidate_source import source_of_attempt
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains.processor_assembly import assembly_plan, vectorization_report


@dataclass(frozen=True)
class Assembly:
    """Assembly that a compiler made of a source."""

    text: str
    compiler: str
    artifact_id: str
    report: list[str]
    """A line for each loop that became vectors or did not."""


class Assembler:
    """Compiles to assembly; kept as other builds are."""

    def __init__(self, jobs: JobRunner, compiler: Compiler, artifacts: Artifacts) -> None:
        self._jobs, self._compiler, self._artifacts = jobs, compiler, artifacts

    async def assemble(self, attempt: Attempt, host: str | None = None) -> Assembly:
        """Return the assembly of an attempt, made by the compiler that made its binary.

        Raises:
            NotFound: If its source is gone.
            BadRequest: If it does not compile there.
            ToolMissing: If the host has no such compiler.
        """
        if not attempt.source_artifact_id or attempt.language not in ("c", "cpp"):
            raise NotFound("source of attempt", attempt.attempt_id, hint="list_attempts shows which have one.")
        where = self._jobs.hosts.choose(host or attempt.host)
        probe = await self._jobs.probe(where)
        source = await source_of_attempt(self._artifacts, attempt)
        chosen = str((attempt.versions or {}).get("compiler") or "").partition(" ")[0] or None
        flags = tuple(json.loads(attempt.flags or "[]"))
        build = build_of(source, probe, where, BuildOptions(flags=flags, compiler=chosen))
        build = replace(build, plan=assembly_plan(build.plan, build.toolchain.name))
        made = await self._compiler.run_build(source, build, where, probe)
        if made.artifact_id is None:
            first = made.diagnostics[0].line_text() if made.diagnostics else made.status
            raise BadRequest(
                f"{attempt.attempt_id} does not compile to assembly on {where!r}: {first}.",
                hint="Headers that lay around its source are not kept: put them into the source.",
            )
        logs = [made.listing_artifact_id, made.log_artifact_id]
        said = [(await self._artifacts.read(log)).decode("utf-8", "replace") for log in logs if log]
        report = vectorization_report("\n".join(said), next(iter(build.plan.files)))
        listing = (await self._artifacts.read(made.artifact_id)).decode("utf-8", "replace")
        return Assembly(listing, made.compiler, made.artifact_id, report)
