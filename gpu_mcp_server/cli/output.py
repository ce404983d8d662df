"""How commands print: text for people, one JSON document for programs."""

import json
from typing import Annotated, Any

import typer

from gpu_mcp_server.text_safety import escape_controls

WIDTH = 80
"""Columns of a terminal that nobody widened."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_result(data: Any, text: str, *, as_json: bool) -> None:
    """Print `data` as JSON in ASCII, or `text`; what would steer a terminal is escaped in either."""
    typer.echo(json.dumps(data, indent=2) if as_json else escape_controls(text))


def fail(message: str, *, as_json: bool, code: int = 1) -> typer.Exit:
    """Print an error where it belongs, and return the exception that ends the command."""
    if as_json:
        print_result({"error": message}, "", as_json=True)
    else:
        typer.echo(escape_controls(message), err=True)
    return typer.Exit(code)


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Return aligned columns."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def shorten_line(text: str, width: int = WIDTH) -> str:
    """Return a text of one line that is no wider than `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip(" ,;:") + "…"
