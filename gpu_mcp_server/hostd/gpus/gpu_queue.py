"""The order in which waiting jobs get GPUs. No I/O; the broker asks and acts.

Order: class of priority (each rises by one after AGE_S of waiting), then what the owner used for its weight
(`fair_share`), then what the person within the owner used, then arrival. A waiting job earns credit, so none waits for
ever. The queue holds GPUs back for a waiting job that wants a GPU alone, or several. No later job gets them: jobs that
share GPUs or take single ones starve nobody. A gap is the exception: a later job may run there if its longest time
(from `runtime_history`, or its own limit) ends before the earlier job can start. A user whose job overran a gap gets no
other for a while. A job gets all of its GPUs or none.
"""

import math
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..protocol import PRIORITIES
from .fair_share import FairShare, ShareOwner
from .gpu_locks import PROCESSOR
from .gpu_matching import choose_gpus
from .head_start import MAX_SHARERS, HeadStarts, Waiting, count_cores, most_windowed
from .runtime_history import Kind, RuntimeHistory

AGE_S = 600.0
NO_GAPS_S = 600.0
"""For so long who overran a gap is given none."""


@dataclass
class Request(Waiting):
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
    claim: Tuple[str, ...] = ()

    @property
    def is_exclusive(self) -> bool:
        """Say whether it wants its GPUs for itself."""
        return self.mode == "exclusive"

    @property
    def is_timed(self) -> bool:
        """Say whether it times something: strangers on its GPU matter."""
        return self.mode != "shared"

    @property
    def share_owner(self) -> ShareOwner:
        """Return whose it is."""
        return ShareOwner(self.uid, self.user, self.weight)


@dataclass
class GrantedLease:
    """GPUs that a connection was given.

    Attributes:
        idle_since: When its holder said that it does not use them; None while it does.
        idle_s: How long it may be idle before it is asked to leave.
        told: Whether it was asked to.
        charged_s: GPU seconds so far, its part of GPUs that others share.
        gap_until: When the one ahead may want the GPUs, where they were lent from what is held back for it.
    """

    request: Request
    names: Tuple[str, ...]
    since: float
    idle_since: Optional[float] = None
    idle_s: float = 0.0
    told: bool = False
    charged_s: float = 0.0
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


class Queue:
    """Requests and leases of one host.

    Args:
        look: Looks at a GPU, for a mode.

    Attributes:
        shut: Says why nothing new of a login is begun on this host, or nothing.
        starts: Chooses the jobs whose processes start ahead of their turn.
        most_on_processor: Jobs that may share the processor.
        beside: Whether somebody waits for a GPU that is taken beside all leases: nobody will say when it is free.
    """

    def __init__(self, look: Callable[[str, str], GpuState]) -> None:
        self._look = look
        self.waiting: Dict[int, Request] = {}
        self.leases: Dict[int, GrantedLease] = {}
        self.shares, self.habits = FairShare(), RuntimeHistory()
        self.shut: Callable[[int], str] = lambda uid: ""
        self.beside = False
        self._overran: Dict[Tuple[int, str], float] = {}
        self.starts = HeadStarts()
        self.most_on_processor = min(MAX_SHARERS, count_cores())
        self.most_windowed = most_windowed()

    def charge(self, now: float) -> None:
        """Charge each holder of a GPU until now; the queue does so before each change of leases."""
        charged = self.shares.charge_holders(self._holders(), now)
        for lease, gpu_s in zip(self.leases.values(), charged):
            lease.charged_s += gpu_s

    def _holders(self) -> List[Tuple[ShareOwner, Sequence[str]]]:
        return [(lease.request.share_owner, lease.names) for lease in self.leases.values()]

    def release(self, number: int, now: float) -> None:
        """Forget a connection."""
        self.charge(now)
        self.waiting.pop(number, None)
        lease = self.leases.pop(number, None)
        if lease is None:
            return
        held, request = max(0.0, now - lease.since), lease.request
        if lease.idle_s == 0.0:  # a reservation's length says nothing about jobs
            self.habits.note(_kind(request), held)
        if lease.gap_until is not None and now > lease.gap_until:
            recent = {who: at for who, at in self._overran.items() if now - at < NO_GAPS_S}
            self._overran = {**recent, (request.uid, request.user): now}  # clients choose their users' names

    def take_back(self, number: int, now: float) -> None:
        """Put a request that could not use its grant back to its place."""
        # Charged as for use: else a client could have GPUs granted and give them back without end, at no cost.
        self.charge(now)
        lease = self.leases.pop(number, None)
        if lease is not None:
            self.waiting[number] = lease.request

    def near_turn(self, order: Sequence[Request], now: float) -> Set[int]:
        """Return the numbers of those whose processes may start ahead of their turn, and note since when."""
        let_in = [(r, self.shares.owner_key(r.share_owner)) for r in order if not self.shut(r.uid)]
        self.starts.let_start(let_in, now)
        return {r.number for r, _ in let_in if r.near_since is not None}

    def waiting_in_order(self, now: float) -> List[Request]:
        """Return those who wait, the next first."""
        self.charge(now)
        waiting = [(r.share_owner, now - r.since) for r in self.waiting.values()]
        scores = self.shares.scores(waiting, self._holders(), now)

        def place(request: Request) -> Tuple[int, float, float, float, int]:
            known = PRIORITIES.index(request.priority) if request.priority in PRIORITIES else 1
            rank = known - int(max(0.0, now - request.since) / AGE_S)
            # The connection's number breaks the last tie, so the order is total and the same at every look.
            return (max(0, rank), *scores[request.share_owner], request.since, request.number)

        return sorted(self.waiting.values(), key=place)

    def grant_ready(self, now: float) -> List[Grant]:
        """Serve whoever can be served, and hold GPUs back for those who cannot."""
        grants: List[Grant] = []
        self.beside = False
        while True:
            # One at a time: a grant counts against its owner at once, and so changes the order of the rest.
            grant = self._next(now)
            if grant is None:
                return grants
            del self.waiting[grant.request.number]
            self.leases[grant.request.number] = GrantedLease(grant.request, grant.names, now, gap_until=grant.gap_until)
            grants.append(grant)

    def _next(self, now: float) -> Optional[Grant]:
        gaps: Dict[str, float] = {}
        """GPUs that are held back, and how long nobody ahead can use them yet."""
        for request in self.waiting_in_order(now):
            if self.shut(request.uid) or not request.ready:
                continue
            open_to = [n for n in request.names if n not in gaps]
            lent = self._lent(request, gaps, now)
            looks = {n: self._look_at(n, request) for n in (*open_to, *lent)}
            free = [n for n in looks if not looks[n].taken]
            chosen = self._chosen(request, free, looks, lent)
            if chosen:
                notes = [_stranger(n, looks[n].foreign) for n in chosen if request.is_timed and looks[n].foreign]
                until = [now + gaps[n] for n in chosen if n in gaps]
                return Grant(request, tuple(chosen), tuple(notes), min(until) if until else None)
            self._claim(request, open_to, set(free), now)
            # Sharers that overlap without end would starve it, so the GPUs that it claims are held back.
            if request.is_exclusive or request.count > 1 or self._is_kept_out(request):
                gap_s = self._soonest_s(request, open_to, now)
                gaps.update((n, gap_s) for n in request.claim)
        return None

    def _lent(self, request: Request, gaps: Mapping[str, float], now: float) -> List[str]:
        """Return the GPUs that are held back for others for longer than a request can take."""
        longest = [t for t in (self.habits.longest_s(_kind(request)), request.limit_s) if t is not None]
        overran = self._overran.get((request.uid, request.user))
        if not longest or (overran is not None and now - overran < NO_GAPS_S):
            return []
        return [n for n in request.names if gaps.get(n, 0.0) >= min(longest)]

    def _soonest_s(self, request: Request, names: Sequence[str], now: float) -> float:
        """Return how long it takes at least until a request can start, if everybody is as quick as ever was seen."""
        least = sorted(self._least_s(n, now) for n in names)
        return least[request.count - 1] if len(least) >= request.count else 0.0

    def _least_s(self, name: str, now: float) -> float:
        on = [x for x in self.leases.values() if name in x.names and x.idle_s == 0.0]
        return max((self.habits.shortest_s(_kind(x.request)) - (now - x.since) for x in on), default=0.0)

    def _look_at(self, name: str, request: Request) -> GpuState:
        on = [lease for lease in self.leases.values() if name in lease.names]
        if on and (request.is_exclusive or any(lease.request.mode != request.mode for lease in on)):
            return GpuState("held")
        if len(on) >= self._most_sharers(name, request):
            return GpuState("shared by %d already" % len(on))
        look = self._look(name, request.mode)
        self.beside = self.beside or bool(look.taken or look.foreign)
        if not look.taken and look.foreign and request.is_timed and request.foreign == "wait":
            return GpuState(_stranger(name, look.foreign), look.foreign)
        return look

    def _most_sharers(self, name: str, request: Request) -> int:
        if name == PROCESSOR:
            return self.most_on_processor
        if not request.is_timed:
            return MAX_SHARERS
        # Each GPU has one at least; more of them compete for the cores of all.
        windowed = sum(lease.request.mode == "windowed" for lease in self.leases.values())
        return MAX_SHARERS if windowed < self.most_windowed else 1

    def _is_kept_out(self, request: Request) -> bool:
        """Say whether jobs of another mode that share could keep a request out for ever."""
        on = [lease.request.mode for lease in self.leases.values() if set(lease.names) & set(request.names)]
        return any(mode not in (request.mode, "exclusive") for mode in on)

    def _chosen(self, request: Request, free: List[str], looks: Dict[str, GpuState], lent: Sequence[str]) -> List[str]:
        def better(name: str) -> Tuple[bool, bool, int]:
            sharers = sum(1 for lease in self.leases.values() if name in lease.names)
            # Sharers fill a GPU and leave others whole; with windows each job waits for the others'.
            crowd = sharers if request.is_timed else -sharers
            return bool(looks[name].foreign) and request.foreign != "warn", name in lent, crowd

        return choose_gpus(sorted(free, key=better), request.count, request.links)

    def _claim(self, request: Request, names: List[str], free: Set[str], now: float) -> None:
        """Choose the GPUs that the request waits for: those free already, those it chose before, those free soonest."""

        def soonest(name: str) -> Tuple[bool, bool, float]:
            left_s = self._left_s(name, now)  # one whose end is unknown comes last
            return name not in free, name not in request.claim, math.inf if left_s is None else left_s

        request.claim = tuple(choose_gpus(sorted(names, key=soonest), request.count, request.links))

    def _left_s(self, name: str, now: float) -> Optional[float]:
        """Return how long a GPU will be held yet, as far as that can be foretold; None when it cannot."""
        holders = [lease for lease in self.leases.values() if name in lease.names]
        if not holders and self._look(name, "exclusive").taken:
            return self.habits.mean_s  # held since before this broker, or without it
        left = 0.0
        for lease in holders:
            held = now - lease.since
            foretold = self.habits.expected_s(_kind(lease.request))
            known = [t for t in (foretold, lease.request.limit_s) if t is not None]
            if not known:
                return None
            if held >= min(known):
                return None  # it takes longer than any like it did: nothing is known of its end any more
            left = max(left, min(known) - held)
        return left

    def standing(self, request: Request, order: Sequence[Request], now: float) -> QueuePosition:
        """Say where a request stands in the order."""
        wanted = set(request.names)
        ahead = [r for r in order[: order.index(request)] if wanted & set(r.names)]
        return QueuePosition(len(ahead) + 1, self._wait_s(request, ahead, now), self.why(request, order, now))

    def _wait_s(self, request: Request, ahead: Sequence[Request], now: float) -> Optional[float]:
        left = [self._left_s(n, now) for n in request.names]
        soonest = sorted(t for t in left if t is not None)
        if len(soonest) < len(left) or (ahead and self.habits.mean_s is None):
            return None
        sharers = {"exclusive": 1, "windowed": self.most_windowed}
        before = (r.count / sharers.get(r.mode, MAX_SHARERS) * (self.habits.expected_s(_kind(r)) or 0.0) for r in ahead)
        return soonest[request.count - 1] + sum(before) / len(request.names)

    def why(self, request: Request, order: Sequence[Request], now: float) -> str:
        """Say what a request waits for: its own job, and the first of the GPUs that it claims and cannot have."""
        shut = self.shut(request.uid)
        if shut:
            return shut
        found = self._obstacle(request, order, now)
        if not request.ready:
            return "its own processes are not ready" + ("; " + found if found else "")
        return found or "others are ahead"

    def _obstacle(self, request: Request, order: Sequence[Request], now: float) -> str:
        """Return why a request cannot have a GPU; empty where only the order speaks against it."""
        for name in request.claim or request.names:
            holders = [lease for lease in self.leases.values() if name in lease.names]
            if holders and (request.is_exclusive or holders[0].request.is_exclusive):
                lease = holders[0]
                others = " and %d others" % (len(holders) - 1) if len(holders) > 1 else ""
                idle = "reserved and idle" if lease.idle_since is not None else "held"
                return "%s is %s by %s%s for %d s" % (name, idle, _who(lease.request), others, now - lease.since)
            taken = self._look_at(name, request).taken
            if taken:
                return taken
        keeper = next((r for r in order if r is not request and set(r.claim) & set(request.names)), None)
        what = "%s is" % request.names[0] if len(request.names) == 1 else "GPUs are"
        return "%s held back for %s, which is ahead" % (what, _who(keeper)) if keeper else ""

    def leases_to_reclaim(self, now: float) -> List[int]:
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


def _kind(request: Request) -> Kind:
    return (request.uid, request.user, request.kind)


def _who(request: Request) -> str:
    return "%s of %s" % (request.job or "a job", request.user or "uid %d" % request.uid)


def _stranger(name: str, pids: Sequence[int]) -> str:
    return "%s is used by processes that are not ours: pids %s" % (name, ", ".join(map(str, pids[:8])))
