"""Accounts for the owner's time, by kind of work."""

import contextlib
import os
import time
from typing import Dict, Generator, List

PARTS = ("start", "trials", "map", "fill", "launch", "reference", "candidate", "check", "state", "wait")
"""`trials` are the untimed calls, whatever their parts; `map` is to make buffers, to map and to free them; `fill`
includes poison; `launch` is behind gates, with empty passes; `reference` and `candidate` are their own running time, in
timed and untimed rounds; `state` is looking at clocks, caches and whether the GPU is busy; `wait` is for the other
processes and the supervisor: to store, to freeze."""


BEGAN = "JUDGE_BEGAN_S"
"""Environment variable of a process that was there before its job: when it began to work, on the clock since boot."""


def since_start_s() -> float:
    """Return seconds since this process began, or was told to; 0 if the system does not say."""
    try:
        if BEGAN in os.environ:
            return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - float(os.environ[BEGAN]))
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # The name in brackets may hold spaces and brackets itself, so fields are counted from the last one.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


class Ledger:
    """Seconds by part; a part that begins within another one interrupts it."""

    def __init__(self) -> None:
        self.seconds: Dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.open: List[str] = []
        self.first_calls_s: List[float] = []
        """Of a Python candidate's first call at each shape, untimed: its compilers run then. Mostly in `trials`."""
        self.window_s = 0.0
        """For which the job waited until it had a part of its GPU's time; in no part."""
        self.whole = ""
        """The part that parts within it count for."""
        self.mark = time.perf_counter()
        self.began = self.mark - since_start_s()
        self.seconds["start"] = self.mark - self.began

    def restart(self) -> None:
        """Begin anew, as when a job that was started in line has its turn."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.began = self.mark = time.perf_counter()

    @contextlib.contextmanager
    def left_out(self) -> Generator[None, None, None]:
        """Leave the time of a block out, in which others have the GPU."""
        self._settle()
        begin = self.mark
        yield
        self.mark = time.perf_counter()
        self.began += self.mark - begin
        self.window_s += self.mark - begin

    def _settle(self) -> None:
        now = time.perf_counter()
        if self.open:
            self.seconds[self.open[-1]] += now - self.mark
        self.mark = now

    @contextlib.contextmanager
    def part(self, name: str) -> Generator[None, None, None]:
        """Count the time of a block."""
        self._settle()
        self.open.append(self.whole or name)
        try:
            yield
        finally:
            # Time up to here belongs to the enclosing part, which this one interrupts.
            self._settle()
            self.open.pop()

    @contextlib.contextmanager
    def undivided(self, name: str) -> Generator[None, None, None]:
        """Count the time of a block, and of every part within it, as one."""
        with self.part(name):
            self.whole = name
            try:
                yield
            finally:
                self.whole = ""

    def move(self, seconds: float, to: str) -> None:
        """Take time that the part under way spent for another one."""
        self.seconds[self.open[-1]] -= seconds
        self.seconds[to] += seconds

    def besides_s(self) -> float:
        """Return seconds until now that neither candidate nor reference ran."""
        return time.perf_counter() - self.began - self.seconds["candidate"] - self.seconds["reference"]

    def report(self) -> Dict[str, float]:
        """Return seconds by part, what is left over, and the total."""
        self._settle()
        total = time.perf_counter() - self.began
        found = dict(self.seconds, other=total - sum(self.seconds.values()), total=total)
        return {name: round(value, 4) for name, value in found.items()}
