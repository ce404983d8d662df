"""`serve`: MCP over stdio or HTTP."""

import sys
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli.output import Json


def over_stdio(toolsets: str | None, read_only: bool | None, exclude_tools: str | None) -> None:
    """Serve one client over stdin and stdout."""
    from gpu_mcp_server.server import serve_stdio, server_from
    from gpu_mcp_server.settings import load_settings
    from gpu_mcp_server.telemetry import log_to_stderr

    log_to_stderr()
    settings = load_settings(toolsets=toolsets, read_only=read_only, exclude_tools=exclude_tools)
    if sys.stdin.isatty():
        typer.echo(
            "Serving MCP over stdio and waiting for a client. `gpu-mcp-server install --print` shows how to register "
            "it with one, `gpu-mcp-server --help` the other commands; Ctrl-C ends.",
            err=True,
        )
    serve_stdio(server_from(settings))


def serve(
    context: typer.Context,
    http: Annotated[bool, typer.Option("--http", help="HTTP on loopback instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.", min=0, max=65535)] = 8765,
    toolsets: Annotated[str | None, typer.Option(help="As before `serve`.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="As before `serve`.")] = False,
    exclude_tools: Annotated[str | None, typer.Option(help="As before `serve`.")] = None,
    as_json: Json = False,
) -> None:
    """Serve MCP over stdio, or with --http to many clients of this machine."""
    chosen: dict[str, Any] = {
        "toolsets": toolsets or context.obj["toolsets"],
        "read_only": read_only or context.obj["read_only"],
        "exclude_tools": exclude_tools or context.obj["exclude_tools"],
    }
    if not http:
        over_stdio(**chosen)
        return
    from gpu_mcp_server.server import checked_loopback, serve_http, server_from
    from gpu_mcp_server.settings import load_settings
    from gpu_mcp_server.telemetry import log_to_stderr

    address = checked_loopback(host)
    log_to_stderr(json_lines=as_json or None)
    settings = load_settings(**chosen)
    if settings.min_level is None:  # other processes of this machine may be other people
        settings = settings.model_copy(update={"min_level": "full"})
    shown = f"[{address}]" if ":" in address else address
    typer.echo(f"Serving MCP on http://{shown}:{port}/mcp; /healthz says whether it lives.", err=True)
    serve_http(server_from(settings, local_files=False), address, port)
