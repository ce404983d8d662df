"""Our judge's side of a comparison: one candidate imported, judged, and what was said of it."""

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from candidate_shards import Candidate

TIMES = {"candidate", "reference", "speedup", "speedup_low", "speedup_high", "basis", "in_loop", "isolated_us"}
TIMES |= {"half_width", "unconfirmable", "on_gpu"}
"""Of a shape's verdict, what is kept."""


class Turn:
    """The device's turn, as the evaluator takes places: its compilers do not wait, who judges is alone."""

    def __init__(self, lock: AbstractAsyncContextManager[Any], limit_s: float) -> None:
        self._lock, self._limit_s = lock, limit_s
        self.seconds: dict[str, float] = {}

    def left_s(self) -> float:
        """Return how long a job may take."""
        return self._limit_s

    @asynccontextmanager
    async def compiling(self) -> AsyncGenerator[None]:
        """Take no place: there are enough cores."""
        yield

    @asynccontextmanager
    async def judging(self) -> AsyncGenerator[None]:
        """Hold the device."""
        async with self.held("evaluate"):
            yield

    @asynccontextmanager
    async def held(self, name: str) -> AsyncGenerator[None]:
        """Hold the device, and note for how long."""
        async with self._lock:
            begin = time.monotonic()
            try:
                yield
            finally:
                self.seconds[name] = time.monotonic() - begin


class JudgeSide:
    """The judge in one laboratory, for one candidate after the other."""

    def __init__(self, lab: Any, device: str, lock: AbstractAsyncContextManager[Any], limit_s: float) -> None:
        self._lab, self._device, self._lock, self._limit_s = lab, device, lock, limit_s
        self._problems: dict[tuple[str, str], Any] = {}

    async def judged(self, candidate: Candidate, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the judge says of a candidate, or why it says nothing."""
        from gpu_mcp_server.errors import GpuMcpError

        begin, turn = time.monotonic(), Turn(self._lock, self._limit_s)
        try:
            found = await self._verdict(candidate, turn, wish)
        except GpuMcpError as error:
            found = {"error": str(error)[:1500]}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:1500]}
        return {**found, "held": turn.seconds, "wall_s": round(time.monotonic() - begin, 1)}

    async def _verdict(self, candidate: Candidate, turn: Turn, wish: Mapping[str, Any]) -> dict[str, Any]:
        from gpu_mcp_server.models.evaluation import TimingOptions
        from gpu_mcp_server.models.problem import ImportOverrides
        from gpu_mcp_server.services.builds.candidate_source import CandidateSource
        from gpu_mcp_server.services.problems.formats.base import ProblemSource

        name = f"{candidate.name.replace('/', '_')}.py"
        problem = ProblemSource(name, candidate.reference, wish=ImportOverrides.model_validate(wish))
        key = (candidate.reference, json.dumps(dict(wish), sort_keys=True))
        if key not in self._problems:
            async with turn.held("import"):
                self._problems[key] = await self._lab.evaluation.registry.import_file(problem)
        info = self._problems[key]
        source = CandidateSource(candidate.source, "python", name)
        timing = TimingOptions(baseline="eager", fresh=True)
        result = await self._lab.evaluation.evaluator.evaluate(
            info.problem_id, source, device=self._device, timing=timing, slots=turn
        )
        if result.status == "running":
            await self._lab.jobs.runner.end_quietly(result.job_id, result.host)
            return {"error": f"not done in {turn.left_s():.0f} s"}
        return {
            "status": result.status,
            "verdict": result.verdict,
            "reason": result.reason,
            "degenerate": bool(result.degenerate),
            "speedup": result.speedup,
            "range": result.speedup_range(),
            "notes": info.notes,
            "shapes": [shape.model_dump(include=TIMES) for shape in result.shapes],
            "summary": result.summary()[:6000],
            "seconds": await self._parts(result.evidence_artifact_id),
        }

    async def _parts(self, evidence: str | None) -> dict[str, float]:
        """Return where the judge's own time went."""
        if not evidence:
            return {}
        kept = json.loads(await self._lab.store.artifacts.read(evidence))["evidence"]
        parts = {**(kept.get("start_seconds") or {}), **(kept.get("seconds") or {})}
        return {f"judge {name}": float(value) for name, value in parts.items() if isinstance(value, (int, float))}
