"""Jobs that the cores bear: on GPUs that they share, and of those whose processes start ahead of their turn."""

import os
from collections import Counter
from typing import Dict, List, Optional, Sequence, Tuple

from .fair_share import MAX_KEPT, Key

SPARE = "GPU_MCP_HOSTD_SPARE_CORES"
"""Environment variable with another such number; for tests."""
SPARE_CORES = int(os.environ.get(SPARE, 8))
"""With so many, processes may import while something is timed on a GPU."""
MAX_SHARERS = 4
"""Jobs on a GPU at once; on the processor fewer where it has fewer cores, as their limits are by the clock."""
SHARERS = "GPU_MCP_HOSTD_SHARERS"
"""Environment variable with how many jobs with windows may share GPUs; for tests."""
SHARER_CORES = 4
"""Of each such job: its candidate, its owner and what they start run beside those of the others."""
MOST = 3
"""Jobs that start at once. Imports may last longer than a turn: with the first in line still importing, two more import
beside it, so that the GPU is soon wanted by one that is ready."""
IMPORT_CORES = 2
"""Of a job that starts: reference and candidate import side by side, each in one thread, and the owner sleeps."""
OTHER_CORES = 3
"""Of the job that is timed: its owner and its candidate. The third is for hostd, supervisors, broker and interrupts."""
LATE_S = 1.0
"""If no job ahead is ready, one more starts after so long: the first may never be ready. Each further one waits that
long for every start beyond `most`: on too few cores more starts make each longer."""
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


def most_windowed() -> int:
    """Return how many jobs with windows may share GPUs of this host; each GPU may have one in any case."""
    return int(os.environ.get(SHARERS, max(1, min(MAX_SHARERS, count_cores() // SHARER_CORES))))


class Waiting:
    """Request of a job that waits, as far as starts ahead of its turn go by it; its attributes are `Request`'s."""

    names: Tuple[str, ...]
    since: float
    ready: bool
    near_since: Optional[float]


class HeadStarts:
    """Chooses the jobs whose processes start ahead of their turn. No I/O.

    The first in line start, as many at once as the cores allow; where several owners wait, each counts once at most.
    A job may never become ready. It must not block another owner's jobs and leave the GPU idle. So, if no job ahead is
    ready, one more starts, ever later (LATE_S): of the owner whose last start is longest ago.

    Attributes:
        most: Jobs that may start at once for a GPU.
        cores: They bound the jobs that start at once for whichever GPU.
    """

    def __init__(self) -> None:
        self.most = most_starting(count_cores())
        self.cores = count_cores()
        self._last: Dict[Key, float] = {}
        """When a job of an owner last started."""
        self._late_at = 0.0
        """When a job beyond `most` last did."""

    def let_start(self, line: Sequence[Tuple[Waiting, Key]], now: float) -> None:
        """Set `near_since` of the jobs that may start from now on. Each set of GPUs has a line of its own.

        Args:
            line: Who waits, the next first, each with its owner.
            now: On the clock of `Request.since`.
        """
        for names in sorted({request.names for request, _ in line}):
            begun = (r.near_since for r, _ in line if r.names != names and not r.ready and r.near_since is not None)
            elsewhere = sum(now - since <= START_S for since in begun)
            # Lines of other GPUs leave a line what they do not take of the cores.
            room = max(self.most, (self.cores - OTHER_CORES) // IMPORT_CORES) - elsewhere if elsewhere else len(line)
            self._let_start([each for each in line if each[0].names == names], room, now)
        for owner in sorted(self._last, key=lambda one: self._last[one])[:-MAX_KEPT]:
            del self._last[owner]  # who is not known counts as one whose last start is longest ago

    def _let_start(self, line: Sequence[Tuple[Waiting, Key]], room: int, now: float) -> None:
        unready = [(r.near_since, owner) for r, owner in line if not r.ready]
        each = max(1, self.most // max(1, len({owner for _, owner in unready})))
        starting = Counter(owner for since, owner in unready if since is not None and now - since <= START_S)
        ready = 0
        late: List[Tuple[Waiting, Key]] = []
        for request, owner in line:
            if request.near_since is None and starting[owner] < each:
                beyond = sum(min(each, number) for number in starting.values()) - self.most
                waited_s = now - max(request.since, self._late_at)
                # A ready job counts: where enough are ready, no other needs to start.
                if ready + beyond < 0 and (request.ready or sum(starting.values()) < room):
                    request.near_since = self._last[owner] = now
                    starting[owner] += not request.ready
                elif not (ready or request.ready) and waited_s >= LATE_S * max(1, beyond):
                    late.append((request, owner))
            ready += request.ready
        if late:
            # Not the first in line: that would always be an owner's whose jobs end as soon as they start.
            request, owner = min(late, key=lambda one: self._last.get(one[1], 0.0))
            request.near_since = self._last[owner] = self._late_at = now
