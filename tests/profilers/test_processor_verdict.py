"""Advice on processor profiles, by what was measured around them."""

import pytest

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.processor_verdict import processor_verdict


@pytest.mark.parametrize(("waited", "advised"), [(0.0, True), (82.0, False)])
def test_threads_are_advised_where_nothing_else_held_the_cores(waited: float, advised: bool):
    metrics = {"busy cores": 0.3, "cores": 2.0, "waited percent": waited}
    found = processor_verdict(KernelReading(name="launch", time_us=5000.0, calls=9, metrics=metrics))
    assert any("threads (OpenMP)" in each for each in found.advice) == advised, found.verdict
    assert ("waited for a core" in found.verdict) != advised
