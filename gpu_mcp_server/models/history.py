"""A problem's attempts in the order in which they were made."""

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.ranking import bound_of, trust_place, trust_word
from gpu_mcp_server.time_format import format_time


class HistoryPoint(Model):
    """One evaluation."""

    number: int
    """From 1, in order of time."""
    attempt_id: str
    parent_id: str | None = None
    user: str | None = None
    """Whose it is; absent for what the local user made."""
    created_at: str
    """ISO 8601, UTC."""
    outcome: str
    """correct, incorrect, cheat, voided, or how it ended before there was a verdict."""
    speedup: float | None = None
    """Against the reference, geometric mean over the shapes."""
    speedup_low: float | None = None
    """Lower end of its 95 % interval; absent where the attempt does not say."""
    speedup_high: float | None = None
    by_time: bool = False
    """Whether its time ranks, as the reference is no baseline on this device."""
    median_us: float | None = None
    time_range_us: tuple[float, float] | None = None
    """95 % interval of the time that ranks."""
    shape: str | None = None
    """Shape of the call that `median_us` is of."""
    best: float | None = None
    """Speed-up of the best until then: the first of its ranking, in which confirmed attempts go first."""
    best_us: float | None = None
    """Time of the best until then, where there is no baseline."""
    best_trust: str | None = None
    """Trust in the time of the best until then."""
    robust: str | None = None
    """Whether it is right with other inputs than declared, and what is not."""
    trust: str | None = None
    """Of its time: confirmed, provisional, contradicted, or unconfirmable and why."""
    source_artifact_id: str | None = None
    """For read_artifact."""
    reason: str | None = None
    note: str | None = None


class ExportedBranch(ResultModel):
    """A branch of candidates, each a commit after its parent."""

    branch: str
    commit: str
    commits: int
    """From the first ancestor on."""
    attempt_id: str
    """At its tip."""
    repository: str

    def summary(self) -> str:
        """Say where it is, and how to have it elsewhere."""
        lines = [f"branch {self.branch}: {self.attempt_id} with {self.commits} commits, in {self.repository}"]
        return "\n".join([*lines, f"git fetch {self.repository} {self.branch}   # from any repository of yours"])


class ProblemHistory(ResultModel):
    """All evaluations of one problem on one device."""

    problem_id: str
    name: str
    device: str | None = None
    devices: list[str] = []
    """Devices that have evaluations of this problem; they are never mixed."""
    points: list[HistoryPoint] = []

    def summary(self) -> str:
        """Say how far it came."""
        correct = [point for point in self.points if point.outcome == "correct" and (point.speedup or point.by_time)]
        best = min(correct, key=rank_of, default=None)
        text = f"{self.name} ({self.problem_id}) on {self.device or 'no device'}: {len(self.points)} evaluations"
        if best is None:
            untimed = sum(point.outcome == "correct" for point in self.points)
            return f"{text}, " + (f"{untimed} correct, none with a time" if untimed else "none correct")
        how = f"speed-up {best.speedup:.3g}" if best.speedup else format_time((best.median_us or 0) / 1e6)
        text = f"{text}, best {best.attempt_id} with {how}" + (f", {trust_word(best.trust)}" if best.trust else "")
        text += f" (robust: {best.robust})" if best.robust else ""
        top = max(correct, key=lambda point: point.speedup or 0.0)
        if (top.speedup or 0.0) <= (best.speedup or 0.0):
            return text
        why = trust_word(top.trust) if trust_word(top.trust) != trust_word(best.trust) else "its interval begins lower"
        return f"{text}; {top.attempt_id} shows {top.speedup:.3g}, {why}"


def with_best(point: HistoryPoint, best: HistoryPoint | None) -> HistoryPoint:
    """Return a point that tells the best until then."""
    if best is None:
        return point
    told = {"best": best.speedup, "best_us": None if best.speedup else best.median_us, "best_trust": best.trust}
    return point.model_copy(update=told)


def rank_of(point: HistoryPoint) -> tuple[int, float, float]:
    """Order correct attempts as rankings do, the best least: by trust, then by the speed-up that each has at least."""
    speedups = (point.speedup_low, point.speedup_high or point.speedup_low) if point.speedup_low else None
    return trust_place(point.trust), *bound_of(point.speedup, speedups, point.median_us, point.time_range_us)
