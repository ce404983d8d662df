"""Judges candidates: compile, judge, remember."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.protocol import JobSpec
from gpu_mcp_server.models.build import CandidateLanguage, CompileResult, kept_diagnostics
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program import Program
from gpu_mcp_server.services.builds.candidate_source import Source
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.commands.command_runner import Progress, device_name
from gpu_mcp_server.services.evaluation.baselines import Baselines
from gpu_mcp_server.services.evaluation.candidate_device import PYTHON_KINDS, device_of, versions_of
from gpu_mcp_server.services.evaluation.concurrency import Late, Slots, both
from gpu_mcp_server.services.evaluation.crash_diagnosis import Faults
from gpu_mcp_server.services.evaluation.extension_builds import ExtensionBuilder
from gpu_mcp_server.services.evaluation.judge_binaries import judge_code
from gpu_mcp_server.services.evaluation.judge_job import GENERATION, QUICK, Candidate, Kind, judge_spec, lines_of
from gpu_mcp_server.services.evaluation.judge_results import Verdicts
from gpu_mcp_server.services.evaluation.prewarming import Announcements
from gpu_mcp_server.services.evaluation.program_candidates import Programs, files_of_candidate
from gpu_mcp_server.services.evaluation.static_findings import advice_on
from gpu_mcp_server.services.evaluation.verdict_cache import KeptVerdicts, key_of_request
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.gpu_needs import Need
from gpu_mcp_server.services.jobs.gpu_scheduler import Pool
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.profiles.memory_checker import Checker
from gpu_mcp_server.services.records.attempts import Experience
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains.flags import linked_libraries

LATE = "not begun: the call's time was over before its turn"


@dataclass(frozen=True)
class Trial:
    """One candidate on its way to a verdict."""

    attempt_id: str
    problem: Problem
    source: Source
    host: str
    probe: HostProbe
    device: str
    entry: str
    timing: TimingOptions
    progress: Progress | None
    slots: Slots | None
    began: float
    """On the monotonic clock."""
    key: str
    """Of the request, for the verdict to be kept under."""

    @property
    def program(self) -> Program | None:
        """The problem's program, if it is one."""
        return self.problem.program

    @property
    def language(self) -> CandidateLanguage:
        """What kind of candidate it is."""
        return "program" if self.problem.program else self.source.language

    async def tell(self, message: str) -> None:
        """Say where it stands."""
        if self.progress is not None:
            await self.progress(message)

    def evaluation(self, status: str, **more: Any) -> Evaluation:
        """Return an evaluation without a verdict."""
        about: dict[str, Any] = {
            "attempt_id": self.attempt_id,
            "problem_id": self.problem.problem_id,
            "problem_hash": self.problem.content_hash,
            "language": self.language,
            "host": self.host,
        }
        return Evaluation.model_validate({"status": status, **about, **more})


@dataclass(frozen=True)
class Ready:
    """A candidate that can be judged."""

    built: CompileResult | None
    """None of what is not compiled beforehand."""
    candidate: Candidate | None
    """None of a program."""
    said: Sequence[str] = ()
    """Of extensions that it has torch compile."""


class Evaluator:
    """Candidates in, verdicts out."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        table: JobTable,
        compiler: Compiler,
        problems: Problems,
        experience: Experience,
        artifacts: Artifacts,
        verdicts: Verdicts,
        programs: Programs,
        pool: Pool,
        baselines: Baselines,
        checker: Checker,
        kept: KeptVerdicts,
    ) -> None:
        self._baselines, self._faults, self._kept = baselines, Faults(checker), kept
        self._announcements = Announcements(settings, jobs)
        self._programs, self._pool = programs, pool
        self._extensions = ExtensionBuilder(compiler, artifacts, self._announcements)
        self._settings, self._jobs, self._table, self._compiler = settings, jobs, table, compiler
        self._problems, self._experience, self._artifacts, self._verdicts = problems, experience, artifacts, verdicts

    async def evaluate(
        self,
        problem_id: str,
        source: Source,
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
    ) -> Evaluation:
        """Compile a candidate and judge it; with `slots` only until their deadline, whatever `wait_s` says.

        With `reuse` an identical request is answered by the verdict that it got: no attempt is made then.

        Raises:
            NotFound: If the problem or the parent is unknown.
            ToolMissing, SandboxTooWeak, NoFreeGpu, HostError: If it could not be judged; a verdict is never guessed.
        """
        began = time.monotonic()
        problem = await self._problems.get(problem_id)
        if not entry.isidentifier() or not entry.isascii():
            raise BadRequest(f"entry {entry!r} is no C identifier in ASCII.", hint="It is the launcher's name.")
        if parent_id is not None:
            await self._experience.get(parent_id)
        where = await self._place(host, source, device, flags)
        probe = await self._jobs.probe(where)
        chosen = device_of(device, problem, source, probe, where)
        await self._foresee(problem, source, where, flags)
        named = chosen, device_name(probe, 1 if chosen == "cuda" else 0)
        key = key_of_request(problem, source, probe, device=named, flags=(*flags,), entry=entry, timing=timing)
        told = batch_id is None and bool(note or parent_id)
        if reuse and (kept := await self._kept.get(key, told)) is not None:
            return kept.model_copy(update={"seconds": {"total": time.monotonic() - began}})
        how = {"flags": json.dumps(list(flags)), "entry": entry, "target": chosen, "tier": timing.tier}
        trial = Trial("", problem, source, where, probe, chosen, entry, timing, progress, slots, began, key)
        attempt_id = await self._noted(trial, how, parent_id, note, batch_id)
        trial = replace(trial, attempt_id=attempt_id)
        try:
            return await self._tried(trial, flags, wait_s)
        except Late:
            await self._experience.finish(attempt_id, status="cancelled", reason=LATE)
            return trial.evaluation("refused", reason=LATE)
        except BaseException as error:
            gone = isinstance(error, asyncio.CancelledError)
            reason = "the call was cancelled, or its client went away" if gone else str(error)[:500]
            await self._experience.finish(attempt_id, status="cancelled" if gone else "error", reason=reason)
            raise

    async def _foresee(self, problem: Problem, source: Source, host: str, flags: Sequence[str]) -> None:
        """Refuse what is no attempt of the kernel's: flags that are not allowed, a compiler that is not there."""
        if problem.libraries == "forbidden" and (linked := linked_libraries(flags)):
            raise BadRequest(f"The problem forbids libraries; {', '.join(linked)} links one.", hint="Write the kernel.")
        if problem.program is not None:
            self._programs.check_flags(problem.program, flags)
        elif source.language not in PYTHON_KINDS:
            await self._compiler.foresee(source, host=host, flags=flags)
        elif flags:
            raise BadRequest("A Python candidate takes no flags.", hint="Leave flags out.")

    async def _tried(self, trial: Trial, flags: Sequence[str], wait_s: float) -> Evaluation:
        """Make a candidate ready and judge it, each when it has a place.

        Raises:
            Late: If there was no place in time.
        """
        advising = asyncio.create_task(advice_on(trial.source.text))
        try:
            async with trial.slots.compiling() if trial.slots else contextlib.nullcontext():
                ready = await self._ready(trial, flags)
            advice = await advising
        finally:
            advising.cancel()
        if ready.built is not None and ready.built.status != "ok":
            return await self._not_compiled(trial, ready.built, advice)
        if trial.device == "hip":
            return await self._not_here(trial, ready.built, advice)
        async with trial.slots.judging() if trial.slots else contextlib.nullcontext():
            return await self._judge(trial, ready, advice, trial.slots.left_s() if trial.slots else wait_s)

    async def _ready(self, trial: Trial, flags: Sequence[str]) -> Ready:
        """Make a candidate ready; what it is judged with is built meanwhile, and the judge's processes are made."""
        if trial.program is not None:
            files = trial.source.files or files_of_candidate(trial.program, trial.source.text, trial.source.name)
            await trial.tell(f"attempt {trial.attempt_id}: building")
            return Ready(await self._programs.build(trial.program, files, flags, trial.host), None)
        kind = PYTHON_KINDS.get(trial.source.language, "library")
        coding = asyncio.create_task(judge_code(self._compiler, self._artifacts, trial.host, trial.device, kind))
        expected = self._announcements.judge(trial.problem, trial.probe, trial.host, trial.device, kind, coding)
        try:
            return (await both(self._loadable(trial, flags, kind, coding), expected))[0]
        finally:
            coding.cancel()

    async def _loadable(
        self, trial: Trial, flags: Sequence[str], kind: Kind, coding: Awaitable[Mapping[str, bytes]]
    ) -> Ready:
        source = trial.source
        if source.language in PYTHON_KINDS:
            await trial.tell(f"attempt {trial.attempt_id}: extensions that it has torch compile")
            extensions = await self._extensions.built(source, trial.problem, trial.probe, trial.host)
            if extensions.failed is not None:
                return Ready(extensions.failed, None)
            candidate = Candidate(kind, source.text.encode(), trial.entry, await coding, extensions.files)
            return Ready(None, candidate, extensions.said)
        await trial.tell(f"attempt {trial.attempt_id}: compiling")
        built = await self._compiler.build(source, host=trial.host, flags=flags)
        if built.status != "ok" or trial.device == "hip":
            return Ready(built, None)
        library = await self._artifacts.read(built.artifact_id or "")
        return Ready(built, Candidate("library", library, trial.entry, await coding))

    async def _place(self, host: str | None, source: Source, device: str | None, flags: Sequence[str]) -> str:
        """Choose where: for a GPU the host that is free soonest, and of those the one that has the build."""

        async def has_build(name: str) -> bool | None:
            if "cuda" not in (await self._jobs.probe(name)).devices():
                return None
            return source.language in PYTHON_KINDS or await self._compiler.has(source, host=name, flags=flags)

        return await self._pool.place(host, Need(1 if "cuda" in (device, source.language) else 0), has_build=has_build)

    async def _noted(
        self, trial: Trial, how: Mapping[str, str], parent_id: str | None, note: str | None, batch_id: str | None
    ) -> str:
        data, media_type = trial.source.kept()
        return await self._experience.start(
            "evaluate",
            parent_id=parent_id,
            problem_id=trial.problem.problem_id,
            problem_hash=trial.problem.content_hash,
            source_hash=hashlib.sha256(data).hexdigest(),
            source_artifact_id=await self._artifacts.put(data, name=trial.source.name, media_type=media_type),
            language=trial.language,
            host=trial.host,
            device=device_name(trial.probe, 1 if trial.device == "cuda" else 0),
            driver=trial.probe.driver,
            level=trial.probe.level,
            note=note,
            versions=versions_of(trial.probe, trial.device),
            batch_id=batch_id,
            flags=how["flags"],
            entry=how["entry"],
            target=how["target"],
            tier=how["tier"],
        )

    async def _spec(self, trial: Trial, ready: Ready) -> tuple[JobSpec, dict[str, bytes]]:
        if trial.program is not None and ready.built is not None:
            return await self._programs.judgement(
                trial.problem, trial.program, ready.built,
                host=trial.host, device=trial.device, tier=trial.timing.tier,
            )  # fmt: skip
        return judge_spec(
            trial.problem,
            trial.probe,
            self._settings,
            host=trial.host,
            device=trial.device,
            candidate=ready.candidate,
            timing=trial.timing,
        )

    async def _judge(self, trial: Trial, ready: Ready, advice: Sequence[str], wait_s: float) -> Evaluation:
        """Judge a candidate; when its allocation ends meanwhile once more from the beginning, in a new one."""
        context, until, cut = _context(trial, ready, advice), time.monotonic() + wait_s, ""
        for chance in (1, 2):
            spec, blobs = await self._spec(trial, ready)
            await trial.tell(f"attempt {trial.attempt_id}: judging, job {spec.id}")
            done = await self._run(trial, spec, blobs, context, until - time.monotonic())
            if done is None:
                note = "still being judged; job_status with wait_s has the verdict later"
                return trial.evaluation("running", job_id=spec.id, note=f"{cut}{note}")
            if chance == 2 or not self._jobs.taken_away(done):
                break
            cut = f"judged again from the beginning, as its allocation ended before the verdict ({done.record.note}); "
            await trial.tell(f"attempt {trial.attempt_id}: {cut}")
            await self._table.part(spec.id)
            trial = replace(trial, probe=await self._jobs.probe(trial.host))
        evaluation = await self._beside(trial, await self._settled(trial, done), wait_s)
        evaluation = evaluation.model_copy(update={"note": f"{cut}{evaluation.note or ''}".removesuffix("; ") or None})
        await self._kept.put(trial.key, evaluation)
        return evaluation

    async def _run(
        self, trial: Trial, spec: JobSpec, blobs: Mapping[str, bytes], context: Mapping[str, Any], wait_s: float
    ) -> FinishedJob | None:
        async def told(name: str, fresh: bytes) -> None:
            for line in lines_of(name, fresh):
                await trial.tell(line)

        try:
            await self._jobs.submit(spec, host=trial.host, blobs=blobs, attempt_id=trial.attempt_id, context=context)
            return await self._jobs.wait(spec.id, trial.host, on_output=told, timeout_s=wait_s)
        except asyncio.CancelledError:
            await self._jobs.end_quietly(spec.id, trial.host)
            raise

    async def _beside(self, trial: Trial, evaluation: Evaluation, wait_s: float) -> Evaluation:
        """Add what stands beside a verdict: where a kernel broke, torch.compile's time."""
        left_s = 0.0 if trial.slots else wait_s - (time.monotonic() - trial.began)
        evaluation = await self._faults.explained(evaluation, left_s=left_s, tell=trial.tell)
        if trial.timing.baseline == "eager" or evaluation.speedup is None or trial.problem.framework != "torch":
            return evaluation
        await trial.tell(f"attempt {trial.attempt_id}: torch.compile as a baseline, unless it is known")
        return await self._baselines.beside(evaluation, trial.problem, trial.probe, trial.device, wait_s=left_s)

    async def _settled(self, trial: Trial, done: FinishedJob) -> Evaluation:
        raise_if_not_run(done.record, trial.host)
        evaluation = await self._verdicts.settle(done, await self._table.get(done.record.id))
        seconds = {**evaluation.seconds, "total": time.monotonic() - trial.began}
        return evaluation.model_copy(update={"seconds": seconds})

    async def _not_here(self, trial: Trial, built: CompileResult | None, advice: Sequence[str]) -> Evaluation:
        """Say that a HIP candidate compiles and that nobody can run it: no device, and no judge for one."""
        reason = f"no AMD device on host {trial.host!r}"
        await self._experience.finish(trial.attempt_id, status="refused", reason=reason)
        arch = f" for {built.arch}" if built and built.arch else ""
        return trial.evaluation(
            "refused",
            reason=reason,
            resources=built.resources if built else [],
            diagnostics=built.diagnostics if built else [],
            advice=advice,
            note=f"it compiles{arch} and was not judged: the judge runs on processors and NVIDIA GPUs so far",
            seconds={"compile": time.monotonic() - trial.began},
        )

    async def _not_compiled(self, trial: Trial, built: CompileResult, advice: list[str]) -> Evaluation:
        first = built.diagnostics[0].line_text() if built.diagnostics else built.note or built.status
        evidence = {"diagnostics": kept_diagnostics(built.diagnostics)}
        await self._experience.finish(trial.attempt_id, status="compile_failed", reason=first, evidence=evidence)
        return trial.evaluation(
            "compile_failed",
            reason=first.partition("\n")[0],
            diagnostics=built.diagnostics,
            resources=built.resources,
            advice=advice,
            level=built.level,
            note=built.note,
            seconds={"compile": time.monotonic() - trial.began},
        )


def _context(trial: Trial, ready: Ready, advice: Sequence[str]) -> Mapping[str, Any]:
    """Return what another server needs to settle the job."""
    built = ready.built
    return {
        "generation": GENERATION,
        "problem_id": trial.problem.problem_id,
        "language": trial.language,
        "device": trial.device,
        "request": trial.key,
        "resources": [r.model_dump() for r in built.resources] if built else [],
        "advice": list(advice),
        "compile_s": time.monotonic() - trial.began,
        "compiler": built.compiler if built else None,
        "binary": built.artifact_id if built else None,
        "cached": built.cached if built else None,
        "extensions": "; ".join(ready.said),
    }
