"""Launches of a Triton kernel as calls that return: its outputs come back, and its inputs stay as they are.

Stands alone: the same file lies, with workers/parts/launch_hooks.py, beside a program whose launches are recorded, and
in an overlay that replaces them.
"""

import importlib
from typing import Any, Dict, Sequence, Tuple, cast

torch: Any = importlib.import_module("torch")

OUTPUT = "output of this type, sizes and steps"
"""First of a tuple that stands for a tensor which a launch writes in full, and whose values before do not count."""
STORAGE_BYTES = 1 << 30


class NotCallable(Exception):
    """A launch cannot be made a call that returns; the words say why."""


def named_arguments(args: Sequence[Any], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Return all arguments by place or name."""
    return {**{str(place): value for place, value in enumerate(args)}, **kwargs}


def split_arguments(named: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return arguments by place, and those by name."""
    places = [name for name in named if name.isdigit()]
    return tuple(named[name] for name in places), {name: named[name] for name in named if not name.isdigit()}


def returning_call(kernel: Any, written: Sequence[str]) -> Any:
    """Return a function that launches a kernel on copies and returns the tensors that it has written."""

    def call(grid: Sequence[int], *args: Any, **kwargs: Any) -> Tuple[Any, ...]:
        named = named_arguments(args, kwargs)
        device = next((t.device for t in named.values() if torch.is_tensor(t)), torch.empty(0).device)
        for name, value in named.items():
            if isinstance(value, tuple) and value and value[0] == OUTPUT:
                about: Sequence[Any] = cast("Sequence[Any]", value)
                named[name] = torch.empty_strided(about[2], about[3], dtype=about[1], device=device)
            elif torch.is_tensor(value) and (name in written or device.type == "cpu"):
                named[name] = copy_of(value)  # Triton's interpreter writes to all of its arguments
        given, more = split_arguments(named)
        kernel[tuple(grid)](*given, **more)
        return tuple(named[name] for name in written)

    return call


def copy_of(tensor: Any) -> Any:
    """Return a tensor with memory of its own, as large and laid out as the whole memory of the first.

    Raises:
        NotCallable: If that has more than STORAGE_BYTES.
    """
    storage = tensor.untyped_storage()
    if storage.nbytes() > STORAGE_BYTES:
        raise NotCallable("an argument's memory has %d bytes; the limit is %d" % (storage.nbytes(), STORAGE_BYTES))
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage.clone(), tensor.storage_offset(), tensor.size(), tensor.stride())
