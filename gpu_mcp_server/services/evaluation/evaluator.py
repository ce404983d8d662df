"""Judges candidates: compile, judge, remember."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Literal

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.candidate_device import device_of
from gpu_mcp_server.services.evaluation.candidate_preparation import CandidatePreparation
from gpu_mcp_server.services.evaluation.concurrency import DeadlinePassed, Slots
from gpu_mcp_server.services.evaluation.judge_job import QUICK
from gpu_mcp_server.services.evaluation.static_findings import advice_on
from gpu_mcp_server.services.evaluation.trial import JudgeRequest
from gpu_mcp_server.services.evaluation.trial_judge import TrialJudge
from gpu_mcp_server.services.evaluation.trial_records import TrialRecords
from gpu_mcp_server.services.evaluation.verdict_cache import VerdictCache, key_of_request
from gpu_mcp_server.services.hosts.host_connections import device_name
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.confirmations import Confirmations


class Evaluator:
    """Candidates in, verdicts out."""

    def __init__(
        self,
        jobs: JobRunner,
        problems: Problems,
        preparation: CandidatePreparation,
        judge: TrialJudge,
        records: TrialRecords,
        kept: VerdictCache,
        confirmations: Confirmations,
    ) -> None:
        self._jobs, self._problems, self._kept, self._confirmations = jobs, problems, kept, confirmations
        self._preparation, self._judge, self._records = preparation, judge, records

    async def evaluate(
        self,
        problem_id: str,
        source: CandidateSource,
        *,
        host: str | None = None,
        device: str | None = None,
        flags: Sequence[str] = (),
        entry: str = "launch",
        timing: TimingOptions = QUICK,
        parent_id: str | None = None,
        note: str | None = None,
        wait_s: float = 240.0,
        progress: Progress | None = None,
        batch_id: str | None = None,
        slots: Slots | None = None,
        reuse: bool = False,
        kind: Literal["evaluate", "confirm"] = "evaluate",
        background: bool = False,
    ) -> Evaluation:
        """Compile a candidate and judge it; with `slots` only until their deadline, whatever `wait_s` says.

        With `reuse` an identical request is answered by the verdict that it got: no attempt is made then. One of kind
        `confirm` is in no ranking; in the `background` it gives way to all others.

        Raises:
            NotFound: If the problem or the parent is unknown.
            ToolMissing, SandboxTooWeak, NoFreeGpu, HostError: If it could not be judged; a verdict is never guessed.
        """
        began = time.monotonic()
        problem = await self._problems.get(problem_id)
        if not entry.isidentifier() or not entry.isascii():
            raise BadRequest(
                f"entry {entry!r} is no C identifier in ASCII.",
                hint="Give the name of the launcher's function, or leave entry out.",
            )
        await self._records.check_parent(parent_id)
        where = await self._preparation.place(host, problem, source, device, flags)
        probe = await self._jobs.probe(where)
        chosen = device_of(device, problem, source, probe, where)
        await self._preparation.check(problem, source, where, flags, entry)
        named = chosen, device_name(probe, chosen)
        key = key_of_request(problem, source, probe, device=named, flags=(*flags,), entry=entry, timing=timing)
        key = "" if kind == "confirm" else key
        told = batch_id is None and bool(note or parent_id)
        trial = JudgeRequest(
            "", problem, source, where, probe, chosen, (*flags,), entry, timing, progress, slots, began, key,
            kind, background,
        )  # fmt: skip
        if reuse and (kept := await self._kept.get(key, told)) is not None:
            kept = await self._judge.add_compiled(kept, trial, 0.0 if slots else wait_s)
            return await self._told(kept.model_copy(update={"seconds": {"total": time.monotonic() - began}}), trial)
        trial = await self._records.begin(trial, parent_id=parent_id, note=note, batch_id=batch_id)
        try:
            return await self._told(await self._tried(trial, wait_s), trial)
        except DeadlinePassed:
            return await self._records.end_late(trial)
        except BaseException as error:
            await self._records.end_broken(trial, error)
            raise

    async def _told(self, evaluation: Evaluation, trial: JudgeRequest) -> Evaluation:
        """Return an answer that begins with what was voided at its problem since the last one."""
        if trial.kind == "confirm":
            return evaluation
        news = await self._confirmations.list_news(trial.problem.problem_id)
        return evaluation.model_copy(update={"news": news}) if news else evaluation

    async def _tried(self, trial: JudgeRequest, wait_s: float) -> Evaluation:
        """Make a candidate ready and judge it, each when it has a place.

        Raises:
            DeadlinePassed: If there was no place in time.
        """
        advising = asyncio.create_task(advice_on(trial.source.text))
        try:
            async with trial.slots.compiling() if trial.slots else contextlib.nullcontext():
                ready = await self._preparation.prepare(trial)
            advice = await advising
        finally:
            advising.cancel()
        if ready.built is not None and ready.built.status != "ok":
            return await self._records.end_uncompiled(trial, ready.built, advice)
        if trial.device == "hip" and trial.program is None:
            return await self._records.refuse_hip(trial, ready.built, advice)
        async with trial.slots.judging() if trial.slots else contextlib.nullcontext():
            left_s = trial.slots.left_s() if trial.slots else wait_s
            evaluation = await self._judge.judge(trial, ready, advice, left_s)
            await self._kept.put(trial.key, evaluation)
            return evaluation
