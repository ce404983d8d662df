"""Junk over the HTTP surface, by hypothesis: whatever comes, no answer is a 500, and the server lives on.

FUZZ_EXAMPLES=20000 makes an evening of it.
"""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.site import Served, served

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
LIMITS = settings(
    max_examples=EXAMPLES, deadline=None, derandomize="FUZZ_EXAMPLES" not in os.environ, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip

PATHS = st.sampled_from(
    [
        "/mcp",
        "/mcp/",
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/.well-known/oauth-protected-resource/mcp",
        "/api",
        "/mcp?x=%",
    ]
) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30).map(lambda text: "/" + text)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "FROB"])
VERSIONS = st.sampled_from(["2025-06-18", "2025-11-25", "2026-07-28", "2024-11-05", "1999-01-01", "", "x" * 300])
CALLS = st.sampled_from([
    *("initialize", "tools/list", "tools/call", "resources/list", "resources/read", "resources/templates/list", "ping"),
    *("prompts/list", "prompts/get", "completion/complete", "server/discover", "tasks/get", "tasks/update", "tasks/cancel"),
    *("notifications/initialized", "notifications/cancelled", "logging/setLevel", "resources/subscribe", "x", ""),
])  # fmt: skip
WORDS = st.text(max_size=20) | st.sampled_from(
    ["gpu_status", "write_files", "job://", "artifact://b-0", "\0", "\ud800", "../../etc/passwd"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
KEY = "io.modelcontextprotocol/"
META = st.fixed_dictionaries({
    f"{KEY}protocolVersion": VERSIONS | JSON,
    f"{KEY}clientCapabilities": st.just({"extensions": {f"{KEY}tasks": {}}}) | JSON,
    f"{KEY}clientInfo": st.just({"name": "fuzz", "version": "1"}) | JSON,
})  # fmt: skip
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["gpu_status", "list_files", "read_artifact", "list_problems", "list_attempts"]) | JSON,
        "arguments": JSON, "uri": WORDS | JSON, "taskId": WORDS | JSON, "protocolVersion": VERSIONS | JSON, "capabilities": JSON,
        "clientInfo": JSON, "ref": JSON, "argument": JSON, "_meta": META | JSON, "cursor": JSON, "requestState": JSON,
    },
)  # fmt: skip
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | JSON, "method": CALLS | JSON},
    optional={"id": st.integers(0, 9) | JSON, "params": PARAMS | JSON, "result": JSON, "error": JSON},
)
BODIES = (
    MESSAGES.map(lambda m: json.dumps(m).encode())
    | st.lists(MESSAGES, max_size=3).map(lambda m: json.dumps(m).encode())
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=200)
    | st.sampled_from(
        [b"", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe{}", b"NaN", b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}']
    )
)
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Accept": st.sampled_from(["application/json, text/event-stream", "application/json", "text/event-stream", "*/*", ""]),
        "Content-Type": st.sampled_from(["application/json", "text/plain", "application/json; charset=utf-16", "", "multipart/form-data"]),
        "MCP-Protocol-Version": VERSIONS, "Mcp-Session-Id": PRINTABLE, "Mcp-Method": CALLS, "Mcp-Name": PRINTABLE,
        "Last-Event-ID": PRINTABLE, "Origin": st.sampled_from(["http://localhost", "http://evil", "null", ""]),
        "Host": st.sampled_from(["localhost", "evil", "", "127.0.0.1:99999", "[::1"]), "Content-Encoding": st.just("gzip"),
        "Authorization": st.sampled_from(["Bearer", "Bearer x", "Basic eDp4", "", "Bearer " + "A" * 9000]),
        "Cookie": PRINTABLE, "X-Forwarded-For": PRINTABLE, "traceparent": PRINTABLE, "Range": st.just("bytes=0-"),
    },
)  # fmt: skip


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[tuple[Served, str]]:
    async with served() as site:
        yield site, await site.token("fuzz", "read")


async def status_of(
    http: httpx2.AsyncClient, method: str, path: str, headers: dict[str, str], body: bytes
) -> int | None:
    """Return the status of the answer, however long it goes on; None where the request cannot be sent."""
    given = {name: value.strip() for name, value in headers.items()}
    try:
        request = http.build_request(method, path, headers=given, content=body if method != "GET" else None)
        answer = await http.send(request, stream=True)
    except (httpx2.InvalidURL, httpx2.LocalProtocolError, httpx2.RemoteProtocolError, UnicodeEncodeError, ValueError):
        return None
    await answer.aclose()
    return answer.status_code


@pytest.mark.parametrize("who", ["nobody", "a user"])
async def test_nothing_that_comes_is_answered_by_a_500(site: tuple[Served, str], who: str):
    served, token = site
    seen: dict[int, int] = {}
    sent: list[tuple[Any, ...]] = []

    @LIMITS
    @given(METHODS, PATHS, HEADERS, BODIES)
    def collect(method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        sent.append((method, path, headers, body))

    collect()
    shown = {"Authorization": f"Bearer {token}"} if who == "a user" else {}
    async with httpx2.AsyncClient(base_url=served.url, headers=shown, timeout=20) as http:
        for method, path, headers, body in sent:
            status = await status_of(http, method, path, headers, body)
            if status is not None:
                seen[status] = seen.get(status, 0) + 1
                assert status < 500, (status, method, path, headers, body)

    assert sum(seen.values()) > EXAMPLES / 3, seen
    assert len(seen) > 2
    assert (await served.ask("GET", "/healthz")).status_code == 200


async def test_junk_as_arguments_of_every_tool_that_reads_is_an_answer(site: tuple[Served, str]):
    served, token = site
    sent: list[Any] = []

    @settings(LIMITS, max_examples=max(8, EXAMPLES // 20))
    @given(
        st.dictionaries(
            st.sampled_from(["workspace_id", "path", "job_id", "artifact_id", "host", "problem_id", "limit", "x"]),
            JSON,
            max_size=4,
        )
    )
    def collect(arguments: dict[str, Any]) -> None:
        sent.append(arguments)

    collect()
    async with served.client(token, "legacy") as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        for arguments in sent:
            try:
                json.dumps(arguments).encode()
                json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
            except ValueError:
                continue
            for tool in tools:
                result = await client.call_tool(tool, arguments)
                said = " ".join(getattr(block, "text", "") for block in result.content)
                assert "broke inside the server" not in said, (tool, arguments, said)
