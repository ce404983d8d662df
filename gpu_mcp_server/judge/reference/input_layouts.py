"""Describes the layout of `get_inputs`' tensors: strides, offsets, memory in common, gradients wanted."""

import importlib
from typing import Any, Dict, List, Sequence

torch: Any = importlib.import_module("torch")

ALIGNED = 256
"""Elements, hence at least as many bytes: memory begins at a multiple of these, so that addresses stay aligned."""


def _extent(value: Any) -> int:
    """Return the elements from the start of a tensor's storage to behind its last one."""
    steps = ((size - 1) * step for size, step in zip(value.shape, value.stride()))
    return int(value.storage_offset()) + sum(steps) + 1


def layouts_of(values: Sequence[Any], names: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    """Return what is not usual about some tensors, by position.

    Raises:
        ValueError: If two share memory as different types.
    """
    groups: List[List[int]] = []
    for position, value in enumerate(values):
        group = next((g for g in groups if torch._C._is_alias_of(values[g[0]], value)), None)
        if group is None:
            groups.append([position])
            continue
        if values[group[0]].dtype != value.dtype:
            text = "inputs %s and %s share memory as different types, which the judge does not lay out"
            raise ValueError(text % (names[group[0]], names[position]))
        group.append(position)
    found: Dict[str, Dict[str, Any]] = {}
    for group in groups:
        found.update(_of_one_memory(values, group))
    for position, value in enumerate(values):
        if value.requires_grad:
            found.setdefault(str(position), {})["requires_grad"] = True
    return found


def _of_one_memory(values: Sequence[Any], group: Sequence[int]) -> Dict[str, Dict[str, Any]]:
    first = values[group[0]]
    if len(group) == 1 and first.is_contiguous() and not first.storage_offset():
        return {}
    start = min(int(values[position].storage_offset()) for position in group) // ALIGNED * ALIGNED
    found: Dict[str, Dict[str, Any]] = {}
    for position in group:
        value = values[position]
        found[str(position)] = {
            "strides": list(value.stride()), "offset": int(value.storage_offset()) - start, "of": group[0],
        }  # fmt: skip
    found[str(group[0])]["elements"] = max(_extent(values[position]) for position in group) - start
    return found


def memory_of(value: Any, layouts: Dict[str, Dict[str, Any]], position: int) -> Any:
    """Return what lies in the memory of an input, as its problem has just made it."""
    where = layouts.get(str(position)) or {}
    if where.get("elements") is None:
        return value
    start = int(value.storage_offset()) - int(where["offset"])
    return torch.as_strided(value.detach(), (int(where["elements"]),), (1,), start)
