"""Results of many runs: suites, repetitions, comparisons of plans."""

import math

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.evaluation import format_range
from gpu_mcp_server.time_format import format_time, format_time_range

Z95 = 1.959964
"""Quantile 0.975 of the normal distribution."""


class Proportion(Model):
    """A share with its 95 % interval."""

    of: int
    hits: int
    low: float
    high: float

    @classmethod
    def from_counts(cls, hits: int, of: int) -> "Proportion":
        """Return hits of a number of trials with Wilson's interval; everything is possible after none.

        Source:
            E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
        """
        if of == 0:
            return cls(of=0, hits=0, low=0.0, high=1.0)
        share, z2 = hits / of, Z95 * Z95
        middle = share + z2 / (2 * of)
        half = Z95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
        low, high = (middle - half) / (1 + z2 / of), (middle + half) / (1 + z2 / of)
        return cls(of=of, hits=hits, low=max(low, 0.0), high=min(high, 1.0))

    def text(self) -> str:
        """Say it."""
        share = f"{self.hits / self.of:.3f}" if self.of else "-"
        return f"{share} ({self.hits} of {self.of}, 95 % {self.low:.3f}-{self.high:.3f})"


class SuiteRow(Model):
    """One problem of a suite, or one repetition."""

    name: str
    run_id: str
    stopped: str | None = None
    why: str = ""
    speedup: float | None = None
    """Of the best, against the reference."""
    speedup_range: tuple[float, float] | None = None
    """95 % interval."""
    time_us: float | None = None
    """Of a call of the best, where the reference is no baseline on the device."""
    time_range_us: tuple[float, float] | None = None
    """95 % interval."""
    trust: str = ""
    """Of that time: only a confirmed one counts as fast, unless the plan accepts others."""
    correct: bool = False
    degenerate: bool = False
    """An answer without work is right for its problem: it was left out, or run and counts nowhere."""
    attempt_id: str | None = None
    agent_calls: int = 0
    wall_s: float = 0.0
    cost_usd: float | None = None
    tokens: int | None = None

    def speed_text(self) -> str:
        """Return the speed-up of the best, or its time where there is no baseline; with its interval."""
        if self.speedup is not None:
            return f"{self.speedup:.3g}{format_range(self.speedup_range)}"
        if self.time_us is not None:
            ends = format_time_range(*(end / 1e6 for end in self.time_range_us)) if self.time_range_us else ""
            return f"{format_time(self.time_us / 1e6)} a call" + (f" ({ends})" if ends else "")
        return "correct, not timed" if self.correct else "-"

    def trust_text(self) -> str:
        """Return the word of trust; why a time is unconfirmable is in the data."""
        return self.trust.partition(":")[0] or "-"


class SuiteReport(ResultModel):
    """A suite as it stands."""

    suite: str
    rows: list[SuiteRow]
    problems: int
    """In all; rows are those that are done."""
    fast: dict[str, Proportion]
    """fast_p of KernelBench: share of problems whose best is correct and more than p times as fast as the reference."""

    ended: str = ""
    """Why no further problem was begun."""

    def left_out(self) -> list[str]:
        """Say which problems count nowhere, if there are any."""
        names = [row.name for row in self.rows if row.degenerate]
        return [f"left out of these, as an answer without work is right: {', '.join(names)}"] if names else []

    def summary(self) -> str:
        """Say the metrics, then a table as Markdown."""
        lines = [f"# {self.suite}", "", f"{len(self.rows)} of {self.problems} problems are done.", ""]
        lines += [f"No further problem was begun: {self.ended}", ""] if self.ended else []
        lines += [f"- {name}: {rate.text()}" for name, rate in self.fast.items()]
        lines += [f"- {said}" for said in self.left_out()]
        compiled = sum(row.stopped == "compiled" for row in self.rows)
        lines += [f"- compiled and not judged, as no device is here: {compiled}"] if compiled else []
        return "\n".join([*lines, "", *table(self.rows)])


class CandidateRow(Model):
    """An existing answer to a task of a suite, judged without an agent."""

    task: str
    candidate: str
    """Its file."""
    verdict: str
    """correct, incorrect, cheat, compile_failed, voided by its confirmation run, or refused: nothing was judged."""
    reason: str = ""
    speedup: float | None = None
    """Over the reference, geometric mean of the shapes."""
    speedup_range: tuple[float, float] | None = None
    """95 % interval."""
    trust: str = ""
    """Of its time; scores count confirmed ones alone."""
    sol_score: float | None = None
    """Mean over the shapes; None where the device's peaks are unknown."""
    degenerate: bool = False
    """The task accepts an answer without work; scores leave it out."""
    attempt_id: str | None = None
    wall_s: float = 0.0

    def line_text(self) -> str:
        """Return a row of a Markdown table."""
        numbers = [f"{value:.3g}" if value is not None else "-" for value in (self.speedup, self.sol_score)]
        numbers[0] += format_range(self.speedup_range)
        cells = [_cell(self.task), _cell(self.candidate), self.verdict, *numbers, _cell(self.trust) or "-"]
        cells += [self.attempt_id or "-"]
        return f"| {' | '.join([*cells, _cell(self.reason)])} |"


class CandidateReport(ResultModel):
    """Verdicts of a suite's existing candidates, by task."""

    suite: str
    tasks: int
    refused: dict[str, str] = {}
    """Tasks that cannot be judged, with the reason."""
    missing: list[str] = []
    """Tasks without a candidate."""
    rows: list[CandidateRow]
    fast: dict[str, Proportion]
    """fast_p of KernelBench, of the candidates that were judged; fast_0 alone where none was timed. Times that are not
    confirmed count as no faster."""
    geometric_mean: float | None = None
    """Geometric mean of the confirmed speed-ups of correct candidates."""
    sol_score: float | None = None
    """SOL-ExecBench's score: mean over judged candidates with a known one; incorrect ones count 0."""
    traces: int = 0
    """Verdicts written in flashinfer's form."""

    def summary(self) -> str:
        """Return the scores, then a table as Markdown."""
        lines = [f"# {self.suite}", "", f"{self.tasks} tasks, {len(self.rows)} candidates.", ""]
        lines += [f"- {name}: {rate.text()}" for name, rate in self.fast.items()]
        for name, value in (("geometric mean", self.geometric_mean), ("SOL score", self.sol_score)):
            lines.append(f"- {name}: {value:.3g}" if value is not None else f"- {name}: unknown")
        lines += [f"- traces written: {self.traces}"] if self.traces else []
        lines += [f"- without a candidate: {', '.join(self.missing)}"] if self.missing else []
        lines += [f"- refused: {_cell(name)}: {_cell(why)}" for name, why in self.refused.items()]
        lines += ["", "| task | candidate | verdict | speed-up | SOL score | trust | attempt | reason |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
        return "\n".join([*lines, *(row.line_text() for row in self.rows)])


class StepVariance(Model):
    """Share of one step of a plan in the difference between its repetitions."""

    step: str
    runs: int
    """Repetitions that have it."""
    difference: float | None = None
    """Of the agent's answers, as the mean over all pairs: 0 are equal texts, 1 have nothing in common."""
    share: float | None = None
    """Of the variance of the best speed-ups, 0 before the first correct candidate; below 0 where it makes runs alike.
    None where all ended alike."""

    def line_text(self) -> str:
        """Say it on one line."""
        told = [f"{self.share:.0%} of the variance"] if self.share is not None else []
        told += [f"answers differ by {self.difference:.2f}"] if self.difference is not None else []
        return f"{self.step} ({self.runs} runs): {', '.join(told) or 'nothing to compare'}"


class PairedDifference(Model):
    """The mean of paired differences, or of ratios, with its 95 % interval."""

    of: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None

    def exponential(self) -> "PairedDifference":
        """Return a difference of logarithms as a ratio."""
        values = {name: getattr(self, name) for name in ("mean", "low", "high")}
        return PairedDifference(of=self.of, **{n: math.exp(v) if v is not None else None for n, v in values.items()})

    def text(self, form: str = "+.3g") -> str:
        """Say it."""
        if self.mean is None:
            return "unknown"
        ends = f", 95 % {self.low:{form}} to {self.high:{form}}" if self.low is not None else ", no interval of one"
        return f"{self.mean:{form}} ({self.of} differences{ends})"


class ComparedPair(Model):
    """Two plans' runs on one problem."""

    problem: str
    number: int
    """Of the repetition."""
    a: SuiteRow
    b: SuiteRow


class PlanComparison(ResultModel):
    """Two plans on the same problems: B against A."""

    name: str
    changed: list[str]
    """What they differ in: `key: A | B`."""
    pairs: list[ComparedPair]
    passed_a: Proportion
    """Runs with a correct candidate."""
    passed_b: Proportion
    passed: PairedDifference
    """Of the shares, over all pairs; repetitions of one problem count as pairs of their own."""
    faster: PairedDifference
    """Speed-up of B over that of A, geometric mean over the problems where both are correct and timed."""
    calls: PairedDifference
    tokens: PairedDifference
    """Of pairs whose agents both report them."""
    cost_usd: PairedDifference
    """Likewise."""

    def summary(self) -> str:
        """Say what was changed and what came of it, then the pairs as Markdown."""
        lines = [f"# {self.name}: B against A", "", *(f"- changed: {text}" for text in self.changed)]
        lines += [f"- passed, A: {self.passed_a.text()}", f"- passed, B: {self.passed_b.text()}"]
        lines += [f"- passed, B - A: {self.passed.text()}", f"- speed-up, B / A: {self.faster.text('.3g')}"]
        lines += [f"- calls of the agent, B - A: {self.calls.text()}", f"- tokens, B - A: {self.tokens.text()}"]
        lines += [f"- cost in USD as reported, B - A: {self.cost_usd.text()}", ""]
        lines += ["| problem | A | B |", "| --- | --- | --- |"]
        return "\n".join([*lines, *(f"| {_cell(p.problem)} | {_result(p.a)} | {_result(p.b)} |" for p in self.pairs)])


class RepeatReport(ResultModel):
    """Variation of one plan's repeated runs."""

    name: str
    rows: list[SuiteRow]
    passed: Proportion
    """Repetitions with a correct candidate."""
    reached: Proportion
    """That reached the target."""
    speedups: list[float] = []
    """Ascending, of those that passed and were timed."""
    difference: float | None = None
    """Mean over all pairs of the best sources: 0 are equal texts, 1 have nothing in common."""
    steps: list[StepVariance] = []
    """What each step adds to the spread, in their order."""

    def summary(self) -> str:
        """Say rates and spread, then a table as Markdown."""
        lines = [f"# {self.name}, {len(self.rows)} times", "", f"- passed: {self.passed.text()}"]
        lines += [f"- reached the target: {self.reached.text()}"]
        if self.speedups:
            middle = self.speedups[len(self.speedups) // 2]
            lines.append(f"- speed-up: {self.speedups[0]:.3g} to {self.speedups[-1]:.3g}, median {middle:.3g}")
        if self.difference is not None:
            lines.append(f"- difference of the sources: {self.difference:.2f}")
        lines += [f"- {step.line_text()}" for step in self.steps]
        return "\n".join([*lines, "", *table(self.rows)])


def table(rows: list[SuiteRow]) -> list[str]:
    """Return rows as a Markdown table."""
    lines = ["| problem | stopped | speed-up | trust | attempt | calls | seconds |", f"|{' --- |' * 7}"]
    for row in rows:
        why = f": {_cell(row.why)}" if row.stopped in ("refused", "degenerate") else ""
        said = f"{row.stopped or 'unfinished'}{why}"
        cells = [
            _cell(row.name),
            said,
            row.speed_text(),
            row.trust_text(),
            row.attempt_id or "-",
            str(row.agent_calls),
            f"{row.wall_s:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _result(row: SuiteRow) -> str:
    return f"{row.speed_text()} ({row.stopped or 'unfinished'})"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:200]
