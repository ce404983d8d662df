"""Limits of starting processes ahead of a turn: of how many jobs at once, and for how long."""

import os

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
