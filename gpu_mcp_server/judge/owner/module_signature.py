"""Asks a module problem for its inputs and outputs, once, when it is registered."""

from typing import Any, Dict, List, Sequence, cast

from ..channel.supervisor_client import Player
from ..numerics.input_views import input_memories
from ..numerics.tensors import ITEM_BYTES, layout, tensors
from ..timing.rounds import named
from ..verdicts import ReferenceFailed

TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
TOLERANCES.update({"float8_e4m3fn": 0.13, "float8_e5m2": 0.26})
"""Absolute and relative. Source: KernelBench, src/kernelbench/eval.py, get_tolerance_for_precision; of eight bits,
which it does not have, a last place and a little."""
MOST_BYTES = {"cpu": 1 << 30, "cuda": 1 << 36}
"""Inputs and outputs of a call together."""
FIELDS = ("inputs", "outputs", "state", "constants", "layouts")
CASE_FIELDS = ("shapes", "cases", "case_layouts", "case_constants", "scalars", "adapter")
"""Of a problem with cases, besides."""


def without_cases(described: Dict[str, Any], dropped: Sequence[int]) -> Dict[str, Any]:
    """Return what was described without some of its cases, counted from 1; the others are counted anew."""
    if not dropped:
        return described
    kept = [i for i in range(len(described["cases"])) if i + 1 not in dropped]
    found = {name: [described[name][i] for i in kept] for name in ("cases", "case_layouts", "case_constants")}
    shapes = [dict(described["shapes"][i], case=number) for number, i in enumerate(kept, 1)]
    return dict(described, shapes=shapes, **found)


def describe(task: Dict[str, Any], reference: Player, timeout_s: float, torch_seed: int) -> Dict[str, Any]:
    """Return the task with its tensors, and tell the reference of them.

    Raises:
        ReferenceFailed: If the problem's code fails, or is too large for the device.
    """
    named(reference.ask("start", timeout_s), "start")
    named(reference.ask("load", timeout_s, torch_seed=torch_seed), "load")
    found = named(reference.ask("describe", timeout_s), "say what it takes and returns")
    told = {name: found.get(name) for name in FIELDS + (CASE_FIELDS if task.get("adapter") else ())}
    kinds = [str(spec["dtype"]) for spec in cast("List[Dict[str, Any]]", told["outputs"])]
    # One tolerance serves all outputs, so the coarsest type decides; whole numbers add none.
    tolerance = max([TOLERANCES.get(kind, 0.0) for kind in kinds])
    whole = dict(task, **told)
    for name in ("rtol", "atol"):
        if whole[name] is None:
            whole[name] = tolerance if found.get(name) is None else float(found[name])
    # Made inputs, weights and integers keep their kind: another distribution would break what they mean.
    for spec in whole["inputs"]:
        if task.get("input_distribution") and spec["distribution"] not in ("made", "weights", "integers"):
            spec["distribution"] = task["input_distribution"]
    given = [*whole["inputs"], *whole["outputs"]]
    if not whole["inputs"] or any(spec["dtype"] not in ITEM_BYTES for spec in given):
        raise ReferenceFailed("the problem has no inputs, or ones of an unknown type")
    size = max(
        layout([*input_memories(whole, dims), *tensors(whole["outputs"], dims)], 1, guarded=True).total
        for dims in whole["shapes"]
    )
    if size > MOST_BYTES[task["device"]]:
        text = "the problem is too large: its tensors take %.1f GB, the limit on %s is %.1f GB"
        raise ReferenceFailed(text % (size / 1e9, task["device"], MOST_BYTES[task["device"]] / 1e9))
    named(reference.ask("specify", timeout_s, (), **told), "take its tensors")
    told.update(rtol=whole["rtol"], atol=whole["atol"], notes=[str(n)[:200] for n in found.get("notes", [])][:8])
    whole["described"] = told
    return whole
