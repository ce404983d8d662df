"""When two errors are one: their text without places, quoted names and numbers."""

import re

_NAMED = re.compile(r"[\"'`‘’“”][^\"'`‘’“”]{1,200}[\"'`‘’“”]")  # noqa: RUF001 - compilers' quotation marks
_PLACE = re.compile(r"[\w./-]+\.\w+:\d+(?::\d+)?:?|[\w./-]+\(\d+\):?|line \d+")
_NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


def signature(reason: str) -> str:
    """Return an error's first line without what differs from case to case: two that are equal are one error."""
    text = _NUMBER.sub("N", _NAMED.sub("X", _PLACE.sub("", reason.partition("\n")[0])))
    return " ".join(text.lower().split())[:200]
