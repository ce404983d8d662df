"""Doubts about times behind gates: the GPU was busy where it should be idle, or answered late."""

from typing import Dict, Set

NEW, LAID, OPENS = "behind new inputs", "while inputs were laid out", "before the gate was opened"
BESIDE = "when the reference's turn came, or had been"
STREAMS = ": a kernel runs ahead, or streams (a graph's branches, too) wait for each other"
"""What waits behind a gate is told from what runs in one stream alone: a call on two streams, joined by events, and a
graph of torch's GRU took time slices while they waited (H200, driver 580)."""
BUSY_ROUNDS = 2
"""In so many rounds the GPU must be busy when it should not be, as another process may have been at work in one."""
AGREE = 0.1
"""Part of a round's time by which the GPU may answer later than around an empty pass, or behind old inputs."""


def doubt_of(busy: Dict[str, Set[int]], later_s: Dict[str, float], round_s: float, framework: str) -> str:
    """Say why times are not confirmed; empty if they are.

    Args:
        busy: Rounds in which the GPU was busy, by when.
        later_s: How much later than where nothing is to be done it answered, by when.
        round_s: What a round takes.
        framework: Of the reference.
    """
    for when, rounds in busy.items():
        if len(rounds) >= BUSY_ROUNDS:
            text = "the GPU was busy %s, in %d rounds" % (when, len(rounds))
            return text + STREAMS * (when in (LAID, OPENS))
    for when, more_s in later_s.items():
        # The median decides: one round's delay may be the host's, and a stream that works ahead gains only if it does
        # so often.
        if more_s > AGREE * round_s:
            than = "behind old ones" if when == NEW else "around an empty pass"
            text = "the GPU answered %.0f us later %s than %s; a round takes %.0f us"
            text += ", and a tenth of that is allowed" + _advice(framework)
            return text % (more_s * 1e6, when, than, round_s * 1e6)
    return ""


def _advice(framework: str) -> str:
    """Say what a late answer may mean, and what to do about it."""
    longer = "at a larger shape, where rounds are longer"
    if framework == "numpy":
        longer = "with a torch reference, which makes rounds longer"
    return "; the cause is a busy host, or a kernel that starts ahead of the clock: evaluate again, or " + longer
