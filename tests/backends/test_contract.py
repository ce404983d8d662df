"""The contract of every backend, on every way to reach a host that this machine can set up."""

from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.contract import BEHAVIOURS, Behaviour, DoesNotApply
from gpu_mcp_server.backends.contract.escapes import try_escapes_on
from gpu_mcp_server.backends.contract.host import ContractHost


@pytest.fixture(scope="module")
async def host(backend: Backend) -> AsyncIterator[ContractHost]:
    """One link for all behaviours of a backend: those that lose a line lose another one."""
    async with ContractHost(backend) as opened:
        yield opened


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda b: f"{b.room}-{b.name}")
async def test_the_contract(host: ContractHost, behaviour: Behaviour):
    try:
        await behaviour.check(host)
    except DoesNotApply as reason:
        pytest.skip(str(reason))


@pytest.mark.timeout(300)
async def test_no_way_out_of_the_sandbox_is_open(host: ContractHost):
    found = [outcome async for outcome in try_escapes_on(host)]
    assert [o for o in found if o.result in ("open", "not tried")] == []


def test_the_contract_is_large_and_each_behaviour_stands_once():
    assert len(BEHAVIOURS) >= 40
    assert len({b.name for b in BEHAVIOURS}) == len({b.sentence for b in BEHAVIOURS}) == len(BEHAVIOURS)
