"""Inputs on a GPU: when the owner looks whether the GPU is idle."""

from types import SimpleNamespace

import pytest
from gpu_mcp_judge.devices.memory_cuda import CudaBuffers


@pytest.mark.parametrize("behind_gate", [False, True])
def test_the_idle_check_of_rounds_without_gates_sees_no_calls_that_wait_at_a_gate(behind_gate):
    """A graph of torch's GRU at its gate took the speed-up of the loop away, by a probe of 10 ms (H200)."""
    one, looks = CudaBuffers.__new__(CudaBuffers), []
    one.inputs, one.files, one.behind_gate = [], [], behind_gate
    one.tools = SimpleNamespace(driver=SimpleNamespace(synchronize=lambda: None))
    one.device = SimpleNamespace(idleness=SimpleNamespace(between=lambda: looks.append(1)))
    one.fill()

    assert len(looks) == (not behind_gate)
