"""The MCP clients we know: how to register the server with each."""

import base64
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_mcp_server.cli.output import command_lines

PROGRAM = "gpu-mcp-server"
PUBLISHED = ["uvx", PROGRAM]
"""What starts the released package where nothing is installed."""
TOKEN_VARIABLE = "GPU_LAB_TOKEN"  # noqa: S105 - a name
"""Environment variable of a client's user that holds the token for a server elsewhere; no setting of ours."""


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
        """Return its path, if it is installed."""
        return shutil.which(self.program)


CLIENTS = (
    AgentClient("Claude Code", "claude", ("mcp", "add", "--scope", "user", "gpu", "--")),
    AgentClient("Codex", "codex", ("mcp", "add", "gpu", "--")),
    AgentClient("Gemini CLI", "gemini", ("mcp", "add", "--scope", "user", "gpu")),
)


def own_command() -> list[str]:
    """Return the command that starts this server, found again from anywhere.

    From uvx it is `uvx gpu-mcp-server`: the environment in uv's cache goes when the cache is cleaned.
    """
    if runs_from_uvx(Path(sys.prefix)):
        return PUBLISHED
    beside = Path(sys.executable).with_name(PROGRAM)
    if beside.exists():
        return [str(beside)]
    found = shutil.which(PROGRAM)
    return [found] if found else [sys.executable, "-m", "gpu_mcp_server"]


def runs_from_uvx(prefix: Path) -> bool:
    """Return whether an environment is one that uvx made in uv's cache.

    Source: uv marks each environment by `uv = VERSION` in pyvenv.cfg, and its cache by a CACHEDIR.TAG
    (bford.info/cachedir).
    """
    try:
        marks = [line.partition("=")[0].strip() for line in (prefix / "pyvenv.cfg").read_text("utf-8").splitlines()]
    except OSError:
        return False
    return "uv" in marks and any((parent / "CACHEDIR.TAG").is_file() for parent in prefix.resolve().parents)


def shown_command() -> str:
    """Return the command as a person can type it here: by its name where the shell finds it, else by its path."""
    command = own_command()
    if len(command) > 1:
        return shlex.join(command)
    found = shutil.which(PROGRAM)
    if found and Path(found).resolve() == Path(command[0]).resolve():
        return PROGRAM
    path = Path(command[0])
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def plugin_installed(home: Path) -> bool:
    """Return whether Claude Code has our plugin, which brings the server: registered too, it would be there twice.

    Source: Claude Code keeps what is installed in ~/.claude/plugins/installed_plugins.json, by PLUGIN@MARKETPLACE.
    """
    try:
        text = (home / ".claude" / "plugins" / "installed_plugins.json").read_text("utf-8")
    except OSError:
        return False
    return f'"{PROGRAM}@' in text


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


def snippets(command: list[str], name: str = "gpu") -> dict[str, str]:
    """Return, for each client, what to run or write to register the server."""
    entry = {"command": command[0], **({"args": command[1:]} if command[1:] else {})}
    args = f"args = {json.dumps(command[1:])}\n" if command[1:] else ""
    claude = command_lines(["claude", "mcp", "add", "--scope", "user", name, "--", *command])
    codex = command_lines(["codex", "mcp", "add", name, "--", *command])
    gemini = command_lines(["gemini", "mcp", "add", "--scope", "user", name, *command])
    return {
        "claude": claude,
        "codex": (
            f"{codex}\n\n# or in ~/.codex/config.toml; `required` makes it wait for the start\n"
            f"[mcp_servers.{name}]\ncommand = {json.dumps(command[0])}\n{args}required = true\ntool_timeout_sec = 300"
        ),
        "gemini": (
            f"{gemini}\n\n# or in ~/.gemini/settings.json\n" + json.dumps({"mcpServers": {name: entry}}, indent=2)
        ),
        "vscode": command_lines(["code", "--add-mcp", json.dumps({"name": name, **entry}, indent=1)]),
        "cursor": "# in ~/.cursor/mcp.json\n" + json.dumps({"mcpServers": {name: entry}}, indent=2),
    }


def remote_snippets(url: str) -> dict[str, str]:
    """Return, for each client, what registers a server that runs elsewhere; the token is in the environment."""
    header = f"Bearer ${{{TOKEN_VARIABLE}}}"
    vscode = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer ${{env:{TOKEN_VARIABLE}}}"}}
    gemini = {"httpUrl": url, "headers": {"Authorization": header}}
    cursor = {"url": url, "headers": {"Authorization": f"Bearer ${{env:{TOKEN_VARIABLE}}}"}}
    return {
        "claude": (
            f"claude mcp add --scope user --transport http gpu {shlex.quote(url)} \\\n"
            f'  --header "Authorization: {header}"'
        ),
        "codex": (
            f"# in ~/.codex/config.toml\n[mcp_servers.gpu]\nurl = {json.dumps(url)}\n"
            f'bearer_token_env_var = "{TOKEN_VARIABLE}"\nrequired = true\ntool_timeout_sec = 300'
        ),
        "gemini": "# in ~/.gemini/settings.json\n" + json.dumps({"mcpServers": {"gpu": gemini}}, indent=2),
        "vscode": "# in .vscode/mcp.json\n" + json.dumps({"servers": {"gpu": vscode}}, indent=2),
        "cursor": "# in ~/.cursor/mcp.json\n" + json.dumps({"mcpServers": {"gpu": cursor}}, indent=2),
    }


def one_click(entry: dict[str, Any]) -> dict[str, str]:
    """Return the links of a web page by which VS Code and Cursor register a server.

    They are of https, as pages may link to nothing else; the editors' sites pass them on. `entry` is command and
    arguments, as the clients' own files have them.

    Source: code.visualstudio.com/api/extension-guides/ai/mcp and cursor.com/docs/context/mcp/install-links.
    """
    cursor = quote(base64.b64encode(json.dumps(entry).encode()).decode(), safe="")
    return {
        "vscode": f"https://insiders.vscode.dev/redirect/mcp/install?name=gpu&config={quote(json.dumps(entry))}",
        "cursor": f"https://cursor.com/en/install-mcp?name=gpu&config={cursor}",
    }
