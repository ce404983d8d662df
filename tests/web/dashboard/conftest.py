"""One laboratory with content, served by a real server, looked at by a real Chromium."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from gpu_mcp_server.models.user import User
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import LocalHost
from gpu_mcp_server.team.team_services import Team
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder
from tests.web.dashboard.content import HOSTILE, TURNED, filled
from tests.web.site import lab_of, served

USUAL = {"name": "NVIDIA H200", "memory_total_bytes": 141 << 30, "power_limit_w": 700.0, "sm_clock_max_mhz": 1980}
GPUS = [
    USUAL
    | {
        "uuid": "GPU-5a1e",
        "memory_used_bytes": 96 << 30,
        "utilization_percent": 97,
        "temperature_c": 61,
        "power_w": 641.0,
        "sm_clock_mhz": 1980,
    },
    USUAL
    | {
        "uuid": "GPU-77c0",
        "memory_used_bytes": 12 << 30,
        "utilization_percent": 34,
        "temperature_c": 48,
        "power_w": 312.0,
        "sm_clock_mhz": 1755,
        "throttle": ["power cap"],
    },
    USUAL | {"uuid": "GPU-0b9d", "memory_used_bytes": 1 << 30, "temperature_c": 33, "power_w": 98.0},
]


LONG_NAME = "a.user-whose-name-is-as-long-as-a-name-may-be_" + "0123456789@gpu.org"
QUOTAS = {"gpu_s_per_day": 7200.0, "concurrent_jobs": 8, "disk_bytes": 1 << 30}


@dataclass(frozen=True)
class Dashboard:
    """A server with content."""

    url: str
    lab: Lab
    team: Team
    ada: User
    bo: User
    tokens: dict[str, str]
    """Of ada, of bo, of an admin with a long name, and `reader`, which is ada's for reading alone."""
    handles: dict[str, str]


@pytest.fixture(scope="module")
async def dashboard() -> AsyncIterator[Dashboard]:
    with Folder() as own:
        (own / "gpus.json").write_text(json.dumps(GPUS))
        env = {"GPU_MCP_HOSTD_GPUS": str(own / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(own / "locks")}
        hosts = {"local": LocalHost(python=str(wrapped(own / "state", env)), state_dir=str(own / "state"))}
        mute = own / "mute"
        mute.write_text("#!/bin/sh\nexec sleep 600\n")
        mute.chmod(0o755)
        (own / "none.json").write_text("[]")
        env = {"GPU_MCP_HOSTD_GPUS": str(own / "none.json"), "GPU_MCP_HOSTD_LOCKS": str(own / "other-locks")}
        hosts["cpu"] = LocalHost(python=str(wrapped(own / "cpu", env)), state_dir=str(own / "cpu"))
        hosts["mute"] = LocalHost(python=str(mute), state_dir=str(own / "mute-state"))
        async with served(hosts=hosts, default_host="local") as site:
            tokens = {"ada": await site.token("ada", project="kernels", quotas=QUOTAS), "bo": await site.token("bo")}
            tokens["reader"] = await site.token("ada", "read")
            tokens["admin"] = await site.token(LONG_NAME, "admin", project=LONG_NAME)
            lab = await lab_of(site)
            users = [await site.team.tokens.verify(tokens[name]) for name in ("ada", "bo")]
            ada, bo = (user for user in users if isinstance(user, User))
            handles = await filled(lab, ada, bo)
            with acting_as(ada):
                done = await lab.commands.run(["echo", HOSTILE + TURNED.replace("\0", "")], timeout_s=60, wait_s=60)
                handles["job"] = done.job_id
            yield Dashboard(site.url, lab, site.team, ada, bo, tokens, handles)
