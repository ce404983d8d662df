"""Calls with a key: however often one comes, its job runs once, also where lines and servers end meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from gpu_mcp_server.web import call_retries
from tests.web.site import Served, served
from tests.web.test_tasks import KEY, serving


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


def request(tool: str, arguments: dict[str, Any], key: str, token: str) -> dict[str, Any]:
    meta = {f"{KEY}protocolVersion": "2026-07-28", f"{KEY}clientCapabilities": {}, "progressToken": key}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return {
        "json": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
        "headers": {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
            "Authorization": f"Bearer {token}",
            "Idempotency-Key": key,
        },
    }


async def call(site: Served, script: str, key: str, token: str, *, timeout_s: float = 60) -> dict[str, Any]:
    async with httpx2.AsyncClient(timeout=timeout_s) as http:
        asked = request("run_command", {"command": ["sh", "-c", script]}, key, token)
        answer = await http.post(f"{site.url}/mcp", **asked)
    lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1] if lines else answer.text)


async def jobs(site: Served) -> int:
    (row,) = await (await site.lab()).store.db.fetch_all("SELECT count(*) AS n FROM jobs WHERE purpose = 'run'")
    return row["n"]


async def started(site: Served, before: int) -> None:
    while await jobs(site) == before:
        await asyncio.sleep(0.05)


async def test_a_call_that_comes_again_joins_the_first_and_later_gets_its_answer(site: Served):
    token, key = await site.token("ada"), uuid4().hex
    before = await jobs(site)
    first, second = await asyncio.gather(*(call(site, "sleep 1; echo $$", key, token) for _ in range(2)))
    third = await call(site, "sleep 1; echo $$", key, token)
    other = await call(site, "echo another", key, token)
    bobs = await call(site, "echo bob", key, await site.token("bob"))

    assert first["result"]["structuredContent"]["status"] == "ok"
    assert (
        first["result"]["structuredContent"]
        == second["result"]["structuredContent"]
        == third["result"]["structuredContent"]
    )
    assert "was another call's" in other["error"]["message"]
    assert bobs["result"]["structuredContent"]["stdout"] == "bob\n"
    assert await jobs(site) == before + 2


async def test_a_call_waits_for_its_client_to_come_back(site: Served):
    token, key, before = await site.token("ada"), uuid4().hex, await jobs(site)
    with pytest.raises(httpx2.TimeoutException):
        await call(site, "sleep 3; echo done", key, token, timeout_s=1)
    again = await call(site, "sleep 3; echo done", key, token)

    assert again["result"]["structuredContent"]["stdout"] == "done\n"
    assert await jobs(site) == before + 1


async def test_a_call_whose_client_stays_away_ends_and_so_does_one_that_is_cancelled(
    site: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(call_retries, "GRACE_S", 0.2)
    token, before = await site.token("ada"), await jobs(site)
    left = asyncio.create_task(call(site, "sleep 50", uuid4().hex, token))
    await started(site, before)
    left.cancel()
    key = uuid4().hex
    ended = asyncio.create_task(call(site, "sleep 51", key, token))
    await started(site, before + 1)
    stranger = await site.ask("DELETE", f"/calls/{key}", await site.token("bob"))
    own = await site.ask("DELETE", f"/calls/{key}", token)
    lab = await site.lab()
    while any(job.state != "finished" for job in await lab.commands.recent(2)):
        await asyncio.sleep(0.1)

    assert (stranger.json(), own.json()) == ({"ended": False}, {"ended": True})
    assert (await ended)["error"]["code"] == call_retries.LOST_CODE
    assert [job.status for job in await lab.commands.recent(2)] == ["cancelled"] * 2


async def test_the_next_server_answers_a_call_with_the_job_that_the_first_one_started(site: Served):
    token, key, before = await site.token("ada"), uuid4().hex, await jobs(site)
    hasty = site.settings.model_copy(update={"team": site.settings.team.model_copy(update={"drain_s": 0.0})})
    async with serving(hasty) as first:
        lost = asyncio.create_task(call(first, "sleep 8; echo over", key, token))
        await started(site, before)
        while (await (await site.lab()).commands.recent(1))[0].state != "running":
            await asyncio.sleep(0.05)
    gone = await asyncio.gather(lost, return_exceptions=True)
    again = await call(site, "sleep 8; echo over", key, token)

    assert isinstance(gone[0], httpx2.HTTPError) or gone[0]["error"]["code"] == call_retries.LOST_CODE
    assert again["result"]["structuredContent"]["stdout"] == "over\n"
    assert await jobs(site) == before + 1
