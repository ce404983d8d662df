"""A player's work on a round, by the owner's clock and by what the player says of it."""

import time
from typing import Any, Dict, NamedTuple

from ..channel.supervisor_client import Player
from ..devices.device import Buffers


class Pass(NamedTuple):
    """A player's work on a round."""

    elapsed_s: float
    """From before the thaw to the stop of the clock."""
    reply: Dict[str, Any]
    outside_s: float
    """From when the supervisor let it run, which it says, to the stop of the clock."""


def timed_pass(player: Player, buffers: Buffers, timeout_s: float, calls: int = 0, **more: Any) -> Pass:
    """Have a player work on a round, or on its first `calls` alone, and time it.

    The clock starts before the thaw: there is no moment at which the player can run with this round's inputs and
    without the clock. What it is to do waits for it by then, so that no process has to be woken a second time.
    """
    begin = time.monotonic()
    player.tell("go", calls=calls or buffers.sets, **more)
    player.thaw()
    reply = player.hear(timeout_s)
    buffers.stop(player)
    end = time.monotonic()
    return Pass(end - begin, reply, end - max(begin, player.thawed_s))


def own_clock_s(reply: Dict[str, Any], elapsed: float) -> float:
    """Return what calls took by the clock of who made them; the owner's, where that says nothing that can be."""
    told = reply.get("ran_ns")
    return told / 1e9 if isinstance(told, int) and 0 < told <= elapsed * 1e9 else elapsed
