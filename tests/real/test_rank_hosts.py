"""Ranks on two hosts with a GPU each: NCCL over the interface that was found. Two hosts of one machine stand for two."""

import pytest

from gpu_mcp_server.models.job import RankOptions
from tests.laboratory import Folder, laboratory

pytestmark = pytest.mark.gpu

REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
x = torch.full((1 << 20,), float(dist.get_rank() + 1), device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
print("sum", x[0].item(), x[-1].item(), os.environ["NCCL_SOCKET_IFNAME"])
dist.destroy_process_group()
"""
APART = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""Two sandboxes of one machine share neither memory nor CUDA's handles, as two machines do not."""


async def test_nccl_talks_between_two_hosts():
    with Folder() as one, Folder() as two:
        hosts = {
            name: {"kind": "local", "state_dir": str(folder), "ranks_network": True}
            for name, folder in (("one", one), ("two", two))
        }
        async with laboratory(hosts=hosts) as lab:
            probe = await lab.hosts.probe("one")
            if len(probe.gpus) < 2 or probe.judge is None or not probe.judge.torch:
                pytest.skip("needs two GPUs, and torch in the judge's Python")
            where = (await lab.store.workspaces.write(None, {"reduce.py": REDUCE})).workspace_id
            done = await lab.commands.run(
                [probe.judge.path, "reduce.py"], workspace_id=where, gpus=1, env=APART, timeout_s=180,
                ranks=RankOptions(count=2, hosts=["two", "one"]),
            )  # fmt: skip
            assert done.status == "ok", done
            assert [r.host for r in done.ranks] == ["two", "one"]
            assert all(r.last.startswith("sum 3.0 3.0 =") for r in done.ranks), done.ranks
