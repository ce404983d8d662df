"""Work on all cores while the other processes stand still."""

import os
import threading
from typing import Callable, List

MOST = 16
"""More threads than this only wait for memory."""


def spread(count: int, work: Callable[[int], None]) -> None:
    """Call `work` with 0 to `count` - 1, on as many threads as there are cores; NumPy lets go of the lock.

    Raises:
        Exception: What `work` raised first.
    """
    todo = iter(range(count))
    lock = threading.Lock()
    failed: List[BaseException] = []

    def run() -> None:
        # After a failure nobody begins more: the result is lost in any case.
        while not failed:
            # An iterator is not safe to advance from two threads at once.
            with lock:
                number = next(todo, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException as error:
                failed.append(error)

    others = min(count, len(os.sched_getaffinity(0)), MOST) - 1
    threads = [threading.Thread(target=run, daemon=True) for _ in range(max(0, others))]
    for thread in threads:
        thread.start()
    # This thread works too, instead of waiting on a core that another thread could not use.
    run()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
