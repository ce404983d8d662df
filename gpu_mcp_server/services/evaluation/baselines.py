"""torch.compile of a problem's own reference, judged like a candidate: the second baseline of PyTorch problems."""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.errors import GpuMcpError, NotFound
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import Baseline, Evaluation, ShapeVerdict, TimingOptions, overall_speedup
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.evaluation.judge_binaries import judge_code
from gpu_mcp_server.services.evaluation.judge_job import judge_spec, parse_verdict, shape_verdicts
from gpu_mcp_server.services.evaluation.judge_results import Verdicts, describe_end
from gpu_mcp_server.services.hosts.host_connections import HostProbe, device_name
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database

FORMAT = 2
PURPOSE = "baseline"
KEY = "baseline_key"
"""In an attempt's evidence: under which key torch.compile's times are kept, once they are."""
COMPILED = """

import torch as _torch

for _limit in ("recompile_limit", "cache_size_limit"):
    if hasattr(_torch._dynamo.config, _limit):
        setattr(_torch._dynamo.config, _limit, 64)


class ModelNew({base}):
    def __init__(self, *given):
        super().__init__(*given)
        self._compiled = _torch.compile({compiled}, dynamic=False)

    def forward(self, *given):
        return self._compiled(*given)
"""
"""Behind the reference's source; weights keep their names. Every declared shape is compiled for itself; beyond dynamo's
limit, 8 by default, torch would fall back to eager without a word (torch/_dynamo/config.py)."""


LATER = (
    "torch.compile is measured once this answer is out, while no other job is timed there: list_attempts with this "
    "attempt_id shows it; timing {baseline: compiled} waits for it"
)
UNKNOWN = "not measured; evaluate_kernel with timing {baseline: compiled} asks for it"
MOST_S = 900.0
"""For one measurement, its wait for a GPU included; what takes longer is ended and not kept."""


@dataclass
class Measurement:
    """A baseline that is being measured."""

    task: asyncio.Task[Baseline]
    host: str
    waiting: int = 0
    """How many calls wait for it; where none does, it gives way."""


class Baselines:
    """Measures once, after the answer or on request; remembers."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        db: Database,
        compiler: Compiler,
        artifacts: Artifacts,
        verdicts: Verdicts,
        experience: AttemptStore,
    ) -> None:
        self._settings, self._jobs, self._db, self._experience = settings, jobs, db, experience
        self._compiler, self._artifacts, self._verdicts = compiler, artifacts, verdicts
        self._running: dict[str, Measurement] = {}

    async def add_baseline(
        self, evaluation: Evaluation, problem: Problem, probe: HostProbe, device: str, *, wait_s: float, later: bool
    ) -> Evaluation:
        """Return a correct candidate's evaluation with torch.compile's times beside the eager reference's.

        Both were measured against the eager reference round by round, so the ratio of the two speed-ups is the one
        against torch.compile, whatever the clocks were in between.

        Args:
            evaluation: Of a candidate that was timed.
            problem: Its problem.
            probe: The host.
            device: `cpu` or `cuda`.
            wait_s: How long to wait for a baseline that is not known yet; 0 waits for none.
            later: Whether to measure it behind this answer where it is not waited for.
        """
        if problem.framework != "torch" or evaluation.speedup is None:
            return evaluation
        key = _key(problem, probe, device)
        await self._experience.add_evidence(evaluation.attempt_id, KEY, key)
        found = await self._known(key)
        if found is None and (later or wait_s > 0):
            begun = self._begun(key, problem, probe, evaluation.host, device, waited=wait_s > 0)
            found = await self._awaited(begun, wait_s) if wait_s > 0 else None
        if found is not None:
            return with_baseline(evaluation, found)
        return evaluation.model_copy(
            update={"baseline": LATER if key in self._running else f"torch.compile: {UNKNOWN}"}
        )

    async def attempt_with_compiled(self, attempt: Attempt) -> Attempt:
        """Return an attempt with what torch.compile reached, if that was measured since it was judged."""
        evidence = dict(attempt.evidence or {})
        key = evidence.pop(KEY, None)
        if key is None or attempt.speedup is None:
            return attempt
        found, said = await self._known(str(key)), UNKNOWN
        if str(key) in self._running:
            said = "being measured"
        if found is not None:
            shapes = await self._shapes(str(evidence.get("verdict_artifact")))
            _, whole = speedups_against(shapes, found)
            said = f"speed-up against it {whole:.3g}" if whole else found.why_not or "not timed at every shape"
        return attempt.model_copy(update={"evidence": {"torch_compile": said, **evidence}})

    def give_way(self, host: str) -> None:
        """End what is measured on a host where somebody wants to be judged, unless a call waits for it.

        It is begun again behind the next answer.
        """
        for measurement in self._running.values():
            if measurement.host == host and not measurement.waiting:
                measurement.task.cancel()

    async def close(self) -> None:
        """End what is being measured."""
        tasks = [measurement.task for measurement in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _known(self, key: str) -> Baseline | None:
        row = await self._db.fetch_one("SELECT json FROM baselines WHERE key = ?", (key,))
        return None if row is None else Baseline.model_validate_json(row["json"])

    async def _shapes(self, artifact_id: str) -> list[ShapeVerdict]:
        try:
            return shape_verdicts(parse_verdict(await self._artifacts.read(artifact_id)))
        except NotFound:
            return []

    def _begun(
        self, key: str, problem: Problem, probe: HostProbe, host: str, device: str, *, waited: bool
    ) -> Measurement:
        """Return the measurement that runs, or one that begins now: in the background unless a call waits for it."""
        measurement = self._running.get(key)
        if measurement is None:
            priority = "interactive" if waited else "background"
            task = asyncio.create_task(self._kept(key, problem, probe, host, device, priority))
            measurement = self._running[key] = Measurement(task, host)
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return measurement

    @staticmethod
    async def _awaited(measurement: Measurement, wait_s: float) -> Baseline | None:
        measurement.waiting += 1
        try:
            done, _ = await asyncio.wait([measurement.task], timeout=wait_s)
        finally:
            measurement.waiting -= 1
        return measurement.task.result() if done and not measurement.task.cancelled() else None

    async def _kept(
        self, key: str, problem: Problem, probe: HostProbe, host: str, device: str, priority: str
    ) -> Baseline:
        """Measure and keep what came of it; what failed for a reason that is not the problem's is not kept."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(MOST_S):
                found = await self._measured(problem, probe, host, device, priority)
        except TimeoutError:
            return Baseline(why_not=f"it took more than {MOST_S:.0f} s, its turn included")
        except GpuMcpError as error:
            return Baseline(why_not=str(error)[:300])
        found = found.model_copy(update={"seconds": time.monotonic() - begin})
        await self._db.execute(
            "INSERT OR REPLACE INTO baselines (key, json, created_at) VALUES (?, ?, datetime('now'))",
            (key, found.model_dump_json(exclude_defaults=True)),
        )
        return found

    async def _measured(self, problem: Problem, probe: HostProbe, host: str, device: str, priority: str) -> Baseline:
        """Judge torch.compile of the reference at the declared shapes, with the inputs declared.

        Raises:
            GpuMcpError: If it was not judged.
        """
        code = await judge_code(self._compiler, self._artifacts, host, device, "model")
        candidate = BuiltCandidate("model", compiled_source(problem).encode(), code=code)
        fixed = problem.model_copy(update={"fixed_shapes": True, "distributions": "declared"})
        spec, blobs = judge_spec(
            fixed, probe, self._settings, host=host, device=device, candidate=candidate, timing=TimingOptions()
        )
        # In the background it takes no processes that wait for evaluations: who calls next would wait for imports.
        spec = spec._replace(purpose=PURPOSE, gpus=spec.gpus._replace(priority=priority))
        done = await self._jobs.run(spec, host=host, blobs=blobs)
        verdict = await self._verdicts.read(done)
        if verdict is None:
            raise GpuMcpError(f"torch.compile's baseline was not judged: {describe_end(done)}")
        if verdict.get("refused"):
            raise GpuMcpError(f"torch.compile's baseline was not judged: {verdict['refused']}")
        if verdict.get("verdict") != "correct":
            return Baseline(why_not=f"torch.compile of the reference is no answer: {verdict.get('reason')}"[:300])
        timed = [s for s in shape_verdicts(verdict) if s.speedup]
        if not timed:
            raise GpuMcpError("it was too fast to time on this machine")
        return Baseline(shapes=timed)


def compiled_source(problem: Problem) -> str:
    """Return a candidate's source that is the reference under torch.compile."""
    parts = {"base": "_torch.nn.Module", "compiled": problem.entry}
    if problem.kind == "module":
        parts = {"base": "Model", "compiled": "super().forward"}
    return problem.reference + COMPILED.format(**parts)


def with_baseline(evaluation: Evaluation, found: Baseline) -> Evaluation:
    """Return an evaluation with what torch.compile reached, where it was timed."""
    if not found.shapes:
        return evaluation.model_copy(update={"baseline": f"no torch.compile baseline: {found.why_not}"})
    shapes, whole = speedups_against(evaluation.shapes, found)
    said = f"torch.compile, measured once in {found.seconds:.0f} s; speed-ups against it are computed through eager"
    return evaluation.model_copy(update={"shapes": shapes, "compiled_speedup": whole, "baseline": said})


def speedups_against(timed: Sequence[ShapeVerdict], found: Baseline) -> tuple[list[ShapeVerdict], float | None]:
    """Return shapes with their speed-ups against torch.compile, and the whole one where every shape has one."""
    by_dims: Mapping[str, ShapeVerdict] = {json.dumps(s.dims, sort_keys=True): s for s in found.shapes}
    shapes: list[ShapeVerdict] = []
    ratios: list[float] = []
    for shape in timed:
        other = by_dims.get(json.dumps(shape.dims, sort_keys=True))
        mine, its = (None, None) if other is None else speedups_of_one_basis(shape, other)
        if other is None or not mine or not its:
            shapes.append(shape)
            continue
        ratios.append(mine / its)
        compiled = other.candidate if other.basis == shape.basis else None
        shapes.append(shape.model_copy(update={"compiled": compiled, "compiled_speedup": ratios[-1]}))
    return shapes, overall_speedup(timed, ratios) if ratios and len(ratios) == len(timed) else None


def speedups_of_one_basis(one: ShapeVerdict, other: ShapeVerdict) -> tuple[float | None, float | None]:
    """Return both speed-ups as they are where both are on the GPU alone or both in a loop, else both in a loop."""
    if one.basis == other.basis:
        return one.speedup, other.speedup
    first, second = one.loop_speedup(), other.loop_speedup()
    return (first, second) if first and second else (None, None)


def _key(problem: Problem, probe: HostProbe, device: str) -> str:
    """Return what a baseline depends on: the problem, the device, torch, and on the processor its host."""
    python = probe.judge
    about: list[Any] = [
        FORMAT,
        problem.content_hash,
        device_name(probe, device),
        probe.driver if device == "cuda" else probe.hostname,
        [python.torch, python.triton, python.version] if python else None,
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()
