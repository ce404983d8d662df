"""Memory that a candidate keeps between its calls, until the judge has none for its buffers."""

import time

from devices import Device
from supervisor import Player
from verdicts import TooLarge

RELEASE_S = 5.0
"""For the driver to free what a killed process had."""


def kept_from(error: TooLarge, device: Device, candidate: Player) -> str:
    """End the candidate and say what it kept from the buffers that did not fit.

    Raises:
        TooLarge: If there is too little without it as well, which is the problem's fault.
    """
    before = device.free_bytes()
    if before >= error.wanted:
        raise error
    candidate.kill()
    deadline = time.monotonic() + RELEASE_S
    while device.free_bytes() < error.wanted:
        if time.monotonic() > deadline:
            raise error
        time.sleep(0.01)
    sizes = (error.wanted / 1e9, before / 1e9, device.free_bytes() / 1e9)
    return "out of memory: buffers of %.3g GB did not fit %.3g GB; once it was ended, %.3g GB were free" % sizes
