"""find_hotspots on a GPU that waits for launches: its bounds are by the second run."""

from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.services.lab import Lab
from tests.judge.harness import torch_python
from tests.laboratory import laboratory

PYTHON = torch_python() or ""
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
SMALL_KERNELS = """
import torch

x = torch.zeros(1024, device="cuda")
for _ in range(20_000):
    x = torch.relu(x + 1)
print(x.sum().item())
"""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        probe = await lab.hosts.probe("local")
        if not probe.gpus or not PYTHON:
            pytest.skip("no GPU, or no Python with torch: set TEST_TORCH_PYTHON")
        yield lab


async def test_bounds_of_a_program_of_small_kernels_are_by_its_second_run(lab: Lab):
    workspace = (await lab.store.workspaces.write(None, {"small.py": SMALL_KERNELS})).workspace_id
    found = await lab.programs.hotspots.find([PYTHON, "small.py"], workspace)
    assert found.status == "ok" and found.second is not None, found.summary()
    assert found.second.kernels >= 40_000 and found.second.alike > 0.95, "the same kernels in both runs"
    assert found.device_busy is not None and found.device_busy < found.second.device_busy < 1
    first = found.hotspots[0]
    assert first.share == pytest.approx((first.busy_share or 0) * found.second.device_busy)
    assert "by a second run that recorded its work alone" in found.summary()
