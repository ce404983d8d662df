"""Ways around the filter, at each level that has one, and where nothing confines."""

from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract.escapes import try_escape
from gpu_mcp_server.backends.contract.escapes_system_calls import ATTEMPTS
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.local import LocalBackend
from tests.hostd.laboratory import wrapped


async def found(state_dir: str, level: str) -> dict[int, tuple[str, str]]:
    python = wrapped(Path(state_dir) / "state", {"GPU_MCP_HOSTD_LEVEL": level})
    backend = LocalBackend("tested", python=str(python), state_dir=f"{state_dir}/state")
    async with ContractHost(backend) as host:
        if host.level != level:
            pytest.skip(f"this machine gives level {host.level}: {host.weaker_because}")
        outcomes = [await try_escape(host, attempt) for attempt in ATTEMPTS]
    return {outcome.attempt.row: (outcome.result, outcome.found) for outcome in outcomes}


@pytest.mark.parametrize("level", ["full", "namespaces", "landlock"])
async def test_no_way_around_the_filter_is_open(state_dir: str, level: str):
    outcomes = await found(state_dir, level)
    assert {row: said for row, (result, said) in outcomes.items() if result != "closed"} == {}


async def test_without_a_filter_most_of_them_are_open(state_dir: str):
    outcomes = await found(state_dir, "unconfined")
    opened = {row for row, (result, _) in outcomes.items() if result == "open"}
    assert opened >= {136, 137, 138, 139, 140, 141, 142, 143, 144, 146, 147, 148, 150, 151, 152, 153}, outcomes
