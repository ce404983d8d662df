"""Profiles attempts and programs on a processor: chooses what is run, and turns what was seen into a reading."""

from collections.abc import Mapping
from typing import NamedTuple

from gpu_mcp_server.models.profile import KernelReading, ProfileLevel
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.profilers import perf_events
from gpu_mcp_server.services.builds.candidate_source import source_of_attempt
from gpu_mcp_server.services.profiles import processor_profiles, profile_targets
from gpu_mcp_server.services.profiles.processor_ceilings import ProcessorCeilingMeter, ProcessorCeilings
from gpu_mcp_server.services.profiles.processor_drivers import PROCESSOR_LANGUAGES
from gpu_mcp_server.services.profiles.profile_targets import ProfileTarget, Targets
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob, ToolJob, ToolJobs

PYTHON = ("launcher", "python")
"""Languages of attempts in Python that run on a processor as they are; Triton's interpreter tells nothing of a GPU."""


class ProcessorProfile(NamedTuple):
    """Readings of a finished profile on a processor."""

    status: str
    note: str | None
    profiler: str
    readings: list[KernelReading]


class ProcessorProfiler:
    """Plans profiles where no GPU is wanted, and reads them."""

    def __init__(self, tools: ToolJobs, targets: Targets, ceilings: ProcessorCeilingMeter) -> None:
        self._tools, self._targets, self._ceilings = tools, targets, ceilings

    async def plan(self, what: RunTarget, level: ProfileLevel) -> tuple[ToolJob, ProfileTarget] | None:
        """Plan for an attempt in C or C++, and on a host without a GPU for a program or a Python attempt.

        Raises:
            BadRequest: If the target cannot be profiled so.
            ToolMissing: If the host has no compiler for it.
        """
        if (what.command is None) == (what.attempt_id is None):
            return None
        if what.command is not None:
            target = await self._targets.program(what.command, what.workspace_id, what.host)
            return None if _has_gpu(target) else (processor_profiles.plan_program(target, level, what), target)
        attempt = await self._tools.experience.get(what.attempt_id or "")
        judged = attempt.kind == "evaluate" and attempt.source_artifact_id and attempt.problem_id
        if not judged or attempt.language not in (*PROCESSOR_LANGUAGES, *PYTHON):
            return None
        where = await self._targets.program(("true",), None, what.host or attempt.host)
        if attempt.language in PYTHON and _has_gpu(where):
            return None
        problem = await self._targets.problem_of(attempt)
        if attempt.language in PYTHON:
            target = await self._targets.python_attempt(attempt, what.shape, where)
            job = processor_profiles.plan_calls(target, problem, level, what)
        else:
            source = await source_of_attempt(self._tools.artifacts, attempt)
            job, target = processor_profiles.plan_attempt(attempt, source, problem, where, level, what)
        if level != "quick":
            found = await self._ceilings.measure_once(target.host, target.probe)
            job = job.with_context(ceilings=found.model_dump())
        return job, target

    @staticmethod
    def read(ended: FinishedToolJob, sources: Mapping[str, str]) -> ProcessorProfile:
        """Return what a finished job saw."""
        run = perf_events.read_run(ended.about)
        status, note = processor_profiles.status_of(ended, run)
        ceilings = ProcessorCeilings.model_validate(ended.row.context.get("ceilings") or {})
        reading = processor_profiles.reading_of(ended, run, sources, ceilings) if status == "ok" else None
        profiler = (run.perf.version if run.perf else "") or ended.row.context["profiler"]
        return ProcessorProfile(status, note, profiler, [reading] if reading else [])


def _has_gpu(target: ProfileTarget) -> bool:
    return bool(target.probe.amd_gpus) or len(target.probe.gpus) >= profile_targets.GPUS
