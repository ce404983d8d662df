"""Statements that `#if` splits: `if (a)` in one branch and `if (b)` in the other, before one body.

No grammar of the unprocessed text understands that. One branch of such a condition is kept and the others are blanked,
byte for byte, so that every offset still means the file.
"""

import re
from itertools import pairwise

_DIRECTIVE = re.compile(rb"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
_QUIET = re.compile(
    rb"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*(?:\"|(?=\n)|\\?\Z)|'(?:\\[^\n]{1,10}?|[^'\\\n])'", re.DOTALL
)
"""What is no code. A string that is left open ends with its line, so that no place is searched twice."""
_BRACKET = re.compile(rb"[({;)}]")
_WORD = re.compile(rb"\w*\Z")
LONGEST_WORD = 64
"""Bytes before a parenthesis in which a macro's name is looked for: a line may be a megabyte of one word."""
_HEADS = frozenset({b"for", b"if", b"constexpr", b"switch", b"while"})
"""Words before parentheses in which `;` belongs to the language."""
Span = tuple[int, int]


def blank_quiet(data: bytes) -> bytes:
    """Return the text with comments, strings and characters blanked, lines and offsets kept."""
    return _QUIET.sub(lambda m: re.sub(rb"[^\n]", b" ", m.group()), data)


def choose_branches(data: bytes, which: int) -> tuple[bytes, list[Span]] | None:
    """Return the text with one branch of each condition that splits a statement, and where those conditions are.

    None if there is no such condition.

    Args:
        data: The file.
        which: 0 keeps the first branch, -1 the last.
    """
    bare = blank_quiet(data)
    made = bytearray(data)
    found: list[Span] = []
    for directives in _conditions(bare):
        branches = [(a[1], b[0]) for a, b in pairwise(directives)]
        if not any(_splits(bare[start:end]) for start, end in branches):
            continue
        found.append((directives[0][0], directives[-1][1]))
        kept = branches[which]
        for start, end in [*directives, *(b for b in branches if b != kept)]:
            made[start:end] = re.sub(rb"[^\n]", b" ", bytes(made[start:end]))
    return (bytes(made), found) if found else None


def join_arguments(data: bytes) -> bytes:
    """Return the text with statements that a macro is given joined by commas, as in `IN_GROUP(send(a); recv(b))`."""
    made = bytearray(data)
    open_ones: list[tuple[bytes, list[int]]] = []
    bare = blank_quiet(data)
    for match in _BRACKET.finditer(bare):
        mark = match.group()
        if mark in b"({":
            open_ones.append((_word_before(bare, match.start()) if mark == b"(" else b"", []))
        elif mark == b";" and open_ones and open_ones[-1][0] and open_ones[-1][0] not in _HEADS:
            open_ones[-1][1].append(match.start())
        elif mark in b")}" and open_ones:
            _, found = open_ones.pop()
            for at in found if mark == b")" else ():
                made[at : at + 1] = b","
    return bytes(made)


def _word_before(bare: bytes, at: int) -> bytes:
    """Return the word before a parenthesis, empty if there is none in its line."""
    before = bare[max(0, at - LONGEST_WORD) : at].rstrip(b" \t\r\f\v")
    found = _WORD.search(before)
    return found.group() if found else b""


def _conditions(bare: bytes) -> list[list[Span]]:
    """Return each condition's directives, `#if` to `#endif`, inner ones first."""
    open_ones: list[list[Span]] = []
    found: list[list[Span]] = []
    for match in _DIRECTIVE.finditer(bare):
        word = match.group(1)
        if word.startswith(b"if"):
            open_ones.append([match.span()])
        elif open_ones:
            open_ones[-1].append(match.span())
            if word == b"endif":
                found.append(open_ones.pop())
    return found


def _splits(branch: bytes) -> bool:
    """Say whether a branch is less or more than whole statements."""
    text = re.sub(rb"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", b"", branch, flags=re.MULTILINE).strip()
    if not text:
        return False
    depth = {b"(": 0, b"{": 0, b"[": 0}
    for opening, closing in ((b"(", b")"), (b"{", b"}"), (b"[", b"]")):
        depth[opening] = text.count(opening) - text.count(closing)
    if any(depth.values()):
        return True
    return re.search(rb"[;}:>\\]$", text) is None or re.match(rb"else\b", text) is not None
