"""A laboratory whose host has an NVIDIA GPU and AMD GPUs, all pretended: nodes and trees that no driver stands behind."""

import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import LocalHost
from tests.hostd.brokers import broker_pid
from tests.hostd.conftest import needs_root
from tests.hostd.kfd_trees import KFD, device_nodes, put_tree
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder, settings_for

MINORS, MISSING = (246, 247), 248
IDS = ["GPU-00000000000000b1", "GPU-00000000000000b2"]
NAME = "AMD Instinct MI300X"
can_pretend = [
    needs_root,
    pytest.mark.skipif(KFD.exists(), reason="this machine has AMD's driver"),
    pytest.mark.xdist_group("amd"),
]
"""Marks of tests that make device nodes, which have one place: one test after the other."""


@asynccontextmanager
async def amd_laboratory(nvidia: bool = True) -> AsyncGenerator[Lab]:
    """Open a laboratory with two AMD GPUs, a third without its render node, and maybe one of NVIDIA's."""
    with Folder() as folder, device_nodes(*MINORS):
        own, data = folder / "mixed", folder / "data"
        for each in (own, data):
            each.mkdir()
            each.chmod(0o711)
        (own / "gpus.json").write_text(json.dumps([{"uuid": "GPU-n", "name": "Pretended H100"}] if nvidia else []))
        gpus = [{"minor": m, "unique_id": 0xB1 + n, "name": NAME} for n, m in enumerate((*MINORS, MISSING))]
        put_tree(own / "sys", *gpus)
        env = {"GPU_MCP_HOSTD_GPUS": str(own / "gpus.json"), "GPU_MCP_HOSTD_SYS": str(own / "sys")}
        env["GPU_MCP_HOSTD_LOCKS"] = str(own / "locks")
        judge = os.environ.get("GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON")
        state = own / "state"
        host = LocalHost(python=str(wrapped(state, env)), state_dir=str(state), judge_python=judge)
        try:
            async with Lab.open(settings_for(data, hosts={"local": host})) as lab:
                yield lab
        finally:
            pid = broker_pid(GpuLocks(str(own / "locks")))
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
