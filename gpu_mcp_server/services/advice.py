"""What a static reading of a source finds suspicious; advice, never the verdict."""

import asyncio

import structlog

MOST = 5
_log = structlog.get_logger()


async def advice_on(source: str) -> list[str]:
    """Return at most five findings of kernelguard; none when it cannot be imported."""
    return await asyncio.to_thread(_read, source)


def _read(source: str) -> list[str]:
    try:
        import kernelguard  # 0.1 s to import, needed only here
    except ImportError:
        return []
    try:
        report = kernelguard.analyze_code(source)
    except Exception as error:
        _log.warning("kernelguard failed", error=str(error))
        return []
    patterns = report.get("matched_patterns", []) if isinstance(report, dict) else []
    return [_say(p) for p in patterns[:MOST]]


def _say(pattern: object) -> str:
    if isinstance(pattern, dict):
        name = pattern.get("pattern") or pattern.get("name") or "finding"
        evidence = str(pattern.get("evidence") or pattern.get("reason") or pattern.get("description") or "")
        return f"{name}: {evidence[:160]}"
    return str(pattern)[:200]
