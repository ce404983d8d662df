"""C, C++ and CUDA text without what no compiler reads as code: comments, and the insides of strings."""

import re

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)"
    r"|\"(?:\\.|[^\"\\\n])*(?:\"|(?=\n)|\\?\Z)"
    r"|'(?:\\[^\n]{1,10}?|[^'\\\n])'",
    re.DOTALL,
)
"""A comment, string or character. What is left open ends with its line or text: no place is searched twice."""


def strip_comments(source: str) -> str:
    """Return a source with a space, and its line ends, in the place of each comment; strings stay."""
    return _TOKEN.sub(lambda m: m[0] if m[0][0] in "\"'" else " " + "\n" * m[0].count("\n"), source)


def strip_comments_and_strings(source: str) -> str:
    """Return a source as `strip_comments` does, with empty strings in the place of strings and characters."""
    return _TOKEN.sub(lambda m: m[0][0] * 2 if m[0][0] in "\"'" else " " + "\n" * m[0].count("\n"), source)
