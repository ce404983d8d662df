"""The command line: one module for each command, and what commands share.

A command prints and asks; the work is done by services through the same MCP server as agents use. Pages and HTTP
routes are in web.
"""

import sys


def main() -> None:
    """Run the command line; without a command, serve MCP over stdio."""
    if sys.argv[1:] == ["--version"]:
        from gpu_mcp_server import __version__

        sys.stdout.write(f"gpu-mcp-server {__version__}\n")
        return
    from gpu_mcp_server.cli.app import run

    run()
