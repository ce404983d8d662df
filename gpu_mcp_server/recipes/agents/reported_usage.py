"""Reads an agent's report on its own answer: words, cost, tokens that its model read and wrote."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
"""Keys of `usage` in an answer of Claude Code; no token is in two of them."""
MOST_TOKENS = 10**12
"""Most tokens that one call can report; a larger number is a mistake."""
_CODEX = re.compile(r"^tokens used\n(\d[\d,]{0,20})\s*\Z", re.MULTILINE)


def parse_report(text: str, stderr: str = "") -> tuple[str, float | None, int | None]:
    """Return an agent's words with its reported cost in USD and tokens; None if not reported.

    Source:
        `claude -p` with `--output-format json` or `stream-json`: an object with `result`, `total_cost_usd` and
        `usage`, alone or as the last line; our loop of client chat ends likewise. `gemini --output-format json` (Gemini
        CLI 0.61): `response`, and `stats.models.NAME.tokens.total`. `codex exec` (0.169): the last two lines of
        stderr, without what its model's cache had.
    """
    for said in _objects(text):
        if "result" in said:
            cost: Any = said.get("total_cost_usd")
            usable = isinstance(cost, (int, float)) and not isinstance(cost, bool) and cost >= 0
            return str(said["result"]), float(cost) if usable else None, _sum_of(said.get("usage"), TOKENS)
        if isinstance(said.get("response"), str) and "stats" in said:
            return said["response"], None, _gemini_tokens(said["stats"])
    counted = _CODEX.search(stderr)
    tokens = int(counted[1].replace(",", "")) if counted else None
    return text, None, tokens if tokens is not None and tokens <= MOST_TOKENS else None


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of JSON that an answer may be: the whole, from a line on that begins one, its last line."""
    begins = f"\n{text}".find("\n{")
    for part in (text, text[begins:] if begins > 0 else "", text.strip().rpartition("\n")[2]):
        try:
            said: Any = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            yield cast("dict[str, Any]", said)


def _gemini_tokens(stats: Any) -> int | None:
    models = _mapping(_mapping(stats).get("models"))
    found = [_sum_of(_mapping(model).get("tokens"), ("total",)) for model in models.values()]
    known = [one for one in found if one is not None]
    return sum(known) if known else None


def _sum_of(usage: Any, names: tuple[str, ...]) -> int | None:
    counts = [_mapping(usage).get(name) for name in names]
    found = [n for n in counts if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MOST_TOKENS]
    return sum(found) if found else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
