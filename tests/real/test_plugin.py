"""agent_recipes as a plugin of the real Claude Code: it validates, installs from the checkout, and shows what it brings."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_mcp_server.recipes.agents.recipe_loader import recipes
from tests.real.clients import installer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
Claude = Callable[..., str]


@pytest.fixture
def claude(tmp_path: Path) -> Claude:
    """Run Claude Code in a home of its own, where the server of this checkout is on PATH as README says."""
    program = installer.claude()
    server = tmp_path / ".local" / "bin" / "gpu-mcp-server"
    server.parent.mkdir(parents=True)
    server.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/toolsets exec {sys.executable} -m gpu_mcp_server "$@"\n')
    server.chmod(0o755)
    environment = {
        "PATH": f"{server.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ANTHROPIC_API_KEY": "dummy-key",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "GPU_MCP_DATA_DIR": str(tmp_path / "data"),
        "PYTHONPATH": "",
    }

    def call(*arguments: str, by: str = os.fspath(program)) -> str:
        done = subprocess.run(
            [by, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def test_the_plugin_validates_installs_and_brings_every_recipe(claude: Claude):
    claude("plugin", "validate", "--strict", os.fspath(ROOT / "agent_recipes"))
    claude("plugin", "validate", "--strict", os.fspath(ROOT))
    claude("plugin", "marketplace", "add", os.fspath(ROOT))
    claude("plugin", "install", "gpu-mcp-server@gpu-mcp-server")
    details = claude("plugin", "details", "gpu-mcp-server")
    assert [name for name in recipes() if name not in details] == []
    assert "MCP servers (1)  gpu" in details


def test_the_plugin_s_server_connects_and_is_there_once(claude: Claude, tmp_path: Path):
    claude("plugin", "marketplace", "add", os.fspath(ROOT))
    claude("plugin", "install", "gpu-mcp-server@gpu-mcp-server")
    (tmp_path / ".local" / "bin" / "claude").symlink_to(installer.claude())
    told = claude("init", by=os.fspath(tmp_path / ".local" / "bin" / "gpu-mcp-server"))
    listed = [line for line in claude("mcp", "list").splitlines() if "gpu" in line]

    assert len(listed) == 1, listed
    assert "Connected" in listed[0] and "start-server" in listed[0]
    assert "plugin" in told
