"""Measures the clock's own cost: passes in which a player does nothing but be busy for a known time."""

import time
from typing import Any, Dict, List, NamedTuple, Sequence

from ..channel.supervisor_client import Player
from ..devices.device import Device
from ..numerics.stats import median, median_interval
from ..verdicts import JudgeFailed, ReferenceFailed

ANSWER_S = 60.0
RESOLVED = 2.0
"""Spreads of the clock's own cost below which a time is not told from none."""
COSTLY = 4.0
"""Times what may be taken off for the clock that a round must last. Were the machine busier when that was measured than
in the rounds, a candidate would look faster than it is, by no more than a quarter with this bound."""


class Cost(NamedTuple):
    """Cost of a pass besides its calls: thaw, switch in, go, done, stop."""

    low_s: float
    """The second lowest of nine, and as low among more: a machine that was busy just then, even in half of the passes,
    must not make anybody look faster."""
    spread_s: float
    """How wide the middle half is, as twice the median absolute deviation: less than half of the passes being disturbed
    changes it little."""
    samples_s: Sequence[float] = ()
    """In the order in which they were taken."""

    @classmethod
    def of(cls, samples_s: Sequence[float]) -> "Cost":
        """Return what passes say of which the first one warmed up."""
        counted = sorted(samples_s[1:])
        low, middle = counted[round(len(counted) * 2 / 9) - 1], median(counted)
        return cls(low, 2 * median([abs(each - middle) for each in counted]), samples_s)

    @property
    def floor_s(self) -> float:
        """Return the least time of a round that the clock can tell."""
        return self.spread_s / 2 + 1e-7

    @property
    def shortest_s(self) -> float:
        """Return how long a round must last for its time to be told from the clock's own cost."""
        return max(RESOLVED * self.spread_s, COSTLY * self.low_s)

    def exact(self, error_s: float) -> bool:
        """Say whether the median's 95 % interval is no wider than twice that, and the middle half narrow."""
        _, low, high = median_interval(self.samples_s[1:])
        return high - low <= 2 * error_s and 2 * self.spread_s <= self.low_s


NO_COST = Cost(0.0, 0.0)
"""Where a clock around the calls alone counts."""


def rehearsed_costs(
    players: Sequence[Player], device: Device, passes: int, error_s: float, patience_s: float
) -> Dict[str, Cost]:
    """Measure passes in which a player is only busy for as long as it is told, on a GPU there, and says how long.

    They take turns, as in rounds: each is frozen while another one and then the owner is busy, last on the device.
    Cores that slept and are woken, and a GPU that changes contexts, make up most of the cost. This is done before
    somebody's library is loaded into the candidate. Later it could lie about the time, or be slow to answer, and have
    that taken off. A reference that was loaded before could; whoever writes it can make it slow in plainer ways.

    Args:
        players: Frozen or not; they are frozen afterwards.
        device: Says what a pass is.
        passes: How many there are at least.
        error_s: Half of what the interval of each median may be wide.
        patience_s: After which no more passes are made for it.
    """
    samples: Dict[str, List[float]] = {player.role: [] for player in players}
    for player in players:
        player.freeze()

    def turns(count: int) -> None:
        for _ in range(count):
            for player in players:
                samples[player.role].append(empty_pass(player, device))

    turns(passes + 1)
    deadline = time.perf_counter() + patience_s
    while not all(Cost.of(taken).exact(error_s) for taken in samples.values()) and time.perf_counter() < deadline:
        turns(1)
    return {role: Cost.of(taken) for role, taken in samples.items()}


def empty_pass(player: Player, device: Device) -> float:
    """Return what a pass takes besides what the player was told to do in it; the player is frozen before and after."""
    begin = time.perf_counter()
    # Busy, as the owner is before a player's turn in a round: a core that slept takes longer to wake.
    while time.perf_counter() - begin < device.pause_s:
        pass
    device.lead_in()
    begin = time.perf_counter()
    player.tell("go", calls=0, spin_s=device.spin_s)
    player.thaw()
    reply: Dict[str, Any] = player.hear(ANSWER_S)
    device.stop_idle(player)
    elapsed = time.perf_counter() - begin
    player.freeze()
    if "spun_s" not in reply:
        # No candidate code is loaded yet, so the failure is never charged to the candidate.
        failed = JudgeFailed if player.foreign else ReferenceFailed
        raise failed("the %s failed to make an empty pass: %s" % (player.role, str(reply.get("error"))[:2000]))
    return elapsed - float(reply["spun_s"])
