"""Asks the problem's own check where several answers are right: factors, eigenvectors, samples.

An answer that equals the reference's bit for bit is right. The owner shows any other one to the check, as a copy that
no process can write to. The check runs in the reference's process, which no candidate reaches. Where it takes long, it
sees some calls of each round, chosen in secret.
"""

import time
from typing import Optional, Sequence

import numpy as np

from ..channel.supervisor_client import Player
from ..devices.device import Buffers, RoundCheck
from ..devices.memory_cpu import Region, share
from ..numerics.compare import numbers
from ..numerics.random_inputs import Well
from ..numerics.tensors import Array, Tensor, layout
from ..verdicts import ReferenceFailed, TooLarge, megabytes
from .fp64_reference import EPSILON

LEAST_CALLS = 4
"""Calls of each round that the check sees, however long it takes. Over a shape's rounds they show a candidate that
leaves out one call in ten with 99 %."""
ROUND_S = 0.5
"""After so long a round's other calls are left unseen."""
NOT_FINITE = "NaN or infinite where the reference is finite"
LATE_UNSEEN = "the problem's own check cannot tell a call that ended late on the GPU from one in time"
"""Of an answer that the check takes and the reference does not give, every look before its end says `wrong`: what the
judge concludes elsewhere from wrong elements that become right is not to be had."""


def is_not_finite(item: Tensor, expected: Array, answer: Array) -> bool:
    """Say whether an answer is NaN or infinite where the reference's is finite: comparisons with NaN are false."""
    if item.dtype not in EPSILON:
        return False
    want, have = numbers(expected, item.dtype), numbers(answer, item.dtype)
    return bool((np.isfinite(want) & ~np.isfinite(have)).any())


def refusal_of(
    reference: Player, outputs: Sequence[Tensor], answers: Sequence[Array], call: int, timeout_s: float
) -> Optional[str]:
    """Return why the problem's check refuses an answer to the inputs of a call, `None` if it takes it.

    Raises:
        ReferenceFailed: If it cannot say.
        TooLarge: If an answer is larger than a job's files may be.
    """
    where = layout(outputs, 1, guarded=False)
    try:
        memory = Region(where.total, writable_by_others=False)
    except OSError as error:
        text = "an answer of %s is too large for the file that shows it to the problem's own check: %s"
        raise TooLarge(text % (megabytes(where.total), error)) from error
    try:
        for number, (item, values) in enumerate(zip(outputs, answers)):
            memory.tensor(where, item, number)[0] = values.view(memory.tensor(where, item, number).dtype)
        reply = reference.ask("check", 6 * timeout_s, [memory.fd], call=call, where=share(where))
    finally:
        memory.close()
    if reply.get("error"):
        raise ReferenceFailed("the problem's own check failed: %s" % reply["error"])
    return None if reply.get("passed") else str(reply.get("said") or "it says no")


class OwnCheck:
    """Stands where near ties of discrete answers are explained."""

    advice = ""
    """None: the check says why."""

    def __init__(self, reference: Player, well: Well, timeout_s: float) -> None:
        self.reference, self.well, self.timeout_s = reference, well, timeout_s
        self.reason = ""
        """Why it refused an answer last."""

    def excuse(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Return a round's comparison with the call alone that the check refuses, if it does one that it looks at."""
        if check.passed:
            return check
        calls = np.flatnonzero(check.wrong.any(axis=1))
        left, begin = np.zeros_like(check.wrong), time.monotonic()
        self.reference.thaw()
        try:
            # A secret order: with a fixed one, a candidate could be wrong only in calls that come late.
            for number, call in enumerate(np.random.default_rng(self.well.word()).permutation(calls).tolist()):
                if number >= LEAST_CALLS and time.monotonic() - begin > ROUND_S:
                    break
                pairs = [buffers.pair(call, output) for output in range(len(buffers.outputs))]
                why: Optional[str] = NOT_FINITE
                # The judge refuses NaN itself, as `error > limit` in an author's check is false for it.
                if not any(is_not_finite(item, *pair) for item, pair in zip(buffers.outputs, pairs)):
                    answers = [answer for _, answer in pairs]
                    why = refusal_of(self.reference, buffers.outputs, answers, call, self.timeout_s)
                if why is not None:
                    self.reason = "the problem's own check refuses the answer: %s" % why
                    # One refused call decides the round, so the check need not see the others.
                    left[call] = check.wrong[call]
                    break
        finally:
            self.reference.freeze()
        return check._replace(wrong=left)

    def inexcusable_at(self, call: int, output: int, wrong: Optional[Array]) -> Optional[Array]:
        """Return an output's wrong elements: the check does not say which."""
        return wrong

    def excuse_note(self, buffers: Buffers) -> str:
        """Return the note on a round in which the check took something."""
        return "right by the problem's own check; if it is slow, it checks some calls of each round, chosen in secret"
