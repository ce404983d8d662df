"""Prepare a candidate for the judge: choose its host, check that it may run there, build it."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import JudgedKind
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.candidate_source import CandidateSource, judged_kind
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.evaluation.candidate_device import PYTHON_KINDS, VENDOR_OF
from gpu_mcp_server.services.evaluation.concurrency import gather_or_cancel
from gpu_mcp_server.services.evaluation.extension_builds import ExtensionBuilder
from gpu_mcp_server.services.evaluation.judge_binaries import judge_code
from gpu_mcp_server.services.evaluation.missing_equipment import check_one_file
from gpu_mcp_server.services.evaluation.prewarming import Prewarming
from gpu_mcp_server.services.evaluation.program_candidates import Programs, files_of_candidate
from gpu_mcp_server.services.evaluation.trial import BuildState, JudgeRequest
from gpu_mcp_server.services.jobs.gpu_needs import GpuNeed
from gpu_mcp_server.services.jobs.job_services import JobServices
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains.flags import linked_libraries
from gpu_mcp_server.toolchains.torch_bindings import FOLDER, Binding, binding_of, binds_tvm, is_extension, needs_torch


class CandidatePreparation:
    """Finds a candidate's host and makes the candidate ready to be judged there."""

    def __init__(
        self,
        jobs: JobServices,
        compiler: Compiler,
        artifacts: Artifacts,
        programs: Programs,
        announcements: Prewarming,
    ) -> None:
        self._jobs, self._compiler, self._artifacts, self._programs = jobs, compiler, artifacts, programs
        self._announcements = announcements
        self._extensions = ExtensionBuilder(compiler, artifacts, announcements)

    async def place(
        self, host: str | None, problem: Problem, source: CandidateSource, device: str | None, flags: Sequence[str]
    ) -> str:
        """Choose where: for a GPU the host that is free soonest, and of those the one that has the build."""
        device = device or (problem.program.device if problem.program else None)
        vendor = "nvidia" if source.language == "cuda" else VENDOR_OF.get(device or "", "")

        async def has_build(name: str) -> bool | None:
            if vendor == "nvidia" and "cuda" not in (await self._jobs.runner.probe(name)).devices():
                return None
            ready = problem.program is not None or source.language in PYTHON_KINDS
            return ready or await self._compiler.has(source, host=name, flags=flags)

        return await self._jobs.pool.place(host, GpuNeed(1 if vendor else 0, vendor=vendor), has_build=has_build)

    async def check(
        self, problem: Problem, source: CandidateSource, host: str, flags: Sequence[str], entry: str
    ) -> None:
        """Refuse what is no attempt of the kernel's: flags that are not allowed, a compiler that is not there."""
        if problem.libraries == "forbidden" and (linked := linked_libraries(flags)):
            raise BadRequest(f"The problem forbids libraries; {', '.join(linked)} links one.", hint="Write the kernel.")
        if problem.program is not None:
            self._programs.check_flags(problem.program, flags)
        elif source.language not in PYTHON_KINDS:
            binding_for(problem, source, entry)
            await self._compiler.validate(source, host=host, flags=flags)
        elif flags:
            raise BadRequest("A Python candidate takes no flags.", hint="Leave flags out.")
        else:
            check_one_file(source.text)

    async def prepare(self, trial: JudgeRequest) -> BuildState:
        """Make a candidate ready; what it is judged with is built meanwhile, and the judge's processes are made."""
        if trial.program is not None:
            files = trial.source.files or files_of_candidate(trial.program, trial.source.text, trial.source.name)
            await trial.tell(f"attempt {trial.attempt_id}: building")
            return BuildState(await self._programs.build(trial.program, files, trial.flags, trial.host), None)
        binding = binding_for(trial.problem, trial.source, trial.entry)
        kind = binding.kind if binding else judged_kind(trial.source.text, trial.source.language, trial.problem)
        coding = asyncio.create_task(judge_code(self._compiler, self._artifacts, trial.host, trial.device, kind))
        expected = self._announcements.judge(trial.problem, trial.probe, trial.host, trial.device, kind, coding)
        try:
            return (await gather_or_cancel(self._loadable(trial, kind, binding, coding), expected))[0]
        finally:
            coding.cancel()

    async def _loadable(
        self, trial: JudgeRequest, kind: JudgedKind, binding: Binding | None, coding: Awaitable[Mapping[str, bytes]]
    ) -> BuildState:
        source = trial.source
        if source.language in PYTHON_KINDS:
            await trial.tell(f"attempt {trial.attempt_id}: extensions that it has torch compile")
            extensions = await self._extensions.build(source, trial.problem, trial.probe, trial.host)
            if extensions.failed is not None:
                return BuildState(extensions.failed, None)
            candidate = BuiltCandidate(kind, source.text.encode(), trial.entry, await coding, extensions.files)
            return BuildState(None, candidate, extensions.said, extensions.unbuilt, binaries=extensions.binaries)
        await trial.tell(f"attempt {trial.attempt_id}: compiling")
        built = await self._compiler.build(source, host=trial.host, flags=trial.flags)
        if built.status != "ok" or trial.device == "hip":
            return BuildState(built, None)
        library = await self._artifacts.read(built.artifact_id or "")
        if binding is None:
            return BuildState(built, BuiltCandidate("library", library, trial.entry, await coding))
        files = {f"{FOLDER}/{binding.module}.so": library}
        candidate = BuiltCandidate(kind, binding.text.encode(), trial.entry, await coding, files)
        return BuildState(built, candidate, binding=f"{binding.by}, {binding.function}")


def binding_for(problem: Problem, source: CandidateSource, entry: str) -> Binding | None:
    """Return how a source that is an extension of torch or tvm-ffi is called; None for every other.

    Raises:
        BadRequest: If it binds no function, or none that fits the problem.
    """
    if source.language not in ("cpp", "cuda") or not (needs_torch(source.text) or binds_tvm(source.text)):
        return None
    if not is_extension(source.text):
        raise BadRequest(
            "The source includes torch's headers and binds no function that the judge could call.",
            hint='Add PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("NAME", &NAME); }, or a TORCH_LIBRARY.',
        )
    return binding_of(source.text, entry, len(problem.inputs), len(problem.outputs), len(problem.symbols()))
