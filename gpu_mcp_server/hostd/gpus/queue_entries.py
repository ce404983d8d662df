"""Entries of the queue for GPUs: requests, leases and grants. No I/O."""

from dataclasses import dataclass
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from .fair_share import ShareOwner

MAX_SHARERS = 4
SHARED_WEIGHT = 1.0 / MAX_SHARERS


@dataclass
class Request:
    """Request of one connection.

    Attributes:
        number: Of the connection.
        names: GPUs that fit, or `processor`.
        user: Who it is for, as the login says; `weight` is its share.
        kind: What the job is of, by which its time is foretold.
        links: For each GPU those joined to it by NVLink; None where that does not matter.
        foreign: What to do about processes that are not ours: `wait`, `warn` or `other`.
        since: When it began to wait, on the host's monotonic clock.
        limit_s: The job's own wall limit.
        ready: Whether its job can use GPUs at once; if not, it keeps its place and others are let past.
        near_since: Since when its processes may start ahead of its turn; None before.
        foreseen: The GPUs for which they may start, of several that fit. The sandbox shows no others.
        claim: The GPUs held back for it.
    """

    number: int
    names: Tuple[str, ...]
    count: int
    mode: str
    uid: int = 0
    user: str = ""
    weight: float = 1.0
    job: str = ""
    kind: str = ""
    priority: str = "interactive"
    foreign: str = "other"
    since: float = 0.0
    limit_s: Optional[float] = None
    links: Optional[Mapping[str, Sequence[str]]] = None
    ready: bool = True
    near_since: Optional[float] = None
    foreseen: Tuple[str, ...] = ()
    claim: Tuple[str, ...] = ()

    @property
    def is_exclusive(self) -> bool:
        """Say whether it wants its GPUs for itself."""
        return self.mode == "exclusive"

    @property
    def share_owner(self) -> ShareOwner:
        """Return whose it is."""
        return ShareOwner(self.uid, self.user, self.weight)

    @property
    def load(self) -> float:
        """Return how many GPUs' time it costs."""
        return self.count * (1.0 if self.is_exclusive else SHARED_WEIGHT)


@dataclass
class GrantedLease:
    """GPUs that a connection was given.

    Attributes:
        idle_since: When its holder said that it does not use them; None while it does.
        idle_s: How long it may be idle before it is asked to leave.
        told: Whether it was asked to.
        gap_until: When the one ahead may want the GPUs, where they were lent from what is held back for it.
    """

    request: Request
    names: Tuple[str, ...]
    since: float
    idle_since: Optional[float] = None
    idle_s: float = 0.0
    told: bool = False
    gap_until: Optional[float] = None


class GpuState(NamedTuple):
    """State of a GPU, leases aside."""

    taken: str = ""
    """Why nobody can be put on it now, in words."""
    foreign: Tuple[int, ...] = ()
    """Compute processes that are not ours."""


class Grant(NamedTuple):
    """A request that is served."""

    request: Request
    names: Tuple[str, ...]
    notes: Tuple[str, ...]
    gap_until: Optional[float] = None


class QueuePosition(NamedTuple):
    """Place of a request in the queue, and its expected wait."""

    position: int
    """1 is the next among those who want the same GPUs."""
    wait_s: Optional[float]
    """Expected; None while nothing is known."""
    why: str
