"""The place within a section that shares most words with a question: a line of a table, or a sentence."""

import re
from collections.abc import Sequence

from gpu_mcp_server.knowledge.index.identifiers import compound

SHORTEST = 12
"""Characters of a place that says something."""
NAME_WEIGHT = 3
"""Of a name against a word."""
LOOKED_AT = 2_000
"""Places of a text."""
_PLACES = re.compile(r"\n|(?<=[.!?])\s+")


def matched_place(text: str, words: Sequence[str]) -> str:
    """Return the sentence or line of a text with most of the words of a question, "" if none has any."""
    wanted = [(word.lower(), NAME_WEIGHT if compound(word) else 1) for word in words]
    best, found = 0, ""
    for place in _PLACES.split(text)[:LOOKED_AT]:
        has = {token.lower() for token in re.findall(r"\w+", place)}
        score = sum(weight for word, weight in wanted if word in has or f"{word}s" in has or word.rstrip("s") in has)
        if score > best and len(place) >= SHORTEST:
            best, found = score, place
    return re.sub(r"^\s*[|#>*-]+\s*|\s*\|\s*$", "", found).strip()
