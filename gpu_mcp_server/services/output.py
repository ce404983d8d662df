"""A program's output as text that is safe to show: decoded, control sequences escaped, bounded."""

SHOWN_CHARS = 2400
"""Of each stream in a result; the whole is an artifact."""


def safe_text(data: bytes) -> str:
    """Decode bytes; what is not text or would steer a terminal is escaped."""
    return visible(data.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))


def visible(text: str) -> str:
    """Escape what would steer a terminal or turn lines around: control and bidirectional characters."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def head_and_tail(text: str, limit: int = SHOWN_CHARS) -> tuple[str, int]:
    """Shorten text to its first and last lines.

    Returns:
        The text, and how many characters were left out.
    """
    if len(text) <= limit:
        return text, 0
    half = limit // 2
    head = text[: text.rfind("\n", 0, half) + 1] or text[:half]
    start = text.find("\n", len(text) - half)
    tail = text[start + 1 :] if 0 <= start < len(text) - 1 else text[-half:]
    left = len(text) - len(head) - len(tail)
    return f"{head}[... {left} characters left out ...]\n{tail}", left
