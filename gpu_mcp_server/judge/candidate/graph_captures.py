"""Captures of CUDA graphs by torch: they allocate outside of the owner's arena, and those that fail end."""

import contextlib
import threading
from typing import Any, Dict, Generator, Tuple


class GraphCaptures:
    """Hooks in a process's torch, from before the candidate's file runs.

    - A capture that fails goes on for torch's allocator: nothing is freed from then on, and the end of any memory pool
      aborts the process. The thread also stays on the capture's stream, which the judge does not wait for.
      A candidate that goes on without a graph is honest, so both are ended. Source: CUDAGraph::capture_end in
      CUDAGraph.cpp and torch.cuda.graph, whose __exit__ and __enter__ leave the stream only if nothing fails,
      torch 2.11 and 2.13.
    - A graph has a pool of its own, and what it writes to lives longer than the arena.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.pool: Any = None
        """The memory pool that is used, if one is."""
        self.thread = 0
        """Whose tensors it is used for."""
        self.inside: Any = None
        """The context in which it is used, if it is at the moment."""
        self.begun: Dict[int, Tuple[Any, bool]] = {}
        """Captures by their graphs' addresses: their pools, and whether they left the one that is used."""
        self._hook_graph(torch.cuda.CUDAGraph)
        self._hook_context(torch.cuda.graph)

    @contextlib.contextmanager
    def use(self, pool: Any) -> Generator[None, None, None]:
        """Allocate this thread's tensors from a pool, but those of a graph that is captured meanwhile."""
        self.pool, self.thread = pool, threading.get_ident()
        self._enter()
        try:
            yield
        finally:
            self._leave()
            self.pool = None

    def _enter(self) -> None:
        # A capture that an earlier call began, or another thread ends, left nothing that is to be entered again.
        if self.inside is None and threading.get_ident() == self.thread:
            inside = self.torch.cuda.use_mem_pool(self.pool)
            inside.__enter__()
            self.inside = inside

    def _leave(self) -> bool:
        """Allocate as usual; return whether that is a change."""
        inside, self.inside = self.inside, None
        if inside is not None:
            inside.__exit__(None, None, None)
        return inside is not None

    def _hook_graph(self, graph: Any) -> None:
        begin, end = graph.capture_begin, graph.capture_end

        def capture_begin(one: Any, pool: Any = None, *given: Any, **named: Any) -> None:
            pool = pool or self.torch.cuda.graph_pool_handle()
            earlier, busy = self.begun.get(id(one)), [each for each, _ in self.begun.values()]
            here = threading.get_ident() == self.thread and self._leave()
            self.begun[id(one)] = pool, here
            try:
                begin(one, pool, *given, **named)
            except BaseException:
                # A capture that goes on, into this pool or of this graph, must not be ended with it.
                self._end(one, failed=pool not in busy)
                self.begun.update({id(one): earlier} if earlier else {})
                raise

        def capture_end(one: Any) -> None:
            try:
                end(one)
            except BaseException:
                self._end(one, failed=True)
                raise
            self._end(one)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end

    def _end(self, one: Any, failed: bool = False) -> None:
        pool, here = self.begun.pop(id(one), (None, False))
        if failed and pool is not None:
            # torch raises where it had not begun to allocate for the capture, or had ended that.
            with contextlib.suppress(RuntimeError):
                device, core = self.torch.cuda.current_device(), self.torch._C
                core._cuda_endAllocateToPool(device, pool)
                core._cuda_releasePool(device, pool)
        if here and self.pool is not None:
            self._enter()

    def _hook_context(self, context: Any) -> None:
        enter, leave = context.__enter__, context.__exit__

        def enter_capture(one: Any) -> Any:
            before = self.torch.cuda.current_stream()
            try:
                return enter(one)
            except BaseException:
                self.torch.cuda.set_stream(before)
                raise

        def leave_capture(one: Any, *given: Any) -> Any:
            try:
                return leave(one, *given)
            except BaseException:
                one.stream_ctx.__exit__(*given)
                raise

        context.__enter__, context.__exit__ = enter_capture, leave_capture
