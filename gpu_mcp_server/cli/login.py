"""`login`: a token for a team's server, kept on this machine, and the clients that use it."""

import contextlib
import subprocess
import sys
from typing import Annotated, Any

import typer

from gpu_mcp_server.bridge.kept_tokens import address_of, forget_token, keep_token, kept_token, tokens_file
from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.clients import AgentClient, own_command, register, snippets
from gpu_mcp_server.cli.output import Json, announce, print_result
from gpu_mcp_server.errors import BadRequest, HostUnavailable

NAME = "gpu-team"
"""Under which clients know the team's server: `gpu` may be one of this machine."""
ON_SERVER = ("run", "push", "pull", "jobs", "logs", "status", "history")
"""Commands, of those that act there, as they are named after a login."""


def login(
    url: Annotated[str, typer.Argument(help="Address of the server, such as https://gpu.example.org.")],
    clients: Annotated[bool, typer.Option("--clients/--no-clients", help="Register with installed clients.")] = True,
    show: Annotated[bool, typer.Option("--show", help="Print the token that is kept, for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Ask for a token (or read it from stdin), check and save it, and register the server with installed clients."""
    address = address_of(url)
    if show:
        print_result({"url": address, "token": kept_token(address)}, kept_token(address), as_json=as_json)
        return
    asking = sys.stdin.isatty()
    secret = typer.prompt("Token", hide_input=True, err=True) if asking else sys.stdin.readline().strip()
    if not secret.isprintable() or not secret.isascii() or not secret or " " in secret:
        raise BadRequest(
            "That is no token: it is empty, or has spaces or characters outside ASCII.",
            hint="An admin makes one with `gpu-mcp-server token create NAME`; it begins with gpumcp_.",
        )
    announce(f"trying the token at {address}")
    tools = in_process_client.run(lambda: _tried(address, secret))
    keep_token(address, secret)
    announce("registering the server with clients on this machine")
    done = {client.name: _registered(client, address) for client in _clients() if client.path} if clients else {}
    lines = [f"{address} takes the token and offers {tools} tools; it is kept in {tokens_file()}."]
    lines += [f"{name}: {'registered as ' + NAME if why is None else why}" for name, why in done.items()]
    if clients and not done:
        lines += ["No client was found. To register it yourself:", *snippets(_bridge(address), NAME).values()]
    lines += [
        f"From now on {', '.join(ON_SERVER)} and the like work at {address}; `gpu-mcp-server --local ...` means this "
        "machine."
    ]
    print_result({"url": address, "tools": tools, "clients": done}, "\n".join(lines), as_json=as_json)


def logout(
    url: Annotated[str, typer.Argument(help="Address of the server.")],
    as_json: Json = False,
) -> None:
    """Forget the token for a team's server; commands act on this machine again. The server does not revoke it."""
    address = address_of(url)
    forget_token(address)
    print_result({"url": address}, f"The token for {address} is forgotten here.", as_json=as_json)


def whoami(as_json: Json = False) -> None:
    """Show your user at the team's server: scopes, project, and the token's end."""
    address = in_process_client.remote_address()
    if address is None:
        raise BadRequest(
            "You are not logged in to a team's server: commands use this machine.",
            hint="`gpu-mcp-server login URL` logs you in.",
        )

    async def ask_server() -> dict[str, Any]:
        async with in_process_client.remote_session(address) as there:
            return await there.server.server.send("GET", "/whoami")

    who = in_process_client.run(ask_server)
    tools = ", ".join(who["toolsets"]) if who["toolsets"] is not None else "all that it offers"
    lines = [
        f"{who['name']} at {address}: scopes {', '.join(who['scopes'])}; project {who['project'] or 'none'}; "
        f"toolsets {tools}",
        f"The token ends {'at ' + who['expires_at'] if who['expires_at'] else 'never'}.",
        *([f"note: {who['warning']}"] if who["warning"] else []),
    ]
    print_result(who, "\n".join(lines), as_json=as_json)


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
    """Return the clients that are registered with by a command."""
    return (
        AgentClient("Claude Code", "claude", ("mcp", "add", "--scope", "user", NAME, "--")),
        AgentClient("Codex", "codex", ("mcp", "add", NAME, "--")),
        AgentClient("Gemini CLI", "gemini", ("mcp", "add", "--scope", "user", NAME)),
    )


def _bridge(address: str) -> list[str]:
    """Return what a client starts: it holds no token, and reads the kept one."""
    return [*own_command(), "connect", address]


def _registered(client: AgentClient, address: str) -> str | None:
    """Register with a client, in place of what it had under the name; returns why that failed."""
    scope = () if client.program == "codex" else ("--scope", "user")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(  # noqa: S603 - our own argument list
            [client.program, "mcp", "remove", *scope, NAME],
            capture_output=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    return register(client, _bridge(address))
