"""Judges candidates: compile, judge, remember."""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest, JobBroken, ProblemRefused, ToolMissing
from gpu_mcp_server.models.build import CompileResult
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.models.problem import Problem, ProblemInfo, ProblemList, TensorSpec
from gpu_mcp_server.services.advice import advice_on
from gpu_mcp_server.services.compiler import Compiler
from gpu_mcp_server.services.experience import Experience
from gpu_mcp_server.services.harness import judge_spec, parse_verdict, progress_lines, shape_verdicts
from gpu_mcp_server.services.hosts import HostProbe
from gpu_mcp_server.services.job_table import JobRow, JobTable
from gpu_mcp_server.services.jobs import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.output import safe_text
from gpu_mcp_server.services.problems import Problems
from gpu_mcp_server.services.runner import Progress, device_name
from gpu_mcp_server.services.sources import Source
from gpu_mcp_server.settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts

SHOWN_EVIDENCE = (
    "seed_commitment",
    "harness_sha256",
    "memory",
    "freeze",
    "baseline",
    "handshake_us",
    "freeze_us",
    "fence_us",
    "sm_clock_mhz",
    "throttle_reasons",
    "load_before",
    "notes",
)


class Evaluator:
    """Problems and verdicts."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        table: JobTable,
        compiler: Compiler,
        problems: Problems,
        experience: Experience,
        artifacts: Artifacts,
    ) -> None:
        self._settings, self._jobs, self._table, self._compiler = settings, jobs, table, compiler
        self._problems, self._experience, self._artifacts = problems, experience, artifacts

    async def register(
        self,
        *,
        name: str,
        reference: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shapes: Sequence[Mapping[str, int]],
        rtol: float,
        atol: float,
        framework: str = "numpy",
        entry: str = "reference",
        description: str = "",
        host: str | None = None,
        progress: Progress | None = None,
    ) -> ProblemInfo:
        """Register a problem after its reference ran and trivial answers failed.

        Raises:
            ProblemRefused: If the reference raises or is not what it says, or zeros, ones, a copy or the mean pass.
            BadRequest: If the description contradicts itself.
        """
        problem = Problems.make_problem(
            name, description, framework, entry, inputs, outputs, shapes, rtol, atol, reference
        )
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        spec, blobs = judge_spec(problem, probe, self._settings, host=where, device="cpu", library=None)
        if progress is not None:
            await progress("running the reference and the trivial answers")
        done = await self._jobs.run(spec, host=where, blobs=blobs)
        verdict = await self._verdict(done)
        if verdict is None:
            raise ProblemRefused(
                f"The problem could not be tried: {_how(done)}.", hint="Mend the reference and register again."
            )
        if verdict.get("status") != "ok":
            raise ProblemRefused(f"Refused: {verdict.get('reason')}", hint="Mend the problem and register it again.")
        registered = await self._problems.add(problem)
        info = Problems.info(problem)
        return info.model_copy(
            update={"registered": registered, "trivial_answers_tried": list(verdict.get("tried", []))}
        )

    async def problems(self, problem_id: str | None = None) -> ProblemList:
        """Return one problem with its best attempts, or the newest."""
        if problem_id is not None:
            return ProblemList(problems=[await self._with_best(await self._problems.get(problem_id))])
        problems = await self._problems.list(limit=10)
        left = await self._problems.count() - len(problems)
        return ProblemList(problems=[await self._with_best(p) for p in problems], left_out=left or None)

    async def _with_best(self, problem: Problem) -> ProblemInfo:
        best = await self._experience.list("best", problem_id=problem.problem_id, limit=1)
        recent = await self._experience.list("recent", problem_id=problem.problem_id, limit=1)
        update: dict[str, Any] = {"attempts": len(recent.attempts) + (recent.left_out or 0)}
        if best.attempts:
            a = best.attempts[0]
            update["best"] = f"{a.attempt_id} speed-up {a.speedup:.3g} on {a.device}" if a.speedup else a.attempt_id
        return Problems.info(problem).model_copy(update=update)

    async def evaluate(
        self,
        problem_id: str,
        source: Source,
        *,
        host: str | None = None,
        device: str | None = None,
        flags: Sequence[str] = (),
        entry: str = "launch",
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
                f"entry {entry!r} is no C identifier.", hint='It is the launcher\'s name, "launch" by default.'
            )
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        device = _device(device, source, probe, where)
        attempt_id = await self._experience.start(
            "evaluate",
            parent_id=parent_id,
            problem_id=problem_id,
            problem_hash=problem.content_hash,
            source_hash=hashlib.sha256(source.text.encode()).hexdigest(),
            source_artifact_id=await self._artifacts.put(
                source.text.encode(), name=source.name, media_type="text/plain"
            ),
            language=source.language,
            host=where,
            device=device_name(probe, 1 if device == "cuda" else 0),
            driver=probe.driver,
            level=probe.level,
            note=note,
            versions=_versions(probe),
        )
        try:
            if progress is not None:
                await progress(f"attempt {attempt_id}: compiling")
            advising = asyncio.create_task(advice_on(source.text))
            built = await self._compiler.build(source, host=where, flags=flags)
            advice = await advising
            compiled_s = time.monotonic() - began
            about = {
                "resources": [r.model_dump() for r in built.resources],
                "advice": advice,
                "compile_s": compiled_s,
                "compiler": built.compiler,
                "binary": built.artifact_id,
                "cached": built.cached,
            }
            if built.status != "ok":
                return await self._not_compiled(problem, source, where, attempt_id, built, advice, compiled_s)
            return await self._judge(
                problem, source, where, probe, device, attempt_id, entry, built, about, began, wait_s, progress
            )
        except BaseException as error:
            await self._experience.finish(
                attempt_id,
                status="cancelled" if isinstance(error, asyncio.CancelledError) else "error",
                reason=str(error)[:500],
            )
            raise

    async def _judge(
        self,
        problem: Problem,
        source: Source,
        where: str,
        probe: HostProbe,
        device: str,
        attempt_id: str,
        entry: str,
        built: CompileResult,
        about: dict[str, Any],
        began: float,
        wait_s: float,
        progress: Progress | None,
    ) -> Evaluation:
        library = await self._artifacts.read(built.artifact_id or "")
        spec, blobs = judge_spec(
            problem, probe, self._settings, host=where, device=device, library=library, symbol=entry
        )
        if progress is not None:
            await progress(f"attempt {attempt_id}: judging, job {spec.id}")

        async def told(name: str, fresh: bytes) -> None:
            for line in progress_lines(fresh) if name == "stdout" and progress is not None else []:
                assert progress is not None
                await progress(line)

        context = {**about, "problem_id": problem.problem_id, "language": source.language, "device": device}
        try:
            await self._jobs.submit(spec, host=where, blobs=blobs, attempt_id=attempt_id, context=context)
            done = await self._jobs.wait(spec.id, where, on_output=told, timeout_s=wait_s)
        except asyncio.CancelledError:
            await self._jobs.end_quietly(spec.id, where)
            raise
        row = await self._table.get(spec.id)
        if done is None:
            return self._running(problem, source, where, attempt_id, spec.id)
        raise_if_not_run(done.record, where)
        evaluation = await self.settle(done, row)
        seconds = {**evaluation.seconds, "total": time.monotonic() - began}
        return evaluation.model_copy(update={"seconds": seconds})

    def _running(self, problem: Problem, source: Source, where: str, attempt_id: str, job_id: str) -> Evaluation:
        return Evaluation(
            status="running",
            attempt_id=attempt_id,
            job_id=job_id,
            problem_id=problem.problem_id,
            problem_hash=problem.content_hash,
            language=source.language,
            host=where,
            note="still being judged; job_status with wait_s has the verdict later",
        )

    async def _not_compiled(
        self,
        problem: Problem,
        source: Source,
        where: str,
        attempt_id: str,
        built: CompileResult,
        advice: list[str],
        seconds: float,
    ) -> Evaluation:
        first = built.diagnostics[0].line_text() if built.diagnostics else built.note or built.status
        await self._experience.finish(attempt_id, status="compile_failed", reason=first)
        return Evaluation(
            status="compile_failed",
            reason=first.partition("\n")[0],
            attempt_id=attempt_id,
            problem_id=problem.problem_id,
            problem_hash=problem.content_hash,
            language=source.language,
            host=where,
            diagnostics=built.diagnostics,
            resources=built.resources,
            advice=advice,
            level=built.level,
            note=built.note,
            seconds={"compile": seconds},
        )

    async def settle(self, done: FinishedJob, row: JobRow) -> Evaluation:
        """Turn a finished judge job into its evaluation and remember it; may be done twice, counts once.

        Raises:
            JobBroken: If the judge itself failed.
        """
        assert row.attempt_id
        attempt = await self._experience.get(row.attempt_id)
        problem = await self._problems.get(str(row.context["problem_id"]))
        verdict = await self._verdict(done)
        if verdict is None:
            why = _how(done)
            await self._experience.finish(row.attempt_id, status=done.record.status or "broken", reason=why)
            if done.record.status in ("cancelled", "caller_lost", "timeout", "oom"):
                return self._unjudged(problem, row, done, why)
            raise JobBroken(
                f"The judge failed on {row.host!r}: {why}.", hint="This is our failure; the candidate was not judged."
            )
        shapes = shape_verdicts(verdict)
        evidence = dict(verdict.get("evidence", {}))
        evidence_id = await self._artifacts.put(
            json.dumps(verdict, indent=1).encode(), name="verdict.json", media_type="application/json"
        )
        timed = [s for s in shapes if s.candidate]
        shown = {k: evidence[k] for k in SHOWN_EVIDENCE if k in evidence}
        await self._experience.finish(
            row.attempt_id,
            status="judged",
            verdict=verdict["verdict"],
            reason=verdict.get("reason") or None,
            speedup=verdict.get("speedup"),
            median_us=timed[-1].candidate.median_us if timed and timed[-1].candidate else None,
            level=done.record.level,
            job_id=row.job_id,
            evidence={
                **shown,
                "verdict_artifact": evidence_id,
                "resources": row.context.get("resources"),
                "compiler": row.context.get("compiler"),
            },
        )
        return Evaluation(
            status="judged",
            verdict=verdict["verdict"],
            reason=verdict.get("reason") or "",
            attempt_id=row.attempt_id,
            job_id=row.job_id,
            problem_id=problem.problem_id,
            problem_hash=problem.content_hash,
            language=row.context["language"],
            device=attempt.device,
            host=row.host,
            speedup=verdict.get("speedup"),
            shapes=shapes,
            resources=row.context.get("resources") or [],
            advice=row.context.get("advice") or [],
            level=done.record.level,
            weaker_because=done.record.weaker_because or None,
            evidence=shown,
            evidence_artifact_id=evidence_id,
            seconds={"compile": row.context["compile_s"], "judge": done.record.wall_s or 0.0},
            note=done.record.note or None,
        )

    async def settle_line(self, done: FinishedJob, row: JobRow) -> str | None:
        """Settle a judge job that job_status found finished, and say the verdict on one line."""
        evaluation = await self.settle(done, row)
        if evaluation.verdict is None:
            return f"not judged: {evaluation.reason}"
        speed = f", speed-up {evaluation.speedup:.3g}" if evaluation.speedup else ""
        return f"verdict {evaluation.verdict}{speed}" + (f": {evaluation.reason}" if evaluation.reason else "")

    def _unjudged(self, problem: Problem, row: JobRow, done: FinishedJob, why: str) -> Evaluation:
        return Evaluation(
            status="refused",
            reason=why,
            attempt_id=row.attempt_id or "",
            job_id=row.job_id,
            problem_id=problem.problem_id,
            problem_hash=problem.content_hash,
            language=row.context["language"],
            host=row.host,
            level=done.record.level,
            note="there is no verdict; evaluate_kernel may be called again",
        )

    async def _verdict(self, done: FinishedJob) -> dict[str, Any] | None:
        found = next((o for o in done.record.outputs if o.path == "verdict.json"), None)
        leader = done.record.leader
        if found is None or leader is None or leader.exit_code != 0:
            return None
        return parse_verdict(await self._jobs.fetch(done.host, found.sha256))


def _how(done: FinishedJob) -> str:
    tail = safe_text(done.stderr).strip()[-600:]
    return "; ".join(filter(None, [f"job {done.record.id} {done.record.status}", done.record.note, tail]))


def _versions(probe: HostProbe) -> dict[str, str]:
    judge = probe.judge
    found = {
        "python": judge.version if judge else None,
        "numpy": judge.numpy if judge else None,
        "torch": judge.torch if judge else None,
    }
    found["nvcc"] = probe.nvcc.version if probe.nvcc else None
    found |= {n: c.version for n, c in probe.compilers.items() if n in ("gcc", "g++")}
    return {k: v for k, v in found.items() if v}


def _device(device: str | None, source: Source, probe: HostProbe, host: str) -> str:
    chosen = device or ("cuda" if source.language == "cuda" else "cpu")
    if (chosen == "cuda") != (source.language == "cuda"):
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
