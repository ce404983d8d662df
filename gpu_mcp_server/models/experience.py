"""Experience over all problems: attempts found, lessons, notes."""

from typing import Literal

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.evaluation import format_range
from gpu_mcp_server.text_safety import join_lines

NOTHING = "nothing like it was tried; ask with fewer or other words, or see list_attempts"


class FoundAttempt(Model):
    """An attempt that answers."""

    attempt_id: str
    problem: str
    outcome: str
    speedup: float | None = None
    speedup_range: tuple[float, float] | None = None
    """Its 95 % interval; the lower end orders."""
    trust: str | None = None
    """Of its time: confirmed, provisional, contradicted, or unconfirmable and why."""
    device: str | None = None
    language: str | None = None
    idea: str | None = None
    """Its note."""
    reason: str | None = None
    bottleneck: str | None = None
    """Of the profile that was taken of it."""
    source_artifact_id: str | None = None

    def line_text(self) -> str:
        """Say it on one line."""
        speed = f", speed-up {self.speedup:.3g}{format_range(self.speedup_range)}" if self.speedup is not None else ""
        speed += f", {self.trust}" if self.trust else ""
        about = ", ".join(filter(None, [self.language, self.device]))
        said = "; ".join(filter(None, [self.idea, self.reason, self.bottleneck]))
        return f"{self.attempt_id} {self.problem}: {self.outcome}{speed} ({about}) {said}".rstrip()


class FoundAttempts(ResultModel):
    """Verified rows first, in the order of rankings; then failures."""

    attempts: list[FoundAttempt] = []
    left_out: int | None = None

    def summary(self) -> str:
        """List them."""
        lines = [attempt.line_text() for attempt in self.attempts] or [NOTHING]
        return "\n".join([*lines, *([f"({self.left_out} more)"] if self.left_out else [])])


class Lesson(Model):
    """A lesson of earlier attempts."""

    kind: Literal["technique", "failure", "note", "fix", "advice", "hint"]
    """fix: a failure and what mended it. advice, hint: what followed a profile's advice, or a reflector's hint."""
    says: str
    problem: str | None = None
    before: float | None = None
    """Speed-up of the parent, verified; 1 where the device has no baseline."""
    after: float | None = None
    times: int = 1
    """How often a failure came."""
    attempt_id: str | None = None

    def line_text(self) -> str:
        """Say it on one line."""
        change = f" {self.before:.3g} -> {self.after:.3g}" if self.before and self.after else ""
        count = f" ({self.times} times)" if self.times > 1 else ""
        where = ", ".join(filter(None, [self.problem, self.attempt_id]))
        return f"{self.kind}{change}{count}: {self.says}" + (f" [{where}]" if where else "")


class Lessons(ResultModel):
    """Techniques with before and after, failures that came again, fixes, notes; what advice and hints were worth."""

    lessons: list[Lesson] = []

    def summary(self) -> str:
        """List them."""
        return join_lines(lesson.line_text() for lesson in self.lessons) or "no lessons yet"


class NoteResult(ResultModel):
    """A note that others will read."""

    note_id: str

    def summary(self) -> str:
        """Say so."""
        return f"kept as {self.note_id}; lessons shows it"
