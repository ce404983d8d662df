"""Tensors of a task at one shape, and where they lie in a buffer. Standard library only: the candidate needs it."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Sequence, Tuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = Any

STORED = {
    "float16": "f2", "bfloat16": "u2", "float32": "f4", "float64": "f8", "int8": "i1", "uint8": "u1", "int32": "i4",
    "int64": "i8", "float8_e4m3fn": "u1", "float8_e5m2": "u1", "bool": "u1", "float4_e2m1fn_x2": "u1", "int16": "i2",
    "uint16": "u2", "uint32": "u4", "complex64": "c8", "float8_e4m3fnuz": "u1", "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
}  # fmt: skip
"""Types by torch's names, and as what NumPy stores an element: kind and bytes. The first eight are in the order of
kernels.cu. Of fours an element is a byte of two."""
ITEM_BYTES = {name: int(stored[1:]) for name, stored in STORED.items()}
MADE = ("made", "weights")
"""Distributions of inputs that the problem's own code makes, anew for each call or once."""
CODED_FLOATS = ("float8_e4m3fn", "float8_e5m2")
"""Floats of so few values that the next one is an eighth away or more: a jump, as from one whole number to the next."""
FLOATS = ("float16", "bfloat16", "float32", "float64", *CODED_FLOATS)

ALIGNMENT_BYTES = 256
"""Of every tensor, as cudaMalloc aligns."""
SMALL_GUARD_BYTES = 256
BIG_GUARD_BYTES = 4096
BIG_TENSOR_BYTES = 64 << 10


@dataclass(frozen=True)
class Tensor:
    """A tensor with numbers for its dimensions."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    axes: Tuple[str, ...]
    """What each dimension is called in messages."""
    distribution: str

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def discrete(self) -> bool:
        """Say whether its elements jump: it holds no floats, or floats of eight bits."""
        return self.dtype not in FLOATS or self.dtype in CODED_FLOATS

    @property
    def nbytes(self) -> int:
        """Bytes of the elements alone."""
        return self.count * ITEM_BYTES[self.dtype]


class Layout(NamedTuple):
    """Offsets of the tensors of one set in memory, and the stride from set to set."""

    offsets: Tuple[int, ...]
    """Of each tensor from the start of its set."""
    guard_bytes: Tuple[int, ...]
    """Before and after each tensor, nothing else lies there; 0 without guards."""
    stride: int
    """Bytes from one set to the next."""
    sets: int

    @property
    def total(self) -> int:
        """Bytes of all sets."""
        return self.stride * self.sets


def symbols(task: Dict[str, Any]) -> List[str]:
    """Return the dimension symbols in order of first use, inputs first; behind them whole numbers beside tensors."""
    seen: Dict[str, None] = {}
    for spec in list(task["inputs"]) + list(task["outputs"]):
        for size in spec["shape"]:
            if isinstance(size, str):
                # A dict instead of a set: order of first use is the launcher's order of arguments.
                seen[size] = None
    seen.update(dict.fromkeys(task.get("scalars") or ()))
    return list(seen)


def brings_check(task: Dict[str, Any]) -> bool:
    """Say whether a problem's answers are right where a check of its own takes them."""
    adapter: Dict[str, Any] = task.get("adapter") or {}
    return bool(adapter.get("checker"))


def tensors(specs: Sequence[Dict[str, Any]], dims: Dict[str, int]) -> List[Tensor]:
    """Return the tensors of `specs` with the sizes that `dims` gives the symbols."""
    found: List[Tensor] = []
    for spec in specs:
        shape = tuple(dims[size] if isinstance(size, str) else int(size) for size in spec["shape"])
        axes = tuple(size if isinstance(size, str) else "axis %d" % i for i, size in enumerate(spec["shape"]))
        found.append(Tensor(spec["name"], spec["dtype"], shape, axes, spec.get("distribution") or "normal"))
    return found


def _aligned(size: int) -> int:
    return (size + ALIGNMENT_BYTES - 1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def layout(items: Sequence[Tensor], sets: int, *, guarded: bool) -> Layout:
    """Lay `items` one behind the other, `sets` times, with guards around each of them if asked.

    The guard behind a tensor begins at its last byte, so that one element too many is seen.
    """
    offsets: List[int] = []
    guards: List[int] = []
    at = 0
    for item in items:
        guard = (BIG_GUARD_BYTES if item.nbytes >= BIG_TENSOR_BYTES else SMALL_GUARD_BYTES) if guarded else 0
        at += guard
        offsets.append(at)
        guards.append(guard)
        # Vector loads need aligned addresses, so each tensor starts anew on a boundary, whatever lies before it.
        at = _aligned(at + item.nbytes + guard)
    return Layout(tuple(offsets), tuple(guards), max(at, ALIGNMENT_BYTES), sets)
