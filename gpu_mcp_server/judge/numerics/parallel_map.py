"""Work on all cores while the other processes stand still."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

MOST = 16
"""More threads than this only wait for memory."""


def spread(count: int, work: Callable[[int], None]) -> None:
    """Call `work` with 0 to `count` - 1, on as many threads as there are cores; NumPy lets go of the lock.

    Raises:
        Exception: What `work` raised for the least number.
    """
    threads = min(count, len(os.sched_getaffinity(0)), MOST)
    if threads < 2:
        for number in range(count):
            work(number)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(count)):
            pass
