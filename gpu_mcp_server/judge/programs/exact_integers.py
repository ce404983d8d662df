"""Whole numbers that a program wrote as words, compared digit by digit where doubles cannot tell them apart.

From 2^53 on neighbours are the same double: a hash without its low bits would pass. Words are compared and never made
integers, which for a million digits takes time by their square.
"""

from typing import List, Optional, Tuple

import numpy as np

from ..numerics.error_location import whereabouts
from ..numerics.tensors import Array, Tensor
from .output_parsers import Series

FROM = 2.0**53
"""The first double that more than one whole number becomes."""
SHOWN = 40
"""Characters of a word that are told."""
BEFORE = 8
"""Of these, before the first that differs."""


def literal(word: str) -> Optional[str]:
    """Return a whole number in the one way in which all ways to write it are alike; `None` for any other word."""
    digits = word[1:] if word.startswith(("+", "-")) else word
    # str.isdigit alone also accepts superscripts and digits of other scripts.
    if not (digits.isascii() and digits.isdigit()):
        return None
    # Leading zeros and a plus sign change the word and not the number.
    digits = digits.lstrip("0") or "0"
    return "-" + digits if word.startswith("-") and digits != "0" else digits


def by_digits(expected: Series) -> bool:
    """Say whether a series is compared digit by digit: whole numbers alone, one of them too large for a double."""
    if not expected.words or not (np.abs(expected.values) >= FROM).any():
        return False
    return all(literal(word) is not None for word in expected.words.split())


def unlike(expected: Series, got: Series) -> str:
    """Return where and how a series of as many numbers differs from one of large whole numbers; empty if nowhere."""
    wanted, had = expected.words.split(), got.words.split()
    pairs = zip(map(literal, wanted), map(literal, had))
    mask: Array = np.fromiter((want != have for want, have in pairs), dtype=bool, count=expected.values.size)
    if not mask.any():
        return ""
    first = int(mask.argmax())
    shape = Tensor(expected.name, expected.dtype, (mask.size,), ("position",), "normal")
    where = whereabouts([mask], shape)
    return "output %s[%d] is %s, expected %s; %d of %d elements are wrong%s; %s" % (
        expected.name,
        first,
        *apart(had[first], wanted[first]),
        np.count_nonzero(mask),
        mask.size,
        ", " + where if where else "",
        "whole numbers from 2^53 on are compared digit by digit",
    )


def apart(have: str, want: str) -> Tuple[str, str]:
    """Return two words, or of long ones the part in which they begin to differ."""
    if max(len(have), len(want)) <= SHOWN:
        return have, want
    same = next((at for at, (one, other) in enumerate(zip(have, want)) if one != other), min(len(have), len(want)))
    start = max(0, same - BEFORE)
    parts: List[str] = []
    for word in (have, want):
        part = word[start : start + SHOWN]
        parts.append("%s (from character %d of %d)" % (part, start + 1, len(word)))
    return parts[0], parts[1]
