"""Memory by its address as torch tensors, on either device."""

import ctypes
from types import SimpleNamespace
from typing import Any, Dict, List, Sequence, Tuple

from ..numerics.tensors import ITEM_BYTES, STORED, Tensor

VIEWED = ("bfloat16", *(name for name in STORED if name.startswith(("float8", "float4"))))
"""Types that torch takes over as whole numbers of their size."""


def type_string(dtype: str) -> str:
    """Return a type as arrays' interfaces name it, by what torch takes over."""
    stored = {"bfloat16": "i2", "bool": "b1"}.get(dtype, STORED[dtype])
    return ("|" if stored.endswith("1") else "<") + stored


def tensor_at(torch: Any, address: int, item: Tensor, device: Any = None) -> Any:
    """Return a tensor over memory of `device`, of the processor if that is `None`; it keeps nothing alive."""
    # A misaligned address would only fault later, in a load within somebody's kernel.
    assert address % ITEM_BYTES[item.dtype] == 0
    if device is not None:
        # Torch refuses interfaces that are marked read-only; the mapping itself protects the inputs.
        about = {"shape": item.shape, "typestr": type_string(item.dtype), "data": (address, False), "version": 3}
        got = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=about), device=device)
        return got.view(getattr(torch, item.dtype)) if item.dtype in VIEWED else got
    # Views over foreign memory copy nothing; the caller keeps the mapping for as long as they live.
    memory = (ctypes.c_uint8 * item.nbytes).from_address(address)
    if item.dtype in VIEWED[1:]:
        return torch.frombuffer(memory, dtype=torch.uint8).view(item.shape).view(getattr(torch, item.dtype))
    return torch.frombuffer(memory, dtype=getattr(torch, item.dtype)).view(item.shape)


def tensors_at(
    torch: Any, base: int, where: Dict[str, Any], items: Sequence[Tensor], device: Any = None
) -> List[Tuple[Any, ...]]:
    """Return the tensors of every set of a layout that begins at `base`."""
    sets: List[Tuple[Any, ...]] = []
    for number in range(where["sets"]):
        start = base + number * where["stride"]
        sets.append(
            tuple(tensor_at(torch, start + offset, item, device) for offset, item in zip(where["offsets"], items))
        )
    return sets
