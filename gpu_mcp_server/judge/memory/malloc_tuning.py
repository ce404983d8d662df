"""Memory that a player has freed stays with it, for its next call, in the reference and in the candidate alike.

By itself glibc may give it back to the kernel behind every call, and have it page by page in the next one. Whether it
does follows from what else lies in the heap: a NumPy softmax of 512x1024 took 2.7 ms a call where it takes 0.7 in a
loop of one's own, so that every candidate looked four times as fast (benchmarks/results/reference-heap-cpu.md).
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Source: malloc.h of glibc."""
KEPT_BYTES = 1 << 30
"""Free at the heap's end, before any of it is given back."""
LARGEST_BYTES = 32 << 20
"""What is had from the heap, and not as a mapping of its own: the most that glibc takes, and where its own adaptation
ends. Source: mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX."""


def keep() -> bool:
    """Have it kept; return whether this C library knows how."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Setting either threshold also ends glibc's own adaptation of both, so calls cannot drift apart.
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES))
