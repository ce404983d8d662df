"""torch.compile of a problem's own reference, judged like a candidate: the second baseline of PyTorch problems."""

import asyncio
import contextlib
import hashlib
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.evaluation import Baseline, Evaluation, ShapeVerdict, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.commands.command_runner import device_name
from gpu_mcp_server.services.evaluation.judge_binaries import judge_code
from gpu_mcp_server.services.evaluation.judge_job import BuiltCandidate, judge_spec, shape_verdicts
from gpu_mcp_server.services.evaluation.judge_results import Verdicts, describe_end
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database

FORMAT = 1
PURPOSE = "baseline"
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


class Baselines:
    """Measures once, remembers."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        db: Database,
        compiler: Compiler,
        artifacts: Artifacts,
        verdicts: Verdicts,
    ) -> None:
        self._settings, self._jobs, self._db = settings, jobs, db
        self._compiler, self._artifacts, self._verdicts = compiler, artifacts, verdicts
        self._running: dict[str, asyncio.Task[Baseline]] = {}

    async def add_baseline(
        self, evaluation: Evaluation, problem: Problem, probe: HostProbe, device: str, *, wait_s: float
    ) -> Evaluation:
        """Return a correct candidate's evaluation with torch.compile's times beside the eager reference's.

        Both were measured against the eager reference round by round, so the ratio of the two speed-ups is the one
        against torch.compile, whatever the clocks were in between.

        Args:
            evaluation: Of a candidate that was timed.
            problem: Its problem.
            probe: The host.
            device: `cpu` or `cuda`.
            wait_s: How long to wait for a baseline that is not known yet; it is measured for the next caller anyhow.
        """
        if problem.framework != "torch" or evaluation.speedup is None:
            return evaluation
        found = await self._found(problem, probe, evaluation.host, device, wait_s)
        if found is None:
            note = "torch.compile's time is being measured; the next evaluation of this problem has it"
            return evaluation.model_copy(update={"note": "; ".join(filter(None, [evaluation.note, note]))})
        return with_baseline(evaluation, found)

    async def close(self) -> None:
        """End what is being measured."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _found(
        self, problem: Problem, probe: HostProbe, host: str, device: str, wait_s: float
    ) -> Baseline | None:
        key = _key(problem, probe, device)
        row = await self._db.fetch_one("SELECT json FROM baselines WHERE key = ?", (key,))
        if row is not None:
            return Baseline.model_validate_json(row["json"])
        if wait_s <= 0 and key not in self._running:
            return None
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._kept(key, problem, probe, host, device))
            task.add_done_callback(lambda _: self._running.pop(key, None))
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(task), max(0.0, wait_s))
        return None

    async def _kept(self, key: str, problem: Problem, probe: HostProbe, host: str, device: str) -> Baseline:
        """Measure and keep what came of it; what failed for a reason that is not the problem's is not kept."""
        begin = time.monotonic()
        try:
            found = await self._measured(problem, probe, host, device)
        except GpuMcpError as error:
            return Baseline(why_not=str(error)[:300])
        found = found.model_copy(update={"seconds": time.monotonic() - begin})
        await self._db.execute(
            "INSERT OR REPLACE INTO baselines (key, json, created_at) VALUES (?, ?, datetime('now'))",
            (key, found.model_dump_json(exclude_defaults=True)),
        )
        return found

    async def _measured(self, problem: Problem, probe: HostProbe, host: str, device: str) -> Baseline:
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
        done = await self._jobs.run(replace(spec, purpose=PURPOSE), host=host, blobs=blobs)
        verdict = await self._verdicts.read(done)
        if verdict is None:
            raise GpuMcpError(f"torch.compile's baseline was not judged: {describe_end(done)}")
        if verdict.get("verdict") != "correct":
            return Baseline(why_not=f"torch.compile of the reference is no answer: {verdict.get('reason')}"[:300])
        timed = [s for s in shape_verdicts(verdict) if s.speedup]
        if not timed:
            raise GpuMcpError("it was too short to time on the machine as it was just then")
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
        return evaluation.model_copy(update={"baseline": f"none of torch.compile: {found.why_not}"})
    by_dims: Mapping[str, ShapeVerdict] = {json.dumps(s.dims, sort_keys=True): s for s in found.shapes}
    shapes: list[ShapeVerdict] = []
    ratios: list[float] = []
    for shape in evaluation.shapes:
        other = by_dims.get(json.dumps(shape.dims, sort_keys=True))
        if other is None or not other.speedup or not shape.speedup:
            shapes.append(shape)
            continue
        ratios.append(shape.speedup / other.speedup)
        shapes.append(shape.model_copy(update={"compiled": other.candidate, "compiled_speedup": ratios[-1]}))
    whole = statistics.geometric_mean(ratios) if len(ratios) == len(evaluation.shapes) else None
    said = f"torch.compile, measured once in {found.seconds:.0f} s; speed-ups against it by way of eager"
    return evaluation.model_copy(update={"shapes": shapes, "compiled_speedup": whole, "baseline": said})


def _key(problem: Problem, probe: HostProbe, device: str) -> str:
    """Return what a baseline depends on: the problem, the device, torch, and on the processor its host."""
    python = probe.judge
    about: list[Any] = [
        FORMAT,
        problem.content_hash,
        device_name(probe, 1 if device == "cuda" else 0),
        probe.driver if device == "cuda" else probe.hostname,
        [python.torch, python.triton, python.version] if python else None,
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()
