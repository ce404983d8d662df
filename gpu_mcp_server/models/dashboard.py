"""Rows of the store that dashboard pages show."""

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.attempt import Attempt


class Ranking(Model):
    """A ranking: evaluations of one problem on one device under one driver, which alone can be compared."""

    problem_hash: str | None = None
    """Of the problem's content at the time; another content is another board."""
    device: str
    driver: str | None = None
    """None on a processor."""
    evaluations: int
    correct: int
    best: float | None = None
    """Speed-up of the attempt that the ranking begins with: confirmed ones go first."""
    best_us: float | None = None
    """Time of a call of that attempt, where there is no baseline."""
    best_trust: str | None = None
    """Trust in that time."""


class ProblemLine(Model):
    """One problem in a list."""

    problem_id: str
    name: str
    created_at: str
    evaluations: int
    correct: int
    last_at: str | None = None
    """Of the newest evaluation."""
    boards: list[Ranking] = []
    """Most evaluations first."""


class AttemptLine(Model):
    """One attempt in a list."""

    attempt_id: str
    kind: str
    created_at: str
    outcome: str
    """Its verdict, voided, or how it ended without one."""
    problem_id: str | None = None
    problem: str | None = None
    """The problem's name."""
    user: str | None = None
    language: str | None = None
    host: str | None = None
    device: str | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    median_us: float | None = None
    time_low_us: float | None = None
    """95 % interval of the time, where it ranks."""
    time_high_us: float | None = None
    shape: str | None = None
    """Shape of the call that `median_us` is of."""
    trust: str | None = None
    """In the time: confirmed, provisional, contradicted, or unconfirmable and why."""
    source_artifact_id: str | None = None
    """Of the candidate's source; `read_artifact` reads it."""
    said: str | None = None
    """Why it was voided, its reason, or its note."""


class UserLine(Model):
    """One user of the server."""

    name: str
    project: str | None = None
    weight: float
    created_at: str
    tokens: int
    """Active ones, sessions of the dashboard apart."""
    last_used_at: str | None = None
    """Of any token."""
    jobs: int
    unfinished_jobs: int
    attempts: int


class DayUse(Model):
    """Use of one user on one day, UTC."""

    day: str
    jobs: int
    gpu_s: float
    """Seconds times GPUs of finished jobs that began that day."""
    wall_s: float
    failed: int


class AttemptContext(Model):
    """Profiles, checks and children of an attempt, and the run that it belongs to."""

    profiles: list[Attempt] = []
    """Newest first."""
    checks: list[Attempt] = []
    children: list[Attempt] = []
    """Evaluations that name it as their parent, newest first; at most 50."""
    run_id: str | None = None
    """The headless run that made it."""
