"""One run of a program under the owner's clock: inputs in, start to frozen, bytes out; and whether its answer is right.

Whole numbers are compared digit by digit where doubles cannot tell them apart. From 2^53 on neighbours are the same
double: a hash without its low bits would pass. Words are compared and never made integers, which for a million digits
takes time by their square.
"""

import fcntl
import os
import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, cast

import numpy as np

from ..channel.supervisor_client import Player
from ..devices.memory_cpu import F_ADD_SEALS
from ..numerics.compare import compare, describe
from ..numerics.error_location import whereabouts
from ..numerics.tensors import Array, Tensor
from ..verdicts import HINTS, JudgeFailed, ReferenceFailed, incorrect
from .output_parsers import READ_S, TEXT_BYTES, Series, Unreadable, contents, extract, within

OPEN_S = 60.0
FILES_BYTES = 512 << 20
"""Of all inputs, or all outputs, of one run."""
ERROR_CHARACTERS = 400
SEALED = 0x1 | 0x2 | 0x4 | 0x8
"""F_SEAL_SEAL, SHRINK, GROW and WRITE. Source: Linux, include/uapi/linux/fcntl.h."""
FROM = 2.0**53
"""The first double that more than one whole number becomes."""
SHOWN = 40
"""Characters of a word that are told."""
BEFORE = 8
"""Of these, before the first that differs."""

Params = Dict[str, Any]


def filled(argv: Sequence[str], params: Params, seed: int) -> List[str]:
    """Return a command with its parameters put in."""
    values = dict(params, seed=seed)
    words: List[str] = []
    for word in argv:
        for name, value in values.items():
            word = word.replace("{%s}" % name, str(value))
        words.append(word)
    return words


def sealed(data: bytes) -> int:
    """Return a memory file that nobody can change any more."""
    fd = os.memfd_create("input", os.MFD_CLOEXEC | 0x2)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, F_ADD_SEALS, SEALED)
    return fd


class Ran(NamedTuple):
    """A run that ended in good order."""

    seconds: float
    """From the moment at which the player heard of it to the one at which everything of it stood still."""
    files: Dict[str, bytes]
    """By rule's source: declared files, `stdout` and `stderr`."""


class Runs:
    """Runs the program of one player."""

    def __init__(self, task: Dict[str, Any], player: Player) -> None:
        self.task, self.player = task, player
        self.who = "the program" if player.foreign else "the reference program"
        self.outputs: List[str] = list(dict.fromkeys(r["source"] for r in task["rules"] if r["source"] != "stdout"))
        self.timeout_s = float(task["run_timeout_s"])
        self.stale: List[str] = []
        self.took_s = 0.0

    def wrong(self, how: str) -> Exception:
        """Return what to raise when a run goes wrong."""
        text = "%s %s" % (self.who, how)
        return incorrect(text) if self.player.foreign else ReferenceFailed(text)

    def generate(self, params: Params, seed: int) -> Dict[str, bytes]:
        """Have the generator make the inputs of a run; only the reference's sandbox does that."""
        wanted = self.task["inputs"]
        self.player.thaw()
        self._ask("prepare", fresh=wanted)
        argv = filled(self.task["generator"], params, seed)
        files = self._go(argv, {}, wanted, "")
        self.player.freeze()
        return {path: files[path] for path in wanted}

    def run(self, argv: List[str], inputs: Dict[str, bytes]) -> Ran:
        """Lay a fresh folder, start the clock, run, freeze, stop the clock, read.

        Raises:
            Judged: If the candidate's program fails or does not write what it should.
            ReferenceFailed: If the reference's does.
        """
        self.player.thaw()
        self.stale = self._ask("prepare", fresh=[*self.outputs, *inputs]).get("stale", [])
        files = self._go(argv, inputs, self.outputs, self.task.get("stdin") or "")
        return Ran(self.took_s, files)

    def _go(self, argv: List[str], inputs: Dict[str, bytes], wanted: Sequence[str], stdin: str) -> Dict[str, bytes]:
        laid = [sealed(data) for data in inputs.values()]
        begin = time.perf_counter()
        self.player.tell("run", laid, argv=argv, inputs=list(inputs), files=list(wanted), stdin=stdin)
        try:
            reply, given = self.player.hear_files(self.timeout_s)
            self.player.freeze()
        finally:
            for fd in laid:
                os.close(fd)
        self.took_s = time.perf_counter() - begin
        try:
            if reply.get("error"):
                raise self.wrong(str(reply["error"])[:500])
            names = ["stdout", "stderr", *wanted]
            found, why = self._read(reply, names, given)
            self._check_end(reply.get("code"), found)
        finally:
            for fd in given:
                os.close(fd)
        missing = next((name for name in names if name in why), None)
        if missing is not None:
            stale = ", and the judge had removed an older one from its folder" if missing in self.stale else ""
            raise self.wrong("exited with status 0, but its output %s %s%s" % (missing, why[missing], stale))
        return found

    def _ask(self, do: str, **fields: Any) -> Dict[str, Any]:
        reply = self.player.ask(do, OPEN_S, **fields)
        if reply.get("error"):
            raise JudgeFailed("%s: %s" % (self.who, str(reply["error"])[:500]))
        return reply

    def _read(
        self, reply: Dict[str, Any], names: Sequence[str], given: Sequence[int]
    ) -> Tuple[Dict[str, bytes], Dict[str, str]]:
        """Return the files by name, and why those that are missing are."""
        listed: Any = reply.get("files")
        told = cast("List[Any]", listed) if isinstance(listed, list) else []
        # The counts must match before pairing, or a file would be taken for another one.
        if len(told) != len(names) or told.count(None) != len(given):
            raise self.wrong("handed over other files than were asked for")
        found: Dict[str, bytes] = {}
        why: Dict[str, str] = {}
        left = FILES_BYTES
        descriptors = iter(given)
        for name, problem in zip(names, told):
            try:
                if problem is not None:
                    raise Unreadable(str(problem)[:200])
                limit = min(left, TEXT_BYTES if name in ("stdout", "stderr") else FILES_BYTES)
                found[name] = contents(next(descriptors), limit)
                left -= len(found[name])
            except Unreadable as error:
                why[name] = str(error)
        return found, why

    def _check_end(self, code: Any, found: Dict[str, bytes]) -> None:
        """Complain of a program that did not end with status 0."""
        if code == 0:
            return
        if not isinstance(code, int):
            raise self.wrong("ended without an exit status")
        how = "exited with status %d" % code
        if code < 0 or code > 128:
            how = self._signal(-code if code < 0 else code - 128, how)
        ends = (found.get(name, b"")[-2000:].decode("utf-8", "replace").strip() for name in ("stderr", "stdout"))
        tail = next(filter(None, ends), "")[-ERROR_CHARACTERS:]
        raise self.wrong(how + (": %s" % tail if tail else ""))

    def _signal(self, number: int, otherwise: str) -> str:
        try:
            name = signal.Signals(number).name
        except ValueError:
            return otherwise
        if name == "SIGXFSZ":
            return "wrote a file of more than %d bytes, which is the limit, and was ended" % self.task["file_bytes"]
        return "crashed with %s" % name + (": %s" % HINTS[name] if name in HINTS and name != "SIGSEGV" else "")

    def look(self) -> Dict[str, bytes]:
        """Return the output files as they are a moment later, as far as they can be read."""
        self.player.thaw()
        self.player.tell("look")
        reply, given = self.player.hear_files(OPEN_S)
        try:
            return self._read(reply, ["stdout", "stderr", *self.outputs], given)[0]
        finally:
            for fd in given:
                os.close(fd)

    def left(self) -> int:
        """Return how many processes the program left behind."""
        self.player.thaw()
        left = self._ask("left").get("left")
        return left if isinstance(left, int) else 0

    def clean(self) -> None:
        """End what the program left behind, and stand still."""
        self.player.thaw()
        self._ask("clean")
        self.player.freeze()


def series_of(rules: Sequence[Dict[str, Any]], files: Dict[str, bytes], who: str) -> List[Series]:
    """Return all series that the rules find.

    Raises:
        Unreadable: If one of them finds none.
    """
    found: List[Series] = []
    with within(READ_S):
        for rule in rules:
            try:
                found += extract(rule, files[rule["source"]])
            except Unreadable as error:
                raise Unreadable("%s: its output %s %s" % (who, rule["source"], error)) from None
    return found


class Match(NamedTuple):
    """Comparison of a run's series with the expected ones."""

    reason: str
    """Empty if they match."""
    max_abs: float
    max_rel: float


def matched(expected: Sequence[Series], got: Sequence[Series], rtol: float, atol: float) -> Match:
    """Compare the series of a run with those of the reference's run of the same case and seed."""
    worst_abs = worst_rel = 0.0
    for want, have in zip(expected, got):
        if want.exact:
            reason = unlike_bytes(want, have)
            if reason:
                return Match(reason, worst_abs, worst_rel)
            continue
        # Lengths come first, as an elementwise comparison would broadcast a single number.
        if want.values.size != have.values.size:
            words = (want.name, have.values.size, want.values.size)
            return Match("output %s has %d numbers, the reference's has %d" % words, 0.0, 0.0)
        if by_digits(want):
            reason = unlike(want, have)
            if reason:
                return Match(reason, worst_abs, worst_rel)
            continue
        difference = compare(want.values, have.values, want.dtype, rtol, atol)
        worst_abs, worst_rel = max(worst_abs, difference.max_abs), max(worst_rel, difference.max_rel)
        if difference.wrong:
            shape = Tensor(want.name, want.dtype, (want.values.size,), ("position",), "normal")
            return Match(describe(want.values, have.values, difference, shape), worst_abs, worst_rel)
    if len(expected) != len(got):
        return Match("%d series of numbers, the reference has %d" % (len(got), len(expected)), 0.0, 0.0)
    return Match("", worst_abs, worst_rel)


def unlike_bytes(expected: Series, got: Series) -> str:
    """Return from which byte on an output differs that must be the same, and the words there; empty if nowhere."""
    want, have = expected.values.tobytes(), got.values.tobytes()
    if want == have:
        return ""
    common = min(len(want), len(have))
    unequal = expected.values[:common] != got.values[:common]
    first = int(unequal.argmax()) if unequal.any() else common
    start = want.rfind(b"\n", max(0, first - SHOWN), first) + 1 or max(0, first - BEFORE)
    parts = [side[start : first + SHOWN].partition(b"\n")[0].decode("utf-8", "replace") for side in (have, want)]
    words = "output %s differs from byte %d on, with %r where %r is expected; it has %d bytes, the reference's has %d"
    return words % (expected.name, first, *parts, len(have), len(want))


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
        *shorten_words(had[first], wanted[first]),
        np.count_nonzero(mask),
        mask.size,
        ", " + where if where else "",
        "whole numbers from 2^53 on are compared digit by digit",
    )


def shorten_words(have: str, want: str) -> Tuple[str, str]:
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
