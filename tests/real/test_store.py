"""A store under six servers for a minute."""

import sys

import pytest

from tests.laboratory import Folder
from tests.store.servers import Store, stress


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(300)
async def test_six_servers_and_commands_lose_nothing_in_a_minute():
    with Folder() as folder:
        store = Store(folder)
        acknowledged = await stress(store, duration_s=60, at_least=501)

        assert len(acknowledged) > 500
        assert acknowledged <= store.remembered()
        assert (await store.ask("store", "check")).returncode == 0
