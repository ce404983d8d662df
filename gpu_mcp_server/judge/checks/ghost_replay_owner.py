"""Ghost replay, the owner's side: an answer that stays right while the candidate's own kernels do nothing."""

from typing import List

from ..correctness.discrete_ties import Ties
from ..devices.device import Buffers
from ..inputs.hidden_shapes import elements
from ..timing.judging_setup import JudgingSetup
from ..timing.rounds import Rounds
from ..timing.timed_pass import timed_pass
from ..verdicts import Judged, JudgeFailed, ReferenceFailed, incorrect

TIES_S = 5.0
"""For elements that may tie. What kernels left undone is mostly explained by nothing, and takes all of it."""


def ghost_replay(setup: JudgingSetup) -> str:
    """Have the smallest shape answered once more as ever and once by ghosts; say what the ghosts' answer was.

    This is the last that the candidate is asked: its code may well crash on what its kernels left undone.

    Raises:
        Judged: If the answer is right without the candidate's kernels.
    """
    task, candidate = setup.task, setup.candidate
    rounds = Rounds(setup, min(task["shapes"], key=lambda each: elements(task, each)))
    buffers = rounds.open(1)
    # The plain call shows that the candidate is right here, so a wrong ghost's answer says something.
    rounds.play(buffers)
    rounds.expect(buffers)
    rounds.lay(buffers)
    try:
        reply = timed_pass(candidate, buffers, rounds.timeout_s, ghost=True).reply
        candidate.freeze()
    except Judged as judged:
        # A crash without its kernels is an honest outcome; the candidate's end must not turn into a verdict.
        candidate.lost = False
        return "ghost replay: without its own kernels the candidate %s" % judged.reason[:200]
    launches = reply.get("launches")
    count = launches if isinstance(launches, int) else 0
    if reply.get("error") or not _right(rounds, buffers):
        return "ghost replay: its answer rests on its own kernels (%d launches left out)" % count
    blind: List[str] = task.get("blind_to") or []
    # Launches that the replay cannot intercept make "right without kernels" no evidence of a fallback.
    if blind and not count:
        return "ghost replay does not see kernels made with %s: whether it fell back is not known" % ", ".join(blind)
    how = "%d launches of its own kernels left out" % count if count else "it launches no kernel of its own"
    raise incorrect("fell back to the library, which the problem forbids: the answer is right with %s" % how)


def _right(rounds: Rounds, buffers: Buffers) -> bool:
    """Say whether the ghosts' answer is right: a library may decide ties otherwise than the reference, too.

    Raises:
        ReferenceFailed: If the reference is gone; what is right, nobody knows then.
    """
    if isinstance(rounds.ties, Ties):
        rounds.ties.left_s = TIES_S
    try:
        return rounds.ties.excuse(buffers, buffers.check()).passed
    except ReferenceFailed:
        raise
    except JudgeFailed:  # too many ties to look at
        return False
