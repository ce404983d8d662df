"""Tells what other jobs on the GPU may have caused: that is no verdict on the candidate."""

import re
from typing import Any, Dict, Optional, Sequence

from ..channel.supervisor_client import Player
from ..devices.device import Device
from .shape_judge import Shape
from .trial_room import EMPTY
from .untimed_trials import Trials

WROTE_NOTHING = re.compile("was not written|" + EMPTY)
"""As of a launcher that goes on without the memory that it asked for."""
LACKS_MEMORY = re.compile(r"(?i)out.?of.?memory|alloc_?failed|not_initialized|memoryallocation|failed to allocate")
"""Source: errors of CUDA, of torch, and of cuBLAS, whose CUBLAS_STATUS_NOT_INITIALIZED says so of its workspace."""
REASON_CHARACTERS = 300


def doubt_of(
    device: Device,
    candidate: Player,
    reasons: Sequence[str],
    judged: Sequence[Shape],
    trials: Optional[Trials],
    *,
    is_cheat: bool,
) -> Optional[str]:
    """Return what of a verdict other jobs may have caused; None where they have not.

    Args:
        device: With the memory that is free now.
        candidate: As it is at the end.
        reasons: Why it failed, as a whole and at each shape; empty where it did not.
        judged: Shapes that were timed.
        trials: With what was found there, if they began.
        is_cheat: Whether it was caught cheating, which nobody else does for it.
    """
    reason = next(filter(None, reasons), "")
    if WROTE_NOTHING.search(reason):
        return reason
    if is_cheat:
        return None
    if candidate.lost or (reason and device.free_bytes() < device.allowance()):
        return reason
    tried = [str(entry.get("reason", "")) for entry in trials.entries] if trials else []
    lacking = next(filter(LACKS_MEMORY.search, [*reasons, *tried]), None)
    if lacking is None and any(shape.was_disturbed() for shape in judged):
        return "the GPU was busy"
    return lacking or (trials.slow if trials else "") or None


def unsure(why: str) -> Dict[str, Any]:
    """Return what stands in a verdict's place."""
    return {"mode": "judge", "beside": " ".join(why.split())[:REASON_CHARACTERS]}
