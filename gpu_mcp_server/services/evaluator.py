"""Judges candidates: compile, judge, remember."""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.models.build import CompileResult
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.advice import advice_on
from gpu_mcp_server.services.call_loop import call_loop
from gpu_mcp_server.services.compiler import Compiler
from gpu_mcp_server.services.experience import Experience
from gpu_mcp_server.services.harness import QUICK, Candidate, Kind, judge_spec, lines_of
from gpu_mcp_server.services.hosts import HostProbe
from gpu_mcp_server.services.job_table import JobTable
from gpu_mcp_server.services.jobs import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.problems import Problems
from gpu_mcp_server.services.runner import Progress, device_name
from gpu_mcp_server.services.sources import Source
from gpu_mcp_server.services.verdicts import Verdicts
from gpu_mcp_server.settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts

PYTHON_KINDS: Mapping[str, Kind] = {"triton": "triton", "python": "model"}


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
    began: float
    """On the monotonic clock."""

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
            "language": self.source.language,
            "host": self.host,
        }
        return Evaluation.model_validate({"status": status, **about, **more})


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
    ) -> None:
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
    ) -> Evaluation:
        """Compile a candidate and judge it.

        Raises:
            NotFound: If the problem or the parent is unknown.
            ToolMissing, SandboxTooWeak, NoFreeGpu, HostError: If it could not be judged; a verdict is never guessed.
        """
        began = time.monotonic()
        problem = await self._problems.get(problem_id)
        if not entry.isidentifier() or not entry.isascii():
            raise BadRequest(
                f"entry {entry!r} is no C identifier.", hint="It is the launcher's name, launch by default."
            )
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        chosen = _device(device, source, probe, where)
        await self._foresee(source, where, flags)
        how = {"flags": json.dumps(list(flags)), "entry": entry, "target": chosen}
        attempt_id = await self._noted(problem, source, where, probe, how, parent_id, note)
        trial = Trial(attempt_id, problem, source, where, probe, chosen, entry, timing, progress, began)
        try:
            if source.language in PYTHON_KINDS:
                candidate = Candidate(PYTHON_KINDS[source.language], source.text.encode(), entry)
                return await self._judge(trial, None, candidate, await advice_on(source.text), wait_s)
            await trial.tell(f"attempt {attempt_id}: compiling")
            advising = asyncio.create_task(advice_on(source.text))
            built = await self._compiler.build(source, host=where, flags=flags)
            advice = await advising
            if built.status != "ok":
                return await self._not_compiled(trial, built, advice)
            calls = await call_loop(self._compiler, self._artifacts, where)
            library = await self._artifacts.read(built.artifact_id or "")
            return await self._judge(trial, built, Candidate("library", library, entry, calls), advice, wait_s)
        except BaseException as error:
            gone = isinstance(error, asyncio.CancelledError)
            reason = "the call was cancelled, or its client went away" if gone else str(error)[:500]
            await self._experience.finish(attempt_id, status="cancelled" if gone else "error", reason=reason)
            raise

    async def _foresee(self, source: Source, host: str, flags: Sequence[str]) -> None:
        """Refuse what is no attempt of the kernel's: flags that are not allowed, a compiler that is not there."""
        if source.language not in PYTHON_KINDS:
            await self._compiler.foresee(source, host=host, flags=flags)
        elif flags:
            raise BadRequest("A Python candidate takes no flags.", hint="Leave flags out.")

    async def _noted(
        self,
        problem: Problem,
        source: Source,
        host: str,
        probe: HostProbe,
        how: Mapping[str, str],
        parent_id: str | None,
        note: str | None,
    ) -> str:
        text = source.text.encode()
        return await self._experience.start(
            "evaluate",
            parent_id=parent_id,
            problem_id=problem.problem_id,
            problem_hash=problem.content_hash,
            source_hash=hashlib.sha256(text).hexdigest(),
            source_artifact_id=await self._artifacts.put(text, name=source.name, media_type="text/plain"),
            language=source.language,
            host=host,
            device=device_name(probe, 1 if how["target"] == "cuda" else 0),
            driver=probe.driver,
            level=probe.level,
            note=note,
            versions=_versions(probe),
            flags=how["flags"],
            entry=how["entry"],
            target=how["target"],
        )

    async def _judge(
        self, trial: Trial, built: CompileResult | None, candidate: Candidate, advice: Sequence[str], wait_s: float
    ) -> Evaluation:
        spec, blobs = judge_spec(
            trial.problem,
            trial.probe,
            self._settings,
            host=trial.host,
            device=trial.device,
            candidate=candidate,
            timing=trial.timing,
        )
        await trial.tell(f"attempt {trial.attempt_id}: judging, job {spec.id}")

        async def told(name: str, fresh: bytes) -> None:
            for line in lines_of(name, fresh):
                await trial.tell(line)

        context = _context(trial, built, advice)
        try:
            await self._jobs.submit(spec, host=trial.host, blobs=blobs, attempt_id=trial.attempt_id, context=context)
            done = await self._jobs.wait(spec.id, trial.host, on_output=told, timeout_s=wait_s)
        except asyncio.CancelledError:
            await self._jobs.end_quietly(spec.id, trial.host)
            raise
        if done is None:
            note = "still being judged; job_status with wait_s has the verdict later"
            return trial.evaluation("running", job_id=spec.id, note=note)
        return await self._settled(trial, done)

    async def _settled(self, trial: Trial, done: FinishedJob) -> Evaluation:
        raise_if_not_run(done.record, trial.host)
        evaluation = await self._verdicts.settle(done, await self._table.get(done.record.id))
        seconds = {**evaluation.seconds, "total": time.monotonic() - trial.began}
        return evaluation.model_copy(update={"seconds": seconds})

    async def _not_compiled(self, trial: Trial, built: CompileResult, advice: list[str]) -> Evaluation:
        first = built.diagnostics[0].line_text() if built.diagnostics else built.note or built.status
        await self._experience.finish(trial.attempt_id, status="compile_failed", reason=first)
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


def _context(trial: Trial, built: CompileResult | None, advice: Sequence[str]) -> Mapping[str, Any]:
    """Return what another server needs to settle the job."""
    return {
        "problem_id": trial.problem.problem_id,
        "language": trial.source.language,
        "device": trial.device,
        "resources": [r.model_dump() for r in built.resources] if built else [],
        "advice": list(advice),
        "compile_s": time.monotonic() - trial.began,
        "compiler": built.compiler if built else None,
        "binary": built.artifact_id if built else None,
        "cached": built.cached if built else None,
    }


def _versions(probe: HostProbe) -> dict[str, str]:
    found: dict[str, str | None] = {n: c.version for n, c in probe.compilers.items() if n in ("gcc", "g++")}
    found["nvcc"] = probe.nvcc.version if probe.nvcc else None
    if probe.judge:
        found |= {"python": probe.judge.version, "numpy": probe.judge.numpy, "torch": probe.judge.torch}
    return {k: v for k, v in found.items() if v}


def _device(device: str | None, source: Source, probe: HostProbe, host: str) -> str:
    either = source.language in PYTHON_KINDS
    gpu = source.language == "cuda" or (either and "cuda" in probe.devices())
    chosen = device or ("cuda" if gpu else "cpu")
    known = either or source.language in ("c", "cpp", "cuda")
    if not known or (not either and (chosen == "cuda") != (source.language == "cuda")):
        raise BadRequest(
            f"A {source.language} source cannot be judged on {chosen}.", hint="C and C++ run on cpu, CUDA on cuda."
        )
    if chosen == "cuda" and not probe.gpus:
        raise ToolMissing(
            "A CUDA device",
            host,
            hint="Name a host that has one (gpu_status), or use compile_kernel, which needs none.",
        )
    return chosen
