"""Mistakes that a run plants into a coder's sources: tests that stay green on one cannot fail for it.

This is mutation testing (DeMillo, Lipton, Sayward: Hints on Test Data Selection, IEEE Computer 11(4), 1978), with few
operators whose mutants are seldom equivalent to the original.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

from gpu_mcp_server.recipes.run.project_files import owner_of_file

SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hip")
MOST = 3
"""Mistakes of a round: each costs a build and a run of the tests."""
NOT_CODE = re.compile(r'^\s*(?:#|//|\*|/\*)|"|\bassert\b|\btemplate\b|<<<|\b(?:i?o)?stream\b|\bstd::c(?:out|err)\b')
"""Lines that are no arithmetic, or whose signs mean something else."""
LOOP = re.compile(r"(for\s*\([^;]*;[^;<]*)<(?![<=])\s*([\w.\->]+(?:\(\))?)\s*;")
OPERATORS = (
    ("leaves the last element out", LOOP, r"\1< \2 - 1;"),
    ("subtracts instead of adding", re.compile(r"\+="), "-="),
    ("adds instead of multiplying", re.compile(r"(?<=[\w)\]]) \* (?=[\w(])"), " + "),
    ("counts two instead of one", re.compile(r"(?<![+\-\w])\+\+(?=\w*[\w\])]*\[)|(?<=\])\+\+"), "+= 2"),
    ("compares the other way", re.compile(r"(?<=\bif \()([^()<>]*) < ([^()<>]*)(?=\))"), r"\1 > \2"),
)  # fmt: skip


@dataclass(frozen=True)
class Mistake:
    """One changed line."""

    path: str
    line: int
    before: str
    after: str
    what: str

    def text(self) -> str:
        """Say what it is, and where."""
        return f"{self.path}:{self.line} {self.what}: `{self.before.strip()}` became `{self.after.strip()}`"

    def plant(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return the project with the mistake."""
        lines = files[self.path].splitlines(keepends=True)
        lines[self.line - 1] = lines[self.line - 1].replace(self.before, self.after)
        return {**files, self.path: "".join(lines)}


def choose_mistakes(files: Mapping[str, str], most: int = MOST) -> list[Mistake]:
    """Return mistakes to plant, of different kinds first; the same files get the same ones, so a run can be resumed."""
    found: dict[str, list[Mistake]] = {}
    for mistake in _possible(files):
        found.setdefault(mistake.what, []).append(mistake)
    seed = sha256("\0".join(f"{path}\0{text}" for path, text in sorted(files.items())).encode()).hexdigest()
    rng = random.Random(seed)  # noqa: S311 - nobody gains by guessing it
    piles = [rng.sample(pile, len(pile)) for _, pile in sorted(found.items())]
    chosen: list[Mistake] = []
    while len(chosen) < most and any(piles):
        chosen += [pile.pop() for pile in piles if pile]
    return chosen[:most]


def _possible(files: Mapping[str, str]) -> Iterator[Mistake]:
    for path, text in sorted(files.items()):
        if owner_of_file(path) != "coder" or not path.endswith(SUFFIXES):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if NOT_CODE.search(line):
                continue
            for what, pattern, new in OPERATORS:
                changed = pattern.sub(new, line, count=1)
                if changed != line:
                    yield Mistake(path, number, line, changed, what)
