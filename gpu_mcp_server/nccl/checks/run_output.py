"""Parser of checked programs' output: counters, cases, times, NCCL's words, and the site of a rank that hung."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_mcp_server.models.nccl_check import NcclTiming

MOST_WORDS = 300
_COUNTERS = re.compile(r"^ncclx: device_collectives=(\d+) host_fallbacks=(\d+)", re.MULTILINE)
_FALLBACK = re.compile(r"^ncclx: fallback (\S+): (.{1,200})$", re.MULTILINE)
_CASE = re.compile(r"^case (.*)$", re.MULTILINE)
_TIME = re.compile(r"^time (.*)$", re.MULTILINE)
_PART = re.compile(r"^part (\S+)$", re.MULTILINE)
_END = re.compile(r"^end ranks=(\d+) failed=(\d+)$", re.MULTILINE)
_STRESS = re.compile(r"^gmcp: rank=(-?\d+) buffers=(\d+) (.*)$", re.MULTILINE)
_STOOD = re.compile(r"^gmcp: rank=(-?\d+) ended after=(.*?) turn=(\d+) device=(\d+) passed_line=(-?\d+)$", re.MULTILINE)
_NCCL = re.compile(
    r"^.*(?:NCCL WARN|\bNCCL (?:error|line|failure)|ncclInternalError|ncclUnhandledCudaError).*$", re.MULTILINE
)
_CUDA = re.compile(
    r"^.*\bCUDA(?:_ERROR_\w+|\s+(?:error|failure|line)\b|\s+\S+:\d+).*$|^.*\bcudaError\w+.*$", re.MULTILINE
)
_OURS = re.compile(r"\s*(?:ncclx|gmcp): ")
NO_NETWORK = "NCCL WARN Net : "
SAYS_FAIL = re.compile(
    r"\b(?:verification|test|check)\w*\s*[:=]?\s*(?:FAIL\w*|INCORRECT|WRONG)|^FAIL(?:ED|URE)?\b", re.I | re.M
)
SAYS_PASS = re.compile(
    r"\b(?:verification|test|check)\w*\s*[:=]?\s*(?:PASS\w*|OK\b|SUCCESS\w*)|^PASS(?:ED)?\b|^SUCCESS\b", re.I | re.M
)


@dataclass(frozen=True)
class Counters:
    """Of all processes together."""

    device: int
    fallbacks: int
    reasons: tuple[str, ...]
    processes: int


@dataclass(frozen=True)
class DifferentialCase:
    """One case of the differential program."""

    title: str
    bad: int
    guard: int


@dataclass(frozen=True)
class DifferentialPart:
    """One part of a run of the differential program."""

    mode: str
    text: str
    complete: bool
    """Another part or a good end follows."""


@dataclass(frozen=True)
class Stress:
    """Counts of the stress build, over all ranks."""

    ranks: int
    guards_broken: int
    poisoned: int
    skewed: int
    dumped: int


@dataclass(frozen=True)
class HangLocation:
    """Place of a rank in the program when it was ended."""

    rank: int
    site: str
    turn: int
    passed_line: int | None

    def line_text(self) -> str:
        """Say it."""
        passed = f"passed the barrier of line {self.passed_line}" if self.passed_line else "passed no barrier"
        passed = passed if self.passed_line is not None else "device progress unknown"
        return f"rank {self.rank}: after {self.site or 'set-up'} (turn {self.turn}), {passed}"


def counters(texts: Sequence[str]) -> Counters | None:
    """Add up what each process last said; None when none said anything."""
    device = fallbacks = processes = 0
    for text in texts:
        said = _COUNTERS.findall(text)
        if said:
            # ranks that were forked share one stream: every line of a different process counts once
            own = said if len(said) <= 64 else said[-1:]
            processes += len(own)
            device += sum(int(d) for d, _ in own)
            fallbacks += sum(int(f) for _, f in own)
    return Counters(device, fallbacks, tuple(fallback_reasons(texts)), processes) if processes else None


def fallback_reasons(texts: Sequence[str]) -> list[str]:
    """Return which collectives went to host NCCL, and why, each once."""
    found = [f"{name}: {why}" for text in texts for name, why in _FALLBACK.findall(text)]
    return list(dict.fromkeys(found))


def cases(text: str) -> list[DifferentialCase]:
    """Return the cases that the differential program came to."""
    found: list[DifferentialCase] = []
    for line in _CASE.findall(text):
        values = _pairs(line)
        if {"op", "count", "bad", "guard"} <= values.keys():
            title = f"{values['op']} of {values['count']}"
            title += " in place" if values.get("in_place") == "1" else ""
            title += f" at offset {values['offset']}" if values.get("offset", "0") != "0" else ""
            title += " of fractions" if values.get("fractions") == "1" else ""
            found.append(
                DifferentialCase(f"{title}, seed {values.get('seed', '?')}", _int(values["bad"]), _int(values["guard"]))
            )
    return found


def parts(text: str) -> list[DifferentialPart]:
    """Return the parts that the differential program came to, in their order."""
    begins = list(_PART.finditer(text))
    ends = [*(b.start() for b in begins[1:]), len(text)]
    return [
        DifferentialPart(begin[1], text[begin.end() : end], end != len(text) or ended_well(text))
        for begin, end in zip(begins, ends, strict=True)
    ]


def ended_well(text: str) -> bool:
    """Say whether the differential program came to its end with all its ranks."""
    found = _END.findall(text)
    return bool(found) and found[-1][1] == "0"


def timings(text: str) -> list[NcclTiming]:
    """Return the medians that the differential program measured."""
    found: list[NcclTiming] = []
    for line in _TIME.findall(text):
        values = _pairs(line)
        try:
            made = NcclTiming(
                collective=values["op"],
                size_bytes=int(values["bytes"]),
                original_us=float(values["original_us"]),
                stage_a_us=float(values["windows_us"]),
                device_us=float(values["device_us"]),
            )
        except (KeyError, ValueError):
            continue
        found.append(made)
    return found


def stress(texts: Iterable[str]) -> Stress | None:
    """Add up what the stress build's ranks last said."""
    last: dict[str, Mapping[str, str]] = {}
    for number, text in enumerate(texts):
        for rank, _, rest in _STRESS.findall(text):
            last[f"{number}:{rank}"] = _pairs(rest)
    if not last:
        return None
    total = {
        k: sum(_int(v.get(k, "0")) for v in last.values()) for k in ("guards_broken", "poisoned", "skewed", "dumped")
    }
    return Stress(len(last), total["guards_broken"], total["poisoned"], total["skewed"], total["dumped"])


def hang_locations(texts: Iterable[str]) -> list[HangLocation]:
    """Return where ranks stood when they were ended."""
    found: dict[int, HangLocation] = {}
    for text in texts:
        for rank, site, turn, _, line in _STOOD.findall(text):
            passed = int(line)
            found[int(rank)] = HangLocation(int(rank), site, int(turn), None if passed < 0 else passed)
    return [found[r] for r in sorted(found)]


def program_text(text: str) -> str:
    """Return what a program itself said: without our counters, and NCCL's look for a network, which jobs lack."""
    return "\n".join(line for line in text.splitlines() if not _OURS.match(line) and NO_NETWORK not in line)


def error_lines(texts: Iterable[str]) -> list[str]:
    """Return what NCCL and CUDA said, NCCL first, each once."""
    whole = program_text("\n".join(texts))
    found = [m.group(0).strip()[:MOST_WORDS] for p in (_NCCL, _CUDA) for m in p.finditer(whole)]
    return list(dict.fromkeys(found))[:6]


def _pairs(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def _int(text: str) -> int:
    return int(text) if text.isdigit() else -1
