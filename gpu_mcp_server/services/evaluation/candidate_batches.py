"""Many candidates in one call: compiled side by side, judged one to a GPU on all GPUs, told in one table."""

import asyncio
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.comparison import Comparison, ComparisonRow
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict, Tier, Timing, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.ranking import bound_of, overlap, share_ranks, trust_place
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.concurrency import Slots
from gpu_mcp_server.services.evaluation.evaluator import Evaluator
from gpu_mcp_server.services.evaluation.trial_records import LATE
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.text_safety import clip_middle
from gpu_mcp_server.time_format import format_time, format_time_range

MAX_CANDIDATES = 32
COMPILE_SLOTS = 4
"""Compilers at a time; fewer where there are fewer cores."""
GRACE_S = 5.0
"""For calls that are just ending when the caller's time is over."""
ALL = "all"
ON_GPU = {name for name, facts in LANGUAGES.items() if facts.device in ("cuda", "either")}
"""Languages of candidates that may run on one."""
NOT_BEGUN = "wait_s was over before its turn"
BEHIND = {"incorrect": 1, "cheat": 2, "compile_failed": 3}
"""How far rows without a right answer stand behind correct ones; those not judged are last."""
REASON_CHARACTERS = 300


@dataclass(frozen=True)
class NamedCandidate:
    """A candidate with its name in the table."""

    name: str
    source: CandidateSource
    flags: tuple[str, ...] = ()
    entry: str = "launch"
    note: str | None = None
    parent_id: str | None = None
    fresh: bool = False
    """Judge it anew; else an identical request is answered by the verdict that it got."""


class Batches:
    """Judges many candidates of one problem."""

    def __init__(self, jobs: JobRunner, problems: Problems, evaluator: Evaluator) -> None:
        self._jobs, self._problems, self._evaluator = jobs, problems, evaluator

    async def compare(
        self,
        problem_id: str,
        candidates: Sequence[NamedCandidate],
        *,
        implementations: Sequence[str] = (),
        tier: Tier = "performance",
        host: str | None = None,
        wait_s: float = 240.0,
        progress: Progress | None = None,
        batch_id: str | None = None,
        half_width: float | None = None,
    ) -> Comparison:
        """Judge candidates and named implementations; return what is known when `wait_s` is over.

        `batch_id` names the call for who wants to find its attempts again; a new one if absent. `half_width` is that
        of `TimingOptions`.

        Raises:
            NotFound: If the problem is unknown.
            BadRequest: If there is no candidate, too many, an unknown implementation, or two have one name.
            GpuMcpError: If not one candidate could be judged, what went wrong first.
        """
        began = asyncio.get_running_loop().time()
        problem = await self._problems.get(problem_id)
        entrants = [*candidates, *_implementations(problem, implementations)]
        _check(entrants)
        where = self._jobs.hosts.choose(host)
        slots = self._slots(entrants, await self._jobs.probe(where), tier, began + wait_s)
        timing = TimingOptions(tier=tier, half_width=half_width)
        batch_id = batch_id or f"t-{secrets.token_hex(6)}"
        tasks = [
            asyncio.create_task(
                self._one(problem, entrant, where, timing, batch_id, slots, progress), name=entrant.name
            )
            for entrant in entrants
        ]
        for task in tasks:
            task.add_done_callback(slots.note_compiled)
        try:
            _, late = await asyncio.wait(tasks, timeout=wait_s + GRACE_S)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [result for result in results if isinstance(result, Exception)]
        if len(failures) == len(results):
            raise failures[0]
        rows = [_row(entrant, result) for entrant, result in zip(entrants, results, strict=True)]
        judged = [result for result in results if isinstance(result, Evaluation)]
        return Comparison(
            batch_id=batch_id,
            problem_id=problem.problem_id,
            tier=tier,
            host=where,
            rows=_ranked(rows),
            reference=_reference(judged),
            news=list(dict.fromkeys(said for result in judged for said in result.news)),
            complete=not late and all(row.status in ("judged", "compile_failed") for row in rows),
            seconds=asyncio.get_running_loop().time() - began,
            note=None if tier == "performance" else f"tier {tier}: nothing was timed, so there is no speed-up",
        )

    def _slots(self, entrants: Sequence[NamedCandidate], probe: HostProbe, tier: Tier, deadline: float) -> Slots:
        languages = {entrant.source.language for entrant in entrants}
        gpu = "cuda" in probe.devices() and bool(languages & ON_GPU)
        return Slots(
            len(entrants),
            compile_slots=max(1, min(COMPILE_SLOTS, probe.cores)),
            judge_slots=max(1, len(probe.gpus)) if gpu else 1,
            quiet=tier == "performance" and not gpu,
            deadline=deadline,
        )

    async def _one(
        self,
        problem: Problem,
        entrant: NamedCandidate,
        host: str,
        timing: TimingOptions,
        batch_id: str,
        slots: Slots,
        progress: Progress | None,
    ) -> Evaluation:
        async def report_progress(message: str) -> None:
            if progress is not None:
                await progress(f"{entrant.name}: {message}")

        await report_progress("waits")
        return await self._evaluator.evaluate(
            problem.problem_id,
            entrant.source,
            host=host,
            flags=entrant.flags,
            entry=entrant.entry,
            parent_id=entrant.parent_id,
            note=entrant.note or f"{entrant.name}, of batch {batch_id}",
            progress=report_progress,
            timing=timing,
            batch_id=batch_id,
            slots=slots,
            reuse=not entrant.fresh,
        )


def _implementations(problem: Problem, names: Sequence[str]) -> list[NamedCandidate]:
    """Return those of the problem's own implementations that were asked for."""
    known = problem.implementations
    if names and not known:
        raise BadRequest("The problem has no implementations of its own.", hint="Give candidates.")
    wanted = list(known) if list(names) == [ALL] else list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise BadRequest(
            f"The problem has no implementation {unknown[0]!r}.", hint=f"It has {', '.join(known) or 'none'}."
        )
    return [
        NamedCandidate(
            name, CandidateSource(known[name].source, known[name].language, NAMES[known[name].language]),
            known[name].flags, known[name].entry, f"implementation {name}",
        )
        for name in wanted
    ]  # fmt: skip


def _check(entrants: Sequence[NamedCandidate]) -> None:
    if not 1 <= len(entrants) <= MAX_CANDIDATES:
        raise BadRequest(
            f"There are {len(entrants)} candidates.",
            hint=f"Give 1 to {MAX_CANDIDATES}, or name implementations of the problem.",
        )
    names = [entrant.name for entrant in entrants]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise BadRequest(f"Two candidates are called {twice[0]!r}.", hint="Give each its own name.")


def _row(entrant: NamedCandidate, result: Evaluation | BaseException) -> ComparisonRow:
    if isinstance(result, asyncio.CancelledError):
        return ComparisonRow(name=entrant.name, status="not_begun", reason=NOT_BEGUN)
    if isinstance(result, BaseException):
        return ComparisonRow(name=entrant.name, status="error", reason=clip_middle(str(result), REASON_CHARACTERS))
    times = [shape.candidate.median_us for shape in result.shapes if shape.candidate]
    timed = bool(times) and len(times) == len(result.shapes)
    begun = result.reason != LATE
    return ComparisonRow(
        name=entrant.name,
        status=result.status if begun else "not_begun",
        verdict=result.verdict,
        speedup=result.speedup,
        ranked_by_time=result.time_us is not None,
        trust=result.trust,
        confirmation=result.confirmation,
        speedup_range=result.speedup_range(),
        time_range_us=result.time_range_us(),
        time_us=math.exp(sum(math.log(time) for time in times) / len(times)) if timed else None,
        shapes=[_shape(shape, shape.candidate, shape.reference) for shape in result.shapes if shape.candidate],
        reason=clip_middle(
            "; ".join(filter(None, [result.fallback, result.reason]))
            or ("" if timed else (result.note or "").removeprefix("correct; ")),
            REASON_CHARACTERS,
        ),
        robust=result.robust,
        kept=result.kept,
        attempt_id=result.attempt_id,
        job_id=result.job_id if result.status == "running" else None,
    )


def _shape(shape: ShapeVerdict, timing: Timing, reference: Timing | None = None) -> str:
    at = ",".join(f"{name}={size}" for name, size in shape.dims.items()) or "only shape"
    ends = format_time_range(timing.low_us / 1e6, timing.high_us / 1e6)
    against = f" against {format_time(reference.median_us / 1e6)}" if reference and shape.speedup else ""
    return f"{at}: {format_time(timing.median_us / 1e6)} ({ends}){against}"


def _ranked(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return rows in order; correct ones with a time get a rank, which those share whose intervals overlap."""
    shared = share_ranks(sorted(rows, key=_rank), lambda row: bool(row.trust), _tied)
    return [row.model_copy(update={"rank": rank}) for row, rank, _ in shared]


def _tied(one: ComparisonRow, other: ComparisonRow) -> bool:
    intervals = [(each.speedup_range, each.time_range_us) for each in (one, other)]
    return trust_place(one.trust) == trust_place(other.trust) and overlap(*intervals) is True


def _rank(row: ComparisonRow) -> tuple[int, int, float, float]:
    """Return where a row belongs: correct ones as rankings order them, then those without a time.

    Then come wrong ones, and those not judged.
    """
    if row.verdict != "correct":
        return BEHIND.get(row.verdict or row.status, len(BEHIND) + 1), 0, 0.0, 0.0
    return 0, trust_place(row.trust), *bound_of(row.speedup, row.speedup_range, row.time_us, row.time_range_us)


def _reference(judged: Sequence[Evaluation]) -> list[str]:
    """Return the reference's shortest median at each shape, over all candidates beside which it ran."""
    best: dict[str, tuple[float, str]] = {}
    for shape in (shape for evaluation in judged for shape in evaluation.shapes):
        if shape.reference is not None:
            said = _shape(shape, shape.reference)
            at = said.partition(":")[0]
            best[at] = min(best.get(at, (math.inf, "")), (shape.reference.median_us, said))
    return [said for _, said in best.values()]
