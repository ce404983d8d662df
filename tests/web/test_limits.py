"""Limits for bad clients, and what the server says of itself."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import MCPError

from gpu_mcp_server.models.host import LabStatus
from gpu_mcp_server.web import http_server, limits
from tests.laboratory import called, refused
from tests.web.site import PING, Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served(team={"max_body_mib": 1}) as site:
        yield site


async def test_thousands_of_wrong_tokens_cost_nothing_but_refusals(site: Served):
    good = await site.token("ada")
    before = await site.team.db.fetch_all("SELECT * FROM tokens")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    codes: set[bytes] = set()
    for number in range(2_000):
        secret = f"gpumcp_{number:012x}_{'A' * 43}" if number % 2 else f"gpumcp_{good.split('_')[1]}_{number:043d}"
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        codes.add(head.split(b" ")[1])
        length = next(int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
        await reader.readexactly(length)
    writer.close()

    assert codes == {b"401"}
    assert before == await site.team.db.fetch_all("SELECT * FROM tokens")
    assert (await site.ask("POST", "/mcp", good, json=PING)).status_code != 401


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"jsonrpc":"2.0"}', b"[" * 100_000, b'{"a":' * 5_000, b"\xff\xfe", b'"x"']
)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", "1900-01-01"])
async def test_what_is_no_json_rpc_is_answered_with_a_refusal(site: Served, body: bytes, version: str):
    token = await site.token("ada", "read")
    headers = {"Content-Type": "application/json", "MCP-Protocol-Version": version}
    answer = await site.ask("POST", "/mcp", token, content=body, headers=headers)

    assert 400 <= answer.status_code < 500, answer.text


async def test_a_body_that_is_too_large_is_refused_however_it_comes(site: Served):
    token = await site.token("ada")

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65_536

    told = await site.ask("POST", "/mcp", token, content=b" " * (1 << 20 | 1))
    untold = await site.ask("POST", "/mcp", token, content=endless())

    assert (told.status_code, untold.status_code) == (413, 413)


@pytest.mark.parametrize("said", [b"", b"POST /mcp HT", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-A: "])
async def test_who_connects_and_says_nothing_or_not_all_is_hung_up_on(
    site: Served, said: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_server, "SILENT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    writer.write(said)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    async with served(tokens=False) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 100\r\n\r\n{")
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408"), answer


async def test_who_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SEND_S", 0.05)
    ended = asyncio.Event()

    async def talker(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(0)
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        finally:
            ended.set()

    async def taken(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await limits.SlowClientMiddleware(talker)({"type": "http"}, receive, taken)
    assert ended.is_set()


async def test_a_flooder_is_told_when_to_come_again_and_others_are_served(site: Served):
    flooder, other = await site.token("joe", quotas={"requests_per_minute": 1}), await site.token("ada")
    answers = [await site.ask("GET", "/metrics", flooder) for _ in range(3)]
    late = [a for a in answers if a.status_code == 429]

    assert answers[0].status_code == 200
    assert late and int(late[0].headers["retry-after"]) >= 1
    assert "requests_per_minute" in late[0].json()["error"]
    assert (await site.ask("GET", "/metrics", other)).status_code == 200


async def test_a_client_that_floods_shows_its_agent_the_quota(site: Served):
    token = await site.token("eve", quotas={"requests_per_minute": 60})

    async with site.client(token) as client:
        with pytest.raises(MCPError, match="requests_per_minute"):
            for _ in range(100):
                await client.list_tools(cache_mode="bypass")


async def test_a_server_without_room_reads_and_ends_and_says_why_it_takes_nothing_new():
    async with served(team={"free_disk_mib": 1 << 40}) as site, site.client(await site.token("ada")) as client:
        listed = await called(client, "list_attempts")
        words = await refused(client, "write_files", files={"a": "b"})
        unknown = await refused(client, "cancel_job", job_id="j-0")
        ready = await site.ask("GET", "/readyz")

    assert listed["attempts"] == []
    assert "read-only" in words and "store prune" in words
    assert "There is no job" in unknown
    assert (ready.status_code, ready.json()["status"]) == (200, "read-only")


async def test_calls_are_audited_and_counted(site: Served):
    async with site.client(await site.token("zoe")) as client:
        made = await called(client, "write_files", files={"a": "b"})
        await refused(client, "read_file", workspace_id="w-0", path="a")
    await site.team.audit.write()
    done = [(e.action, e.handle, e.outcome, e.address) for e in await site.team.audit.recent("zoe")]
    figures = (await site.ask("GET", "/metrics", await site.token("ada"))).text

    assert done == [
        ("tools/call read_file", "w-0", "refused", "127.0.0.1"),
        ("tools/call write_files", made["workspace_id"], "ok", "127.0.0.1"),
    ]
    assert 'gpu_mcp_calls_total{method="tools/call",outcome="ok",tool="write_files"} 1.0' in figures
    assert 'gpu_mcp_http_requests_total{method="POST",status="200"}' in figures
    assert (await site.ask("GET", "/metrics")).status_code == 401


async def test_a_server_that_ends_lets_calls_end_and_sends_others_away():
    async with served(tokens=False) as site:
        going, held = asyncio.Event(), asyncio.Event()

        async def status(_: str | None) -> LabStatus:
            going.set()
            await held.wait()
            return LabStatus(hosts=[])

        object.__setattr__((await site.lab()).status, "gpus", SimpleNamespace(status=status))
        session = await site.session()
        call = {**PING, "method": "tools/call", "params": {"name": "gpu_status", "arguments": {}}}
        running = asyncio.create_task(site.ask("POST", "/mcp", json=call, headers=session))
        await going.wait()
        site.server.should_exit = True
        await site.server.site.draining.ending.wait()
        away, ready = await site.ask("POST", "/mcp", json=PING), await site.ask("GET", "/readyz")
        held.set()
        answer = await running

    assert (away.status_code, away.headers["retry-after"], ready.status_code) == (503, "10", 503)
    assert answer.status_code == 200 and '"isError":false' in answer.text
