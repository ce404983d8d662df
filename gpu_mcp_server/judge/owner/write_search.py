"""Finds the input that a candidate writes to: a call on copies, which are compared with the inputs then.

Inputs are read-only where candidates are judged, so one that writes to them crashes as others do that read astray. It
was judged before; what is found here names the cause, and no verdict follows from it.
"""

from typing import Any, Dict, List, Sequence

from ..channel.supervisor_client import Player
from ..inputs.constraints import Dims
from ..inputs.hidden_shapes import elements
from ..numerics.input_views import input_memories, input_views
from ..timing.judging_setup import JudgingSetup
from ..timing.rounds import Rounds
from ..verdicts import Judged

MOST_SHAPES = 4
"""Declared or hidden; a write to an input is seldom one that happens at few shapes."""


def search_writes(setup: JudgingSetup, hidden: Sequence[Dims]) -> Dict[str, Any]:
    """Call a candidate at some shapes until an input has changed or it has ended; return what changed.

    Raises:
        JudgeFailed: If the reference cannot make inputs.
    """
    task = setup.task
    declared: List[Dims] = sorted(task["shapes"], key=lambda dims: elements(task, dims))
    for dims in [*declared[:1], *hidden, *declared[1:]][:MOST_SHAPES]:
        rounds, ended = Rounds(setup, dims), ""
        try:
            buffers: Any = rounds.open(1)
        except Judged as judged:
            return {"writes": [], "ended": judged.reason[:300]}
        try:
            rounds.draw(buffers)
            rounds.lay(buffers)
            ended = _called(setup.candidate, rounds.timeout_s)
        except Judged as judged:
            ended = judged.reason
        counts: List[int] = buffers.count_changes()
        # A crash ends the search, too: the candidate is gone, and the counts show what it wrote before.
        if any(counts) or ended:
            return {"writes": _named(task, dims, counts), "ended": ended[:300]}
        rounds.close(buffers)
    return {"writes": [], "ended": ""}


def _called(candidate: Player, timeout_s: float) -> str:
    """Have the candidate make one call; return how it ended otherwise than by returning."""
    candidate.thaw()
    if candidate.prepare_s:
        # A Python candidate's first call compiles, so it gets the limit for that.
        reply = candidate.ask("prepare", candidate.prepare_s)
    else:
        reply = candidate.ask("go", timeout_s, calls=1)
    candidate.freeze()
    return str(reply.get("error") or "")


def _named(task: Dict[str, Any], dims: Dims, counts: Sequence[int]) -> List[Dict[str, Any]]:
    """Return the changed inputs by their names, those in the same memory together."""
    views, sizes = input_views(task, dims), [item.count for item in input_memories(task, dims)]
    found: List[Dict[str, Any]] = []
    for number, count in enumerate(counts):
        names = [view.item.name for view in views if view.memory == number]
        if count:
            found.append({"input": " and ".join(names), "elements": count, "of": sizes[number]})
    return found
