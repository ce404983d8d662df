"""Attempts: a row for every compile, run and evaluation."""

from typing import Any, Literal, get_args

from gpu_mcp_server.models._base import Model, PagedModel, ResultModel
from gpu_mcp_server.models.evaluation import HASHES, format_range
from gpu_mcp_server.text_safety import join_lines
from gpu_mcp_server.time_format import format_time, format_time_range

AttemptKind = Literal["compile", "run", "evaluate", "confirm", "check", "profile", "nccl"]
"""confirm: an evaluation that was judged again, from its record."""
Outcome = Literal["confirmed", "voided", "not_comparable", "not_judged"]
NOBODYS = "'cancelled', 'caller_lost', 'abandoned', 'broken', 'error', 'refused', 'no_gpu'"
"""How attempts end that are nobody's failure, in SQL's words: the machine or the caller ended them; of kernels they
teach nothing."""
NONE_YET = "evaluate_kernel makes one; view recent shows those of all kinds"
UNTIMED = "best has correct ones; view recent shows the others"
SHOWN = 5
"""Attempts of a ranking in words; the data has all."""


DERIVED = frozenset(
    ("robust", "speedup_range", "time_range_us", "shape", "trust", "confirmation", "rank", "tied_with", "source")
)
"""Fields of an attempt that follow from others, and are in no column."""


class Attempt(Model):
    """One thing that was tried."""

    attempt_id: str
    kind: AttemptKind
    created_at: str
    """ISO 8601, UTC."""
    status: str
    """running, or how it ended: judged, ok, failed, compile_failed, timeout ..."""
    verdict: str | None = None
    reason: str | None = None
    """Why, or the first error."""
    problem_id: str | None = None
    problem_hash: str | None = None
    parent_id: str | None = None
    source_hash: str | None = None
    source_artifact_id: str | None = None
    """For read_artifact."""
    source_name: str | None = None
    """Name of its file, as it was given."""
    language: str | None = None
    host: str | None = None
    device: str | None = None
    driver: str | None = None
    versions: dict[str, str] | None = None
    """Of compiler, judge, NumPy, torch; and `arch`, the device's architecture."""
    median_us: float | None = None
    """Of the candidate at the last shape."""
    speedup: float | None = None
    robust: str | None = None
    """Whether it is right with other inputs than declared, and what is not."""
    speedup_range: tuple[float, float] | None = None
    """Geometric means of the shapes' 95 % intervals; its lower end ranks."""
    time_range_us: tuple[float, float] | None = None
    """The same of the time of a call, where there is no baseline."""
    shape: str | None = None
    """Where median_us was taken."""
    trust: str | None = None
    """Of its time: confirmed, provisional, contradicted, or unconfirmable and why."""
    confirmation: str | None = None
    """How its confirmation run stands: owed, running, or why there is none."""
    rank: int | None = None
    """In view best; attempts whose intervals overlap share one."""
    tied_with: str | None = None
    """The first of its rank."""
    source: str | None = None
    """Where it was asked for."""
    level: str | None = None
    job_id: str | None = None
    note: str | None = None
    """What the agent said it tried."""
    flags: str | None = None
    """Compiler flags, as a JSON list."""
    entry: str | None = None
    """Launcher, when it is not `launch`."""
    target: str | None = None
    """cpu or cuda."""
    tier: str | None = None
    """How far it was judged."""
    batch_id: str | None = None
    """The call of evaluate_kernels that it was judged in."""
    voided: str | None = None
    """Why an audit voided it; it is in no ranking then."""
    evidence: dict[str, Any] | None = None
    """Only when one attempt is asked for."""

    def line_text(self) -> str:
        """Say it on one line."""
        parts = [self.attempt_id, self.kind, self.verdict or self.status]
        parts = [f"{self.rank}.", *parts] if self.rank is not None else parts
        if self.speedup is not None:
            parts.append(f"speed-up {self.speedup:.3g}{format_range(self.speedup_range)}")
        if self.robust is not None:
            parts.append(f"robust: {self.robust}")
        if self.median_us is not None:
            ends = self.time_range_us if self.speedup is None else None
            said = f" ({format_time_range(ends[0] / 1e6, ends[1] / 1e6)})" if ends else ""
            parts.append(format_time(self.median_us / 1e6) + said + (f" at {self.shape}" if self.shape else ""))
        parts += [self._trust_text()] if self.trust else []
        named = {"parent": self.parent_id, "source": self.source_artifact_id, "tied with": self.tied_with}
        parts += [p for p in (self.language, self.device) if p]
        parts += [f"{name} {handle}" for name, handle in named.items() if handle]
        text = "  ".join(parts)
        voided = f"voided: {self.voided}" if self.voided else None
        for extra in (voided, self.note, self.reason):
            if extra:
                text += f"\n{extra}"
        if self.evidence:
            told = {*HASHES, "robust", "timed_at", "unconfirmable", "speedup_range"}
            text += "\nevidence: " + ", ".join(
                f"{k} {_short(v)}" for k, v in self.evidence.items() if k not in told and v != []
            )
        text += f"\n{self.source}" if self.source else ""
        return join_lines([text])

    def _trust_text(self) -> str:
        return f"{self.trust}" + (f", confirmation {self.confirmation}" if self.confirmation else "")


def _short(value: Any) -> str:
    """Return a piece of evidence as text, numbers with four digits; the data has all of them."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"[{', '.join(map(_short, value))}]" if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


class AttemptList(PagedModel, ResultModel):
    """Attempts in the order that was asked for."""

    view: str
    attempts: list[Attempt]
    devices: list[str] = []
    """Devices that have attempts here; `best` shows one at a time."""
    news: list[str] = []
    """Attempts at the problem that were voided since the last answer about it; shown first."""

    @property
    def left_out(self) -> int | None:
        """The number of attempts that come behind these; `None` if none does."""
        return self.count_after(len(self.attempts)) or None

    def summary(self) -> str:
        """List them."""
        return "\n".join([*self.news, self._text()])

    def _text(self) -> str:
        if self.offset and not self.attempts:
            return f"no attempts ({self.view}) behind {self.offset}"
        if not self.attempts:
            where = f"devices with attempts: {'; '.join(self.devices)}" if self.devices else NONE_YET
            untimed = f"; {UNTIMED}" if self.view == "best" and self.devices else ""
            return f"no attempts ({self.view}); {where}{untimed}"
        lines = [f"{self.view}:", *(a.line_text() for a in self.attempts)]
        if page := self.page_text(len(self.attempts)):
            lines.append(f"{page[:-1]}; problem_id, device or another view narrow the list)")
        if len(self.devices) > 1:
            lines.append("devices with attempts: " + "; ".join(self.devices))
        return "\n".join(lines)


class OldBoard(Model):
    """One ranking's correct verdicts that may have been forged, the best first."""

    problem_id: str | None = None
    name: str
    """The problem's."""
    problem_hash: str | None = None
    device: str | None = None
    driver: str | None = None
    attempts: list[Attempt] = []

    def line_text(self) -> str:
        """Say which ranking it is."""
        return f"{self.name} ({self.problem_id}) on {self.device or 'no device'}, driver {self.driver or 'unknown'}"


class OldVerdicts(ResultModel):
    """Correct verdicts of versions in which a candidate could forge one, by ranking."""

    boards: list[OldBoard]

    def summary(self) -> str:
        """List them, the best of each ranking first."""
        if not self.boards:
            return "every correct verdict is by a version that keeps candidates from forging one, or was audited"
        lines: list[str] = []
        for board in self.boards:
            lines.append(f"{board.line_text()}: {len(board.attempts)} verdicts of older versions, the best first")
            lines += [f"  {line}" for line in "\n".join(a.line_text() for a in board.attempts[:SHOWN]).splitlines()]
            if len(board.attempts) > SHOWN:
                lines.append(f"  ({len(board.attempts) - SHOWN} more)")
        return join_lines(
            [*lines, "A candidate that left its sandbox may have forged any; --redo judges the bests again."]
        )


class AuditResult(ResultModel):
    """Outcome of judging an attempt again."""

    attempt_id: str
    audit_attempt_id: str
    """The second run, recorded as an attempt of its own."""
    outcome: Outcome
    why: str
    verdict_before: str
    verdict_now: str | None = None
    speedup_before: float | None = None
    speedup_now: float | None = None

    def summary(self) -> str:
        """Say the outcome first."""
        lines = [f"{self.outcome}: {self.attempt_id}; {self.why}"]
        before = f"{self.verdict_before}" + (f", speed-up {self.speedup_before:.3g}" if self.speedup_before else "")
        now = f"{self.verdict_now}" + (f", speed-up {self.speedup_now:.3g}" if self.speedup_now else "")
        return join_lines([*lines, f"before: {before}", f"now: {now} (attempt {self.audit_attempt_id})"])


class RedoneVerdicts(ResultModel):
    """Outcome of judging the bests of older versions again."""

    audits: list[AuditResult]
    failed: list[str] = []
    """Of each attempt that could not be judged again, why."""

    def summary(self) -> str:
        """Say each outcome."""
        counts = {outcome: sum(a.outcome == outcome for a in self.whole.audits) for outcome in get_args(Outcome)}
        said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
        first = f"judged again: {said or 'none'}" + (
            f"; could not be judged: {len(self.whole.failed)}" if self.failed else ""
        )
        return join_lines([first, *(audit.summary() for audit in self.audits), *self.failed])
