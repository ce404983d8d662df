"""agent_recipes as a plugin of the real Claude Code: it validates, installs from the checkout, and shows what it brings."""

import os
import subprocess
from pathlib import Path

import pytest

from gpu_mcp_server.recipes.agents.recipe_loader import recipes
from tests.real.clients import installer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


def test_the_plugin_validates_installs_and_brings_every_recipe(tmp_path: Path):
    claude = installer.claude()
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ANTHROPIC_API_KEY": "dummy-key",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
    }

    def plugin(*arguments: str) -> str:
        command = [claude, "plugin", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    plugin("validate", "--strict", os.fspath(ROOT / "agent_recipes"))
    plugin("validate", "--strict", os.fspath(ROOT))
    plugin("marketplace", "add", os.fspath(ROOT))
    plugin("install", "gpu-mcp-server@gpu-mcp-server")
    details = plugin("details", "gpu-mcp-server")
    assert [name for name in recipes() if name not in details] == []
    assert "MCP servers (1)  gpu" in details
