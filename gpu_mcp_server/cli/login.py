"""`login`: a token for a team's server, kept on this machine, and the clients that use it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.clients import AgentClient, register, remote_snippets
from gpu_mcp_server.cli.output import Json, announce, print_result
from gpu_mcp_server.errors import BadRequest, HostUnavailable, NotFound

NAME = "gpu-team"
"""Under which clients know the team's server: `gpu` may be one of this machine."""


def login(
    url: Annotated[str, typer.Argument(help="Of the server, such as https://gpu.example.org.")],
    clients: Annotated[bool, typer.Option("--clients/--no-clients", help="Register with installed clients.")] = True,
    show: Annotated[bool, typer.Option("--show", help="Print the token that is kept, for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Ask for a token (or read it from stdin), try it, keep it, and point the clients of this machine there."""
    address = address_of(url)
    if show:
        print_result({"url": address, "token": kept_token(address)}, kept_token(address), as_json=as_json)
        return
    asking = sys.stdin.isatty()
    secret = typer.prompt("Token", hide_input=True, err=True) if asking else sys.stdin.readline().strip()
    announce(f"trying the token at {address}")
    tools = in_process_client.run(lambda: _tried(address, secret))
    keep(address, secret)
    announce("registering the server with clients on this machine")
    done = (
        {client.name: _registered(client, address, secret) for client in _clients() if client.path} if clients else {}
    )
    lines = [f"{address} takes the token and offers {tools} tools; it is kept in {_file()}."]
    lines += [f"{name}: {'registered as ' + NAME if why is None else why}" for name, why in done.items()]
    if clients and not done:
        lines += ["No client was found. To register it yourself:", *remote_snippets(f"{address}/mcp").values()]
    print_result({"url": address, "tools": tools, "clients": done}, "\n".join(lines), as_json=as_json)


def address_of(url: str) -> str:
    """Return a server's address without a path.

    Raises:
        BadRequest: If it is none, or a token would travel in the open to another machine.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(f"{url!r} is no address of a server.", hint="Say https://gpu.example.org.")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise BadRequest(
            f"{url!r} is not encrypted: everybody on the way could read the token.",
            hint="Use https, or reach the server through `ssh -L 8765:127.0.0.1:8765 HOST` as http://127.0.0.1:8765.",
        )
    return f"{parts.scheme}://{parts.netloc}"


def kept_token(address: str) -> str:
    """Return the token that is kept for a server.

    Raises:
        NotFound: If there is none.
    """
    found = _read().get(address)
    if found is None:
        raise NotFound("login for", address, hint=f"gpu-mcp-server login {address} makes one.")
    return found


def keep(address: str, secret: str) -> None:
    """Keep a token where this user alone can read it."""
    path, known = _file(), {**_read(), address: secret}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        json.dump(known, out, indent=2)
    temporary.replace(path)


def _file() -> Path:
    from gpu_mcp_server.settings.server_settings import user_config_file

    return user_config_file().with_name("logins.json")


def _read() -> dict[str, str]:
    try:
        return json.loads(_file().read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


async def _tried(address: str, secret: str) -> int:
    """Return how many tools a server offers for a token.

    Raises:
        BadRequest: If it does not take the token.
        HostUnavailable: If it cannot be reached.
    """
    import httpx2

    headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json, text/event-stream"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": _modern()}
    async with httpx2.AsyncClient(timeout=30) as http:
        try:
            answer = await http.post(f"{address}/mcp", json=call, headers={**headers, **MODERN})
        except httpx2.HTTPError as error:
            raise HostUnavailable(f"{address} cannot be reached: {error}.", hint="Check the address.") from error
    if answer.status_code in (401, 403):
        said: Any = answer.json()
        raise BadRequest(
            f"{address} does not take the token: {said.get('error_description')}.", hint="Ask for another."
        )
    if answer.status_code != 200:
        raise HostUnavailable(f"{address} answers {answer.status_code}.", hint="Is it a gpu-mcp-server?")
    return answer.text.count('"inputSchema"')


MODERN = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}


def _modern() -> dict[str, Any]:
    about = {"name": "gpu-mcp-server login", "version": "1"}
    return {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN["MCP-Protocol-Version"],
            "io.modelcontextprotocol/clientInfo": about,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    }


def _clients() -> tuple[AgentClient, ...]:
    """Return the clients that are registered with by a command that takes a header."""
    add = ("mcp", "add", "--scope", "user", "--transport", "http")
    return (AgentClient("Claude Code", "claude", (*add, NAME)), AgentClient("Gemini CLI", "gemini", (*add, NAME)))


def _registered(client: AgentClient, address: str, secret: str) -> str | None:
    """Register with a client, in place of what it had under the name; returns why that failed."""
    subprocess.run(  # noqa: S603 - our own argument list
        [client.program, "mcp", "remove", "--scope", "user", NAME],
        capture_output=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return register(client, [f"{address}/mcp", "--header", f"Authorization: Bearer {secret}"])
