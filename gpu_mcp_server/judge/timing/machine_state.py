"""The state of the machine around timed rounds: clocks, power, throttling, other processes, stolen time."""

import math
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..devices.device import Device
from ..numerics.stats import median

State = Dict[str, Any]

SHARE_S = 0.002
"""What looking may cost a round; where two looks take longer, only every so many rounds are looked at."""
OTHER_CLOCK = 0.02
"""Part by which a clock may differ from the median of all rounds before the round is marked."""
LOOKS = 3
HARMLESS = ("idle", "application clocks", "display clocks", "sync boost")
"""Reasons for a clock that do not say that the device was slowed while it worked."""


class Watch:
    """Looks at a device before and after rounds, outside the clock."""

    def __init__(self, device: Device) -> None:
        self.device = device
        costs: List[float] = []
        for _ in range(LOOKS):
            begin = time.perf_counter()
            device.state()
            costs.append(time.perf_counter() - begin)
        # The minimum leaves out a look that a busy host delayed: it must not make looks rarer.
        self.cost_s = min(costs)
        self.every = max(1, math.ceil(2 * self.cost_s / SHARE_S))
        self.rounds = 0
        self.first: Optional[State] = None

    def before(self) -> None:
        """Look, if it is this round's turn."""
        turn = self.rounds % self.every == 0
        self.rounds += 1
        self.first = self.device.state() if turn else None

    def after(self) -> Optional[State]:
        """Look again; return both, `None` for a round that was left out."""
        if self.first is None:
            return None
        return {"before": self.first, "after": self.device.state()}

    def evidence(self) -> State:
        """Return what looking costs, and how often it was done."""
        return {"look_us": round(self.cost_s * 1e6, 1), "every": self.every}


def _changes(state: State, name: str) -> float:
    first, last = state["before"].get(name), state["after"].get(name)
    return float(last) - float(first) if first is not None and last is not None else 0.0


def reasons_of(state: State) -> List[str]:
    """Return for what the device was slowed, before or after the round."""
    found: Dict[str, None] = {}
    for moment in (state["before"], state["after"]):
        for reason in str(moment.get("throttle_reasons") or "none").split(", "):
            # An idle GPU lowers its clock by itself; a mark for that would be on every round.
            if reason != "none" and reason not in HARMLESS:
                found[reason] = None
    return list(found)


def marks(states: Sequence[Optional[State]]) -> List[List[str]]:
    """Return for each round what was other than it should be: nothing for most."""
    usual: Dict[str, float] = {}
    for name in ("sm_clock_mhz", "memory_clock_mhz", "cpu_mhz"):
        known = [float(s["after"][name]) for s in states if s and s["after"].get(name)]
        if known:
            usual[name] = median(known)
    found: List[List[str]] = []
    for state in states:
        mine: List[str] = []
        if state:
            reasons = reasons_of(state)
            mine += ["throttled (%s)" % ", ".join(reasons)] if reasons else []
            for name, middle in usual.items():
                clock = state["after"].get(name)
                if clock and abs(clock - middle) > OTHER_CLOCK * middle:
                    mine.append("at another clock (%s)" % name[:-4].replace("_", " "))
            mine += ["with CPU time stolen by the hypervisor"] if _changes(state, "steal_s") > 0 else []
            if max(state["before"].get("other_processes") or 0, state["after"].get("other_processes") or 0):
                mine.append("while another process used the GPU")
        found.append(mine)
    return found


def _span(states: Sequence[State], name: str, unit: str) -> str:
    values = [s["after"][name] for s in states if s["after"].get(name) is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    return ("%.4g" % low if low == high else "%.4g-%.4g" % (low, high)) + unit


def summary(states: Sequence[Optional[State]]) -> Tuple[str, List[List[str]]]:
    """Return in words how the rounds went, the marked ones first, and the marks of each round."""
    marked = marks(states)
    seen = [s for s in states if s]
    if not seen:
        return "", marked
    counts: Dict[str, int] = {}
    for mine in marked:
        for mark in mine:
            counts[mark] = counts.get(mark, 0) + 1
    looked = "%d rounds" % len(states) if len(seen) == len(states) else "%d rounds looked at" % len(seen)
    parts = ["%d of %s %s" % (count, looked, mark) for mark, count in counts.items()]
    spans = [
        ("SM ", "sm_clock_mhz", " MHz"), ("memory ", "memory_clock_mhz", " MHz"), ("", "power_w", " W"),
        ("", "temperature_c", " C"), ("processor ", "cpu_mhz", " MHz"), ("load ", "load_1min", ""),
    ]  # fmt: skip
    for title, name, unit in spans:
        text = _span(seen, name, unit)
        parts += [title + text] if text else []
    if not counts:
        parts.append("nothing unusual in %s" % looked)
    return ", ".join(parts), marked
