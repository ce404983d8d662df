"""Trace a message of ptxas to the project's file: ptxas names kernels and its temporary files, never sources.

Source: nvcc 13.0 calls its input `tmpxft_<numbers>_<stem>[.<target>].ptx`; ninja prints `FAILED: <object>` before and
make `*** [...: <object>] Error` behind what a command said; CMake's objects are named `<source>.o`.
"""

import re
from collections.abc import Mapping, Sequence

from gpu_mcp_server.models.build import Diagnostic

_TEMPORARY = re.compile(
    r"ptxas(?:-blackwell)? \S*?tmpxft_[0-9a-f_-]{1,60}_([^\s/;,]{1,200}?)(?:\.(?:compute|sm)_\w+)?\.ptx, "
    r"line (\d{1,9});"
)
_OBJECT = re.compile(
    r"^(?:FAILED: |g?make(?:\[\d+\])?: \*\*\* \[)(?:\[code=\d+\] )?(?:[^\s\]]*: )?([^\s\]]{1,1000}\.o)\b"
)
_NAMED = re.compile(
    r"[Ff]unction '(.{1,2000}?)'|in local memory in (.{1,2000}?):|, in (.{1,2000})$|^(.{1,2000}?) (?:keeps|has) \d"
)
_DEFINED = r"__global__\b[^;{}]{0,400}?\b%s\s*\("
SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hxx", ".inl", ".cpp", ".cc", ".cxx")


def needs_place(found: Sequence[Diagnostic]) -> bool:
    """Say whether a message of ptxas names no file."""
    return any(_is_of_ptxas(d) for d in found)


def with_places(found: Sequence[Diagnostic], said: str, sources: Mapping[str, str]) -> list[Diagnostic]:
    """Return the messages, those of ptxas with the file of their kernel where the log or one source alone tells it.

    Args:
        found: The messages.
        said: The build's whole log.
        sources: Text by path.
    """
    by_line = {f"ptx line {number}": stem for stem, number in _TEMPORARY.findall(said)}
    failed = [path for line in said.splitlines() if (path := _source_of(line[:4_000], sources))]
    return [_placed(d, by_line, failed, sources) if _is_of_ptxas(d) else d for d in found]


def _is_of_ptxas(found: Diagnostic) -> bool:
    code = found.code or ""
    known = ("ptx", "spills", "stack frame", "static shared memory")
    return found.file is None and (code.startswith(known) or re.fullmatch(r"C\d+", code) is not None)


def _placed(
    found: Diagnostic, by_line: Mapping[str, str], failed: Sequence[str], sources: Mapping[str, str]
) -> Diagnostic:
    stem = by_line.get(found.code or "")
    if stem is not None:
        same = [p for p in sources if p.rpartition("/")[2].rpartition(".")[0] == stem]
        return found.model_copy(update={"file": same[0]}) if len(same) == 1 else found
    named = _NAMED.search(found.message)
    kernel = next((g for g in named.groups() if g), "") if named else ""
    name = re.split(r"[(<]", kernel.replace("(anonymous namespace)::", ""), maxsplit=1)[0].rpartition("::")[2].split()
    places = _definitions(name[-1], sources) if name else {}
    paths = list(places) if len(places) == 1 else [p for p in dict.fromkeys(failed) if not places or p in places]
    if len(paths) != 1:
        return found
    return found.model_copy(update={"file": paths[0], "line": places.get(paths[0])})


def _definitions(name: str, sources: Mapping[str, str]) -> dict[str, int]:
    """Return the line at which each file defines a kernel of that name."""
    pattern = re.compile(_DEFINED % re.escape(name))
    found = ((path, pattern.search(text)) for path, text in sources.items() if name in text)
    return {path: sources[path].count("\n", 0, match.end()) + 1 for path, match in found if match}


def _source_of(line: str, sources: Mapping[str, str]) -> str | None:
    """Return the source of the object that a line says was not made."""
    match = _OBJECT.match(line)
    if match is None:
        return None
    made = match[1].removesuffix(".o")
    ends = [p for p in sources if made == p or made.endswith("/" + p) or p.rpartition(".")[0] == made]
    return max(ends, key=len, default=None)
