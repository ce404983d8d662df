"""Make untrusted text safe in an answer: it steers no terminal, and passes for no line of ours."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

INDENT = "    "


def escape_controls(text: str) -> str:
    """Escape what would steer a terminal or turn lines around: control and bidirectional characters."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def visible_data(value: Any) -> Any:
    """Return JSON's types with every text in them, names of members too, made visible."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value)
        return {visible_data(name): visible_data(each) for name, each in members.items()}
    if isinstance(value, list | tuple):
        return [visible_data(each) for each in cast("list[Any]", value)]
    return value


def clip_middle(text: str, most: int) -> str:
    """Return a text without its middle where it is longer than `most`: what it ends in is often the advice."""
    if len(text) <= most:
        return text
    tail = most // 2
    return f"{text[: most - tail].rstrip()} ... {text[-tail:].lstrip()}"


def join_lines(lines: Iterable[str]) -> str:
    """Join the lines of an answer; those of several have the further ones indented."""
    return "\n".join(f"\n{INDENT}".join(line.splitlines()) for line in lines)
