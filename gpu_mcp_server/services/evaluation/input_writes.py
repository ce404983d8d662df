"""A candidate that crashed as one does that writes to an input: it is run once more on copies that it may write to."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.services.evaluation.judge_job import judge_spec
from gpu_mcp_server.services.evaluation.judge_results import Verdicts
from gpu_mcp_server.services.evaluation.trial import BuildState, JudgeRequest
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.problems.launcher_signatures import MISCALLED
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.settings.server_settings import Settings

PURPOSE = "writes"
SUSPICIOUS = re.compile(
    r"SIGSEGV|SIGBUS|a write to an input|ILLEGAL_ADDRESS|IllegalAddress|illegal memory access|illegal address"
)
"""How the judge, the driver, the runtime and torch tell of it. Source: driver_types.h and cuda.h, CUDA 13.0."""
LEAST_S = 5.0
"""For a job of the judge to start, with torch."""
NONE_FOUND = "to no input in a second run, on writable copies"


class InputWrites:
    """Names the inputs that failed candidates write to."""

    def __init__(self, settings: Settings, jobs: JobRunner, verdicts: Verdicts, experience: AttemptStore) -> None:
        self._settings, self._jobs, self._verdicts, self._experience = settings, jobs, verdicts, experience

    async def explain_writes(
        self, evaluation: Evaluation, trial: JudgeRequest, ready: BuildState, *, left_s: float
    ) -> Evaluation:
        """Return an evaluation whose reason begins with the inputs that were written to, if some were.

        The candidate is a fresh process in a job of its own, with other data. Its verdict stays: all that is taken
        from this run are names and counts, which the owner finds in memory of its own.
        """
        suspected = evaluation.verdict == "incorrect" and SUSPICIOUS.search(evaluation.reason)
        miscalled = MISCALLED.search(evaluation.reason)  # then it takes one tensor for another, and writes anywhere
        if not suspected or miscalled or ready.candidate is None or left_s < LEAST_S:
            return evaluation
        await trial.tell("it may have written to an input: once more on copies that it may write to")
        try:
            writes = await self._find_writes(trial, ready)
        except GpuMcpError as error:
            return evaluation.model_copy(update={"evidence": {**evaluation.evidence, "writes": f"not run: {error}"}})
        said = describe_writes(writes)
        evidence = {**evaluation.evidence, "writes": said.removeprefix("writes ") or NONE_FOUND}
        if not said:
            return evaluation.model_copy(update={"evidence": evidence})
        reason = f"{said}: inputs are read-only, so work on a copy; {evaluation.reason}"
        await self._experience.explain(evaluation.attempt_id, reason)
        return evaluation.model_copy(update={"evidence": evidence, "reason": reason})

    async def _find_writes(self, trial: JudgeRequest, ready: BuildState) -> Sequence[Mapping[str, Any]]:
        spec, blobs = judge_spec(
            trial.problem, trial.probe, self._settings,
            host=trial.host, device=trial.device, candidate=ready.candidate, mode="writes",
        )  # fmt: skip
        done = await self._jobs.run(spec._replace(purpose=PURPOSE), host=trial.host, blobs=blobs)
        found = await self._verdicts.read(done) or {}
        return cast("Sequence[Mapping[str, Any]]", found.get("writes") or [])


def describe_writes(writes: Sequence[Mapping[str, Any]]) -> str:
    """Return what was written to; empty if nothing."""
    texts = [f"{one['input']} ({one['elements']} of {one['of']} elements changed in a call)" for one in writes]
    return f"writes to input {', '.join(texts)}" if texts else ""
