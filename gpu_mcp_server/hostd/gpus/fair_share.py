"""Orders owners by their use of GPUs: GPU seconds of each, decayed, against its weight. No I/O.

An owner is a login, as the kernel says. Several people may share one: within it each of their names has its share.
The names of a login that speaks for others (a team's server; the host's policy says which, and root always does)
are owners of their own, with the weights that it gives them. Any other login could invent names and weights.
"""

import math
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

HALF_LIFE_S = 3600.0
CREDIT = 0.1
"""GPU seconds that a second of waiting is worth: small, so that a long queue of one's own buys little."""
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
MAX_KEPT = 2000
"""Owners that are remembered."""

Key = Tuple[int, str]


class ShareOwner(NamedTuple):
    """Whom something is for."""

    uid: int
    user: str = ""
    weight: float = 1.0


class Policy(NamedTuple):
    """Settings of the host's administrator for logins."""

    speakers: Tuple[int, ...] = (0,)
    """Uids whose names of users are believed."""
    weights: Mapping[int, float] = {}
    """Of the other logins; 1 where none is given."""


class FairShare:
    """GPU time that each owner has used.

    Attributes:
        policy: Of the host.
    """

    def __init__(self) -> None:
        self.policy = Policy()
        self._charged_at = 0.0
        self._used: Dict[Key, Tuple[float, float]] = {}

    def _keys(self, who: ShareOwner) -> "List[Tuple[Key, float]]":
        """Return the owner and the person, each with its weight."""
        person = ((who.uid, "/" + who.user), clamp_weight(who.weight))
        if who.uid in self.policy.speakers:
            return [person, person]
        return [((who.uid, ""), clamp_weight(self.policy.weights.get(who.uid, 1.0))), person]

    def owner_key(self, who: ShareOwner) -> Key:
        """Return the owner: a login, or a name that a login speaks for."""
        return self._keys(who)[0][0]

    def gpu_seconds_of(self, key: Key, now: float) -> float:
        """Return GPU seconds, decayed."""
        value, at = self._used.get(key, (0.0, now))
        return value * 0.5 ** (max(0.0, now - at) / HALF_LIFE_S)

    def charge(self, who: ShareOwner, gpu_s: float, now: float) -> None:
        """Count what somebody has used."""
        for key in ((who.uid, ""), (who.uid, "/" + who.user)):
            self._used[key] = (self.gpu_seconds_of(key, now) + gpu_s, now)
        if len(self._used) > MAX_KEPT:
            del self._used[min(self._used, key=lambda k: self.gpu_seconds_of(k, now))]

    def charge_holders(self, holders: Sequence[Tuple[ShareOwner, Sequence[str]]], now: float) -> List[float]:
        """Count the time since the last call, of the same holders: those of one GPU have equal parts of it.

        Return the GPU seconds of each.
        """
        charged = [(who, gpus * max(0.0, now - self._charged_at)) for who, gpus in _divide(holders)]
        for who, gpu_s in charged:
            self.charge(who, gpu_s, now)
        self._charged_at = max(now, self._charged_at)
        return [gpu_s for _, gpu_s in charged]

    def scores(
        self,
        waiting: Iterable[Tuple[ShareOwner, float]],
        holders: Sequence[Tuple[ShareOwner, Sequence[str]]],
        now: float,
    ) -> "Dict[ShareOwner, Tuple[float, float]]":
        """Return for each who waits the scores of its owner and of the person within it; the least is next.

        Args:
            waiting: Who, and for how long.
            holders: Who, and which GPUs; they are charged until now.
            now: On the clock of `charge`.
        """
        self.charge_holders(holders, now)
        whose = {who: self._keys(who) for who, _ in waiting}
        used: Dict[Key, float] = {key: self.gpu_seconds_of(key, now) for keys in whose.values() for key, _ in keys}
        credit: Dict[Key, float] = dict.fromkeys(used, 0.0)
        for who, waited_s in waiting:
            for key, _ in whose[who]:
                # The longest wait, not the sum: a long queue of one's own must buy little.
                credit[key] = max(credit[key], CREDIT * max(0.0, waited_s))
        for who, gpus in _divide(holders):
            for key in dict(self._keys(who)):
                if key in used:
                    # A second more than it held: a grant of this very moment counts too, or one owner would get all
                    # that is free.
                    used[key] += gpus

        def score(key: Key, weight: float) -> float:
            return used[key] / weight - credit[key]

        return {who: (score(*keys[0]), score(*keys[1])) for who, keys in whose.items()}

    def dump_state(self, now: float) -> List[List[Any]]:
        """Return what is worth knowing after this process, as JSON types."""
        most = sorted(((self.gpu_seconds_of(key, now), key) for key in self._used), reverse=True)[:MAX_KEPT]
        return [[uid, label, round(value, 3)] for value, (uid, label) in most if value > 0.01]

    def restore(self, kept: Any, age_s: float, now: float) -> None:
        """Take up what another one kept that long ago.

        Raises:
            ValueError, TypeError: If it is not what `dump_state` returns.
        """
        for uid, label, value in kept[:MAX_KEPT]:
            if not math.isfinite(value) or value < 0.0:
                raise ValueError(value)
            self._used[(int(uid), str(label))] = (float(value), now - max(0.0, age_s))


def _divide(holders: Sequence[Tuple[ShareOwner, Sequence[str]]]) -> List[Tuple[ShareOwner, float]]:
    """Return who holds how many GPUs, where those of one GPU have equal parts of it."""
    crowd = Counter(name for _, names in holders for name in names)
    return [(who, sum(1.0 / crowd[name] for name in names)) for who, names in holders]


def clamp_weight(weight: float) -> float:
    """Return a weight within the limits; what is no number counts as 1."""
    return min(MAX_WEIGHT, max(MIN_WEIGHT, weight)) if math.isfinite(weight) else 1.0
