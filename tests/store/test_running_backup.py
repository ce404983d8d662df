"""A backup that is taken while jobs of a team's server run, and what a restored store says of them."""

import asyncio
import sqlite3
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.bridge.server_process import ServerProcess
from tests.commands import shared_commands
from tests.laboratory import Folder, called

pytestmark = pytest.mark.timeout(400)
HOUR_AGO = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
ENDLESS = ["sh", "-c", "echo begun; while :; do sleep 0.2; done"]


@pytest.fixture
def servers() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with Folder() as one, Folder() as other:
        made = ServerProcess(one), ServerProcess(other)
        yield made
        for server in made:
            if server.process is not None and server.process.poll() is None:
                server.process.terminate()
                server.process.wait()


async def done(server: ServerProcess, *words: str) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(shared_commands().run, *words, env=server.environment, cwd=server.folder)


@asynccontextmanager
async def client_of(server: ServerProcess, token: str) -> AsyncGenerator[Client]:
    server.start()
    await server.answers()
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=120)
    transport = streamable_http_client(f"http://127.0.0.1:{server.port}/mcp", http_client=http)
    async with http, Client(transport) as client:
        yield client


async def test_a_backup_with_a_running_job_is_whole_and_its_restored_store_says_that_the_job_is_lost(
    servers: tuple[ServerProcess, ServerProcess], tmp_path: Path
):
    server, standby = servers
    token = server.token()
    async with client_of(server, token) as client:
        second = ServerProcess(server.folder)
        refused = await done(second, "serve", "--http", f"127.0.0.1:{second.port}")
        before = await called(client, "run_command", command=["echo", "before"])
        job_id = (await called(client, "run_command", command=ENDLESS, detach=True))["job_id"]
        while (await called(client, "job_status", job_id=job_id))["stdout"] != "begun\n":
            await asyncio.sleep(0.1)
        made = await done(server, "store", "backup", str(tmp_path / "b.tar.gz"))
        during = await called(client, "job_status", job_id=job_id)
        after = await called(client, "run_command", command=["echo", "after"])
        restored = await done(standby, "store", "restore", str(tmp_path / "b.tar.gz"))
        with closing(sqlite3.connect(standby.folder / "data" / "lab.db")) as db, db:  # as if it were an hour old
            db.execute("UPDATE jobs SET submitted_at = ? WHERE record IS NULL", (HOUR_AGO,))
        async with client_of(standby, token) as there:
            lost = await called(there, "job_status", job_id=job_id)
            kept = await called(there, "job_status", job_id=before["job_id"])
            again = await called(there, "run_command", command=["echo", "again"])
        ended = await called(client, "cancel_job", job_id=job_id)
    checked = await done(standby, "store", "check")

    assert refused.returncode == 2 and "already gives the store in" in refused.stderr, refused.stderr
    assert made.returncode == 0 and restored.returncode == 0 and checked.returncode == 0, (made, restored, checked)
    assert (during["state"], after["stdout"]) == ("running", "after\n"), "the first server went on"
    assert (lost["state"], lost["status"]) == ("finished", "broken") and "of a backup" in lost["note"]
    assert kept["status"] == "ok" and again["stdout"] == "again\n"
    assert ended["status"] == "cancelled", "the restored store's word is no word of the first one"
