"""The command line: one module for each command, and what commands share.

A command prints and asks; the work is done by services through the same MCP server as agents use. Pages and HTTP
routes are in web.
"""

import gc
import sys
from typing import Any

YOUNG_OBJECTS = 10_000
"""New ones between two searches for garbage. Imports make 150,000 that stay: Python's 700 take a tenth of a start."""


def main() -> None:
    """Run the command line; without a command, serve MCP over stdio."""
    gc.set_threshold(YOUNG_OBJECTS)
    if sys.argv[1:] == ["--version"]:
        from gpu_mcp_server import __version__

        sys.stdout.write(f"gpu-mcp-server {__version__}\n")
        return
    if len(sys.argv) == 3 and sys.argv[1] == "connect" and not sys.argv[2].startswith("-"):
        from gpu_mcp_server.cli.connect import serve_at_once as serve_by_another

        serve_by_another(sys.argv[2])  # as below: its client waits
        return
    if options := serving_options(sys.argv[1:]):
        from gpu_mcp_server.cli.serve import serve_at_once

        serve_at_once(**options)
        return
    from gpu_mcp_server.cli.app import run

    run()


def serving_options(arguments: list[str]) -> dict[str, Any] | None:
    """Return the options of a server over stdio, which is what no command means, if there is no command.

    A client waits for the server's first answer: the commands, which take seconds to import, are left out.
    """
    options: dict[str, Any] = {"toolsets": None, "read_only": None, "exclude_tools": None}
    rest = iter(arguments)
    for word in rest:
        given, equals, value = word.partition("=")
        name = given.removeprefix("--").replace("-", "_")
        if word == "--read-only":
            options["read_only"] = True
        elif given in ("--toolsets", "--exclude-tools"):
            options[name] = value if equals else next(rest, None)
            if options[name] is None:
                return None
        else:
            return None
    return options
