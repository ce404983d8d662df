"""Suspicions from a static reading of a source; advice, never the verdict."""

import asyncio
from typing import Any, cast

import structlog

from gpu_mcp_server.services.builds.python_siblings import texts_in

MOST = 5
SAID_BY = "kernelguard, which reads the text and decides nothing:"
MOST_CHARACTERS = 64_000
"""Read of a candidate, its own file first: 0.7 s on one core of an EPYC, where 748,000 took 10 s."""
_log = structlog.get_logger()


async def advice_on(source: str) -> list[str]:
    """Return at most five findings of kernelguard; none when it cannot be imported."""
    return await asyncio.to_thread(_read, source)


def _read(source: str) -> list[str]:
    try:
        import kernelguard  # pyright: ignore[reportMissingTypeStubs] # 0.1 s to import, needed only here
    except ImportError:
        return []
    text = "\n".join(texts_in(source))[:MOST_CHARACTERS]
    try:
        report = cast("Any", kernelguard).analyze_code(text)
    except Exception as error:
        _log.warning("kernelguard failed", error=str(error))
        return []
    patterns = cast("dict[str, list[object]]", report).get("matched_patterns", [])
    return [f"{SAID_BY} {_say(p)}" for p in patterns[:MOST]]


def _say(pattern: object) -> str:
    if isinstance(pattern, dict):
        pattern = cast("dict[str, object]", pattern)
        name = pattern.get("pattern") or pattern.get("name") or "finding"
        evidence = str(pattern.get("evidence") or pattern.get("reason") or pattern.get("description") or "")
        return f"{name}: {evidence[:160]}"
    return str(pattern)[:200]
