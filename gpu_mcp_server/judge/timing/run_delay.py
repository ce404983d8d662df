"""A while for somebody else to go on, which a busy machine does not shorten.

Where other processes hold the cores, a wait that is measured by the clock on the wall ends before the one that is
waited for has run. The kernel tells how long a thread was ready and had no core; that is no part of the while.
"""

import time


def run_delay_s() -> float:
    """Return how long this thread was ready to run and had no core so far; 0 where the kernel does not count it.

    Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat, the second number, in nanoseconds.
    """
    try:
        # The thread's own file: /proc/self/schedstat tells of the main thread, whichever thread asks.
        with open("/proc/thread-self/schedstat", "rb") as text:
            return int(text.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class While:
    """Some seconds from now, less what this thread waits for a core in them."""

    def __init__(self, seconds: float, at_most_s: float) -> None:
        """Begin.

        Args:
            seconds: For which the machine must let this thread run, or sleep.
            at_most_s: By the clock on the wall, however busy the machine is.
        """
        self.begin, self.delayed_s = time.monotonic(), run_delay_s()
        self.seconds, self.at_most_s = seconds, at_most_s

    def lasts(self) -> bool:
        """Say whether it is not over yet."""
        elapsed_s = time.monotonic() - self.begin
        # The wall-clock limit stands beside: on a machine that never gives a core the wait must still end.
        return elapsed_s < self.at_most_s and elapsed_s - (run_delay_s() - self.delayed_s) < self.seconds
