"""The command line. Nothing heavy is imported before a command needs it."""

import sys


def main() -> None:
    """Run the command line; without a command, serve MCP over stdio."""
    if sys.argv[1:] == ["--version"]:
        from gpu_mcp_server import __version__

        sys.stdout.write(f"gpu-mcp-server {__version__}\n")
        return
    from gpu_mcp_server.cli.app import run

    run()
