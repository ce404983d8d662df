"""Outputs on a processor as the owner sees them when a candidate says done."""

import time
from types import SimpleNamespace

import pytest
from gpu_mcp_judge.devices import memory_cpu
from gpu_mcp_judge.numerics.random_inputs import Well
from gpu_mcp_judge.numerics.tensors import Tensor

CANDIDATE, REFERENCE = SimpleNamespace(role="candidate"), SimpleNamespace(role="reference")


@pytest.fixture
def buffers():
    files = memory_cpu.Files(*(memory_cpu.Region(1 << 20, writable_by_others=True) for _ in range(3)))
    outputs = [Tensor(name, "float32", (100,), ("n",), "normal") for name in ("y", "z")]
    device = SimpleNamespace(files=files, well=Well("ab" * 32), rtol=1e-5, atol=1e-6, told=set())
    made = memory_cpu.CpuBuffers(device, outputs[:1], outputs, 8)
    for number in range(2):
        made.every(number)[0][...] = 1.0
    made.poison()
    yield made
    for region in files:
        region.close()


def write(buffers):
    for number in range(2):
        buffers.every(number)[1][...] = 1.0


def test_the_clock_stops_before_what_was_seen_is_compared(buffers, monkeypatch):
    """Elements written during the comparison were missing when the clock stopped."""
    begin, compare, stopped = time.monotonic(), memory_cpu.compare, []

    def late(*given):
        stopped.append(buffers.stopped_s)
        write(buffers)
        return compare(*given)

    monkeypatch.setattr(memory_cpu, "compare", late)

    assert not buffers.stop(CANDIDATE)
    assert all(begin <= each <= time.monotonic() for each in stopped) and len(stopped) == 2
    assert buffers.unfinished()


def test_outputs_that_are_there_are_seen_so_and_the_reference_is_believed(buffers):
    assert buffers.stop(REFERENCE)
    assert not buffers.stop(CANDIDATE) and not buffers.unfinished()
    write(buffers)
    assert buffers.stop(CANDIDATE)
