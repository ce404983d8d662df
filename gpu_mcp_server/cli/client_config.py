"""`client-config`: how to register the server with MCP clients."""

from typing import Annotated

import typer

from gpu_mcp_server.cli.output import Json, fail, print_result


def client_config(
    client: Annotated[str | None, typer.Argument(help="claude, codex, gemini, vscode or cursor; absent: all.")] = None,
    url: Annotated[
        str | None, typer.Option(help="Address of a team's server, such as https://gpu.example.org/mcp.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the command or the settings that register this server with your agent."""
    from gpu_mcp_server.cli.clients import own_command, remote_snippets, snippets

    known = remote_snippets(url) if url else snippets(own_command())
    if client is not None and client not in known:
        raise fail(f"Unknown client {client!r}; known are {', '.join(known)}.", as_json=as_json, code=2)
    shown = {name: text for name, text in known.items() if client in (None, name)}
    print_result(
        shown, "\n\n".join(f"## {name}\n{text}" for name, text in shown.items()), as_json=as_json, verbatim=True
    )
