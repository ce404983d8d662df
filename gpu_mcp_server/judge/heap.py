"""Memory that a player has freed stays with it, for its next call, in the reference and in the candidate alike.

By itself glibc may give it back to the kernel behind every call, and have it page by page in the next one. Whether it
does follows from what lies where by then: of twelve evaluations, in each of which the same NumPy softmax of 512x1024
was the reference, it took 0.7 ms a call in some and 2.7 in others, and so did the speed-up of one candidate.
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
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES))
