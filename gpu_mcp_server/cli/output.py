"""Output of commands: text for people, one JSON document for programs."""

import json
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli.tool_commands import name_commands
from gpu_mcp_server.text_safety import escape_controls

WIDTH = 80
"""Columns of output that goes to no terminal, and of a terminal of unknown width."""
LEAST = 8
"""Columns that a shortened column of a table keeps."""
AFTER_S = 0.7
"""So long a command works before it says at what; what came before, imports, took some tenths."""
_WORD = re.compile(r"(?:`[^`\n]*`|\S)+")
"""Between two of these a line may end: a command in backticks can be copied, so it stays whole."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_announced: list[threading.Timer] = []


def announce(text: str) -> None:
    """Say on stderr what the command does now, if it has not ended, or printed anything, after AFTER_S.

    What takes longer than a second is announced; a later announcement takes the place of an earlier one. Nothing is
    said where stderr is no terminal, or where the command prints JSON.

    Args:
        text: What, and on which host or file; without a full stop.
    """
    withdraw()
    if not sys.stderr.isatty() or "--json" in sys.argv:
        return
    timer = threading.Timer(AFTER_S, _say_aside, (f"{text} ...",))
    timer.daemon = True
    _announced.append(timer)
    timer.start()


def withdraw() -> None:
    """Leave unsaid what was announced: it has ended, or the command prints."""
    while _announced:
        _announced.pop().cancel()


def _say_aside(text: str) -> None:
    typer.echo(escape_controls(wrap_lines(text)), err=True)


def print_result(data: Any, text: str, *, as_json: bool, verbatim: bool = False) -> None:
    """Print `data` as JSON in ASCII, or `text`; what would steer a terminal is escaped in either.

    Args:
        data: For programs.
        text: For people; its lines are wrapped to the terminal's width.
        as_json: Whether `data` is printed.
        verbatim: Whether lines of `text` stay as long as they are, as those of a file or of a program's output.
    """
    withdraw()
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        typer.echo(escape_controls(text)) if verbatim else say(text)


def say(text: str) -> None:
    """Print a text for people, its lines wrapped to the terminal's width."""
    withdraw()
    typer.echo(escape_controls(wrap_lines(text)))


def note(text: str) -> None:
    """Say on stderr what a command did, beside its result."""
    withdraw()
    _say_aside(text)


def terminal_width() -> int:
    """Return the columns of the terminal that stdout is, WIDTH where it is none; COLUMNS overrides either."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def fail(message: str, *, as_json: bool, code: int = 1, typed: str = "") -> typer.Exit:
    """Print an error where it belongs, with commands for tools; return the exception that ends the command.

    A tool that the user typed by its name keeps it.

    Its lines are wrapped at a terminal alone: elsewhere a program reads them.
    """
    withdraw()
    message = name_commands(message, typed)
    if as_json:
        print_result({"error": message}, "", as_json=True)
    elif sys.stderr.isatty():
        _say_aside(message)
    else:
        typer.echo(escape_controls(message), err=True)
    return typer.Exit(code)


def table(headings: list[str], rows: list[list[str]], *, shorten: Sequence[int] = (-1,)) -> str:
    """Return aligned columns, no wider than the terminal if cells of the columns `shorten` can be cut for that."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    over = sum(widths) + 2 * (len(widths) - 1) - terminal_width()
    for _ in range(over):
        widest = max(shorten, key=lambda at: widths[at])
        widths[widest] = max(LEAST, len(headings[widest]), widths[widest] - 1)
    if over > 0:
        rows = [[*row] for row in rows]
        for row in rows:
            for at in shorten:
                row[at] = shorten_line(row[at], widths[at])
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def wrap_lines(text: str, width: int | None = None) -> str:
    """Return a text whose lines are no wider than the terminal; only a single word can be wider.

    Lines that go on are indented by two columns more than their first. Lines that fit stay as they are.
    """
    width = width or terminal_width()
    return "\n".join(part for line in text.split("\n") for part in _wrapped(line, width))


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    further = " " * (len(line) - len(line.lstrip()) + 2)
    done: list[str] = []
    begin = end = 0
    for word in _WORD.finditer(line):
        lead = further if done else ""
        if end > begin and len(lead) + word.end() - begin > width:
            done.append(lead + line[begin:end])
            begin = word.start()
        end = word.end()
    return [*done, (further if done else "") + line[begin:end]]


def command_lines(words: Sequence[str]) -> str:
    """Return a command for a shell: on one line of WIDTH columns, or on several with a backslash before each end."""
    first, *others = (shlex.quote(word) for word in words)
    lines = [first]
    for word in others:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)


def shorten_line(text: str, width: int = WIDTH) -> str:
    """Return a text of one line that is no wider than `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip(" ,;:") + "…"
