"""One shape under trial, and what is said of it."""

from typing import Any, Dict, List, Optional, Sequence

from ..devices.device import Buffers
from ..inputs.hidden_shapes import Dims
from ..numerics.tensors import FLOATS, MADE, Tensor
from ..timing.rounds import Rounds
from ..verdicts import Judged, where_of

DISTRIBUTIONS = ("uniform", "normal", "offset", "outliers", "zeros", "large", "small")
"""Besides the declared one, what inputs of floats are drawn from where candidates are tried."""
SELDOM_DRAWN = ("zeros", "small")
"""Only where all are: the others show more. Beside small inputs a term that was dropped shows, as a norm's epsilon."""


def named_dims(dims: Dims) -> str:
    """Return a shape in words."""
    return ",".join("%s=%d" % pair for pair in dims.items()) or "the only shape"


def may_vary(inputs: Sequence[Tensor]) -> List[bool]:
    """Say of each input whether it may be drawn from another distribution than is declared."""
    return [item.dtype in FLOATS and item.distribution not in ("integers", *MADE) for item in inputs]


class Table:
    """One shape under trial: players, buffers and what was played."""

    def __init__(self, rounds: Rounds, buffers: Buffers, dims: Dims, hidden: bool) -> None:
        self.rounds, self.buffers, self.dims, self.hidden = rounds, buffers, dims, hidden
        self.declared: Sequence[Tensor] = buffers.inputs


def untimed_shape(table: Table, judged: Optional[Judged]) -> Dict[str, Any]:
    """Return a declared shape's verdict, as far as untimed calls tell it."""
    verdict, reason = (judged.verdict, judged.reason) if judged else ("correct", "")
    checked = table.rounds.calls_checked
    return {
        "dims": table.dims, "verdict": verdict, "reason": reason, "calls_checked": checked, "speedup": None,
        "where": where_of(judged), "notes": list(table.rounds.notes),
    }  # fmt: skip
