"""Lines that are long or break, and servers that end: no call is lost, no job runs twice, no byte goes twice for long."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.bridge.file_push import SMALL_BYTES
from tests.bridge.bridged import Bridged
from tests.bridge.lines import line_to
from tests.bridge.server_process import ServerProcess
from tests.laboratory import Folder
from tests.web.site import Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


async def jobs_like(site: Served, mark: str) -> int:
    lab = await site.lab()
    (row,) = await lab.store.db.fetch_all(
        "SELECT count(*) AS n FROM jobs WHERE purpose = 'run' AND instr(context, ?)", (mark,)
    )
    return row["n"]


async def test_a_thousand_small_files_are_few_requests_and_a_second_push_is_one(site: Served, tmp_path: Path):
    for i in range(1000):
        (tmp_path / f"{i}.c").write_text(f"int f{i}(void) {{ return {i}; }}\n" * 20)
    async with line_to(site.url) as line, Bridged(line.url, await site.token("ada"), tmp_path).running() as client:
        while line.requests < 2:  # the handshake, and a stream for what changes
            await asyncio.sleep(0.01)
        before = line.requests
        first = await client.call("write_files", local_path=".")
        between, sent = line.requests, line.sent_bytes
        second = await client.call("write_files", local_path=".")
        again = line.sent_bytes - sent

    assert first["files_left_out"] == 800 and second["files_left_out"] == 800
    assert between - before == 5, "hashes, two packs, hashes, list_files"
    assert line.requests - between == 2 and again < 1000 * 150


async def test_a_large_file_goes_on_where_its_line_broke(site: Served, tmp_path: Path):
    size = 24 << 20
    (tmp_path / "t.bin").write_bytes(os.urandom(size))
    async with line_to(site.url) as line, Bridged(line.url, await site.token("ada"), tmp_path).running() as client:
        line.cut_bytes = size // 2
        pushed = await client.call("write_files", local_path="t.bin")

    assert [file["size_bytes"] for file in pushed["files"]] == [size]
    assert size < line.sent_bytes < size + (9 << 20)


async def test_the_next_bridge_goes_on_where_the_last_one_stopped(site: Served, tmp_path: Path):
    size, token = 24 << 20, await site.token("ada")
    (tmp_path / "t.bin").write_bytes(os.urandom(size))
    async with line_to(site.url) as line:
        async with Bridged(line.url, token, tmp_path, patience_s=1.0).running() as client:
            line.cut_bytes = size // 2
            pushing = asyncio.create_task(client.refused("write_files", local_path="t.bin"))
            while line.cut_bytes is not None:
                await asyncio.sleep(0.001)
            line.down = True
            told = await pushing
        line.down, sent = False, line.sent_bytes
        async with Bridged(line.url, token, tmp_path).running() as client:
            await client.call("write_files", local_path="t.bin")

    assert "did not answer" in told and size // 3 < line.sent_bytes - sent < size * 3 // 4


async def test_a_token_that_is_revoked_in_the_middle_of_a_push_is_named_and_the_next_push_goes_on(
    site: Served, tmp_path: Path
):
    size, token = 24 << 20, await site.token("ada")
    (tmp_path / "t.bin").write_bytes(os.urandom(size))
    async with line_to(site.url) as line, Bridged(line.url, token, tmp_path).running() as client:
        pushing = asyncio.create_task(client.refused("write_files", local_path="t.bin"))
        while line.sent_bytes < size // 2:
            await asyncio.sleep(0)
        await site.team.tokens.revoke(token.split("_")[1])
        told, sent = await pushing, line.sent_bytes
        client.token = await site.token("ada")
        pushed = await client.call("write_files", local_path="t.bin")

    assert "The access token was revoked" in told and "gpu-mcp-server login" in told
    assert [file["size_bytes"] for file in pushed["files"]] == [size] and line.sent_bytes - sent < size * 3 // 4


async def test_a_proxy_that_cuts_long_answers_costs_no_call_and_no_second_job(site: Served, tmp_path: Path):
    async with line_to(site.url) as line:
        line.cut_s = 1.0
        async with Bridged(line.url, await site.token("ada"), tmp_path).running() as client:
            ran = await client.call("run_command", command=["sh", "-c", "sleep 3.5; echo cut-by-a-proxy"])

    assert ran["stdout"] == "cut-by-a-proxy\n" and await jobs_like(site, "cut-by-a-proxy") == 1


async def test_a_server_that_is_away_for_too_long_is_named(site: Served, tmp_path: Path):
    async with (
        line_to(site.url) as line,
        Bridged(line.url, await site.token("ada"), tmp_path, patience_s=1.0).running() as client,
    ):
        line.down = True
        line.cut()
        told = await client.refused("gpu_status")
        line.down = False
        assert (await client.call("run_command", command=["echo", "back"]))["stdout"] == "back\n"

    assert line.url in told and "did not answer for" in told


async def test_two_users_work_at_once_each_with_their_own_files(site: Served, tmp_path: Path):
    async def work(name: str) -> tuple[str, int]:
        folder = tmp_path / name
        folder.mkdir()
        for i in range(300):
            (folder / f"{i}.txt").write_text(f"{name} {i}\n")
        (folder / "tensor.bin").write_bytes(name.encode() * (SMALL_BYTES + 1))
        async with Bridged(site.url, await site.token(name), folder).running() as client:
            pushed = await client.call("write_files", local_path=".")
            script = "cat 299.txt; wc -c < tensor.bin"
            ran = await client.call("run_command", command=["sh", "-c", script], workspace_id=pushed["workspace_id"])
            return ran["stdout"], (await site.team.allowances.usage_of(name)).disk_bytes

    (ann, ann_bytes), (ben, _) = await asyncio.gather(work("ann"), work("ben"))

    size = 3 * (SMALL_BYTES + 1)
    assert (ann, ben) == (f"ann 299\n{size}\n", f"ben 299\n{size}\n")
    assert ann_bytes > size


async def test_servers_and_lines_that_are_killed_at_random_cost_no_call_and_no_second_job(tmp_path: Path):
    dice = random.Random(37)
    with Folder() as folder:
        server = ServerProcess(folder)
        token = server.token()
        server.start()
        try:
            async with line_to(f"http://127.0.0.1:{server.port}") as line:

                async def disturb() -> None:
                    while True:
                        await asyncio.sleep(dice.uniform(0.5, 2.5))
                        line.cut()
                        if dice.random() < 0.4:
                            server.kill()
                            server.start()
                            await server.answers()

                async with Bridged(line.url, token, tmp_path, patience_s=60).running() as client:
                    await client.call("gpu_status")
                    disturbing = asyncio.create_task(disturb())
                    outputs = []
                    for i in range(12):
                        script = f"sleep 0.{dice.randrange(10)}; echo mark-{i}-"
                        outputs.append(await client.call("run_command", command=["sh", "-c", script]))
                    disturbing.cancel()
                    await client.call("list_attempts", view="recent")  # which asks how all jobs ended
            runs = [server.runs_of(f"mark-{i}-") for i in range(12)]
        finally:
            server.kill()

    assert [answer["stdout"] for answer in outputs] == [f"mark-{i}-\n" for i in range(12)]
    assert runs == [1] * 12
