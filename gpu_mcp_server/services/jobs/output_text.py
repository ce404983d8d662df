"""A program's output as text that is safe to show: decoded, control sequences escaped, bounded."""

import json
from typing import Any, cast

from gpu_mcp_server.text_safety import escape_controls

SHOWN_CHARS = 2400
"""Of each stream in a result; the whole is an artifact."""


def safe_text(data: bytes) -> str:
    """Decode bytes; what is not text or would steer a terminal is escaped."""
    return escape_controls(data.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))


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


def plain_stdout(purpose: str, stdout: bytes) -> str:
    """Return a job's stdout as people read it: of the judge's messages the texts."""
    return escape_controls("\n".join(progress_lines(stdout))) if purpose in ("judge", "register") else safe_text(stdout)


def progress_lines(data: bytes) -> list[str]:
    """Return the messages in a piece of the owner's stdout; what is no message is left out."""
    said: list[str] = []
    for line in data.decode("utf-8", "replace").splitlines():
        try:
            message: Any = json.loads(line)
        except ValueError:
            continue
        text = cast("dict[str, Any]", message).get("progress") if isinstance(message, dict) else None
        if isinstance(text, str):
            said.append(text[:200])
    return said


PROFILER_MARKS = ("USDT:", "STAGE:")
"""Beginnings of lines that torch's profiler writes to stderr at its start and end. Source: torch 2.13."""


def shown_lines(text: str) -> list[str]:
    """Return the lines of an output that a person is shown: no empty ones, none that torch's profiler added."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith(PROFILER_MARKS)]
