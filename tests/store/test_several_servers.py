"""Several processes on one store: what a server acknowledged is there whoever else comes and goes."""

import sys
from collections.abc import Iterator

import pytest

from tests.laboratory import Folder
from tests.store.servers import Store, Transport, posix_locks, stress

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def store() -> Iterator[Store]:
    with Folder() as folder:
        yield Store(folder)


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_server_holds_sqlites_locks_after_all_its_connections_are_open(store: Store, transport: Transport):
    async with store.serving(transport) as server:
        await server.write("one")
        opened = store.open_files(server.pid)
        locked = posix_locks(server.pid)
        inodes = {path.name: path.stat().st_ino for path in store.database.parent.glob("lab.db*")}

    assert opened.count(str(store.database)) == (2 if transport == "http" else 1)
    assert {inodes["lab.db"], inodes["lab.db-shm"]} <= locked
    assert store.database.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("transport", "other"),
    [
        *(("http", other) for other in ("call list_problems", "run -- true", "store check", "a second server")),
        ("stdio", "a second server"),
    ],
)
async def test_what_is_acknowledged_after_another_process_came_and_went_outlasts_a_restart(
    store: Store, transport: Transport, other: str
):
    async with store.serving(transport) as server:
        acknowledged = {await server.write("before")}
        if other == "a second server":
            async with store.serving("http") as second:
                acknowledged.add(await second.write("the second one's"))
        else:
            await store.ask(*other.split())
        acknowledged |= {await server.write("after"), await server.write("later")}
        assert [path for path in store.open_files(server.pid) if "deleted" in path] == []
    async with store.serving(transport) as again:
        for workspace_id in acknowledged:
            found = await again.client.call_tool("list_files", {"workspace_id": workspace_id})
            assert not found.is_error, found

    assert acknowledged <= store.remembered()


async def test_six_servers_and_commands_lose_nothing_that_they_acknowledged(store: Store):
    """For some seconds; tests/real/test_store.py does it for a minute."""
    acknowledged = await stress(store, duration_s=5, at_least=101)

    assert len(acknowledged) > 100
    assert acknowledged <= store.remembered()
    assert (await store.ask("store", "check")).returncode == 0
