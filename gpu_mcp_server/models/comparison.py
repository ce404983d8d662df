"""Many candidates judged in one call, and the kernels of two revisions, each as one table."""

from typing import Literal, get_args

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.evaluation import Tier, Verdict, format_range
from gpu_mcp_server.text_safety import join_lines
from gpu_mcp_server.time_format import format_time


class CandidateSpec(Model):
    """A candidate of `evaluate_kernels`: source or path, as for `evaluate_kernel`."""

    name: str = Field(min_length=1, max_length=60)
    source: str | None = Field(default=None, max_length=2**20)
    path: str | None = None
    workspace_id: str | None = None
    language: CandidateLanguage | None = None
    flags: tuple[str, ...] = ()
    entry: str = "launch"
    fresh: bool = False
    """Judge it even where an identical request was judged."""


LEFT = {"running": "job_status for running ones", "not_begun": "call again for those not begun"}
"""What gets the verdict that a row does not have yet."""


class ComparisonRow(Model):
    """Result of one candidate of a batch."""

    name: str
    status: Literal["judged", "compile_failed", "running", "refused", "not_begun", "error"]
    """running: job_status has the verdict later. not_begun: wait_s was over before its turn."""
    verdict: Verdict | None = None
    speedup: float | None = None
    ranked_by_time: bool = False
    """Whether the reference is no baseline on this device: the time of a call ranks."""
    trust: str = ""
    """Of its time: confirmed, provisional, or unconfirmable and why; in this order they rank."""
    confirmation: str = ""
    """How its confirmation run stands, where it owes one."""
    speedup_range: tuple[float, float] | None = None
    """Of the shapes' intervals; the lower end ranks."""
    time_range_us: tuple[float, float] | None = None
    """95 % interval of the time of a call, where times rank; its upper end ranks."""
    rank: int | None = None
    """Rows whose intervals overlap share one."""
    time_us: float | None = None
    """Geometric mean over the shapes; see `shapes` for the intervals."""
    shapes: list[str] = []
    """Time and 95 % interval at each shape, and the reference's that the speed-up was taken against."""
    robust: str = ""
    """Whether it is right with other inputs than declared, and what is not."""
    reason: str = ""
    kept: str = ""
    """Since when, where it is the verdict of an identical request."""
    attempt_id: str | None = None
    job_id: str | None = None

    def line_text(self) -> str:
        """Say it on one line."""
        text = f"{self.name}: {self.verdict or self.status}"
        if self.speedup is not None:
            text += f", speed-up {self.speedup:.3g}{format_range(self.speedup_range)}"
        text += f", {self.trust}" if self.trust else ""
        text += f" (confirmation {self.confirmation})" if self.confirmation else ""
        if self.time_us is not None:
            text += f", {format_time(self.time_us / 1e6)} (mean of the shapes)"
        text += f"; {', '.join(self.shapes)}" if self.shapes else ""
        text += f"; {self.reason}" if self.reason else ""
        text += f"; robust: {self.robust}" if self.robust else ""
        text += f"; {self.kept}" if self.kept else ""
        return text + (f" [{', job '.join(filter(None, (self.attempt_id, self.job_id)))}]" if self.attempt_id else "")


class Comparison(ResultModel):
    """The table, best first."""

    batch_id: str
    problem_id: str
    tier: Tier
    host: str
    rows: list[ComparisonRow]
    reference: list[str] = []
    """The reference's shortest time at each shape, over all rows."""
    news: list[str] = []
    """Attempts at this problem that were voided since the last answer about it; shown first."""
    complete: bool
    """Whether every candidate has its verdict or does not compile."""
    seconds: float
    note: str | None = None

    def summary(self) -> str:
        """Say the table."""
        count = len(self.whole.rows)
        head = f"{count} candidate{'s' * (count != 1)} of {self.problem_id}, tier {self.tier}, best first:"
        lines = [*self.news, head]
        lines += [f"{row.rank or number}. {row.line_text()}" for number, row in enumerate(self.rows, 1)]
        if len(self.rows) < count:
            lines += [f"{count - len(self.rows)} more are not shown here: list_attempts with view recent shows them"]
        lines += [f"reference: {', '.join(self.reference)}"] if self.reference else []
        found = {row.status for row in self.whole.rows}
        left = [text for status, text in LEFT.items() if status in found]
        lines += [] if self.complete else [f"not complete: {', '.join(left) or 'the reasons say why'}"]
        lines += [f"note: {self.note}"] if self.note else []
        return join_lines([*lines, f"batch {self.batch_id} on {self.host}, {self.seconds:.1f} s"])


ChangeStatus = Literal["slower", "wrong", "refused", "faster", "same", "unknown", "new", "removed"]
"""wrong: not correct after the change. refused: it could not be judged. same: a change of 3 % is excluded. unknown: it
is not. new: correct, and there is nothing to compare it with."""
FAILING: tuple[ChangeStatus, ...] = ("slower", "wrong", "refused")
"""Statuses with which `compare` ends with exit code 1."""
_MARKS = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]()#+!|~>@$"} | {"<": "&lt;", "&": "&amp;", "\n": " "})


class KernelChange(Model):
    """A kernel before and after a change."""

    name: str
    """Folder of its `problem.toml`, and the implementation's name in it."""
    status: ChangeStatus
    speed: float | None = None
    """Time before over time after, mean of the turns' ratios: below 1 the kernel became slower."""
    low: float | None = None
    high: float | None = None
    """Ends of its interval: of 99.5 % where half of the turns may decide, else of 99 %."""
    turns: int = 0
    """Pairs of judgements that count."""
    log_ratios: list[float] = []
    """Of each pair the logarithm of time before over time after."""
    base_us: float | None = None
    """Middle of the turns' times before; of several shapes the geometric mean, of recorded calls their sum."""
    head_us: float | None = None
    device: str | None = None
    base_attempts: list[str] = []
    head_attempts: list[str] = []
    note: str = ""

    def _speed_text(self) -> str:
        speed = "-" if self.speed is None else f"{self.speed:.3f}"
        return speed + (
            f" ({self.low:.3f} to {self.high:.3f})" if self.low is not None and self.high is not None else ""
        )

    def line_text(self) -> str:
        """Return status, speed and note on one line, printed before the table is complete."""
        speed = f", {self._speed_text()} times as fast as before" if self.speed is not None else ""
        return f"{self.status}{speed}" + (f"; {' '.join(self.note.split())[:160]}" if self.note else "")

    def row_text(self) -> str:
        """Return a row of a Markdown table; texts of the change's author cannot format it."""
        speed = self._speed_text()
        times = [format_time(us / 1e6) if us is not None else "-" for us in (self.base_us, self.head_us)]
        evidence = ", ".join(filter(None, (*self.base_attempts[:1], *self.head_attempts[:1]))) or "-"
        cells = [_plain(self.name), f"**{self.status}**", speed, *times, evidence, _plain(self.note)]
        return f"| {' | '.join(cells)} |"


class KernelChanges(ResultModel):
    """Result of `compare`: the kernels that a change touches, against those before it."""

    base: str
    head: str
    rows: list[KernelChange]
    untouched: int
    """Kernels that are the same in both."""
    turns: int
    host: str
    seconds: float

    def fails(self) -> bool:
        """Return whether a kernel became slower or wrong, or could not be judged."""
        return any(row.status in FAILING for row in self.rows)

    def summary(self) -> str:
        """Return a table as Markdown, for a pull request."""
        counts = {status: sum(row.status == status for row in self.rows) for status in get_args(ChangeStatus)}
        said = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "no kernel is touched"
        lines = [f"### Kernels: {said}", ""]
        if self.rows:
            lines += ["| kernel | | speed, base = 1 | base | head | first attempts | note |"]
            lines += ["| --- | --- | --- | --- | --- | --- | --- |", *(row.row_text() for row in self.rows), ""]
        devices = ", ".join(sorted({row.device for row in self.rows if row.device}))
        if not self.rows and not self.untouched:
            lines += [
                "No kernel is there to compare: no `problem.toml` of either tree has a table `[implementations]`."
            ]
        unchanged = "1 kernel is" if self.untouched == 1 else f"{self.untouched} kernels are"
        lines += [f"{unchanged} unchanged. Base `{_code(self.base)}`, head `{_code(self.head)}`."]
        if devices:
            lines += [f"Judged on {_plain(devices)}, host {_plain(self.host)}, up to {self.turns} turns each, "
                      f"{self.seconds:.0f} s."]  # fmt: skip
        return "\n".join(lines)


def _plain(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return " ".join(text.split())[:300].translate(_MARKS)


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:100]
