"""The contract of every backend, on every way to reach a host that this machine can set up."""

import pytest

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.contract import BEHAVIOURS, Behaviour, DoesNotApply
from gpu_mcp_server.backends.contract.host import ContractHost


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda b: f"{b.room}-{b.name}")
async def test_the_contract(backend: Backend, behaviour: Behaviour):
    async with ContractHost(backend) as host:
        try:
            await behaviour.check(host)
        except DoesNotApply as reason:
            pytest.skip(str(reason))


def test_the_contract_is_large_and_each_behaviour_stands_once():
    assert len(BEHAVIOURS) >= 40
    assert len({b.name for b in BEHAVIOURS}) == len({b.sentence for b in BEHAVIOURS}) == len(BEHAVIOURS)
