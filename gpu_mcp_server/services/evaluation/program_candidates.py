"""Program problems and their candidates, from files to the judge's job."""

from collections.abc import Sequence

from gpu_mcp_server.errors import BadRequest, ProblemRefused
from gpu_mcp_server.hostd.protocol import JobSpec
from gpu_mcp_server.models.build import CompileResult
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program import ProgramProblem
from gpu_mcp_server.services.builds.program_builds import ProgramBuilder, candidate_tree, project_of
from gpu_mcp_server.services.evaluation.program_job import program_spec
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.workspaces.file_archive import ArchiveFile, Tree
from gpu_mcp_server.settings.server_settings import Settings

MAX_FLAGS = 64


class Programs:
    """Builds reference and candidates, and describes their trial."""

    def __init__(self, settings: Settings, jobs: JobRunner, builder: ProgramBuilder) -> None:
        self._settings, self._jobs, self._builder = settings, jobs, builder

    async def registration(
        self, problem: Problem, program: ProgramProblem, host: str
    ) -> tuple[JobSpec, dict[str, bytes]]:
        """Describe the job that tries a problem's reference.

        Raises:
            ProblemRefused: If the reference's project is not built.
        """
        probe = await self._jobs.probe(host)
        reference = await self._reference(program, host)
        return program_spec(
            problem, program, probe, self._settings,
            host=host, device=program.device, reference=reference, candidate=None,
        )  # fmt: skip

    async def _reference(self, program: ProgramProblem, host: str) -> Tree:
        built = await self._builder.build(project_of(program), program.build, host=host)
        if built.status != "ok" or built.artifact_id is None:
            first = built.diagnostics[0].line_text() if built.diagnostics else built.note or built.status
            raise ProblemRefused(
                f"The reference's project is not built on {host!r}: {first}", hint="Correct the project or its build."
            )
        return await self._builder.tree(built.artifact_id)

    @staticmethod
    def check_flags(program: ProgramProblem, flags: Sequence[str]) -> None:
        """Return if there is a build that can take these.

        Raises:
            BadRequest: If not.
        """
        if flags and not program.build:
            raise BadRequest("This program is not built, so there is nothing to give flags to.", hint="Leave them out.")
        if len(flags) > MAX_FLAGS or any("\0" in flag for flag in flags):
            raise BadRequest("Too many flags, or one holds a NUL.", hint=f"Give at most {MAX_FLAGS}.")

    async def build(self, program: ProgramProblem, files: Tree, flags: Sequence[str], host: str) -> CompileResult:
        """Build a candidate: its files in place of the project's, by the same command and what is put behind it.

        Raises:
            BadRequest: If a file would be a folder.
        """
        return await self._builder.build(candidate_tree(program, files), [*program.build, *flags], host=host)

    async def judge_job(
        self, problem: Problem, program: ProgramProblem, built: CompileResult, *, host: str, device: str, tier: str
    ) -> tuple[JobSpec, dict[str, bytes]]:
        """Describe the job that judges a candidate.

        Raises:
            ProblemRefused: If the reference's project is not built there.
        """
        probe = await self._jobs.probe(host)
        return program_spec(
            problem, program, probe, self._settings,
            host=host, device=device, tier=tier,
            reference=await self._reference(program, host),
            candidate=await self._builder.tree(built.artifact_id or ""),
        )  # fmt: skip


def files_of_candidate(program: ProgramProblem, text: str, name: str) -> Tree:
    """Return a candidate that is one file: in place of the one of its name, or of the one that the problem names.

    Raises:
        BadRequest: If neither is there.
    """
    path = name if name in program.files else program.replaces
    if path is None:
        raise BadRequest(
            "It is not clear which file of the project this one replaces.",
            hint=f"Give a folder or workspace with its path in it, one of {', '.join(sorted(program.files)[:20])}.",
        )
    return {path: ArchiveFile(text.encode(), 0o755 if program.files[path].executable else 0o644)}
