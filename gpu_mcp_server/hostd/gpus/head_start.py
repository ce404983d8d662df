"""Which of those who wait in line start their processes ahead of their turn. No I/O but a look at the cores.

Each owner (as in `fair_share`) has starts of its own. So no number of jobs that never become ready keeps another
owner's jobs from becoming ready, and the GPU idle.
"""

import os
from typing import TYPE_CHECKING, Callable, Dict, Hashable, Sequence, Set, Tuple

if TYPE_CHECKING:
    from .gpu_queue import Request

SPARE = "GPU_MCP_HOSTD_SPARE_CORES"
"""Environment variable with another such number; for tests."""
SPARE_CORES = int(os.environ.get(SPARE, 8))
"""With so many, processes may import while something is timed on a GPU."""
MOST = 3
"""Jobs that start at once. Imports may last longer than a turn: with the first in line still importing, two more import
beside it, so that the GPU is soon wanted by one that is ready."""
IMPORT_CORES = 2
"""Of a job that starts: reference and candidate import side by side, each in one thread, and the owner sleeps."""
OTHER_CORES = 3
"""Of the job that is timed: its owner and its candidate. The third is for hostd, supervisors, broker and interrupts."""
START_S = 180.0
"""After so long a job takes its turn, ready or not, and one that does not counts no more among those that start.
An owner says that it is ready after 120 s at most."""


def count_cores() -> int:
    """Return how many cores this process may use; a container or a batch system may give it few of the machine's."""
    return len(os.sched_getaffinity(0))


def has_spare_cores() -> bool:
    """Say whether imports are in no clock's way."""
    return count_cores() >= SPARE_CORES


def most_starting(cores: int) -> int:
    """Return how many jobs may start at once: on 8 cores two, as three and a timed run would need nine."""
    return max(1, min(MOST, (cores - OTHER_CORES) // IMPORT_CORES))


def near_turn(order: "Sequence[Request]", owner_of: "Callable[[Request], Hashable]", most: int, now: float) -> Set[int]:
    """Return the numbers of the requests whose processes may start: of each owner as many, at least one.

    Args:
        order: Those who wait, the next first.
        owner_of: Says whose a request is.
        most: Jobs that may start at once, if there are no more owners than that.
        now: On the clock of `Request.near_since`.
    """
    each = max(1, most // max(1, len({owner_of(r) for r in order if not r.ready})))
    ahead: Dict[Tuple[Hashable, str], int] = {}
    near: Set[int] = set()
    for request in order:
        keys = [(owner_of(request), name) for name in request.names]
        if max(ahead.get(key, 0) for key in keys) < each:
            near.add(request.number)
        # One that is ready counts: with enough of these, nobody else needs to start. One that was to start long ago
        # and did not become ready does not: it would keep those behind it from starting.
        if request.ready or request.near_since is None or now - request.near_since <= START_S:
            ahead.update((key, ahead.get(key, 0) + 1) for key in keys)
    return near
