"""Captures of CUDA graphs beside the owner's arena, by stand-ins for torch's; tests/real/test_models_cuda.py has torch's."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

from gpu_mcp_server.judge.candidate.graph_captures import GraphCaptures


class Torch:
    """Torch's part in it, with a record of what it was told; `fails` says where a capture fails."""

    def __init__(self) -> None:
        self.fails, self.told = "", list[str]()
        this, record = self, self.told.append

        class CUDAGraph:
            def capture_begin(self, pool, capture_error_mode="global"):
                record("begin in " + pool)
                if this.fails == "begin":
                    raise ValueError("no capture here")

            def capture_end(self):
                record("end")
                if this.fails == "end":
                    raise ValueError("the capture was invalidated")

        class Graph:
            def __init__(self):
                self.cuda_graph, self.stream_ctx = CUDAGraph(), contextlib.ExitStack()

            def __enter__(self):
                self.stream_ctx.__enter__().callback(record, "back on the stream")
                self.cuda_graph.capture_begin()

            def __exit__(self, *given):
                self.cuda_graph.capture_end()
                self.stream_ctx.__exit__(*given)

        @contextlib.contextmanager
        def use_mem_pool(of):
            record("in " + of)
            yield
            record("out")

        def release(device, pool):
            record("released " + pool)

        def end(device, pool):
            record("ended " + pool)
            if self.fails == "begin":
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

        self._C = SimpleNamespace(_cuda_endAllocateToPool=end, _cuda_releasePool=release)
        self.cuda = SimpleNamespace(
            CUDAGraph=CUDAGraph,
            graph=Graph,
            use_mem_pool=use_mem_pool,
            current_device=lambda: 0,
            graph_pool_handle=lambda: "its own",
            current_stream=lambda: "first",
            set_stream=lambda stream: record("on stream " + stream),
        )


@pytest.fixture
def torch():
    return Torch()


def test_a_graph_that_is_captured_meanwhile_has_memory_of_its_own(torch: Torch):
    captures = GraphCaptures(torch)
    with captures.use("arena"), torch.cuda.graph():
        torch.told.append("captured")
    assert torch.told == (
        ["in arena", "out", "begin in its own", "captured", "end", "in arena", "back on the stream", "out"]
    )

    torch.told.clear()
    with torch.cuda.graph():
        pass
    assert torch.told == ["begin in its own", "end", "back on the stream"], "outside there is nothing to leave"


def test_another_thread_s_capture_leaves_nothing(torch: Torch):
    captures = GraphCaptures(torch)

    def capture() -> None:
        with torch.cuda.graph():
            pass

    with captures.use("arena"):
        other = threading.Thread(target=capture)
        other.start()
        other.join()
    assert torch.told == ["in arena", "begin in its own", "end", "back on the stream", "out"]


def test_a_capture_that_fails_ends_for_the_allocator_and_on_the_stream(torch: Torch):
    """Else the end of the arena's pool aborts the process, and the candidate stays on the capture's stream (H200)."""
    captures, torch.fails = GraphCaptures(torch), "end"
    with captures.use("arena"):
        with pytest.raises(ValueError, match="invalidated"), torch.cuda.graph():
            pass
        torch.told.append("goes on without a graph")
    ended = ["end", "ended its own", "released its own", "in arena", "back on the stream"]
    assert torch.told == ["in arena", "out", "begin in its own", *ended, "goes on without a graph", "out"]
    assert not captures.begun


def test_a_capture_that_does_not_begin_ends_nothing(torch: Torch):
    captures, torch.fails = GraphCaptures(torch), "begin"
    with captures.use("arena"), pytest.raises(ValueError, match="no capture here"):
        torch.cuda.CUDAGraph().capture_begin(capture_error_mode="relaxed")
    assert torch.told == ["in arena", "out", "begin in its own", "ended its own", "in arena", "out"]


def test_a_capture_that_does_not_begin_leaves_the_thread_on_its_stream(torch: Torch):
    """Python calls no `__exit__` where `__enter__` fails, as for a graph that is captured a second time."""
    GraphCaptures(torch)
    torch.fails = "begin"
    with pytest.raises(ValueError, match="no capture here"), torch.cuda.graph():
        pass
    assert torch.told[-1] == "on stream first"


@pytest.mark.parametrize("same", ["graph", "pool"])
def test_a_second_capture_that_does_not_begin_ends_nothing_of_the_first(torch: Torch, same: str):
    captures, first, second = GraphCaptures(torch), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with captures.use("arena"):
        first.capture_begin("theirs")
        torch.fails = "begin"
        with pytest.raises(ValueError, match="no capture here"):
            (first if same == "graph" else second).capture_begin("theirs")
        torch.fails = ""
        first.capture_end()
    begun = ["in arena", "out", "begin in theirs"]
    assert torch.told == [*begun, "begin in theirs", "end", "in arena", "out"] and not captures.begun


def test_a_capture_that_ends_in_a_later_call_enters_nothing_twice(torch: Torch):
    captures, graph = GraphCaptures(torch), torch.cuda.CUDAGraph()
    with captures.use("arena"):
        graph.capture_begin()
    with captures.use("arena"):
        graph.capture_end()
    assert torch.told == ["in arena", "out", "begin in its own", "in arena", "end", "out"]


def test_a_capture_that_another_thread_ends_enters_nothing_there(torch: Torch):
    captures, graph = GraphCaptures(torch), torch.cuda.CUDAGraph()
    with captures.use("arena"):
        graph.capture_begin()
        other = threading.Thread(target=graph.capture_end)
        other.start()
        other.join()
    assert torch.told == ["in arena", "out", "begin in its own", "end"]


def test_a_pool_that_a_candidate_chose_is_used(torch: Torch):
    GraphCaptures(torch)
    torch.cuda.CUDAGraph().capture_begin("theirs")
    torch.cuda.CUDAGraph().capture_begin(pool="theirs")
    assert torch.told == ["begin in theirs"] * 2
