"""What text of somebody else's may do in an answer: steer no terminal, and pass for no line of ours."""

from collections.abc import Iterable

INDENT = "    "


def visible(text: str) -> str:
    """Escape what would steer a terminal or turn lines around: control and bidirectional characters."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def lined(lines: Iterable[str]) -> str:
    """Join the lines of an answer; those of several have the further ones indented."""
    return "\n".join(f"\n{INDENT}".join(line.splitlines()) for line in lines)
