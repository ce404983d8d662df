"""One shape under trial, what is said of it, and when rounds of another kind are due between its timed ones."""

from typing import Any, Dict, List, Optional, Sequence

from ..devices.device import Buffers
from ..inputs.constraints import Dims
from ..numerics.random_inputs import Well
from ..numerics.tensors import FLOATS, MADE, Tensor
from ..timing.rounds import Rounds
from ..verdicts import Judged, where_of

DISTRIBUTIONS = ("uniform", "normal", "offset", "outliers", "zeros", "large", "small")
"""Besides the declared one, what inputs of floats are drawn from where candidates are tried."""
SELDOM_DRAWN = ("zeros", "small")
"""Only where all are: the others show more. Beside small inputs a term that was dropped shows, as a norm's epsilon."""
DUE_EARLY = 2
"""Rounds that are due behind the first ones."""
DUE_ONE_IN = 16
"""Behind one in so many of the later ones another is due."""


class Agenda:
    """The rounds of a shape behind which the judge plays another kind of round; it draws them in secret."""

    def __init__(self, well: Well, early: int = DUE_EARLY, one_in: int = DUE_ONE_IN) -> None:
        self.well, self.early, self.one_in, self.first = well, early, one_in, 0
        self.places: List[int] = []

    def begin(self, first: int) -> None:
        """Draw behind which of so many first rounds."""
        self.first, self.places = first, [int(place) for place in self.well.positions(self.early, first)]

    def due(self, played: int) -> int:
        """Return how many are due when so many rounds were played before the last.

        A round that the judge tried before may have counted as the first: what was due behind it is due now.
        """
        due = sum(place <= played for place in self.places)
        self.places = [place for place in self.places if place > played]
        # Each later round is drawn by itself: after many rounds without one, the next is no likelier.
        return due + (played >= self.first and self.well.word() % self.one_in == 0)


def named_dims(dims: Dims) -> str:
    """Return a shape in words."""
    return ",".join("%s=%d" % pair for pair in dims.items()) or "the only shape"


def may_vary(inputs: Sequence[Tensor]) -> List[bool]:
    """Say of each input whether it may be drawn from another distribution than is declared."""
    return [item.dtype in FLOATS and item.distribution not in ("integers", *MADE) for item in inputs]


class Table:
    """One shape under trial: players, buffers and what was played."""

    buffers: Buffers
    """Once it is open."""

    def __init__(self, rounds: Rounds, *, hidden: bool, larger: bool = False) -> None:
        self.rounds, self.dims, self.hidden, self.larger = rounds, rounds.dims, hidden, larger
        self.failed: List[str] = []
        """Distributions with which it was wrong, where that does not decide."""
        self.declared: Sequence[Tensor] = rounds.inputs


def untimed_shape(table: Table, judged: Optional[Judged]) -> Dict[str, Any]:
    """Return a declared shape's verdict, as far as untimed calls tell it."""
    verdict, reason = (judged.verdict, judged.reason) if judged else ("correct", "")
    checked = table.rounds.calls_checked
    return {
        "dims": table.dims, "verdict": verdict, "reason": reason, "calls_checked": checked, "speedup": None,
        "where": where_of(judged), "notes": list(table.rounds.notes),
    }  # fmt: skip
