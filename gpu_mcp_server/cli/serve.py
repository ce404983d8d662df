"""`serve`: MCP over stdio or HTTP."""

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_mcp_server.cli.output import Json, fail
from gpu_mcp_server.errors import BadRequest, GpuMcpError

if TYPE_CHECKING:
    from gpu_mcp_server.settings.server_settings import Settings


def over_stdio(toolsets: str | None, read_only: bool | None, exclude_tools: str | None) -> None:
    """Serve one client over stdin and stdout."""
    import asyncio

    from gpu_mcp_server.mcp_api.server import serve_stdio, server_from_settings
    from gpu_mcp_server.runtime.current_user import acting_as
    from gpu_mcp_server.runtime.logging_setup import log_to_stderr
    from gpu_mcp_server.settings.server_settings import load_settings
    from gpu_mcp_server.team.team_services import chosen_user

    log_to_stderr()
    settings = load_settings(toolsets=toolsets, read_only=read_only, exclude_tools=exclude_tools)
    if sys.stdin.isatty():
        typer.echo(
            "Serving MCP over stdio and waiting for a client. `gpu-mcp-server client-config` shows how to register "
            "it with one, `gpu-mcp-server --help` the other commands; Ctrl-C ends.",
            err=True,
        )
    with acting_as(asyncio.run(chosen_user(settings))):
        serve_stdio(server_from_settings(settings))


def serve_at_once(toolsets: str | None, read_only: bool | None, exclude_tools: str | None) -> None:
    """Serve one client, and turn what we foresee into an exit code and two lines at most."""
    try:
        over_stdio(toolsets, read_only, exclude_tools)
    except GpuMcpError as error:
        sys.exit(fail(str(error), as_json=False, code=2).exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def serve(
    context: typer.Context,
    address: Annotated[str | None, typer.Argument(metavar="[HOST:PORT]", help="HOST:PORT for --http.")] = None,
    http: Annotated[bool, typer.Option("--http", help="HTTP, for many clients, instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.", min=0, max=65535)] = 8765,
    auth: Annotated[str | None, typer.Option(help="tokens or none; absent: tokens if any exist.")] = None,
    toolsets: Annotated[str | None, typer.Option(help="Like the global option of this name.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Like the global option of this name.")] = False,
    exclude_tools: Annotated[str | None, typer.Option(help="Like the global option of this name.")] = None,
    as_json: Json = False,
) -> None:
    """Serve MCP over stdio, or over HTTP to many: `serve --http 127.0.0.1:8765`."""
    chosen: dict[str, Any] = {
        "toolsets": toolsets or context.obj["toolsets"],
        "read_only": read_only or context.obj["read_only"],
        "exclude_tools": exclude_tools or context.obj["exclude_tools"],
    }
    if not http:
        if address is not None:
            raise BadRequest(f"An address, {address!r}, is for HTTP.", hint="Say serve --http HOST:PORT.")
        over_stdio(**chosen)
        return
    if auth not in (None, "tokens", "none"):
        raise BadRequest(f"--auth is {auth!r}.", hint="Say tokens or none.")
    from gpu_mcp_server.web.http_server import checked_address

    where = checked_address(address) if address is not None else (checked_address(f"[{host.strip('[]')}]:0")[0], port)
    _over_http(where, auth, chosen, as_json=as_json)


def _over_http(where: tuple[str, int], auth: Any, chosen: dict[str, Any], *, as_json: bool) -> None:
    import asyncio

    from gpu_mcp_server.runtime.logging_setup import log_to_stderr
    from gpu_mcp_server.settings.server_settings import load_settings
    from gpu_mcp_server.store.store_locks import TEAM, hold_lock
    from gpu_mcp_server.web import http_server

    address, port = where
    log_to_stderr(json_lines=as_json or None)
    settings = load_settings(**chosen)
    tokens = asyncio.run(http_server.chosen_authentication(settings, address, auth)) == "tokens"
    if settings.min_level is None:  # other processes of this machine may be other people
        settings = settings.model_copy(update={"min_level": "full"})
    with hold_lock(settings.data_dir, TEAM, alone=True) if tokens else nullcontext():
        _serve_at(address, port, settings, tokens=tokens)


def _serve_at(address: str, port: int, settings: "Settings", *, tokens: bool) -> None:
    from gpu_mcp_server.mcp_api.server import server_from_settings
    from gpu_mcp_server.web import http_server

    scheme = http_server.scheme_of(settings.team.tls_cert)
    shown = f"[{address}]" if ":" in address else address
    who = "users show tokens" if tokens else "every user of this machine may use it"
    typer.echo(f"Serving MCP on {scheme}://{shown}:{port}/mcp: {who}; /healthz says whether it runs.", err=True)
    if scheme == "http" and not http_server.is_loopback(address):
        typer.echo(
            "Without TLS others on the network can read tokens: set team.tls_cert and team.tls_key, or use a proxy.",
            err=True,
        )
    http_server.serve_http(server_from_settings(settings, local_files=False), settings, address, port, tokens=tokens)
