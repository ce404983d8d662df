"""A host with an NVIDIA GPU and two of AMD's, all pretended: which ones jobs, ranks, tests and reservations get."""

from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.errors import NoFreeGpu
from gpu_mcp_server.models.job import GpuNeeds, RankOptions
from gpu_mcp_server.services.lab import Lab
from tests.amd_laboratory import IDS, NAME, amd_laboratory, can_pretend

pytestmark = [pytest.mark.anyio, *can_pretend]
AMD = GpuNeeds(vendor="amd")
SHOW = ["sh", "-c", 'echo "[$ROCR_VISIBLE_DEVICES]" $(ls /dev/dri /dev/kfd 2>/dev/null)']


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with amd_laboratory() as opened:
        yield opened


async def test_a_job_gets_the_vendor_that_it_needs_and_nothing_of_the_other(lab: Lab):
    amd = await lab.commands.run(SHOW, gpus=1, needs=AMD)
    assert (amd.status, amd.gpus) == ("ok", IDS[:1]) and amd.stdout.split() == [
        f"[{IDS[0]}]",
        "/dev/kfd",
        "/dev/dri:",
        "renderD246",
    ]
    assert (await lab.store.experience.get(amd.attempt_id or "")).device == NAME
    by_arch = await lab.commands.run(SHOW, gpus=1, needs=GpuNeeds(arch="gfx942"))
    assert by_arch.gpus == IDS[:1], "the architecture says whose it is"
    usual = await lab.commands.run(SHOW, gpus=1)
    assert usual.gpus == ["GPU-n"] and usual.stdout.split() == ["[]"]
    two = await lab.commands.run(SHOW, gpus=2)
    assert two.gpus == IDS and two.stdout.startswith(f"[{','.join(IDS)}]"), "one vendor has two, the other has not"
    none = await lab.commands.run(SHOW)
    assert none.stdout.split() == ["[]"]
    with pytest.raises(NoFreeGpu, match=r"3 GPUs, 2 of them such, 3 were asked for"):
        await lab.commands.run(SHOW, gpus=3, needs=AMD)


async def test_tests_and_ranks_run_on_amds_gpus(lab: Lab):
    ranks = await lab.commands.run(SHOW, gpus=2, needs=AMD, ranks=RankOptions(count=2))
    assert ranks.status == "ok" and ranks.gpus == IDS
    passing = {
        "test_it.py": b"import os\ndef test_it(): assert os.environ['ROCR_VISIBLE_DEVICES'].startswith('GPU-')\n"
    }
    listing = await lab.store.workspaces.write(None, passing)
    tested = await lab.commands.run(
        ["python3", "-c", "import test_it; test_it.test_it(); print('passed')"],
        workspace_id=listing.workspace_id, gpus=1, needs=AMD, tests=(),
    )  # fmt: skip
    assert (tested.status, tested.stdout.strip()) == ("ok", "passed")


async def test_a_reservation_of_amds_gpus_is_used_by_jobs_that_name_no_vendor(lab: Lab):
    lease = await lab.jobs.pool.reserve(1, vendor="amd")
    assert (lease.state, lease.gpus) == ("held", IDS[:1])
    inside = await lab.commands.run(SHOW, gpus=1)
    assert (inside.status, inside.gpus) == ("ok", lease.gpus), "what was reserved comes first"
    nvidia = await lab.commands.run(SHOW, gpus=1, needs=GpuNeeds(vendor="nvidia"))
    assert nvidia.gpus == ["GPU-n"]
    await lab.jobs.pool.release(lease.lease_id)
    with pytest.raises(NoFreeGpu):
        await lab.jobs.pool.reserve(1, vendor="nvidia", arch="gfx942")


async def test_the_status_has_both_and_says_which_gpu_lacks_its_node(lab: Lab):
    (host,) = (await lab.status.gpus.status()).hosts
    assert [(g.uuid, g.vendor, g.arch, g.shown_only) for g in host.gpus] == [
        ("GPU-n", "nvidia", "sm_90", False), *((uuid, "amd", "gfx942", False) for uuid in IDS),
    ]  # fmt: skip
    assert host.problem and "its render node /dev/dri/renderD248 is missing" in host.problem
