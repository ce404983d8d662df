"""Memory that a candidate keeps between its calls, until there is none for the judge or the reference."""

import time

from ..channel.supervisor_client import Player
from ..devices.device import Device
from ..verdicts import JudgeFailed, ReferenceFailed, TooLarge

RELEASE_S = 2.0
"""For the driver to free what it had, then."""
SETTLED_S = 0.1
"""How long free memory stays as it is once all of that is freed."""


def is_full(error: JudgeFailed) -> bool:
    """Say whether it was the device's memory that was missing; a process that has used up its own is killed."""
    if isinstance(error, ReferenceFailed):
        return "out of memory" in str(error).lower() and "ran out of memory" not in str(error)
    return isinstance(error, TooLarge)


def kept_from(error: JudgeFailed, device: Device, candidate: Player) -> str:
    """End the candidate and say how much memory it kept, if it is the one to blame.

    Raises:
        JudgeFailed: `error`, if it is another one, or the candidate kept no more than it may.
    """
    if not is_full(error) or not device.allowance():
        raise error
    before = device.free_bytes()
    # The driver frees a context's memory when its process ends, and the difference tells who held it.
    candidate.end()
    kept = _settled(device) - before
    # Context and workspace are no fault of the candidate's: the problem is too large for the GPU then.
    if kept <= device.allowance():
        raise error
    text = "out of memory: it kept %.3g GB of GPU memory, and the %.3g GB left are too few for the judge: %s"
    return text % (kept / 1e9, before / 1e9, str(error)[:500])


def _settled(device: Device) -> int:
    """Return free memory once it does not change any more."""
    free, since = device.free_bytes(), time.monotonic()
    deadline = since + RELEASE_S
    while time.monotonic() < min(since + SETTLED_S, deadline):
        time.sleep(0.01)
        now = device.free_bytes()
        if now != free:
            free, since = now, time.monotonic()
    return free
