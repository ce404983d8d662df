"""Tells what other jobs on the GPU may have caused: that is no verdict on the candidate."""

import re
from typing import Any, Dict, Optional, Sequence

from ..channel.supervisor_client import Player
from ..devices.device import Device
from .shape_judge import Shape
from .trial_room import EMPTY

LACKS_MEMORY = re.compile(
    r"(?i)out of memory|alloc_?failed|memoryallocation|failed to allocate|was not written|" + EMPTY
)
"""Reasons that may be for want of memory, where others take it: an error, or that nothing was written, as by a launcher
that goes on without what it asked for."""
REASON_CHARACTERS = 300


def doubt_of(
    device: Device, candidate: Player, reasons: Sequence[str], judged: Sequence[Shape], slow: str
) -> Optional[str]:
    """Return what of a verdict other jobs may have caused; None where they have not.

    Args:
        device: With the memory that is free now.
        candidate: As it is at the end.
        reasons: Why it failed, as a whole and at each shape; empty where it did not.
        judged: Shapes that were timed.
        slow: Why shapes were not tried, if so.
    """
    reason = next(filter(None, reasons), "")
    short = bool(reason) and device.free_bytes() < device.allowance()
    if candidate.lost or short or LACKS_MEMORY.search(reason):
        return reason
    if any(shape.saw_busy() for shape in judged):
        return "the GPU was busy"
    return slow or None


def unsure(why: str) -> Dict[str, Any]:
    """Return what stands in a verdict's place."""
    return {"mode": "judge", "beside": " ".join(why.split())[:REASON_CHARACTERS]}
