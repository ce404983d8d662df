"""A verdict and its evidence."""

import re
from collections.abc import Collection, Sequence
from statistics import geometric_mean
from typing import Any, Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.build import CandidateLanguage, Diagnostic, KernelResources
from gpu_mcp_server.models.problem import Basis
from gpu_mcp_server.text_safety import join_lines
from gpu_mcp_server.time_format import format_time, format_time_range

Verdict = Literal["correct", "incorrect", "cheat"]
Tier = Literal["smoke", "correctness", "performance"]
"""smoke: one call at the smallest shape; correctness: every trial, no timing; performance: everything."""


STOPPED = {"rounds": "rounds used up", "time": "time used up"}
"""What ended the rounds before the interval was as narrow as wished."""
MEASURED = {"device": " on the GPU alone", "call": "", "kernelbench": " by events around each call"}
LAUNCH_BOUND = "launch-bound: "
COPIED = "the outputs are copied into the judge's, within the clock: "
"""Begins the note of a candidate whose time holds a copy (judge/candidate), which a rival's may not."""
ALWAYS_COPIED = "as always on the processor"
"""Begin of the judge's note where the GPU is busy for less than two thirds of a call in a loop."""
HASHES = ("seed_commitment", "harness_sha256")
"""Evidence for others, of which no next step follows; the data has it."""
_VARIES = re.compile(r"[-+]?\d[\d.,e+-]*")
_HIDDEN = re.compile(r"\d+ hidden shapes?(?: \([^)]*\))?(?:, )?")


def format_range(ends: tuple[float, float] | None) -> str:
    """Say a range behind a number."""
    return f" ({ends[0]:.3g}-{ends[1]:.3g})" if ends else ""


class Timing(Model):
    """Time of one call, from the owner's clock."""

    median_us: float
    low_us: float
    """Lower end of the 95 % confidence interval of the median."""
    high_us: float
    rounds: int
    calls_per_round: int

    def text(self, said: str = "") -> str:
        """Say the median, its interval, and of how many rounds and calls; `said` goes before the interval."""
        ends = format_time_range(self.low_us / 1e6, self.high_us / 1e6)
        return f"{format_time(self.median_us / 1e6)} ({said}{ends}, {self.rounds}x{self.calls_per_round})"


class TimingOptions(Model):
    """Options of timing a candidate."""

    tier: Tier = "performance"
    precision: Literal["quick", "exact"] = "quick"
    """quick: rounds end at an interval of 2 %, 30 rounds or 2 s a shape, and all shapes together may cost half a
    second besides candidate and reference; enough to choose the next idea. exact: 0.5 %, 200 rounds, 5 s a shape;
    for a record, and what audit_attempt uses."""
    cache: Literal["cold", "warm", "both"] = "cold"
    """cold: a round's calls take turns on more data than the cache holds. warm: only as many calls a round as fit half
    the cache, whose data was just written; each still with inputs of its own, as what repeats could be answered once.
    Warm times stand beside and never count for the speed-up that ranks."""
    baseline: Literal["later", "compiled", "eager"] = "later"
    """later: where the reference is PyTorch, torch.compile of it stands beside eager once it is known. It is measured
    once for each problem, device and torch, behind the answer on the first candidate that is correct, and gives way
    to whoever is judged next. compiled: wait for it in this call. eager: do without."""
    fresh: bool = False
    """Judge an identical request again; else it is answered at once by the verdict that it got, which says so."""
    confirm: bool = False
    """Owe a confirmation run, though the attempt is not the best: it judges again behind the answer, with exact."""
    half_width: float | None = Field(default=None, gt=0, le=0.5)
    """Half the width of the median's 95 % interval to reach instead, as a part of the median."""
    first_call_s: float = Field(default=240.0, ge=10, le=3600)
    """For a Python candidate to be loaded, and for its first call at each shape, which is not timed: compilers and
    autotuners run then."""


class ClockTimes(Model):
    """Times by the clock that is not the verdict's basis."""

    candidate: Timing
    reference: Timing | None = None
    """Absent where the reference could not be timed so."""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None

    def text(self) -> str:
        """Say the time and the speed-up."""
        said = self.candidate.text()
        if self.speedup:
            said += f", speed-up {self.speedup:.3g} ({self.speedup_low:.3g}-{self.speedup_high:.3g})"
        return said


class ShapeVerdict(Model):
    """Verdict and times of a candidate at one shape."""

    dims: dict[str, int | float | str]
    """Sizes, or a program's parameters."""
    verdict: Verdict
    reason: str = ""
    candidate: Timing | None = None
    reference: Timing | None = None
    speedup: float | None = None
    """Median of the rounds' ratios, reference over candidate; a round's two times are paired."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    reference_before_us: float | None = None
    """Of the reference in earlier evaluations, where it is slower today: speedup and speedup_low count this time."""
    compiled: Timing | None = None
    """torch.compile of the reference, where that was measured: in a judgement of its own, by the same clock."""
    compiled_speedup: float | None = None
    """Against torch.compile: the candidate's speed-up over eager by torch.compile's own over eager."""
    half_width: float | None = None
    """Half the width of the interval of the candidate's median, as a part of it."""
    stopped_by: Literal["half_width", "rounds", "time"] | None = None
    """What ended the rounds: the interval was narrow enough, or rounds or time were used up."""
    cache: str = ""
    """Whether a round's data exceeds the cache, with both sizes."""
    warm: Timing | None = None
    """With data that was in the cache, where that was asked for and rounds of so few calls can be timed."""
    warm_speedup: float | None = None
    basis: Basis = "call"
    """What the times are, as `Problem.basis`; on the GPU alone, all calls of a round were launched behind a gate."""
    in_loop: ClockTimes | None = None
    """The loop's times where others rank."""
    on_gpu: ClockTimes | None = None
    """Times on the GPU alone where others rank."""
    isolated_us: float | None = None
    """On the GPU alone with a gate behind each call, so that no two overlap."""
    floor_us: float | None = None
    """What no answer can take less than on this device, by its peak figures; a time clearly below is void: cheat."""
    floor_by: Literal["memory", "compute", "launch"] | None = None
    roof: str = ""
    """The share reached of what the device can do at best: bytes of inputs and outputs, or the problem's flops."""
    conditions: str = ""
    """The machine around the timed rounds: which were throttled, at another clock, or beside another process."""
    unconfirmable: str = ""
    """Why the judge could not confirm the candidate's time on this host; the time is then the judge's own, too long."""
    calls: int | None = None
    """Captured problems: number of the program's calls with these inputs."""
    calls_checked: int = 0
    """Calls whose outputs were compared in full; every timed call is among them."""
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    notes: list[str] = []

    def line_text(self, said: Collection[str] = ()) -> str:
        """Say it on one line, without reasons and remarks that are in `said` but for their numbers."""
        named = [f"{name}={size}" for name, size in self.dims.items()]
        dims = named[0] if len(named) == 1 else "x".join(map(str, self.dims.values())) or "the only shape"
        text = f"{dims}: {self.verdict}"
        if self.candidate:
            text += f", {self.candidate.text('95 % ')}" + MEASURED[self.basis]
            text += f", {STOPPED[self.stopped_by]}" if self.stopped_by in STOPPED else ""
        if self.reference:
            text += f", reference {format_time(self.reference.median_us / 1e6)}"
        if self.speedup:
            text += f", speed-up {self.speedup:.3g} ({self.speedup_low:.3g}-{self.speedup_high:.3g})"
        text += ", unconfirmable" if self.unconfirmable else ""
        if self.compiled and self.compiled_speedup:
            text += f", torch.compile {format_time(self.compiled.median_us / 1e6)}: speed-up against it "
            text += f"{self.compiled_speedup:.3g}"
        if self.warm:
            text += f", warm {self.warm.text()}"
            text += f" at {self.warm_speedup:.3g} times the reference's speed" if self.warm_speedup else ""
        text += f", in a loop {self.in_loop.text()}" if self.in_loop else ""
        text += f", on the GPU alone {self.on_gpu.text()}" if self.on_gpu else ""
        text += "".join(f", {each}" for each in (self.cache, self.roof) if each)
        return "; ".join([text, *(each for each in self.remarks() if but_numbers(each) not in said)])

    def loop_speedup(self) -> float | None:
        """Return the speed-up of calls in a loop, whatever the basis; None if there is none."""
        return self.speedup if self.basis == "call" else self.in_loop and self.in_loop.speedup

    def gpu_speedup(self) -> float | None:
        """Return the speed-up on the GPU alone, whatever the basis; None if there is none."""
        return self.speedup if self.basis == "device" else self.on_gpu and self.on_gpu.speedup

    def launch_bound(self) -> str:
        """Return the judge's note that a call waits for its launch; empty if it does not."""
        return next((note for note in self.notes if note.startswith(LAUNCH_BOUND)), "")

    def remarks(self) -> list[str]:
        """Return what is said behind the numbers: why it failed, how the machine was, notes."""
        return [each for each in (self.reason, self.conditions, *self.notes) if each]


def but_numbers(text: str) -> str:
    """Return a text with its numbers alike, so that what is said at each shape is known again."""
    return _VARIES.sub("N", text)


def overall_speedup(shapes: Sequence[ShapeVerdict], speedups: Sequence[float]) -> float:
    """Return one speed-up for all shapes: the geometric mean; for recorded calls, that of their total time."""
    parts = [s.calls * (s.reference_before_us or s.reference.median_us) for s in shapes if s.calls and s.reference]
    if not parts or len(parts) != len(speedups):
        return geometric_mean(speedups)
    return sum(parts) / sum(part / gain for part, gain in zip(parts, speedups, strict=True))


class Baseline(Model):
    """Times of torch.compile as a baseline."""

    shapes: list[ShapeVerdict] = []
    why_not: str = ""
    """Why there is none."""
    seconds: float = 0.0
    """What finding out took."""


class Evaluation(ResultModel):
    """The verdict on one candidate."""

    status: Literal["judged", "compile_failed", "running", "refused"]
    """`judged` means that there is a verdict; `running` that job_status has it later."""
    verdict: Verdict | None = None
    reason: str = ""
    fallback: str = ""
    """Shown first: its extension did not compile, and what computed instead."""
    degenerate: str = ""
    """Set when an answer without work is right for the problem; no score counts its verdicts."""
    tier: Tier | None = None
    """How far it was judged; below performance nothing was timed."""
    weaker: str | None = None
    """Why the verdict is of a weaker kind than a kernel's: a program is timed as a whole process."""
    said: list[str] = []
    """What a program said of itself; never believed."""
    printed: str = ""
    """What a candidate that is not correct wrote to stdout and stderr, shortened; never believed."""
    stack: list[str] = []
    """Where each thread stood when a candidate that had crashed or hung was run once more; never believed."""
    attempt_id: str
    """Empty if the host cannot run the candidate, so that nothing was tried."""
    job_id: str | None = None
    problem_id: str
    problem_hash: str
    language: CandidateLanguage
    device: str | None = None
    """What it ran on: GPU name or CPU model."""
    host: str
    speedup: float | None = None
    """Over the reference, if correct: geometric mean of the shapes; for recorded calls, of their total time."""
    time_us: float | None = None
    """Geometric mean of the shapes' medians, where the reference is no baseline on this device: it ranks instead."""
    compiled_speedup: float | None = None
    """The same against torch.compile, where that is known."""
    trust: str = ""
    """Trust of the time: confirmed, provisional, contradicted, or unconfirmable and why. Empty without a time."""
    confirmation: str = ""
    """State of the attempt's confirmation run, if it owes one."""
    news: list[str] = []
    """Attempts at this problem that were voided since the last answer about it; shown first."""
    baseline: str | None = None
    """For PyTorch problems: origin of torch.compile's times, or why there are none."""
    covers: str = ""
    """Shapes at which a correct candidate is correct."""
    robust: str = ""
    """yes, no or unknown: whether it is right with inputs of other distributions than declared too, and what is not."""
    declared: str = ""
    """For a failed candidate: the declared shapes at which it is right, and those at which it is wrong."""
    shapes: list[ShapeVerdict] = []
    trials: str = ""
    """Untimed calls: hidden shapes, other distributions, the same inputs again; checks left out."""
    resources: list[KernelResources] = []
    diagnostics: list[Diagnostic] = []
    advice: list[str] = []
    """Static findings about the source; advice, never the verdict."""
    level: str | None = None
    weaker_because: str | None = None
    evidence: dict[str, Any] = {}
    """How it was measured: seed commitment, hashes, clocks, memory kind, versions."""
    evidence_artifact_id: str | None = None
    """All samples and the whole evidence."""
    seconds: dict[str, float] = {}
    """Where the time of this call went: compile, judge, total."""
    kept: str = ""
    """Time of the verdict, if it is that of an identical request: nothing was judged now."""
    note: str | None = None

    def speedup_range(self) -> tuple[float, float] | None:
        """Return the overall speed-up of the shapes' low ends and of their high ends: an interval around it."""
        shapes = self.whole.shapes
        lows = [shape.speedup_low for shape in shapes if shape.speedup_low]
        highs = [shape.speedup_high for shape in shapes if shape.speedup_high]
        if self.speedup is None or not shapes or not len(lows) == len(highs) == len(shapes):
            return None
        return overall_speedup(shapes, lows), overall_speedup(shapes, highs)

    def time_range_us(self) -> tuple[float, float] | None:
        """Return the same of the time of a call, where the reference is no baseline."""
        timed = [shape.candidate for shape in self.whole.shapes if shape.candidate]
        if self.time_us is None or not timed or len(timed) != len(self.whole.shapes):
            return None
        return geometric_mean([t.low_us for t in timed]), geometric_mean([t.high_us for t in timed])

    def unconfirmable(self) -> str:
        """Say why a time could not be confirmed on this host, or nothing; others rank before it."""
        return next((shape.unconfirmable for shape in self.whole.shapes if shape.unconfirmable), "")

    def summary(self) -> str:
        """Say the verdict first."""
        diagnosed = any(self.reason in d.line_text() for d in self.diagnostics)
        lines = [f"verdict: {self.verdict}" if self.verdict else f"status: {self.status}"]
        lines[0] = "".join(f"{said}\n" for said in self.news) + lines[0]
        lines[0] += f" for {self.covers}" if self.covers else ""
        lines[0] += f" ({self.degenerate})" if self.degenerate else ""
        lines[0] += "".join(f" - {said}" for said in (self.fallback, "" if diagnosed else self.reason) if said)
        lines[0] += f"; robust: {self.robust}" if self.robust else ""
        lines[0] += f"; {both}" if (both := self._both_ratios()) else ""
        lines += [f"declared shapes: {self.declared}"] if self.declared else []
        lines += [said] if (said := self._failed_builds()) else []
        lines += [f"kept: {self.kept}"] if self.kept else []
        lines += [f"speed-up against the reference: {self._ratio()}"] if self.speedup is not None else []
        lines += [f"time of a call: {format_time(self.time_us / 1e6)}"] if self.time_us is not None else []
        owed = f"; confirmation run: {self.confirmation}" if self.confirmation else ""
        lines += [f"trust: {self.trust}{owed}"] if self.trust else []
        if self.compiled_speedup is not None:
            lines.append(f"speed-up against torch.compile: {self.compiled_speedup:.3g}")
        lines += [f"baseline: {self.baseline}"] if self.baseline else []
        lines += [f"tier {self.tier}: not timed"] if self.tier not in (None, "performance") else []
        lines += [f"weaker kind of verdict: {self.weaker}"] if self.weaker else []
        lines += [f"the program said {', '.join(self.said)} (not believed)"] if self.said else []
        lines += [f"where it stood ({self.evidence.get('stack')}; not believed):", *self.stack] if self.stack else []
        lines += [f"the candidate wrote (not believed):\n{self.printed}"] if self.printed else []
        lines += self._shape_lines()
        trials = _HIDDEN.sub("", self.trials) if self.covers else self.trials
        lines += [f"also tried, untimed: {trials}"] if trials else []
        lines += [d.line_text() for d in self.diagnostics]
        lines += [
            f"kernel {r.kernel}: {r.registers_per_thread} registers, "
            f"spills {r.spills_text()}, shared {r.shared_bytes} B"
            for r in self.resources
        ]
        attempt = f"attempt {self.attempt_id} of {self.problem_id}" if self.attempt_id else f"of {self.problem_id}"
        lines.append(attempt + (f", job {self.job_id}" if self.job_id else ""))
        where = ", ".join(
            filter(None, [self.device, f"host {self.host}", f"sandbox {self.level}" if self.level else None])
        )
        lines.append(f"on {where}" + (f" (not full: {self.weaker_because})" if self.weaker_because else ""))
        lines += [f"advice: {a}" for a in self.advice]
        lines += self._evidence_lines()
        lines += [f"all samples: read_artifact {self.evidence_artifact_id}"] if self.evidence_artifact_id else []
        if self.seconds:
            lines.append("seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in self.seconds.items()))
        lines += [f"note: {self.note}"] if self.note and self.note not in lines else []
        return join_lines(lines)

    def _failed_builds(self) -> str:
        """Return what the compiler said of extensions that a candidate went on without; empty for any other."""
        return str(self.evidence.get("extensions") or "") if self.fallback else ""

    def _evidence_lines(self) -> list[str]:
        """Say the evidence that other lines do not have."""
        told = {*HASHES, *(("stack",) if self.stack else ()), *(("extensions",) if self._failed_builds() else ())}
        evidence = [f"{k} {v}" for k, v in self.evidence.items() if not isinstance(v, (dict, list)) and k not in told]
        return [f"evidence: {', '.join(evidence)}"] if evidence else []

    def _both_ratios(self) -> str:
        """Say a launch-bound candidate's speed-ups by both clocks; empty for any other, or where one is not known."""
        shapes = self.whole.shapes
        bound = [shape.launch_bound() for shape in shapes if shape.launch_bound()]
        on_gpu = [ratio for shape in shapes if (ratio := shape.gpu_speedup())]
        in_loop = [ratio for shape in shapes if (ratio := shape.loop_speedup())]
        if not bound or self.speedup is None or not len(on_gpu) == len(in_loop) == len(shapes):
            return ""
        alone, loop = (overall_speedup(shapes, ratios) for ratios in (on_gpu, in_loop))
        where = bound[0] if len(shapes) == 1 else f"launch-bound at {len(bound)} of {len(shapes)} shapes"
        ranks = f"{self.speedup:.3g} times by events, " if any(s.basis == "kernelbench" for s in shapes) else ""
        return f"{ranks}{alone:.3g} times on the GPU alone, {loop:.3g} in a loop: {where}"

    def _ratio(self) -> str:
        """Return the speed-up with its range, and why it is a lower bound if a copy is in its time."""
        copied = f", a lower bound: {note}" if (note := self._copy_note()) else ""
        return f"{self.speedup:.3g}{format_range(self.speedup_range())}{copied}"

    def _copy_note(self) -> str:
        """Return the note on a copy in the candidate's time that it could do without; empty if there is none."""
        notes = (note for shape in self.whole.shapes for note in shape.notes if note.startswith(COPIED))
        return next((note for note in notes if ALWAYS_COPIED not in note), "")

    def _shape_lines(self) -> list[str]:
        """Say each shape; what the first lines have already, or a shape before it, is not said again."""
        lines: list[str] = []
        said = {but_numbers(note) for shape in self.shapes if (note := shape.launch_bound()) in self._both_ratios()}
        said |= {but_numbers(self._copy_note())} if self.speedup is not None else set()
        for shape in self.shapes:
            first = shape.reason if shape.reason and shape.reason in self.reason else ""
            line = shape.line_text({*said, but_numbers(first)} if first else said)
            said.update(map(but_numbers, shape.remarks()))
            bare = line == ShapeVerdict(dims=shape.dims, verdict=shape.verdict).line_text()
            lines += [] if bare and (self.covers or self.declared) else [line]
        return lines
