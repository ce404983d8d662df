"""Reads numbers from a program's output: by rules of the owner, from bytes that were read while it was frozen.

A rule is a dictionary: `name`, `source` (a path, or `stdout`), `format` and what that needs:
`binary` (`dtype`, `offset` in bytes), `text` (numbers apart by white space or commas, after `skip_lines`), `json`
(`json_path`, such as `results.0.values`), `csv` (`columns`: names of the first line, or numbers from 0), `regex`
(`pattern`; each named group is a series of its own), `exact` (bytes as they are). Numbers become doubles, and the words
that they were are kept: large whole numbers are compared by them.
"""

import contextlib
import csv
import io
import json
import os
import re
import signal
import stat
from typing import Any, Dict, Generator, List, NamedTuple, cast

import numpy as np

from ..numerics.compare import STORAGE
from ..numerics.tensors import ITEM_BYTES, Array

READ_S = 10.0
"""Longest for reading the outputs of one run: a pattern may go wrong on a text that is made for it."""
TEXT_BYTES = 16 << 20
"""Of a file that is read as text."""
ADVICE = {
    "text": "; `skip_lines` passes over lines before the numbers, the format `regex` finds numbers among words",
    "regex": "; let the pattern capture numbers that are computed: a PASS of the program's own proves nothing",
}
"""What to do about a word that is no number, by format."""
END_CHARACTERS = 160
"""Of a text's end, told where nothing in it matches."""
_CHUNK = 1 << 24
_FORTRAN = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))[dDqQ]([+-]?[0-9]+)|([+-]?[0-9]*\.[0-9]*)([+-][0-9]{3,4})")
"""A number with Fortran's exponent letter, or, of three digits and more, without any: `0.5D-03`, `0.5-101`.

Source: Fortran 2018, 13.7.2.3.3, F and D editing; gfortran 12 writes both.
"""


class Unreadable(Exception):
    """An output is not what the rule says; the words are for the program's author."""


class Series(NamedTuple):
    """Numbers that a rule found."""

    name: str
    dtype: str
    values: Array
    exact: bool
    """Whether no tolerance applies."""
    words: str = ""
    """The numbers as they were written, apart by spaces; empty for bytes."""


class _Literal(str):
    """A whole number of a JSON text, as it is written there."""


def contents(fd: int, limit: int) -> bytes:
    """Return what is in a regular file that somebody else opened; no more than it says it has.

    Raises:
        Unreadable: If it is none, or has more than `limit` bytes.
    """
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable("is no regular file")
    # The size is asked before anything is read, so a sparse giant costs no memory.
    if about.st_size > limit:
        raise Unreadable("has %d bytes; the limit is %d" % (about.st_size, limit))
    parts: List[bytes] = []
    at = 0
    while at < about.st_size:
        try:
            # pread: the program shares the file offset and could have moved it.
            part = os.pread(fd, min(_CHUNK, about.st_size - at), at)
        except OSError as error:
            raise Unreadable("cannot be read: %s" % error) from None
        if not part:
            raise Unreadable("ends before its length")
        parts.append(part)
        at += len(part)
    return b"".join(parts)


@contextlib.contextmanager
def within(seconds: float) -> Generator[None, None, None]:
    """Break off what takes longer.

    Raises:
        Unreadable: After `seconds`.
    """

    def strike(number: int, frame: Any) -> None:
        raise Unreadable("takes more than %.0f s to read" % seconds)

    before = signal.signal(signal.SIGALRM, strike)
    # A timer, because a regular expression cannot be interrupted in any other way from one thread.
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def extract(rule: Dict[str, Any], data: bytes) -> List[Series]:
    """Return the series that a rule finds in a file's bytes.

    Raises:
        Unreadable: If it finds none, or something that is no number.
    """
    kind = rule["format"]
    if kind == "exact":
        return [Series(rule["name"], "uint8", np.frombuffer(data, dtype=np.uint8), True)]
    if kind == "binary":
        return [_binary(rule, data)]
    text = _text(data)
    if kind == "regex":
        return _regex(rule, text)
    reader = {"text": _words_of_text, "json": _json, "csv": _csv}[kind]
    return [_numbers(rule["name"], reader(rule, text), ADVICE.get(kind, ""))]


def _text(data: bytes) -> str:
    if len(data) > TEXT_BYTES:
        raise Unreadable("has %d bytes; the limit of a text is %d" % (len(data), TEXT_BYTES))
    return data.decode("utf-8", "replace")


def _binary(rule: Dict[str, Any], data: bytes) -> Series:
    dtype = str(rule["dtype"])
    offset = int(rule.get("offset") or 0)
    rest = len(data) - offset
    if rest < 0 or rest % ITEM_BYTES[dtype]:
        raise Unreadable("has %d bytes: no whole number of %s after the first %d" % (len(data), dtype, offset))
    return Series(rule["name"], dtype, np.frombuffer(data, dtype=STORAGE[dtype], offset=offset), False)


def number_of(word: Any) -> float:
    """Return the number that a word is, as C, Python or Fortran write it.

    Raises:
        ValueError, TypeError, OverflowError: If it is none.
    """
    try:
        return float(word)
    except ValueError:
        match = _FORTRAN.fullmatch(word.strip())
        if match is None:
            raise
        return float("%se%s" % (match.group(1) or match.group(3), match.group(2) or match.group(4)))


def _numbers(name: str, words: List[Any], advice: str = "") -> Series:
    values: Array = np.empty(len(words), dtype=np.float64)
    for at, word in enumerate(words):
        try:
            values[at] = number_of(word)
        except (ValueError, TypeError, OverflowError):
            raise Unreadable("has %.60r where a number should be%s" % (word, advice)) from None
    return Series(name, "float64", values, False, " ".join([str(word).strip() for word in words]))


def _words_of_text(rule: Dict[str, Any], text: str) -> List[Any]:
    lines = text.splitlines()[int(rule.get("skip_lines") or 0) :]
    return "\n".join(lines).replace(",", " ").split()


def _json(rule: Dict[str, Any], text: str) -> List[Any]:
    try:
        found: Any = json.loads(text, parse_int=_Literal)
        for step in [part for part in str(rule.get("json_path") or "").split(".") if part]:
            found = found[int(step) if isinstance(found, list) else step]
    except (KeyError, IndexError, TypeError):
        raise Unreadable("has no %s" % rule["json_path"]) from None
    except (ValueError, RecursionError) as error:
        raise Unreadable("is no JSON: %s" % str(error)[:80]) from None
    flat: List[Any] = []
    left: List[Any] = [found]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left.extend(reversed(cast("List[Any]", item)))
        elif isinstance(item, (_Literal, float)):
            flat.append(item)
        else:
            raise Unreadable("has %.60r where a number should be" % (item,))
    return flat


def _csv(rule: Dict[str, Any], text: str) -> List[Any]:
    columns: List[Any] = list(rule["columns"])
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:
        raise Unreadable("is no CSV: %s" % error) from None
    if any(isinstance(column, str) for column in columns):
        head = [cell.strip() for cell in rows[0]] if rows else []
        missing = [c for c in columns if isinstance(c, str) and c not in head]
        if missing:
            raise Unreadable("has no column %s" % missing[0])
        columns = [head.index(c) if isinstance(c, str) else c for c in columns]
        rows = rows[1:]
    try:
        return [row[column] for row in rows for column in columns]
    except IndexError:
        raise Unreadable("has lines of fewer columns than %d" % (max(columns) + 1)) from None


def _regex(rule: Dict[str, Any], text: str) -> List[Series]:
    pattern = re.compile(str(rule["pattern"]), re.MULTILINE)
    matches = list(pattern.finditer(text))
    if not matches:
        said_last = "; it ends with %r" % text.strip()[-END_CHARACTERS:] if text.strip() else "; it is empty"
        raise Unreadable("has nothing that matches %.80s%s" % (rule["pattern"], said_last))
    names = sorted(pattern.groupindex, key=lambda name: pattern.groupindex[name])
    if not names:
        group = 1 if pattern.groups else 0
        return [_numbers(rule["name"], [m.group(group) for m in matches], ADVICE["regex"])]
    found = {"%s.%s" % (rule["name"], name): [m.group(name) for m in matches] for name in names}
    return [_numbers(name, words, ADVICE["regex"]) for name, words in found.items()]


def said(patterns: Dict[str, str], text: str) -> List[str]:
    """Return what a program says of itself, where it matches; it is told and never believed."""
    found: List[str] = []
    for name, pattern in patterns.items():
        match = re.search(pattern, text, re.MULTILINE)
        if match:
            word = match.group(1) if match.re.groups and match.group(1) is not None else match.group(0)
            found.append(("%s: %s" % (name, word.strip()))[:120])
    return found
