"""The words of compute-sanitizer: blocks behind nine `=`, grouped to one finding a mistake.

Source: outputs of compute-sanitizer 2025.3.1 on an H200 (memcheck, racecheck with analysis, initcheck, synccheck) for
planted mistakes; options of 2026.4. Its XML lacks leaks and the nearest allocation, so the text is read.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpu_mcp_server.models.memory_check import CheckReport, MemoryFinding
from gpu_mcp_server.profilers.kernel_names import short_name

MARK = "========="
LONGEST_LINE = 4000
PRINT_LIMIT = 1000
"""Errors to let the tool print: a mistake of every thread of a block is still counted, the text stays below 1 MiB."""

Kind = Literal["invalid access", "race", "uninitialized", "barrier", "api error", "leak", "other"]

_HEADS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("invalid access", re.compile(r"Invalid .*|.*[Mm]isaligned .*|Local memory .*|Stack overflow.*|Malloc/Free .*")),
    ("uninitialized", re.compile(r"Uninitialized .*|Unused memory .*")),
    ("barrier", re.compile(r"Barrier error detected.*|.*barrier .* error.*|Invalid .*mbarrier.*")),
    ("race", re.compile(r"(?:Error: |Warning: |Info: )?(?:Race reported .*|Potential .* hazard .*|.* hazard .*)")),
    ("api error", re.compile(r"Program hit .*|Fatal .*error.*")),
    ("leak", re.compile(r"Leaked [\d,]+ bytes .*")),
)
_AT = re.compile(
    r"(?:at|and \w+ access at) (?P<fn>.{1,2000}?)\+0x[0-9a-f]+(?: in (?P<file>[^\s:]+):(?P<line>\d{1,9}))?"
)
_AT_OLDER = re.compile(r"at 0x[0-9a-f]+ in (?:(?P<file>[^\s:]+):(?P<line>\d{1,9}):)?(?P<fn>.{1,2000})", re.MULTILINE)
"""As compute-sanitizer before 2022 and cuda-memcheck have it, without a file where there is no line information."""
_RACE = re.compile(r"Race reported between (?P<first>\w+) access (?P<rest>at .*)")
_HAZARD = re.compile(r"(?P<second>Read|Write|Atomic) Thread \(\d+,\d+,\d+\) (?P<rest>at .*)")
_OTHER = re.compile(r"and (?P<second>\w+) access at .*?(?:\[(?P<count>\d{1,12}) hazards?\])?$")
_THREAD = re.compile(r"by thread \((\d+,\d+,\d+)\) in block \((\d+,\d+,\d+)\)")
_NEAR = re.compile(
    r"and is ([\d,]+) bytes (after|before|inside) the nearest allocation at 0x[0-9a-f]+ of size ([\d,]+)"
)
_ACCESS = re.compile(r"(?:Access (?:to|at)|Address) 0x[0-9a-f]+ is (.{1,80})")
_FRAME = re.compile(
    r"(?P<side>Device|Host) Frame:\s*(?P<fn>.{0,2000}?)(?:\+0x[0-9a-f]+| \[0x[0-9a-f]+\])? in (?P<file>\S+)$"
)
_HOST_LINE = re.compile(
    r"Host Frame:\s*(?P<fn>\S.{0,2000}?) in (?P<file>[^\s:\[\]]+):(?P<line>\d{1,9}) \[0x[0-9a-f]+\] in \S+$"
)
_TOOLKIT = re.compile(
    r"(?:^|/)(?:cuda|cooperative_groups|thrust|cub|cccl|libcudacxx|nv)/|"
    r"(?:^|/)(?:cuda_\w+|sm_\d\d\w*|device_(?:atomic_)?functions|cooperative_groups|math_functions|crt_\w+)\.\w+$"
)
"""Headers of the toolkit: the mistake is in the line that called into them."""
_API = re.compile(r'Program hit (\S+) .*? due to "(.{1,200}?)" on CUDA API call to (\w+)')
_ERRORS = re.compile(r"ERROR SUMMARY: (\d{1,12}) errors?\s*$")
_HAZARDS = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
_UNPRINTED = re.compile(r"(\d{1,12}) errors? were not printed")
_LEAKED = re.compile(r"Leaked ([\d,]+) bytes at")
_TROUBLE = re.compile(
    r"Error: (No attachable process found.*|Target application terminated before.*|Could not find.*|Failed to .*|"
    r"Process didn't terminate successfully.*|.*not supported.*)|Internal (Sanitizer )?Error.*|Fatal UVM .*"
)
_CUDA = re.compile(r"(?:cudaError )?cu(?:da)?[A-Z]|__cuda")
AFTERMATH = ("cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED")
"""API errors that only repeat that a kernel was stopped for an error which is reported above."""


@dataclass
class _Block:
    lines: list[str] = field(default_factory=list[str])


def parse(text: str, sources: Mapping[str, str] | None = None) -> CheckReport:
    """Understand what the tool printed; never raises.

    Args:
        text: Its output, with or without the program's own between.
        sources: Texts of the workspace by path, to show the lines that are named.

    Returns:
        Findings, those with a line first, each once with its count.
    """
    errors = warnings = unprinted = None
    troubles: list[str] = []
    blocks: list[_Block] = []
    for line in _marked(text):
        if match := _ERRORS.search(line):
            errors = int(match[1])
        elif match := _HAZARDS.search(line):
            errors, warnings = int(match[1]), int(match[2])
        elif match := _UNPRINTED.search(line):
            unprinted = int(match[1])
        elif match := _TROUBLE.match(line):
            troubles.append(line[:300])
        elif _head_of(line) is not None:
            blocks.append(_Block([line]))
        elif not line:
            blocks.append(_Block())
        elif blocks and blocks[-1].lines:
            blocks[-1].lines.append(line)
    found = [f for b in blocks if b.lines and (f := _finding(b.lines)) is not None]
    grouped = _grouped(found)
    if any(f.kind not in ("api error", "leak") for f in grouped):
        grouped = [f for f in grouped if not (f.kind == "api error" and any(a in f.message for a in AFTERMATH))]
    shown = [_with_source(f, sources or {}) for f in grouped]
    return CheckReport(
        findings=sorted(shown, key=lambda f: (f.line is None, f.kind in ("api error", "leak"))),
        errors=errors,
        warnings=warnings,
        not_printed=unprinted,
        troubles=troubles[:5],
    )


def _marked(text: str) -> Iterable[str]:
    for line in text.splitlines():
        at = line.find(MARK)
        if at < 0:
            continue
        yield line[at:].lstrip("=").strip()[:LONGEST_LINE]  # the program's own words may stand before it


def _head_of(line: str) -> Kind | None:
    if line.startswith(("at ", "by ", "and ", "Access ", "Address ", "Saved ", "Host ", "Device ")):
        return None
    return next((kind for kind, pattern in _HEADS if pattern.fullmatch(line)), None)


def _finding(lines: list[str]) -> MemoryFinding | None:
    head, rest = lines[0], lines[1:]
    kind = _head_of(head)
    if kind is None:
        return None
    if kind == "race":
        return _race(head, rest)
    body = "\n".join(rest)
    where = _AT.search(body) or _AT_OLDER.search(body)
    device = [m for line in rest if (m := _FRAME.search(line)) and m["side"] == "Device"]
    host = [m for line in rest if (m := _FRAME.search(line)) and m["side"] == "Host"]
    thread, near, access = _THREAD.search(body), _NEAR.search(body), _ACCESS.search(body)
    detail = access[1].strip() if access else None
    if near:
        detail = f"{near[1]} bytes {near[2]} the nearest allocation of {near[3]} bytes"
    message, leaked = head, _LEAKED.search(head)
    if leaked:
        message = f"leaked {leaked[1]} bytes"
    if api := _API.search(head):
        message = f"{api[3]} returned {api[1]} ({api[2]})"
    frames = [_place(where), *(_frame_place(m) for m in device)]
    own_frames = [f for f in frames if f[1] and not _TOOLKIT.search(f[1])]
    name, file, line = own_frames[0] if own_frames else frames[-1 if kind == "barrier" else min(1, len(frames) - 1)]
    callers = _callers(own_frames, host)
    own = [m for m in host if not _CUDA.match(m["fn"])]
    frame = own[0] if own and kind in ("api error", "leak") else None
    return MemoryFinding(
        kind=kind,
        message=message[:300],
        kernel=name,
        file=file,
        line=line,
        thread=f"first by thread ({thread[1]}) block ({thread[2]})" if thread else None,
        detail=detail,
        called_from=f"from {short_name(frame['fn'])} in {frame['file']}" if frame and frame["fn"] else callers,
    )


def _callers(frames: list[tuple[str | None, str | None, int | None]], host: list[re.Match[str]]) -> str | None:
    """Return the user's other frames: the outermost on the device, and the line of the host that launched it."""
    parts: list[str] = []
    if len(frames) > 1 and frames[-1] != frames[0]:
        name, file, line = frames[-1]
        parts.append(f"called from {name} at {file}" + (f":{line}" if line else ""))
    launches = [m for h in host if (m := _HOST_LINE.search(h.string)) and not _CUDA.match(m["fn"])]
    if launches:
        first = launches[0]
        parts.append(f"launched by {short_name(first['fn'])} at {first['file']}:{first['line']}")
    return "; ".join(parts) or None


def _race(head: str, rest: list[str]) -> MemoryFinding:
    match, others = _RACE.search(head), [m for r in rest if (m := _OTHER.match(r))]
    where = _AT.search(head)
    if match is None and len(hazards := [m for r in rest if (m := _HAZARD.match(r))]) > 1:
        where, match, others = _AT.search(hazards[0]["rest"]), hazards[0], hazards[1:]
    name, file, line = _place(where)
    other = _AT.search(others[0].group(0)) if others else None
    _, other_file, other_line = _place(other)
    count = sum(int(m.groupdict().get("count") or 1) for m in others) or 1
    first = match.groupdict().get("first") or match["second"] if match else "access"
    kinds = (first.lower(), others[0]["second"].lower() if others else "access")
    detail = f"{kinds[0]} here, {kinds[1]} at {other_file}:{other_line}" if other_line else None
    severity = head.partition(":")[0].lower() if head.startswith(("Error:", "Warning:", "Info:")) else "error"
    message = "race in shared memory: no barrier between the two" + ("" if severity == "error" else f" ({severity})")
    return MemoryFinding(
        kind="race",
        message=message,
        kernel=name,
        file=file,
        line=line,
        count=count,
        detail=detail,
        other_line=other_line,
    )


def _place(match: re.Match[str] | None) -> tuple[str | None, str | None, int | None]:
    if match is None:
        return None, None, None
    return short_name(match["fn"]), match["file"], int(match["line"]) if match["line"] else None


def _frame_place(match: re.Match[str]) -> tuple[str | None, str | None, int | None]:
    file, _, line = match["file"].rpartition(":")
    known = line.isdecimal() and len(line) < 10
    return short_name(match["fn"]) or None, file if known else match["file"], int(line) if known else None


def _grouped(found: list[MemoryFinding]) -> list[MemoryFinding]:
    groups: dict[tuple[object, ...], MemoryFinding] = {}
    for f in found:
        message = "" if f.kind == "leak" else f.message
        key = (f.kind, message, f.kernel, f.file, f.line, f.other_line, f.called_from)
        seen = groups.get(key)
        groups[key] = f if seen is None else seen.model_copy(update={"count": seen.count + f.count})
    return list(groups.values())


def _with_source(finding: MemoryFinding, sources: Mapping[str, str]) -> MemoryFinding:
    text = line_of(sources, finding.file, finding.line)
    return finding.model_copy(update={"source": text}) if text else finding


def line_of(sources: Mapping[str, str], file: str | None, line: int | None) -> str | None:
    """Return a line's text from the one source with that file name."""
    if not file or not line:
        return None
    base = file.rpartition("/")[2]
    texts = [t for path, t in sources.items() if path == file or path.rpartition("/")[2] == base]
    lines = texts[0].splitlines() if len(texts) == 1 else []
    return lines[line - 1].strip()[:120] if len(lines) >= line else None
