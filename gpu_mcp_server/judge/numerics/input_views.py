"""Inputs as a module problem's own code lays them out: with strides, an offset, memory in common, gradients wanted.

The owner draws, publishes and compares memories, which are flat; the others lay the inputs over them. Where a problem
says nothing of an input, that is a memory of its own in row-major order. Standard library only.
"""

from dataclasses import replace
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from .tensors import Tensor, tensors


class View(NamedTuple):
    """An input over one of the memories."""

    item: Tensor
    memory: int
    """Its number."""
    strides: Tuple[int, ...]
    """In elements; empty in row-major order from the start of the memory."""
    offset: int
    """Of the first element, in elements."""
    requires_grad: bool


def layouts_at(task: Dict[str, Any], dims: Dict[str, int]) -> Dict[str, Dict[str, Any]]:
    """Return what is not usual about a task's inputs at one shape, by position: its case's, where it has cases."""
    if "case" in dims and task.get("case_layouts"):
        return task["case_layouts"][int(dims["case"]) - 1]  # type: ignore[no-any-return]
    return task.get("layouts") or {}


def _layout_of(task: Dict[str, Any], position: int, dims: Dict[str, int]) -> Dict[str, Any]:
    return layouts_at(task, dims).get(str(position)) or {}


def owners_of(task: Dict[str, Any], dims: Dict[str, int]) -> List[int]:
    """Return for each memory the position of the first input that lies in it."""
    positions = range(len(task["inputs"]))
    return [position for position in positions if _owner(task, position, dims) == position]


def _owner(task: Dict[str, Any], position: int, dims: Dict[str, int]) -> int:
    owner = _layout_of(task, position, dims).get("of")
    return position if owner is None else int(owner)


def input_memories(task: Dict[str, Any], dims: Dict[str, int]) -> List[Tensor]:
    """Return what a task's inputs lie in at one shape: a tensor as it is, or flat elements to lay views over."""
    items = tensors(task["inputs"], dims)
    found: List[Tensor] = []
    for position in owners_of(task, dims):
        elements = _layout_of(task, position, dims).get("elements")
        item = items[position]
        found.append(item if elements is None else replace(item, shape=(int(elements),), axes=("element",)))
    return found


def input_views(task: Dict[str, Any], dims: Dict[str, int]) -> List[View]:
    """Return a task's inputs at one shape, in order."""
    numbers = {position: number for number, position in enumerate(owners_of(task, dims))}
    found: List[View] = []
    for position, item in enumerate(tensors(task["inputs"], dims)):
        where = _layout_of(task, position, dims)
        strides = tuple(int(step) for step in where.get("strides") or ())
        memory, wants = numbers[_owner(task, position, dims)], bool(where.get("requires_grad"))
        found.append(View(item, memory, strides, int(where.get("offset") or 0), wants))
    return found


def described_layouts(task: Dict[str, Any]) -> str:
    """Say of which inputs the layout is not the usual one; empty if of none."""
    views = input_views(task, dict(task["shapes"][0]))
    said: List[str] = []
    for view in views:
        beside = [other.item.name for other in views if other.memory == view.memory and other is not view]
        if view.strides:
            text = "%s has strides (%s)" % (view.item.name, ", ".join(map(str, view.strides)))
            text += " and offset %d" % view.offset if view.offset else ""
            said.append(text + (" in memory of %s" % ", ".join(beside) if beside else ""))
    return "; ".join(said)


def with_constants(values: Sequence[Any], constants: Dict[str, Any]) -> List[Any]:
    """Return the arguments of a call: tensors in order, with the constants at their positions."""
    arguments = list(values)
    for position in sorted(constants, key=int):
        arguments.insert(int(position), constants[position])
    return arguments


def lay_views(torch: Any, memories: Sequence[Any], views: Sequence[View]) -> Tuple[Any, ...]:
    """Return the inputs of a call as tensors over its memories."""
    found: List[Any] = []
    for view in views:
        one = memories[view.memory]
        if view.strides or tuple(one.shape) != view.item.shape:
            # as_strided is the one view that reproduces overlapping and shared memory exactly.
            one = torch.as_strided(one, view.item.shape, view.strides, view.offset)
        # A detached leaf: gradients of earlier calls must not flow into this one's graph.
        found.append(one.detach().requires_grad_() if view.requires_grad else one)
    return tuple(found)
