"""ModelNew's weights beside the problem's: which are alike after the common seed, and which are not.

ModelNew makes its own weights, as in KernelBench: both models are constructed after the same seed. What a harness
copies from one to the other it may spoil, as a ModelNew may scale or fuse its weights when it is constructed.
Source: https://github.com/ScalingIntelligence/KernelBench, src/kernelbench/eval.py, which copies nothing.
"""

import re
from typing import Any, Dict, List, NamedTuple, Sequence

NAMED = 4
"""Names that a sentence lists."""
STATISTICS = "running_mean"
"""Last part of the names of what a batch norm changes in training mode alone; zero when it is made."""
UNCHANGED = (
    "no running_mean of ModelNew changed, as in eval mode: right only if it takes each batch's own statistics itself, "
    "as the problem's Model does"
)
FIXED = re.compile(r"\.eval\(\)|\.train\(False\)|\bmomentum *= *0(?:\.0*)?\b(?!\.?\d)|track_running_stats *= *False")
"""What a problem has whose statistics stay as they are."""


class ComparedWeights(NamedTuple):
    """Comparison of a model's weights with the problem's, in words."""

    said: str
    """How many are what, for the notes."""
    differ: str
    """Which are not the problem's, for the reason of a wrong answer; empty if all are."""


def words_of_names(names: Sequence[str]) -> str:
    """Return some names in words."""
    more = " and %d more" % (len(names) - NAMED) if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def compared_weights(torch: Any, theirs: Dict[str, Any], own: Dict[str, Any], *, copied: bool) -> ComparedWeights:
    """Compare a model's own weights with the problem's, both by name.

    If `copied`, the problem's replace them where names and shapes match and values do not.
    """

    def is_alike(name: str, value: Any) -> bool:
        mine = own[name]
        # The model may hold weights in a shorter type, which after conversion can still equal the problem's.
        return tuple(mine.shape) == tuple(value.shape) and bool(torch.equal(mine.to(value.dtype), value))

    alike = [name for name, value in theirs.items() if name in own and is_alike(name, value)]
    free = [name for name in own if name not in alike]
    renamed: List[str] = []
    others: List[str] = []
    alone: List[str] = []
    for name, value in theirs.items():
        if name in alike:
            continue
        twin = next((mine for mine in free if is_alike(mine, value)), None)
        if twin is not None:
            # Each weight is a twin once: equal tensors, such as all-zero biases, must pair one to one.
            free.remove(twin)
            renamed.append(name)
        elif name in own and tuple(own[name].shape) == tuple(value.shape):
            others.append(name)
            if copied:
                # An in-place copy keeps the parameter object, to which optimised modules may hold references.
                own[name].copy_(value)
        else:
            alone.append(name)
    return ComparedWeights(_summary(alike, renamed, others, alone, copied=copied), _difference(others, alone, copied))


def _summary(
    alike: Sequence[str], renamed: Sequence[str], others: Sequence[str], alone: Sequence[str], *, copied: bool
) -> str:
    parts = ["%d alike by the common seed" % len(alike)] if alike else []
    parts += ["%d alike under another name" % len(renamed)] if renamed else []
    how = "taken over from the problem" if copied else "other than the problem's"
    parts += ["%d %s (%s)" % (len(others), how, words_of_names(others))] if others else []
    parts += ["%d without a counterpart (%s)" % (len(alone), words_of_names(alone))] if alone else []
    return "weights: " + ", ".join(parts)


def _difference(others: Sequence[str], alone: Sequence[str], copied: bool) -> str:
    parts: List[str] = []
    if others and not copied:
        what = "weight %s differs" if len(others) == 1 else "weights %s differ"
        parts.append("ModelNew's %s from the problem's after the common seed" % (what % words_of_names(others)))
    if alone:
        parts.append("ModelNew has no counterpart of the problem's %s by name and shape" % words_of_names(alone))
    if parts:
        parts.append("both draw from one seed: make the problem's weights in its order")
    return "; ".join(parts)


def unchanged_statistics(theirs: Sequence[str], own: Dict[str, Any], problem: str) -> str:
    """Say so if no batch norm of a model that was called is in training mode, and the problem's are; empty if not.

    `theirs` names the problem's state, `own` is the model's behind a call. KernelBench calls a model in training mode,
    unless the text of the problem says otherwise itself.
    """
    kept = [value for name, value in own.items() if name.endswith(STATISTICS)]
    trains = any(name.endswith(STATISTICS) for name in theirs) and not FIXED.search(problem)
    return UNCHANGED if trains and kept and not any(bool(value.any()) for value in kept) else ""
