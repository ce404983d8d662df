"""The real laboratory for tests: real store, hostd, sandbox, compilers; over the in-memory MCP client."""

import atexit
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client

from gpu_mcp_server.mcp_api.server import server_from_settings
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

REFERENCE = "import numpy as np\n\ndef reference(x):\n    return 2 * np.tanh(x) + 1\n"
VECTOR = {"dtype": "float32", "shape": ["n"]}
PROBLEM: dict[str, Any] = {
    "name": "twice tanh plus one",
    "reference": REFERENCE,
    "inputs": [{"name": "x", **VECTOR}],
    "outputs": [{"name": "y", **VECTOR}],
    "shapes": [{"n": 1000}, {"n": 50_000}],
    "rtol": 1e-5,
    "atol": 1e-6,
}
HONEST = """
#include <math.h>
#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = 2 * tanhf(x[i]) + 1;
    return 0;
}
"""


class Folder:
    """A data folder that jobs under their own uid can get through to, as pytest's tmp_path is not."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gpu-mcp-test-"))
        self.path.chmod(0o711)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():  # a host side that was told to end as it began still made its folders
            atexit.register(shutil.rmtree, self.path, ignore_errors=True)


def settings_for(folder: Path, **more: Any) -> Settings:
    """Return settings that keep everything in a folder, with every toolset on, and build nothing aside."""
    return Settings(data_dir=folder, **{"toolsets": ["all"], "index_documentation": False, **more})


@asynccontextmanager
async def laboratory(**more: Any) -> AsyncGenerator[Lab]:
    """Open a laboratory of its own."""
    with Folder() as folder:
        async with Lab.open(settings_for(folder, **more)) as lab:
            yield lab


@asynccontextmanager
async def client_of(folder: Path, **more: Any) -> AsyncGenerator[Client]:
    """Open a client of a server whose data is in a folder."""
    async with Client(server_from_settings(settings_for(folder, **more)), raise_exceptions=True) as client:
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool that must succeed; return its data."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, said(result)
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that must fail; return its words."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    return said(result)


def said(result: Any) -> str:
    """Return a result's text."""
    return "\n".join(getattr(block, "text", "") for block in result.content)
