"""Find the smallest set of candidates that is as good as all of them, and judge one that dispatches among them."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, GpuMcpError
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program_speed import DispatchReport, DispatchRow
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.evaluator import Evaluator
from gpu_mcp_server.services.programs.dispatch_source import DispatchedPart, dispatcher_source
from gpu_mcp_server.services.store import Store

WITHIN = 1.02
"""Time of a set over that of all candidates, at most."""
EXACT = 4
"""Largest sets of which every one is tried; beyond, the best addition is taken."""
MOST = 24
"""Candidates that are looked at: the best at each shape first, then the best of all shapes."""
FAMILIES: Mapping[str, CandidateLanguage] = {
    "c": "c",
    "cpp": "cpp",
    "cuda": "cuda",
    "triton": "launcher",
    "launcher": "launcher",
}
"""Languages of candidates, each with the language of a dispatcher that takes them."""


@dataclass(frozen=True)
class TimedCandidate:
    """A correct attempt with its time at each shape."""

    attempt: Attempt
    times_us: Sequence[float]


class KernelDispatch:
    """Attempts in, a judged dispatcher out."""

    def __init__(self, store: Store, evaluator: Evaluator) -> None:
        self._store, self._evaluator = store, evaluator

    async def make(
        self, problem_id: str, attempt_ids: Sequence[str] = (), *, wait_s: float = 240.0,
        progress: Progress | None = None,
    ) -> DispatchReport:  # fmt: skip
        """Choose among a problem's correct attempts by their judged times, and judge the dispatcher.

        Args:
            problem_id: The problem.
            attempt_ids: Its attempts to choose from; absent: all correct ones of one language and device.
            wait_s: Seconds to wait for the verdict.
            progress: Hears about it.

        Raises:
            BadRequest: If the shapes differ in no size, an attempt has no times at every shape, or the attempts are of
                several languages or devices.
            NotFound: If a handle names nothing.
        """
        problem = await self._store.problems.get(problem_id)
        if not any(len({dims[symbol] for dims in problem.shapes}) > 1 for symbol in problem.symbols()):
            raise BadRequest(
                "The problem's shapes differ in no size.", hint="A dispatcher chooses by the sizes of tensors."
            )
        found, notes = await self._candidates(problem, attempt_ids)
        weights = [one["recorded"]["calls"] for one in problem.cases if one.get("recorded")]
        weights = weights if len(weights) == len(problem.shapes) else []
        chosen = smallest_set([c.times_us for c in found], weights)
        first = found[0].attempt
        report = _report(problem, found, chosen, weights).model_copy(update={"notes": [*notes, *_doubts(found)]})
        if len(chosen) == 1:
            return report
        source = await self._source(problem, FAMILIES[str(first.language)], [found[number] for number in chosen])
        flags = [*dict.fromkeys(flag for n in chosen for flag in json.loads(found[n].attempt.flags or "[]"))]
        verdict = await self._evaluator.evaluate(
            problem.problem_id, source, host=first.host, device=first.target, flags=flags,
            timing=TimingOptions(), parent_id=report.best_single,
            note=f"dispatcher over {', '.join(report.chosen)}", wait_s=wait_s, progress=progress,
        )  # fmt: skip
        return report.model_copy(update={
            "status": verdict.verdict or verdict.status, "reason": verdict.reason,
            "attempt_id": verdict.attempt_id, "job_id": verdict.job_id if verdict.status == "running" else None,
            "speedup": verdict.speedup, "speedup_range": verdict.speedup_range(), "covers": verdict.covers,
            "source": await self._store.artifacts.put(source.text.encode(), name=source.name, media_type="text/plain"),
        })  # fmt: skip

    async def _candidates(self, problem: Problem, attempt_ids: Sequence[str]) -> tuple[list[TimedCandidate], list[str]]:
        """Return the candidates with their times, and notes on those left out."""
        if attempt_ids:
            attempts = [await self._store.experience.get(one) for one in dict.fromkeys(attempt_ids)]
        else:
            attempts = list(await self._store.experience.evaluations_of(problem.problem_id))
        found: list[TimedCandidate] = []
        for attempt in attempts:
            try:
                found.append(TimedCandidate(attempt, await self._times(problem, attempt)))
            except GpuMcpError:
                if attempt_ids:
                    raise
        groups = Counter(map(_group, found))
        if not groups:
            raise BadRequest(
                "The problem has no correct attempts with a time at every shape.",
                hint="Judge candidates with evaluate_kernels first.",
            )
        if attempt_ids and len(groups) > 1:
            raise BadRequest(
                f"The attempts are of several kinds: {'; '.join(map(' on '.join, groups))}.",
                hint="Give attempts of one language, judged on one device.",
            )
        (kind, _), *others = groups.most_common()
        notes = [f"left out: {n} attempts in {' on '.join(other)}" for other, n in others]
        latest = {one.attempt.source_hash: one for one in found if _group(one) == kind}
        return best_candidates([*latest.values()]), notes

    async def _times(self, problem: Problem, attempt: Attempt) -> list[float]:
        """Return an attempt's time at each shape.

        Raises:
            BadRequest: If it is not correct, in a language that no dispatcher takes, or has no such times.
        """
        right = attempt.problem_id == problem.problem_id and attempt.verdict == "correct" and not attempt.voided
        if not right or str(attempt.language) not in FAMILIES:
            raise BadRequest(
                f"{attempt.attempt_id} cannot be a part of a dispatcher: {attempt.verdict or attempt.status}, "
                f"in {attempt.language}.",
                hint=f"Parts are correct attempts at this problem in {', '.join(FAMILIES)}.",
            )
        whole = await self._store.experience.get(attempt.attempt_id)
        kept = str((whole.evidence or {}).get("verdict_artifact") or "")
        verdict: dict[str, Any] = json.loads(await self._store.artifacts.read(kept)) if kept else {}
        times = times_by_shape(problem, cast("Sequence[Mapping[str, Any]]", verdict.get("shapes") or ()))
        if times is None:
            raise BadRequest(f"{attempt.attempt_id} has no time at every shape.", hint="Judge it at tier performance.")
        return times

    async def _source(
        self, problem: Problem, language: CandidateLanguage, parts: Sequence[TimedCandidate]
    ) -> CandidateSource:
        texts = [(await self._store.artifacts.read(p.attempt.source_artifact_id or "")).decode() for p in parts]
        named = [
            DispatchedPart(p.attempt.attempt_id, text, p.attempt.entry or "launch")
            for p, text in zip(parts, texts, strict=True)
        ]
        choice = [
            (dims, min(range(len(parts)), key=lambda n: parts[n].times_us[at]))
            for at, dims in enumerate(problem.shapes)
        ]
        text = dispatcher_source(problem, language, named, choice)
        return CandidateSource(text, language, NAMES[language])


def times_by_shape(problem: Problem, shapes: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Return a verdict's times in the order of the problem's shapes; None if one is missing."""
    known = {_key(shape["dims"]): shape["candidate"]["median_us"] for shape in shapes if shape.get("candidate")}
    found = [known.get(_key(dims)) for dims in problem.shapes]
    return None if None in found else cast("list[float]", found)


def best_candidates(found: Sequence[TimedCandidate]) -> list[TimedCandidate]:
    """Return at most MOST candidates, the best of all shapes first; the best at each shape are among them."""
    overall = sorted(found, key=lambda c: math.fsum(map(math.log, c.times_us)))
    best = [min(found, key=lambda c: c.times_us[at]) for at in range(len(found[0].times_us))]
    kept = {id(c): c for c in [*best, *overall]}
    short = {*list(kept)[:MOST]}
    return [c for c in overall if id(c) in short]


def smallest_set(times_us: Sequence[Sequence[float]], weights: Sequence[int] = ()) -> list[int]:
    """Return the numbers of the fewest candidates whose best at each shape is within 2 % of the best of all.

    Of sets of one size the fastest is taken: all of them are tried up to EXACT members, beyond that the best addition.

    Args:
        times_us: Of each candidate at each shape.
        weights: Calls of each shape, where the total time counts; else the geometric mean over the shapes does.
    """
    every = range(len(times_us))
    least = score([*every], times_us, weights)
    best: list[int] = []
    for size in range(1, min(EXACT, len(times_us)) + 1):
        best = list(min(itertools.combinations(every, size), key=lambda s: score(s, times_us, weights)))
        if score(best, times_us, weights) <= least * WITHIN:
            return best
    while score(best, times_us, weights) > least * WITHIN:
        best.append(min((n for n in every if n not in best), key=lambda n: score([*best, n], times_us, weights)))
    return sorted(best)


def score(chosen: Sequence[int], times_us: Sequence[Sequence[float]], weights: Sequence[int] = ()) -> float:
    """Return the time of a set that uses its best member at each shape."""
    best = [min(times_us[n][at] for n in chosen) for at in range(len(times_us[0]))]
    if weights:
        return math.fsum(weight * one for weight, one in zip(weights, best, strict=True))
    return math.exp(math.fsum(map(math.log, best)) / len(best))


def _report(
    problem: Problem, found: Sequence[TimedCandidate], chosen: Sequence[int], weights: Sequence[int]
) -> DispatchReport:
    times = [c.times_us for c in found]
    ids = [c.attempt.attempt_id for c in found]
    single = best_single(times, weights)
    rows = [
        DispatchRow(
            dims={name: size for name, size in dims.items() if name != "case"},
            best=ids[min(range(len(ids)), key=lambda n: times[n][at])],
            taken=ids[min(chosen, key=lambda n: times[n][at])],
            best_us=min(one[at] for one in times),
            taken_us=min(times[n][at] for n in chosen),
            single_us=times[single][at],
        )
        for at, dims in enumerate(problem.shapes)
    ]
    least = score(range(len(ids)), times, weights)
    return DispatchReport(
        status="single", problem_id=problem.problem_id, candidates=len(ids), chosen=[ids[n] for n in chosen],
        best_single=ids[single], single_over_best=score([single], times, weights) / least,
        set_over_best=score(chosen, times, weights) / least, rows=rows,
    )  # fmt: skip


def best_single(times_us: Sequence[Sequence[float]], weights: Sequence[int]) -> int:
    """Return the number of the candidate that is best over all shapes."""
    return min(range(len(times_us)), key=lambda n: score([n], times_us, weights))


def _key(dims: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(size)) for name, size in dims.items()))


def _doubts(found: Sequence[TimedCandidate]) -> list[str]:
    """Return a note that names candidates whose times are in doubt: the choice rests on them."""
    names = [one.attempt.attempt_id for one in found if (one.attempt.trust or "").startswith("unconfirmable")]
    if not names:
        return []
    return [
        f"the times of {', '.join(names)} are in doubt, and the choice rests on them: judge again with timing.fresh on "
        "an idle host"
    ]


def _group(one: TimedCandidate) -> tuple[str, str]:
    return FAMILIES[str(one.attempt.language)], str(one.attempt.device)
