"""Looks whether the GPU is idle, by the time of a fence."""

import pytest
from gpu_mcp_judge.devices import gpu_idle_check


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_a_gpu_that_is_busy_at_one_shape_of_three_is_told_there_alone(busy, monkeypatch):
    """Of all shapes' looks together those of one are the lesser half, which a median leaves out."""
    clock = [0.0]
    monkeypatch.setattr(gpu_idle_check.time, "perf_counter", lambda: clock[0])
    taken_s = [20e-6]

    def fence() -> None:
        clock[0] += taken_s[0]

    one, told = gpu_idle_check.Idleness(fence), []
    for shape in range(3):
        taken_s[0] = 2e-3 if shape == busy else 20e-6
        for _ in range(9):
            one.between()
        told.append(one.remarks())

    assert [bool(said) for said in told] == [shape == busy for shape in range(3)]
    assert "an empty probe took 10000 us, on an idle GPU 100 us" in told[busy][0]
    assert one.evidence()["idle_probes_between_rounds_us"][busy] == pytest.approx(10000)
