"""Checks a candidate just before its verdict: inputs that were answered before, and other declared shapes."""

import time
from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple

from ..checks.trial_setup import may_vary, named_dims
from ..verdicts import Judged, JudgeFailed, incorrect
from .untimed_trials import Trials

SURVEY_S = 10.0
"""For calls at declared shapes that were not judged, after a failure."""
NAMED = 6
"""Shapes that are named of those which passed, failed or were not tried."""


def recall(trials: Trials) -> None:
    """Give a candidate once more what it answered rightly in the trials, where it was wrong with the like since.

    Raises:
        Judged: If it is wrong now by more than a lower precision: it counts its calls, or keeps something of them.
    """
    found = trials.robustness.found
    for drawn in list(found):
        # Without a right answer in the trials, a wrong one now shows no change of behaviour.
        if drawn not in trials.marks:
            continue
        table = trials.sit(trials.smallest, hidden=False)
        # Inputs as declared come first: only where these are right does a failure below speak of the others.
        trials.play(table, "")
        pairs = zip(table.declared, may_vary(table.declared))
        table.buffers.inputs = [replace(item, distribution=drawn) if may else item for item, may in pairs]
        mark, first = trials.marks[drawn]
        # The generator draws the very same inputs again, so that no copy of them has to be kept.
        with trials.well.rewind_to(mark):
            reference_s = table.rounds.expect(table.buffers)
        table.rounds.forgives = trials.forgives(table.rounds, strict=False, first=first)
        try:
            trials.answer(table, reference_s)
        except Judged as judged:
            if judged.verdict == "cheat":
                raise
            if trials.robustness.precision_loss(judged, table.rounds, table.buffers) is not None:
                found[drawn] += " (the same inputs were answered more exactly at first)"
                trials.leave(table)
                continue
            text = "right at first and wrong with the same inputs later, drawn from the distribution %s, at %s: %s"
            raise incorrect(text % (drawn, named_dims(table.dims), judged.reason)) from None
        trials.leave(table)


def survey(trials: Trials, shapes: Sequence[Dict[str, Any]]) -> str:
    """Say at which declared shapes a candidate that failed is right: what is not known is tried, one call each."""
    known: List[Tuple[Dict[str, int], str]] = [(shape["dims"], shape["verdict"]) for shape in shapes]
    if trials.passed and trials.smallest not in [dims for dims, _ in known]:
        known.append((trials.smallest, "correct"))
    begin, told = time.monotonic(), {"correct": "right at ", "incorrect": "wrong at ", "": "not tried: "}
    found: Dict[str, List[str]] = {verdict: [] for verdict in told}
    for dims in trials.task["shapes"]:
        verdict = next((each for other, each in known if other == dims), None)
        if verdict is None:
            # The verdict is known by now, so the survey may not hold the GPU for long.
            late = time.monotonic() - begin > SURVEY_S
            verdict = "" if late or trials.setup.candidate.lost else _tried(trials, dims)
        # The survey helps an author to find a bug; it accuses nobody on one untimed call.
        found["" if verdict == "cheat" else verdict].append(named_dims(dims))
    parts = [told[verdict] + _some(names) for verdict, names in found.items() if names]
    return "; ".join(parts)


def _tried(trials: Trials, dims: Dict[str, int]) -> str:
    """Return the verdict on one call at a shape, empty if there is none."""
    try:
        table = trials.sit(dims, hidden=False)
        trials.play(table, "")
        trials.leave(table)
    except Judged as judged:
        return judged.verdict
    except JudgeFailed:
        return ""
    return "correct"


def _some(names: Sequence[str]) -> str:
    more = " and %d more" % (len(names) - NAMED) if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more
