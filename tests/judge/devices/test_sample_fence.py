"""Outputs on a processor as the owner sees them when a candidate says done."""

from types import SimpleNamespace

import pytest
from gpu_mcp_judge.devices import memory_cpu
from gpu_mcp_judge.numerics.random_inputs import Well
from gpu_mcp_judge.numerics.tensors import Tensor

CANDIDATE, REFERENCE = SimpleNamespace(role="candidate"), SimpleNamespace(role="reference")


@pytest.fixture
def buffers():
    files = [memory_cpu.Region(1 << 20, writable_by_others=True) for _ in range(3)]
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


def test_what_is_written_behind_the_look_is_late_and_the_reference_is_believed(buffers):
    write(buffers)
    buffers.stop(REFERENCE)
    assert not buffers.have_changed(), "until somebody looked"
    buffers.poison()
    buffers.stop(CANDIDATE)
    assert not buffers.have_changed(), "what stays wrong is a wrong answer, not late work"
    write(buffers)
    assert buffers.have_changed()


def test_outputs_that_are_there_are_in_time_and_each_round_has_places_of_its_own(buffers):
    for _ in range(2):
        buffers.poison()
        write(buffers)
        assert not buffers.have_changed(), "the look is the round's own"
        buffers.stop(CANDIDATE)
        write(buffers)
        assert not buffers.have_changed()


def test_an_answer_that_is_made_more_exact_behind_the_look_is_late_though_it_was_right_before(buffers):
    buffers.poison()
    write(buffers)
    buffers.stop(CANDIDATE)
    for number in range(len(buffers.outputs)):
        buffers.every(number)[1][...] *= 1 + 1e-6
    assert buffers.have_changed()
