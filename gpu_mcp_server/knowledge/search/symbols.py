"""Names: the exact table that is asked first, error codes, and what a wrong name may have meant."""

import difflib
import re
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_mcp_server.knowledge.index.identifiers import FAMILIES, STOPWORDS, compound, normalize_name, split, tokens
from gpu_mcp_server.knowledge.search.edition_scope import Scope

MOST_WORDS = 6
"""Adjacent words of a question that may be one name."""
MOST_FOUND = 10
LONG_KEY = 14
"""Letters of three or more words that are a name also without its library in front."""
LONGEST_QUERY_TOKENS = 64
CANDIDATES = 60
"""Names with shared trigrams that are compared."""
ALIKE = 0.62
"""Similarity from which a name is offered for a wrong one."""
PREFIXES = ("cuda", "cu", "hip", "nccl", "mpi", "cublas", "tl", "cufft", "cusparse", "rocblas", "cub", "thrust")
"""What people leave out at the front of a name."""

_CODE = re.compile(
    r"(?:error|err|code|result|status|returned|failed|failure|errno|exit)(?:_t|s)?\b\D{0,12}?\b(\d{1,5})\b"
    r"|^\W{0,8}(\d{1,5})\W*$|(?<!\w)\((\d{3})\)|\b(?:rc|ret|retval|res|rv)\s*=\s*(\d{1,5})\b",
    re.IGNORECASE,
)
"""Numbers that may be a code: neither the line of `main.cu(12)`, nor what stands in `size == 8` or `num_warps=4`."""
_SETTING = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\s*=\s*\S+")
"""A variable that is set to something, as in `CUDA_LAUNCH_BLOCKING=1`: its value is no code."""
_FILE = re.compile(r"\.(?:h|hh|hpp|cuh|cu|c|cc|cpp|py|o|a|so)$")
"""Endings of file names."""
_ROUTINE = re.compile(r"[sdcz][a-z]{2}[a-z0-9]{1,5}")
_SHORT = re.compile(r"[a-z]{1,4}\d{1,3}[a-z]?")
"""Words like tf32 and int8: types of little use in a question about something else."""
_FAMILY = re.compile(r"\b(cuda|cu|nccl|hip|mpi|nvrtc|cublas)", re.IGNORECASE)

IMPORTED_AS = {
    "triton.language.": "tl.", "cuda.tile.": "ct.", "cutlass.cute.": "cute.", "tilelang.language.": "T.",
    "helion.language.": "hl.",
}  # fmt: skip
"""Modules by the names that their documentation calls them."""
INSTRUCTION_PARTS = 8
"""Of a PTX instruction with its modifiers that are looked at: cp.async.bulk.tensor has four of its own."""

TWINS = (("cuda", "hip"), ("cu", "hip"), ("nvrtc", "hiprtc"), ("cublas", "rocblas_"), ("cublas", "hipblas"))
"""Prefixes of names that mean the same on both sides."""
_PORTING = re.compile(r"hip|hip(?:ify|blas|rtc)|rocm|rocblas|amd|cuda|nvidia|cublas")
_AMD = ("hip", "roc", "amd")


class FoundSymbol(NamedTuple):
    """A name that is known."""

    entry: int
    edition: int
    name: str
    kind: str


class Symbols:
    """The names in an index."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._blas = {row[0] for row in db.execute("SELECT id FROM edition WHERE family = 'blas'")}

    def entries_named_in(self, query: str, scope: Scope) -> tuple[list[int], list[str], list[str]]:
        """Return the entries that a question names, the words that were such names, and those that are no name here.

        The longest run of adjacent words that is a known name counts. Plain English must not: a run of words needs the
        prefix of a library in front, a single word must look like a name.
        """
        words = tokens(query)[:LONGEST_QUERY_TOKENS]
        runs = [
            (size, at, words[at : at + size])
            for size in range(min(MOST_WORDS, len(words)), 0, -1)
            for at in range(len(words) - size + 1)
        ]
        keys = {key for _, _, run in runs for key in _keys(run)}
        keys |= {key for word in words for key in _instruction_keys(word)}
        known = self._known(keys, scope)
        found: list[int] = []
        used: set[int] = set()
        for size, at, run in runs:
            if any(i in used for i in range(at, at + size)):
                continue
            entries = self._of_run(run, known, whole=len(words) <= len(run))
            if entries:
                found += entries
                used |= set(range(at, at + size))
        names = [word for i, word in enumerate(words) if i in used]
        alone = len(words) == 1
        missed = [
            w
            for i, w in enumerate(words)
            if i not in used and _is_name(w) and (alone or not _SHORT.fullmatch(w.lower()))
        ]
        if not found and len(words) == 1 and not missed and len(words[0]) > 3:
            missed = words
        found = [*self._twins(names, words, scope), *found]
        return list(dict.fromkeys(found))[:MOST_FOUND], names, missed

    def _twins(self, names: Sequence[str], words: Sequence[str], scope: Scope) -> list[int]:
        """Return what the named ones are called on the other side, if a question about one side names the other."""
        sides = {word.lower().startswith(_AMD) for word in words if _PORTING.fullmatch(word.lower())}
        pairs = [pair for pair in TWINS if True in sides] + [(amd, other) for other, amd in TWINS if False in sides]
        keys = {
            normalize_name(there + name[len(here) :])
            for name in names
            for here, there in pairs
            if name.startswith(here)
        }
        known = self._known(keys, scope)
        return [each.entry for found in known.values() for each in found]

    def _of_run(self, run: Sequence[str], known: dict[str, list[FoundSymbol]], *, whole: bool) -> list[int]:
        """Return the entries that a run of words names, `whole` being whether the question is nothing more."""
        if len(run) > 1:
            key = "".join(map(normalize_name, run))
            apart = len(run) >= 3 and len(key) >= LONG_KEY  # "device radix sort"
            if len(key) < 8 or not (apart or run[0].lower() in FAMILIES):
                return []
            vague = len(run) == 2 and not whole  # "CUDA error: ..." is no question about cudaError
            return _entries(f for f in known.get(key, []) if not vague or f.kind not in ("type", "enum"))
        word = run[0]
        exact = [
            f
            for f in known.get(normalize_name(word), [])
            if f.name == word or f.name.endswith((f".{word}", f"::{word}"))
        ]
        if not whole and _SHORT.fullmatch(word):
            return []
        if compound(word):
            if exact:
                return _entries(exact)
            for key in _keys(run):
                if len(key) >= 6 and key in known:
                    return _entries(known[key])
            for key in _instruction_keys(word):
                if entries := _entries(f for f in known.get(key, []) if f.kind == "instruction"):
                    return entries
        elif exact and word.startswith("__"):
            return _entries(exact)
        elif _ROUTINE.fullmatch(word):
            return _entries(f for f in exact if f.edition in self._blas)
        return _entries(known.get(normalize_name(word), [])) if len(normalize_name(word)) >= 12 else []

    def _known(self, keys: set[str], scope: Scope) -> dict[str, list[FoundSymbol]]:
        found: dict[str, list[FoundSymbol]] = {}
        ordered = sorted(keys)
        for start in range(0, len(ordered), 500):
            part = ordered[start : start + 500]
            marks = ", ".join("?" * len(part))
            rows = self._db.execute(
                "SELECT s.norm, s.entry, e.edition, s.name, e.kind FROM symbol s JOIN entry e ON e.id = s.entry "  # noqa: S608
                f"WHERE s.norm IN ({marks}) ORDER BY s.place, s.entry",
                part,
            )
            for norm, entry, edition, name, kind in rows:
                if scope.holds(edition):
                    found.setdefault(norm, []).append(FoundSymbol(entry, edition, name, kind))
        return found

    def editions_with_name(self, name: str, scope: Scope) -> list[int]:
        """Return the editions outside of `scope`, of the same libraries, that know a name."""
        others = {each.id for each in scope.others}
        rows = self._db.execute(
            "SELECT DISTINCT e.edition FROM symbol s JOIN entry e ON e.id = s.entry WHERE s.norm = ? AND s.name = ?",
            (normalize_name(name), name),
        )
        return [edition for (edition,) in rows if edition in others]

    def entries_of_codes(self, query: str, scope: Scope) -> list[int]:
        """Return the entries of the error codes that a question names by number."""
        match = _CODE.search(_SETTING.sub(" ", query))
        if match is None or len(query) > 400:
            return []
        value = int(next(group for group in match.groups() if group))
        rows = self._db.execute(
            "SELECT c.entry, c.family, e.edition FROM code c JOIN entry e ON e.id = c.entry WHERE c.value = ? "
            "ORDER BY c.entry",
            (value,),
        )
        hinted = {"cu" if w.lower() == "cu" else w.lower() for w in _FAMILY.findall(query)}
        found = [(entry, family) for entry, family, edition in rows if scope.holds(edition)]
        if hinted:
            told = [entry for entry, family in found if any(family.startswith(word) for word in hinted)]
            return told[:4] or [entry for entry, _ in found[:4]]
        return [entry for entry, _ in found[:4]]

    def similar_names(self, name: str, scope: Scope, limit: int = 5) -> list[tuple[str, int, float]]:
        """Return the names nearest to a wrong one: name, entry, similarity."""
        key = normalize_name(name)
        grams = list(dict.fromkeys(key[i : i + 3] for i in range(len(key) - 2)))[:40]
        if not grams:
            return []
        rows = self._db.execute(
            "SELECT n.name, n.entry, n.norm, e.edition, e.kind FROM (SELECT rowid FROM trigrams WHERE trigrams MATCH ? "
            "ORDER BY bm25(trigrams) LIMIT ?) t JOIN name n ON n.id = t.rowid JOIN entry e ON e.id = n.entry",
            (" OR ".join(f'"{gram}"' for gram in grams), CANDIDATES),
        ).fetchall()
        scored: dict[str, tuple[float, int]] = {}
        mine = set(split(name))
        for other, entry, norm, edition, _ in rows:
            if scope.holds(edition) and other != name:
                likeness = _likeness(key, mine, norm, other)
                if likeness > scored.get(other, (0.0, 0))[0]:
                    scored[other] = (likeness, entry)
        best = sorted(scored.items(), key=lambda item: (-item[1][0], item[0]))
        return [(other, entry, likeness) for other, (likeness, entry) in best if likeness >= ALIKE][:limit]


def _likeness(key: str, mine: set[str], norm: str, other: str) -> float:
    """Return how alike two names are: letters in order, words in any order."""
    letters = difflib.SequenceMatcher(None, key, norm, autojunk=False).ratio()
    theirs = set(split(other))
    shared = len(mine & theirs) / max(1, len(mine | theirs))
    return 0.75 * letters + 0.25 * shared


def _keys(run: Sequence[str]) -> list[str]:
    """Return the normal forms under which a run of words may be known, the likeliest first."""
    key = "".join(map(normalize_name, run))
    if len(run) > 1 or not compound(run[0]):
        return [key]
    for module, short in IMPORTED_AS.items():
        if run[0].startswith(module):
            return [key, normalize_name(short + run[0][len(module) :])]
    last = re.split(r"\.|::", run[0])[-1]  # cg::this_grid
    alone = [normalize_name(last)] if last != run[0] and compound(last) else []
    return [key, *(prefix + key for prefix in PREFIXES), *alone]


def _instruction_keys(word: str) -> list[str]:
    """Return the normal forms of an instruction with fewer and fewer of its modifiers: mma.sync.aligned.m16n8k16."""
    parts = word.split(".")[:INSTRUCTION_PARTS]
    if len(parts) < 2 or not parts[0].islower():
        return []
    return [normalize_name("".join(parts[:size])) for size in range(len(parts), 0, -1)]


def _is_name(word: str) -> bool:
    """Return whether a word can be the name of an entry: it is no file, no number and no plain word."""
    plain = word.lower() in STOPWORDS or word[0].isdigit() or _FILE.search(word)
    return not plain and compound(word) and len(normalize_name(word)) >= 4


def _entries(found: Iterable[FoundSymbol]) -> list[int]:
    return [each.entry for each in found]
