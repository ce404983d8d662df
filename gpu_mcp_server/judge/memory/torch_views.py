"""Memory by its address as torch tensors, on either device."""

import ctypes
from typing import Any, Dict, List, Sequence, Tuple

from ..numerics.tensors import ITEM_BYTES, Tensor

TYPE_STRINGS = {
    "float16": "<f2",
    "bfloat16": "<i2",
    "float32": "<f4",
    "float64": "<f8",
    "int8": "|i1",
    "uint8": "|u1",
    "int32": "<i4",
    "int64": "<i8",
    "bool": "|b1",
    "float8_e4m3fn": "|u1",
    "float8_e5m2": "|u1",
    "float4_e2m1fn_x2": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "uint32": "<u4",
    "complex64": "<c8",
    "float8_e4m3fnuz": "|u1",
    "float8_e5m2fnuz": "|u1",
    "float8_e8m0fnu": "|u1",
}
VIEWED = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float4_e2m1fn_x2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
"""Types that torch takes over as whole numbers of their size."""


class Window:
    """A piece of device memory as torch takes it over."""

    def __init__(self, address: int, item: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": item.shape,
            "typestr": TYPE_STRINGS[item.dtype],
            # Torch refuses interfaces that are marked read-only; the mapping itself protects the inputs.
            "data": (address, False),
            "version": 3,
        }


def tensor_at(torch: Any, address: int, item: Tensor, device: Any = None) -> Any:
    """Return a tensor over memory of `device`, of the processor if that is `None`; it keeps nothing alive."""
    # A misaligned address would only fault later, in a load within somebody's kernel.
    assert address % ITEM_BYTES[item.dtype] == 0
    if device is not None:
        got = torch.as_tensor(Window(address, item), device=device)
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
