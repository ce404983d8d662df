"""Compare the kernels that a change touches with those before it: judged by turns, told apart by pairs of turns.

A turn judges one side as a whole: in new processes, with new inputs, against the same reference. So the differences
between turns hold those between two starts of a program, which rounds of one start do not show. Where half of the turns
decide, the other half is not judged; the intervals are wider for it, so that both looks together err as seldom as one.

Source: T. Kalibera and R. Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_mcp_server.errors import BadRequest, GpuMcpError, LimitExceeded
from gpu_mcp_server.models.comparison import ChangeStatus, KernelChange, KernelChanges
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import Implementation, Problem
from gpu_mcp_server.recipes.kernel_revisions import TreeProblem, open_tree, read_tree
from gpu_mcp_server.recipes.run.paired_statistics import T99, T995, mean_of_differences
from gpu_mcp_server.recipes.run.run_context import Tell
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.time_format import format_time

TURNS = 8
"""Pairs of judgements of a kernel, if the caller names no other number."""
FEWEST_TURNS = 3
LEAST = 0.01
"""Smallest change that is called slower or faster."""
EXCLUDED = 0.03
"""`same` says that the interval holds no change of this size."""
MOST_KERNELS = 50
WAIT_S = 3600.0
TIMING = TimingOptions(half_width=0.005, baseline="eager")


@dataclass(frozen=True)
class TouchedKernel:
    """A kernel that a change touches, before and after it."""

    name: str
    problem: Problem
    """The changed tree's."""
    base: Implementation | None
    """None where there was no such kernel, or where it is the same and only the problem changed."""
    head: Implementation
    note: str = ""


@dataclass
class Turns:
    """Judgements of both sides of a kernel."""

    base: list[Evaluation] = field(default_factory=list[Evaluation])
    head: list[Evaluation] = field(default_factory=list[Evaluation])

    def log_ratios(self) -> list[float]:
        """Return the logarithms of base's time over head's, of each pair of turns that can be compared."""
        pairs = zip(self.base, self.head, strict=False)
        return [math.log(time_of(b) / time_of(h)) for b, h in pairs if _basis(b) == _basis(h) != ()]


async def compare_kernels(
    lab: Lab,
    base: str,
    head: str,
    *,
    tell: Tell,
    detail: Tell | None = None,
    turns: int = TURNS,
    host: str | None = None,
) -> KernelChanges:
    """Judge the kernels that differ between two trees, by turns.

    Args:
        lab: Where they are judged.
        base: Folder, or revision of the git repository of the working folder.
        head: Likewise; the tree with the change.
        tell: Hears of each step, before it begins, and of each kernel's result.
        detail: Hears what a step does meanwhile: compiling, waiting for a GPU, rounds.
        turns: Judgements of each side of a kernel.
        host: Where; the default host if absent.

    Raises:
        NotFound: If one of them is neither a folder nor a revision.
        LimitExceeded: If the change touches more than `MOST_KERNELS`.
    """
    began = time.monotonic()
    async with open_tree(base, Path.cwd()) as before, open_tree(head, Path.cwd()) as after:
        old, new = await read_tree(before), await read_tree(after)
    touched = touched_kernels(old, new)
    if len(touched) > MOST_KERNELS:
        raise LimitExceeded(
            f"The change touches {len(touched)} kernels; the limit is {MOST_KERNELS}.", hint="Compare smaller changes."
        )
    rows = [KernelChange(name=f"{at}:*", status="refused", note=one.refused) for at, one in new.items() if one.refused]
    where = lab.hosts.choose(host)
    most = sum(turns * (1 if one.base is None else 2) for one in touched)
    await tell(
        f"{len(touched)} kernel{' is' if len(touched) == 1 else 's are'} touched: up to {most} judgements on {where}"
    )
    for number, kernel in enumerate(touched, 1):
        place = f"{number}/{len(touched)} {kernel.name}"
        row = await _KernelJudging(lab, kernel, turns, host, _Steps(place, tell, detail)).compare()
        await tell(f"{place}: {row.line_text()}")
        rows.append(row)
    rows += [KernelChange(name=name, status="removed") for name in removed_kernels(old, new)]
    kernels = sum(len(one.kernels()) for one in new.values())
    return KernelChanges(
        base=base, head=head, rows=rows, untouched=kernels - len(touched), turns=turns,
        host=where, seconds=time.monotonic() - began,
    )  # fmt: skip


def touched_kernels(old: Mapping[str, TreeProblem], new: Mapping[str, TreeProblem]) -> list[TouchedKernel]:
    """Return the kernels of the new tree that differ from the old one's, or whose problem differs."""
    found: list[TouchedKernel] = []
    for at, one in new.items():
        if one.problem is None:
            continue
        was = old.get(at, TreeProblem(None))
        same_problem = was.problem is not None and was.problem.content_hash == one.problem.content_hash
        for name, head in one.kernels().items():
            base = was.kernels().get(name)
            if base == head and same_problem:
                continue
            note = "" if same_problem or base is None else "the problem changed: both sides are judged at the new one"
            note = "only the problem changed" if base == head else note
            note = f"base's problem cannot be read: {was.refused}" if was.refused else note
            found.append(TouchedKernel(f"{at}:{name}", one.problem, None if base == head else base, head, note))
    return found


def removed_kernels(old: Mapping[str, TreeProblem], new: Mapping[str, TreeProblem]) -> list[str]:
    """Return the kernels that the new tree has no more."""
    readable = {at: one for at, one in new.items() if not one.refused}
    gone = [(at, name) for at, one in old.items() if at not in new or at in readable for name in one.kernels()]
    return [f"{at}:{name}" for at, name in gone if at not in new or name not in readable[at].kernels()]


@dataclass
class _Steps:
    """Says what is done to one kernel, and what the step before gave."""

    kernel: str
    tell: Tell
    detail: Tell | None
    _step: str = ""
    _before: str = ""

    async def begin(self, step: str) -> None:
        """Say that a step begins."""
        self._step = f"{self.kernel}: {step}"
        await self.tell(f"{self._step}{self._before}")

    def end(self, found: Evaluation, seconds: float) -> None:
        """Keep a judgement for the next step's line."""
        time = f", {format_time(time_of(found) / 1e6)}" if _basis(found) else ""
        self._before = f" (before: {found.verdict or found.status}{time}, judged in {seconds:.0f} s)"

    async def report(self, message: str) -> None:
        """Say what the step does now."""
        if self.detail is not None:
            await self.detail(f"{self._step}: {message}")


class _KernelJudging:
    """Judges both sides of one kernel by turns."""

    def __init__(self, lab: Lab, kernel: TouchedKernel, turns: int, host: str | None, steps: _Steps) -> None:
        self._lab, self._kernel, self._turns, self._host, self._steps = lab, kernel, turns, host, steps
        self._judged = Turns()

    async def compare(self) -> KernelChange:
        """Return what the turns say; a kernel that cannot be judged is told, and the others go on."""
        try:
            problem = self._kernel.problem.model_copy(update={"implementations": {}})  # those kept stay as they are
            await self._steps.begin("running the problem's reference")
            info = await self._lab.evaluation.registry.keep(problem, host=self._host)
            return await self._by_turns(info.problem_id)
        except GpuMcpError as error:
            return KernelChange(name=self._kernel.name, status="refused", note=str(error)[:500])

    async def _by_turns(self, problem_id: str) -> KernelChange:
        for turn in range(self._turns):
            # base, head, head, base: a drift of the machine falls on both sides alike
            for side in ("base", "head") if turn % 2 == 0 else ("head", "base"):
                implementation = self._kernel.base if side == "base" else self._kernel.head
                if implementation is None:
                    continue
                await self._steps.begin(f"turn {turn + 1} of {self._turns}, {side}")
                began = time.monotonic()
                found = await self._judge(problem_id, implementation, f"compare: {self._kernel.name}, {side}")
                self._steps.end(found, time.monotonic() - began)
                getattr(self._judged, side).append(found)
            last = self._judged.head[-1]
            if (failed := failure_of(last)) is not None:
                return self._row(failed, last.reason or f"status {last.status}")
            if self._kernel.base is None:
                return self._row("new")
            was = self._judged.base[-1]
            if (lacking := failure_of(was)) is not None:
                why = f"there is nothing to compare with: base is {was.verdict or was.status}: {was.reason}"
                return self._row("new" if lacking == "wrong" else "unknown", why)
            if not (_basis(last) and _basis(was)):
                return self._row("unknown", last.note or was.note or "no time was had at every shape")
            # A pair that is lost would make a third look of the last one.
            looks = turn + 1 in looks_of(self._turns)[:-1] and len(self._judged.log_ratios()) == turn + 1
            if looks and (early := self._decided()).status != "unknown":
                return early
        return self._decided()

    async def _judge(self, problem_id: str, implementation: Implementation, note: str) -> Evaluation:
        language = implementation.language
        source = CandidateSource(implementation.source, language, NAMES[language])
        # A verdict of kind `confirm` stands in no ranking and owes no confirmation run.
        return await self._lab.evaluation.evaluator.evaluate(
            problem_id, source, host=self._host, flags=implementation.flags, entry=implementation.entry,
            timing=TIMING, note=note[:200], wait_s=WAIT_S, kind="confirm", progress=self._steps.report,
        )  # fmt: skip

    def _decided(self) -> KernelChange:
        ratios = self._judged.log_ratios()
        if len(ratios) < FEWEST_TURNS:
            return self._row("unknown", f"only {len(ratios)} turns of both sides were timed on the same device")
        return self._row(decide(ratios, quantiles_of(self._turns)))

    def _row(self, status: ChangeStatus, why: str = "") -> KernelChange:
        ratios = self._judged.log_ratios()
        found = mean_of_differences(ratios, quantiles_of(self._turns)).exponential()
        return KernelChange(
            name=self._kernel.name, status=status, speed=found.mean, low=found.low, high=found.high,
            turns=len(ratios), log_ratios=ratios,
            base_us=_middle(self._judged.base), head_us=_middle(self._judged.head),
            device=self._judged.head[0].device if self._judged.head else None,
            base_attempts=[one.attempt_id for one in self._judged.base],
            head_attempts=[one.attempt_id for one in self._judged.head],
            note="; ".join(filter(None, (why[:500], self._kernel.note))),
        )  # fmt: skip


def failure_of(evaluation: Evaluation) -> ChangeStatus | None:
    """Return `wrong` for a kernel that is not correct, `refused` for one without a verdict, else None."""
    if evaluation.verdict == "correct":
        return None
    return "wrong" if evaluation.verdict or evaluation.status == "compile_failed" else "refused"


def looks_of(turns: int) -> tuple[int, ...]:
    """Return after how many turns it is asked whether they decide: an even number first, for base and head by turns."""
    half = turns // 4 * 2
    return (half, turns) if half >= FEWEST_TURNS else (turns,)


def quantiles_of(turns: int) -> tuple[float, ...]:
    """Return the quantiles with which the intervals of all looks together hold in 99 of 100 cases."""
    return T995 if len(looks_of(turns)) > 1 else T99


def decide_by_looks(log_ratios: Sequence[float], turns: int) -> ChangeStatus:
    """Return what the first look says that decides, else the last one.

    Args:
        log_ratios: Logarithms of base's time over head's, in the order of the turns.
        turns: Most turns that there may be.
    """
    for look in looks_of(turns)[:-1]:
        if len(log_ratios) >= look and (found := decide(log_ratios[:look], quantiles_of(turns))) != "unknown":
            return found
    return decide(log_ratios, quantiles_of(turns))


def decide(log_ratios: Sequence[float], quantiles: Sequence[float] = T99) -> ChangeStatus:
    """Return what paired turns say of a kernel: slower, faster, same or unknown.

    Args:
        log_ratios: Logarithms of base's time over head's; below 0, head is slower.
        quantiles: Those of the interval.
    """
    found = mean_of_differences(log_ratios, quantiles).exponential()
    if found.mean is None or found.low is None or found.high is None:
        return "unknown"
    if found.high < 1 and found.mean <= 1 - LEAST:
        return "slower"
    if found.low > 1 and found.mean >= 1 + LEAST:
        return "faster"
    return "same" if found.low > 1 - EXCLUDED and found.high < 1 + EXCLUDED else "unknown"


def time_of(evaluation: Evaluation) -> float:
    """Return one time of all shapes, in microseconds: of recorded calls their sum, else the geometric mean.

    Raises:
        BadRequest: If a shape has no time.
    """
    times = [(shape.calls, shape.candidate.median_us) for shape in evaluation.shapes if shape.candidate]
    if not times or len(times) != len(evaluation.shapes):
        raise BadRequest("A shape has no time.", hint="Judge it at tier performance.")
    if all(calls for calls, _ in times):
        return sum((calls or 0) * one for calls, one in times)
    return math.exp(sum(math.log(one) for _, one in times) / len(times))


def _basis(evaluation: Evaluation) -> tuple[str, ...]:
    """Return what must agree for two judgements' times to be compared; empty where a shape has no time."""
    if not evaluation.shapes or any(shape.candidate is None for shape in evaluation.shapes):
        return ()
    device = str(evaluation.evidence.get("gpu_uuid") or evaluation.device)
    return device, *(shape.basis for shape in evaluation.shapes)


def _middle(judged: Sequence[Evaluation]) -> float | None:
    times = [time_of(one) for one in judged if _basis(one)]
    return statistics.median(times) if times else None
