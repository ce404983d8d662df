from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from gpu_mcp_server.mcp_api.server import build_server
from gpu_mcp_server.mcp_api.toolset import discover
from tests.stand_ins import Laboratory, Opener


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


@pytest.fixture(params=["auto", "legacy"])
async def client(request: pytest.FixtureRequest, opener: Opener) -> AsyncIterator[Client]:
    server = build_server(opener, discover(), heartbeat_s=0.01)
    async with Client(server, mode=request.param) as client:
        yield client


@pytest.fixture
async def lab(client: Client, opener: Opener) -> Laboratory:
    await client.call_tool("gpu_status", {})
    assert opener.lab is not None
    return opener.lab


Said = Callable[[CallToolResult], str]


@pytest.fixture
def said() -> Said:
    def text_of(result: CallToolResult) -> str:
        (content,) = result.content
        assert isinstance(content, TextContent)
        return content.text

    return text_of


@pytest.fixture
def data() -> Callable[[CallToolResult], dict[str, Any]]:
    def structure_of(result: CallToolResult) -> dict[str, Any]:
        assert not result.is_error, result.content
        assert result.structured_content is not None
        return result.structured_content

    return structure_of
