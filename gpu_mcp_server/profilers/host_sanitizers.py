"""The words of the compilers' sanitizers on a processor: AddressSanitizer, LeakSanitizer, UBSan, ThreadSanitizer.

Source: outputs of gcc 12 and clang 19 for planted mistakes; LLVM's and GCC's documents of `-fsanitize`. The text comes
from the checked program too: lines, reports and their frames have limits, and a forged report accuses its own author.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from gpu_mcp_server.models.memory_check import CheckReport, MemoryFinding
from gpu_mcp_server.profilers.sanitizer import line_of

LONGEST_LINE = 2000
MOST_REPORTS = 1000
MOST_LINES = 60
"""Of one report, beyond the headline."""
_UNDEFINED = re.compile(r"(?P<file>[^\s:]{1,300}):(?P<line>\d{1,9}):\d{1,9}: runtime error: (?P<words>.{1,300})")
_REPORT = re.compile(
    r"(?:==\d+==ERROR: AddressSanitizer: (?P<address>.{1,300})|"
    r"WARNING: ThreadSanitizer: (?P<thread>.{1,200}?) \(pid=\d+\))$"
)
_LEAK = re.compile(r"(?P<leak>Direct leak of \d{1,18} byte\(s\)) in \d{1,18} object\(s\) allocated from:$")
"""What is lost with it, an indirect leak, is left out."""
_NO_LEAKS = re.compile(r"LeakSanitizer has encountered a fatal error")
_END = re.compile(r"Indirect leak of |SUMMARY: \w+Sanitizer:|=={8,}")
_ACCESS = re.compile(
    r"\s{0,20}(?:Previous )?(?P<how>(?:atomic )?(?:READ|WRITE|Read|Write|read|write)) of size (?P<size>\d{1,12})"
)
_FRAME = re.compile(r"\s{0,20}#\d{1,4} (?:0x[0-9a-f]{1,16} in )?(?P<fn>[^\s(]{1,300})")
_FILE = re.compile(r"(?P<file>[^\s:()]{1,300}):(?P<line>\d{1,9})(?::\d{1,9})?")
_NEAR = re.compile(r".{0,40}is located (.{1,120}?)(?: \[| \(|$)")
_ADDRESS = re.compile(r" on (?:unknown )?address .*| \(pc .*|: 0x.*")
_STARTED = re.compile(r"AddressSanitizer Init done|\*\*\*\*\* Running under ThreadSanitizer")

Frame = tuple[str, str, int]
Kind = Literal["invalid access", "race", "leak", "other"]


def parse(text: str, sources: Mapping[str, str]) -> CheckReport:
    """Understand what sanitizers printed between the program's own words; never raises.

    Args:
        text: What the program wrote to its output and its errors.
        sources: Texts by path; a report names the first frame that lies in one of them.

    Returns:
        Findings, each once with its count; `errors` is the number of reports.
    """
    names = {path.rpartition("/")[2] for path in sources}
    found: dict[tuple[object, ...], MemoryFinding] = {}
    reports = 0
    for lines in _reports(text):
        reports += 1
        one = _finding(lines, names)
        source = line_of(sources, one.file, one.line)
        key = (one.kind, one.message, one.file, one.line, one.other_line)
        seen = found.get(key)
        found[key] = (
            seen.model_copy(update={"count": seen.count + 1}) if seen else one.model_copy(update={"source": source})
        )
        if reports == MOST_REPORTS:
            break
    return CheckReport(findings=sorted(found.values(), key=lambda f: f.line is None), errors=reports)


def is_instrumented(text: str) -> bool:
    """Return whether a program said, asked for verbosity, that a sanitizer runs in it."""
    return bool(_STARTED.search(text))


def missed_leaks(text: str) -> bool:
    """Return whether LeakSanitizer said that it could not look for leaks."""
    return bool(_NO_LEAKS.search(text))


def _reports(text: str) -> Iterator[list[str]]:
    block: list[str] = []
    for full in text.splitlines():
        line = full[:LONGEST_LINE].rstrip()
        starts = _REPORT.match(line) or _UNDEFINED.match(line) or _LEAK.match(line)
        if block and (starts or _END.match(line)):
            yield block
            block = []
        if starts:
            block = [line]
        elif block and len(block) < MOST_LINES:
            block.append(line)
    if block:
        yield block


def _finding(lines: list[str], names: set[str]) -> MemoryFinding:
    if undefined := _UNDEFINED.match(lines[0]):
        file, line = undefined["file"].rpartition("/")[2], int(undefined["line"])
        return MemoryFinding(kind="other", message=f"undefined behaviour: {undefined['words']}", file=file, line=line)
    if leak := _LEAK.match(lines[0]):
        allocated = [frame for line in lines[1:] if (frame := _frame(line))]
        name, file, number = _place(allocated, names) if allocated else (None, None, None)
        return MemoryFinding(kind="leak", message=f"never freed: {leak['leak']}", kernel=name, file=file, line=number)
    head = _REPORT.match(lines[0])
    race = head["thread"] if head else None
    words = race or _ADDRESS.sub("", head["address"] or "" if head else "")
    stacks: list[tuple[str, list[Frame]]] = [("", [])]
    detail = None
    for line in lines[1:]:
        if access := _ACCESS.match(line):
            stacks.append((f"{access['how'].lower()} of {access['size']} bytes", []))
        elif not line.strip():
            stacks.append(("", []))
        elif frame := _frame(line):
            stacks[-1][1].append(frame)
        elif detail is None and (near := _NEAR.match(line)):
            detail = near[1]
    told = [(how, _place(frames, names)) for how, frames in stacks if how and frames]
    first = told[0] if told else next((("", _place(frames, names)) for _, frames in stacks if frames), None)
    how, (name, file, number) = first or ("", (None, None, None))
    other = told[1] if race and len(told) > 1 else None
    if other:
        detail = f"{how} here, {other[0]} at {other[1][1]}:{other[1][2]}"
    kind: Kind = "race" if race and "race" in race else "other" if race else "invalid access"
    message = words if race or not how else f"{words}: {how}"
    return MemoryFinding(
        kind=kind,
        message=message[:300],
        kernel=name,
        file=file,
        line=number,
        detail=detail,
        other_line=other[1][2] if other else None,
    )


def _frame(line: str) -> Frame | None:
    """Return function, file and line of a frame; the file is the last word before what stands in brackets."""
    start = _FRAME.match(line)
    if start is None:
        return None
    text = line.rstrip()
    text = text[: text.rfind(" (")] if text.endswith(")") and " (" in text else text
    where = _FILE.fullmatch(text.rpartition(" ")[2])
    return (start["fn"], where["file"].rpartition("/")[2], int(where["line"])) if where else None


def _place(frames: list[Frame], names: set[str]) -> tuple[str | None, str | None, int | None]:
    """Return the first frame in a source that is known, else the first."""
    return next((f for f in frames if f[1] in names), frames[0])
