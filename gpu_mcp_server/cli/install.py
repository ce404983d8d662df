"""`install`: how to register the server with MCP clients."""

from typing import Annotated

import typer

from gpu_mcp_server.cli.output import Json, fail, print_result


def install(
    show: Annotated[bool, typer.Option("--print", help="Print the snippets; `init` registers.")] = False,
    client: Annotated[str | None, typer.Option(help="claude, codex, gemini, vscode or cursor.")] = None,
    url: Annotated[str | None, typer.Option(help="Of a team's server, such as https://gpu.example.org/mcp.")] = None,
    as_json: Json = False,
) -> None:
    """Print what registers this server with Claude Code, Codex, Gemini CLI, VS Code and Cursor."""
    from gpu_mcp_server.cli.clients import own_command, remote_snippets, snippets

    if not show:
        raise fail("Say --print for the snippets, or let `gpu-mcp-server init` register.", as_json=as_json, code=2)
    known = remote_snippets(url) if url else snippets(own_command())
    if client is not None and client not in known:
        raise fail(f"Unknown client {client!r}; known are {', '.join(known)}.", as_json=as_json, code=2)
    shown = {name: text for name, text in known.items() if client in (None, name)}
    print_result(shown, "\n\n".join(f"## {name}\n{text}" for name, text in shown.items()), as_json=as_json)
