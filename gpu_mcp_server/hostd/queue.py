"""Who is next: the order in which those who wait for GPUs get them. No I/O; the broker asks and acts.

Order: class of priority (each rises by one after AGE_S of waiting), then the user's GPU seconds, decayed, then those of
the label within one user (several people may share a login), then arrival. A user who waits earns credit, so that
nobody waits for ever. Whoever is not served and wants a GPU alone, or several, has GPUs held back for it: nobody behind
it is put on them, so sharers without end and takers of single GPUs starve nobody. Grants are all or none.
"""

from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

PRIORITIES = ("interactive", "batch", "background")
AGE_S = 600.0
HALF_LIFE_S = 3600.0
CREDIT = 0.1
"""GPU seconds that a second of waiting is worth: small, so that a long queue of one's own buys little."""
MAX_SHARERS = 4
SHARED_WEIGHT = 1.0 / MAX_SHARERS
LEARNING = 0.3
"""Weight of the newest hold in the mean by which waits are foretold."""


@dataclass
class Request:
    """What one connection wants.

    Attributes:
        number: Of the connection.
        names: GPUs that fit, or `processor`.
        links: For each GPU those joined to it by NVLink; None where that does not matter.
        foreign: What to do about processes that are not ours: `wait`, `warn` or `other`.
        since: When it began to wait, on the host's monotonic clock.
        limit_s: The job's own wall limit.
        claim: The GPUs held back for it.
    """

    number: int
    names: Tuple[str, ...]
    count: int
    mode: str
    uid: int = 0
    user: str = ""
    job: str = ""
    priority: str = "interactive"
    foreign: str = "other"
    since: float = 0.0
    limit_s: Optional[float] = None
    links: Optional[Mapping[str, Sequence[str]]] = None
    claim: Tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Say whether it wants its GPUs for itself."""
        return self.mode == "exclusive"


@dataclass
class Lease:
    """GPUs that a connection was given.

    Attributes:
        idle_since: When its holder said that it does not use them; None while it does.
        idle_s: How long it may be idle before it is asked to leave.
        told: Whether it was asked to.
    """

    request: Request
    names: Tuple[str, ...]
    since: float
    idle_since: Optional[float] = None
    idle_s: float = 0.0
    told: bool = False


class Look(NamedTuple):
    """How a GPU is found, leases aside."""

    taken: str = ""
    """Why nobody can be put on it now, in words."""
    foreign: Tuple[int, ...] = ()
    """Compute processes that are not ours."""


class Grant(NamedTuple):
    """A request that is served."""

    request: Request
    names: Tuple[str, ...]
    notes: Tuple[str, ...]


class Standing(NamedTuple):
    """Where a request stands."""

    position: int
    """1 is the next among those who want the same GPUs."""
    wait_s: Optional[float]
    """Expected; None while nothing is known."""
    why: str


class Queue:
    """Requests and leases of one host.

    Args:
        look: Looks at a GPU, for a mode.
    """

    def __init__(self, look: Callable[[str, str], Look]) -> None:
        self._look = look
        self.waiting: Dict[int, Request] = {}
        self.leases: Dict[int, Lease] = {}
        self._usage: Dict[Tuple[int, str], Tuple[float, float]] = {}
        self._mean_s: Optional[float] = None

    def release(self, number: int, now: float) -> None:
        """Forget a connection and charge its user for what it held."""
        self.waiting.pop(number, None)
        lease = self.leases.pop(number, None)
        if lease is None:
            return
        held = max(0.0, now - lease.since)
        cost = held * len(lease.names) * (1.0 if lease.request.alone else SHARED_WEIGHT)
        for key in ((lease.request.uid, ""), (lease.request.uid, "/" + lease.request.user)):
            self._usage[key] = (self._used(key, now) + cost, now)
        if lease.idle_s == 0.0:  # a reservation's length says nothing about jobs
            self._mean_s = held if self._mean_s is None else (1 - LEARNING) * self._mean_s + LEARNING * held

    def take_back(self, number: int) -> None:
        """Put a request that could not use its grant back to its place."""
        lease = self.leases.pop(number, None)
        if lease is not None:
            self.waiting[number] = lease.request

    def _used(self, key: Tuple[int, str], now: float) -> float:
        value, at = self._usage.get(key, (0.0, now))
        return value * 0.5 ** ((now - at) / HALF_LIFE_S)

    def ordered(self, now: float) -> List[Request]:
        """Return those who wait, the next first."""
        scores: Dict[Tuple[int, str], float] = {}
        for request in self.waiting.values():
            for key in ((request.uid, ""), (request.uid, "/" + request.user)):
                waited = CREDIT * max(0.0, now - request.since)
                scores[key] = min(scores.get(key, 0.0), -waited)
        for key in scores:
            scores[key] += self._used(key, now)
        for lease in self.leases.values():
            weight = len(lease.names) * (1.0 if lease.request.alone else SHARED_WEIGHT)
            for key in ((lease.request.uid, ""), (lease.request.uid, "/" + lease.request.user)):
                if key in scores:
                    scores[key] += weight * (1.0 + now - lease.since)

        def place(request: Request) -> Tuple[int, float, float, float, int]:
            known = PRIORITIES.index(request.priority) if request.priority in PRIORITIES else 1
            rank = known - int(max(0.0, now - request.since) / AGE_S)
            uid, user = request.uid, "/" + request.user
            return (max(0, rank), scores[(uid, "")], scores[(uid, user)], request.since, request.number)

        return sorted(self.waiting.values(), key=place)

    def pump(self, now: float) -> List[Grant]:
        """Serve whoever can be served, and hold GPUs back for those who cannot."""
        grants: List[Grant] = []
        while True:
            grant = self._next(now)
            if grant is None:
                return grants
            del self.waiting[grant.request.number]
            self.leases[grant.request.number] = Lease(grant.request, grant.names, now)
            grants.append(grant)

    def _next(self, now: float) -> Optional[Grant]:
        held_back: Set[str] = set()
        for request in self.ordered(now):
            open_to = [n for n in request.names if n not in held_back]
            looks = {n: self._look_at(n, request) for n in open_to}
            free = [n for n in open_to if not looks[n].taken]
            chosen = self._chosen(request, free, looks)
            if chosen:
                notes = [_stranger(n, looks[n].foreign) for n in chosen if request.alone and looks[n].foreign]
                return Grant(request, tuple(chosen), tuple(notes))
            self._claim(request, open_to, set(free), now)
            if request.alone or request.count > 1:
                held_back.update(request.claim)
        return None

    def _look_at(self, name: str, request: Request) -> Look:
        on = [lease for lease in self.leases.values() if name in lease.names]
        if on and (request.alone or any(lease.request.alone for lease in on)):
            return Look("held")
        if len(on) >= MAX_SHARERS:
            return Look("shared by %d already" % len(on))
        look = self._look(name, request.mode)
        if not look.taken and look.foreign and request.alone and request.foreign == "wait":
            return Look(_stranger(name, look.foreign), look.foreign)
        return look

    def _chosen(self, request: Request, free: List[str], looks: Dict[str, Look]) -> List[str]:
        def better(name: str) -> Tuple[bool, int]:
            sharers = sum(1 for lease in self.leases.values() if name in lease.names)
            return bool(looks[name].foreign) and request.foreign != "warn", -sharers

        return joined(sorted(free, key=better), request.count, request.links)

    def _claim(self, request: Request, names: List[str], free: Set[str], now: float) -> None:
        """Choose the GPUs that the request waits for: those free already, those it chose before, those free soonest."""

        def soonest(name: str) -> Tuple[bool, bool, float]:
            return name not in free, name not in request.claim, self._left_s(name, now) or 0.0

        request.claim = tuple(joined(sorted(names, key=soonest), request.count, request.links))

    def _left_s(self, name: str, now: float) -> Optional[float]:
        """Return how long a GPU will be held yet, as far as that can be foretold; None when it cannot."""
        holders = [lease for lease in self.leases.values() if name in lease.names]
        if not holders and self._look(name, "exclusive").taken:
            return self._mean_s  # held since before this broker, or without it
        left = 0.0
        for lease in holders:
            held = now - lease.since
            known = [t for t in (self._mean_s, lease.request.limit_s) if t is not None]
            if not known:
                return None
            expected = min(known) - held
            left = max(left, expected if expected > 0 else 0.1 * held)
        return left

    def standing(self, request: Request, order: Sequence[Request], now: float) -> Standing:
        """Say where a request stands in the order."""
        wanted = set(request.names)
        ahead = [r for r in order[: order.index(request)] if wanted & set(r.names)]
        return Standing(len(ahead) + 1, self._wait_s(request, ahead, now), self.why(request, order, now))

    def _wait_s(self, request: Request, ahead: Sequence[Request], now: float) -> Optional[float]:
        left = [self._left_s(n, now) for n in request.names]
        soonest = sorted(t for t in left if t is not None)
        if len(soonest) < len(left) or (ahead and self._mean_s is None):
            return None
        first = soonest[request.count - 1]
        share = sum(r.count if r.alone else r.count * SHARED_WEIGHT for r in ahead) / len(request.names)
        return first + share * (self._mean_s or 0.0)

    def why(self, request: Request, order: Sequence[Request], now: float) -> str:
        """Say what a request waits for, by the first of the GPUs that it claims and cannot have."""
        for name in request.claim or request.names:
            holders = [lease for lease in self.leases.values() if name in lease.names]
            if holders and (request.alone or holders[0].request.alone):
                lease = holders[0]
                others = " and %d others" % (len(holders) - 1) if len(holders) > 1 else ""
                idle = "reserved and idle" if lease.idle_since is not None else "held"
                return "%s is %s by %s%s for %d s" % (name, idle, _who(lease.request), others, now - lease.since)
            taken = self._look_at(name, request).taken
            if taken:
                return taken
        keeper = next((r for r in order if r is not request and set(r.claim) & set(request.names)), None)
        return "GPUs are held back for %s, which is ahead" % _who(keeper) if keeper else "others are ahead"

    def to_leave(self, now: float) -> List[int]:
        """Return the idle holders that are in the way of somebody who waits; each is named once."""
        wanted: Set[str] = set()
        for request in self.waiting.values():
            wanted.update(request.claim)
        asked: List[int] = []
        for number, lease in self.leases.items():
            overdue = lease.idle_since is not None and now - lease.idle_since >= lease.idle_s
            if overdue and not lease.told and wanted & set(lease.names):
                lease.told = True
                asked.append(number)
        return asked

    def next_idle_at(self) -> Optional[float]:
        """Return when the next idle holder may be asked to leave."""
        due = [lease.idle_since + lease.idle_s for lease in self.leases.values() if lease.idle_since and not lease.told]
        return min(due) if due and self.waiting else None


def joined(names: Sequence[str], count: int, links: Optional[Mapping[str, Sequence[str]]]) -> List[str]:
    """Return `count` of the names, the first that will do; where links matter, all joined to each other; or none."""
    if links is None or count < 2:
        return list(names[:count]) if len(names) >= count else []

    def grow(chosen: List[str], rest: Sequence[str]) -> List[str]:
        if len(chosen) == count:
            return chosen
        for at, name in enumerate(rest):
            peers = set(links.get(name, ()))
            more = grow([*chosen, name], [n for n in rest[at + 1 :] if n in peers])
            if more:
                return more
        return []

    return grow([], list(names))


def _who(request: Request) -> str:
    return "%s of %s" % (request.job or "a job", request.user or "uid %d" % request.uid)


def _stranger(name: str, pids: Sequence[int]) -> str:
    return "%s is used by processes that are not ours: pids %s" % (name, ", ".join(map(str, pids[:8])))
