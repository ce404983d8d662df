"""The MCP clients we know: how to register the server with each."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AgentClient:
    """A client with a command that registers MCP servers."""

    name: str
    program: str
    arguments: tuple[str, ...]
    """Of its registration command, before ours."""

    def registration(self, command: list[str]) -> list[str]:
        """Return the argument list that registers `command` with it."""
        return [self.program, *self.arguments, *command]

    @property
    def path(self) -> str | None:
        """Where it is installed, if it is."""
        return shutil.which(self.program)


CLIENTS = (
    AgentClient("Claude Code", "claude", ("mcp", "add", "--scope", "user", "gpu", "--")),
    AgentClient("Codex", "codex", ("mcp", "add", "gpu", "--")),
    AgentClient("Gemini CLI", "gemini", ("mcp", "add", "--scope", "user", "gpu")),
)


def own_command() -> list[str]:
    """Return the command that starts this server, found again from anywhere."""
    beside = Path(sys.executable).with_name("gpu-mcp-server")
    if beside.exists():
        return [str(beside)]
    found = shutil.which("gpu-mcp-server")
    return [found] if found else [sys.executable, "-m", "gpu_mcp_server"]


def register(client: AgentClient, command: list[str]) -> str | None:
    """Register the server with a client, and return why that failed."""
    try:
        done = subprocess.run(  # noqa: S603 - our own argument list
            client.registration(command),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (done.stderr or done.stdout).strip()
    if done.returncode == 0 or "already exists" in said:
        return None
    return said.splitlines()[-1] if said else f"exit code {done.returncode}"


def snippets(command: list[str]) -> dict[str, str]:
    """Return, for each client, what to run or write to register the server."""
    import base64
    from urllib.parse import quote

    entry = {"command": command[0], **({"args": command[1:]} if command[1:] else {})}
    shell = " ".join(_quoted(part) for part in command)
    args = f"args = {json.dumps(command[1:])}\n" if command[1:] else ""
    vscode = quote(json.dumps({"name": "gpu", **entry}))
    cursor = base64.b64encode(json.dumps(entry).encode()).decode()
    return {
        "claude": f"claude mcp add --scope user gpu -- {shell}",
        "codex": (
            f"codex mcp add gpu -- {shell}\n\n# or in ~/.codex/config.toml; `required` makes it wait for the start\n"
            f"[mcp_servers.gpu]\ncommand = {json.dumps(command[0])}\n{args}required = true\ntool_timeout_sec = 300"
        ),
        "gemini": (
            f"gemini mcp add --scope user gpu {shell}\n\n# or in ~/.gemini/settings.json\n"
            + json.dumps({"mcpServers": {"gpu": entry}}, indent=2)
        ),
        "vscode": (
            f"code --add-mcp {_quoted(json.dumps({'name': 'gpu', **entry}))}\n\n# or open\nvscode:mcp/install?{vscode}"
        ),
        "cursor": (
            "# in ~/.cursor/mcp.json\n"
            + json.dumps({"mcpServers": {"gpu": entry}}, indent=2)
            + f"\n\n# or open\ncursor://anysphere.cursor-deeplink/mcp/install?name=gpu&config={quote(cursor)}"
        ),
    }


def _quoted(part: str) -> str:
    import shlex

    return shlex.quote(part)
