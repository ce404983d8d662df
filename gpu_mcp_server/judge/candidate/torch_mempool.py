"""ModelNew's results in the owner's arena: a torch memory pool over it, and the names of what was returned."""

import contextlib
import ctypes
import math
import os
import threading
from functools import lru_cache
from typing import Any, Generator, List, NamedTuple, Sequence, Tuple

from ..folders import CODE

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

    def __init__(self, torch: Any, arena: int, size: int, names: int, sets: int, outputs: int) -> None:
        self.torch, self.arena, self.size = torch, arena, size
        self.library = ctypes.CDLL(LIBRARY)
        self.library.pool_region.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self.library.pool_region(arena, size)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "pool_alloc", "pool_free")
        self.allocator: Any = allocator.allocator()
        self.pool: Any = torch.cuda.MemPool(self.allocator)
        self.names = (ctypes.c_int64 * (sets * outputs)).from_address(names)
        self.outputs = outputs
        self.inside: Any = None
        """The context in which the arena is used, if it is."""
        self.captures = False
        """Whether a capture has left it."""
        self._spare_graphs()

    @contextlib.contextmanager
    def use(self) -> Generator[None, None, None]:
        """Allocate tensors from the arena, but those of a CUDA graph that is captured meanwhile."""
        self._enter()
        try:
            yield
        finally:
            self._leave()
            self.captures = False

    def _enter(self) -> None:
        self.inside = self.torch.cuda.use_mem_pool(self.pool)
        self.inside.__enter__()

    def _leave(self) -> bool:
        """Allocate as usual; return whether that is a change."""
        inside, self.inside = self.inside, None
        if inside is not None:
            inside.__exit__(None, None, None)
        return inside is not None

    def _spare_graphs(self) -> None:
        """Have captures of CUDA graphs leave the arena until they end.

        A graph has a pool of its own. Where torch must free memory of another one during a capture, it ends the
        process. And what a graph writes to lives longer than the arena.
        """
        graph, thread = self.torch.cuda.CUDAGraph, threading.get_ident()
        self.graphs = begin, end = graph.capture_begin, graph.capture_end

        def capture_begin(one: Any, *given: Any, **named: Any) -> None:
            here = threading.get_ident() == thread and self._leave()
            try:
                begin(one, *given, **named)
                self.captures = self.captures or here
            except BaseException:
                if here:
                    self._enter()  # a model may go on without a graph
                raise

        def capture_end(one: Any) -> None:
            try:
                end(one)
            finally:
                if self.captures and threading.get_ident() == thread:
                    self.captures = False
                    self._enter()

        graph.capture_begin, graph.capture_end = capture_begin, capture_end

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
        self.torch.cuda.CUDAGraph.capture_begin, self.torch.cuda.CUDAGraph.capture_end = self.graphs
        self.torch.cuda.empty_cache()
        self.library.pool_live.restype = ctypes.c_int64
        live = int(self.library.pool_live())
        self.library.pool_region(0, 0)
        return live > 0
