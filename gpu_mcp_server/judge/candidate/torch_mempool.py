"""ModelNew's results in the owner's arena: a torch memory pool over it, and the names of what was returned."""

import ctypes
import math
import os
from functools import lru_cache
from typing import Any, ContextManager, List, NamedTuple, Sequence, Tuple

from ..folders import CODE
from .graph_captures import GraphCaptures

LIBRARY = os.path.join(CODE, "pool.so")
HERE = -1


class ResultLayout(NamedTuple):
    """Layout of a result in memory."""

    strides: List[int]
    """In elements, 0 where there is one element alone."""
    span: int
    """Elements from the first to the last one in memory."""
    dense: bool
    """Whether they are all that lies there."""


class ResultPlace(NamedTuple):
    """Place of a result when its call had returned: a later call may overwrite it, or take it away."""

    layout: ResultLayout
    offset: int
    """In the arena, `HERE` if it lay elsewhere."""
    why: str
    """Why it lay elsewhere, if so."""


@lru_cache(maxsize=64)
def _layout(shape: Tuple[int, ...], strides: Tuple[int, ...]) -> ResultLayout:
    steps = [int(step) if size > 1 else 0 for size, step in zip(shape, strides)]
    span = 1 + sum((size - 1) * step for size, step in zip(shape, steps))
    return ResultLayout(steps, span, span == math.prod(shape))


def layout_of(result: Any) -> ResultLayout:
    """Return a result's layout; remembered, since it is asked for behind each call, where every microsecond counts."""
    return _layout(result.shape, result.stride())


class Pool:
    """A `torch.cuda.MemPool` whose segments come from the arena."""

    def __init__(self, captures: GraphCaptures, arena: int, size: int, names: int, sets: int, outputs: int) -> None:
        self.captures, self.torch, self.arena, self.size = captures, captures.torch, arena, size
        self.library = ctypes.CDLL(LIBRARY)
        self.library.pool_region.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self.library.pool_region(arena, size)
        allocator = self.torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "pool_alloc", "pool_free")
        self.allocator: Any = allocator.allocator()
        self.pool: Any = self.torch.cuda.MemPool(self.allocator)
        self.names = (ctypes.c_int64 * (sets * outputs)).from_address(names)
        self.outputs = outputs

    def use(self) -> ContextManager[None]:
        """Allocate tensors from the arena, but those of a CUDA graph that is captured meanwhile."""
        return self.captures.use(self.pool)

    def offset(self, result: Any, target: Any) -> int:
        """Return where a result lies in the arena, `HERE` if not there, or where torch has not computed it yet."""
        # A lazy negation or conjugate is a bit on the view; memory holds other numbers than the result.
        lazy = result.is_neg() or result.is_conj()
        # A subclass may override data_ptr or compute at access, so only plain tensors are named.
        if type(result) is not self.torch.Tensor or result.dtype != target.dtype or lazy:
            return HERE
        at, one = int(result.data_ptr()) - self.arena, int(result.element_size())
        inside = 0 <= at <= self.size - layout_of(result).span * one and at % one == 0
        return at if inside else HERE

    def places(self, results: Sequence[Any], targets: Sequence[Any]) -> List[ResultPlace]:
        """Return where the results of a call lie."""
        found: List[ResultPlace] = []
        for result, target in zip(results, targets):
            at = self.offset(result, target)
            found.append(ResultPlace(layout_of(result), at, self._why_elsewhere(result, target) if at == HERE else ""))
        return found

    @staticmethod
    def why_not(first: Sequence[ResultPlace], second: Sequence[ResultPlace]) -> str:
        """Say why the results of two calls cannot stay where they are; empty if they can."""
        # The owner learns strides once per shape and could not read a layout that varies.
        if [place.layout for place in first] != [place.layout for place in second]:
            return "an output's strides differ from call to call"
        if not all(place.layout.dense for place in first):
            return "an output's elements have gaps between them, or lie in the same place"
        for place in (*first, *second):
            if place.why:
                return place.why
        # A model that reuses its output buffer overwrites call one's answer by call two's before the check.
        if {place.offset for place in first} & {place.offset for place in second}:
            return "two calls returned the same memory; return a new tensor from each call"
        return ""

    def _why_elsewhere(self, result: Any, target: Any) -> str:
        """Say why a result lies outside of the arena, or cannot be named there."""
        if result.dtype != target.dtype:
            return "an output is %s, expected %s" % (result.dtype, target.dtype)
        if type(result) is not self.torch.Tensor:
            return (
                "an output is a %s, no plain torch.Tensor: it may compute when it is read" % type(result).__name__[:60]
            )
        if result.is_neg() or result.is_conj():
            return "an output is a lazy negation or conjugate: torch computes it when it is read"
        self.library.pool_overflowed.argtypes = [ctypes.c_uint64]
        if self.library.pool_overflowed(int(result.data_ptr())):
            return "the model's other tensors filled the %.3g GB that the judge has for outputs" % (self.size / 1e9)
        return "an output lies in memory from before the call, as of a CUDA graph, or of another allocator or thread"

    def name(self, call: int, number: int, offset: int) -> None:
        """Write a name."""
        self.names[call * self.outputs + number] = offset

    def close(self) -> bool:
        """Let the arena go; return whether something in it is still in use, as a workspace that the model keeps."""
        # The pool must go first: empty_cache returns only segments that no live pool holds.
        self.pool = None
        self.torch.cuda.empty_cache()
        self.library.pool_live.restype = ctypes.c_int64
        live = int(self.library.pool_live())
        self.library.pool_region(0, 0)
        return live > 0
