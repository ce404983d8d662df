"""Turn ptxas's information into warnings: a kernel that compiled will be slow, or will not start.

Source: outputs of ptxas 13.0 and 13.5 (`-v`), where messages of "Potential Performance Loss" have codes about C7510.
PTX ISA, "State Spaces" (`.local`); CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute
Capability": a block has 48 KiB of static shared memory.
"""

import re
from collections.abc import Iterator

from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.toolchains.diagnostics import demangle_text, source_place
from gpu_mcp_server.toolchains.hints import hint_for

STATIC_SHARED_BYTES = 48 * 1024
MAX_WARNINGS = 20
MAX_NAME = 160

_TOOL = r"ptxas(?:-blackwell)?"
_LOSS = re.compile(rf"^ ?{_TOOL} info\s*: \((C\d{{1,5}})\) Potential Performance Loss: (.{{1,4000}})$")
_FUNCTION = re.compile(r"\s*(?:in|for) the function '([^']{1,4000})'")
_AT_LINE = re.compile(r"\s*in line (\d{1,9})")
_INJECTED = re.compile(
    rf"^ ?{_TOOL} info\s*: \(C\d{{1,5}}\) warpgroup\.(wait|arrive) is injected in around line (\d{{1,9}}) .{{0,200}}"
    r"in function '([^']{1,4000})'"
)
_ENTRY = re.compile(r"Compiling entry function '([^']{1,4000})' for '(sm_[^']{1,20})'")
_PROPERTIES = re.compile(r"Function properties for '?([^'\s]{1,4000}?)'?:?$")
_STACK = re.compile(r"(\d{1,9}) bytes stack frame, (\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads")
_SHARED = re.compile(rf"{_TOOL} info\s*: [Uu]sed \d{{1,9}} registers.{{0,400}}? (\d{{1,9}}) bytes smem")


def performance_warnings(said: str, ptx: str | None = None) -> list[Diagnostic]:
    """Return what ptxas tells of time lost, of local memory and of too much static shared memory.

    Never raises: what is not understood is left out.

    Args:
        said: What the compiler wrote.
        ptx: The input of ptxas, to find the source's lines; without it kernels are named and lines are not.
    """
    log = [line[:10_000] for line in said.splitlines()]
    found = [*_losses(log, ptx), *_memory(log, ptx)]
    return list({(d.code, d.message): d for d in found}.values())[:MAX_WARNINGS]


def _losses(log: list[str], ptx: str | None) -> Iterator[Diagnostic]:
    injected = _injected_lines(log)
    for line in log:
        match = _LOSS.match(line)
        if match is None:
            continue
        code, words = match[1], match[2]
        named, at = _FUNCTION.search(words), _AT_LINE.search(words)
        kernel = named[1] if named else ""
        number = int(at[1]) if at else injected.get(kernel)
        place = source_place(ptx, number) if ptx and number else _first_place(ptx, kernel, r"wgmma\.mma_async")
        reason = _AT_LINE.sub("", _FUNCTION.sub("", words)).strip().rstrip(".")
        yield _warning(f"{reason}{f', in {_shown_name(kernel)}' if kernel else ''}", code, place)


def _injected_lines(log: list[str]) -> dict[str, int]:
    """Return the line of PTX at which ptxas waits on its own account for each kernel: there results are read early."""
    found: dict[str, int] = {}
    waits: set[str] = set()
    for line in log:
        if match := _INJECTED.match(line):
            what, number, kernel = match.groups()
            if kernel not in found or (what == "wait" and kernel not in waits):
                found[kernel] = int(number)
            waits |= {kernel} if what == "wait" else set()
    return found


def _memory(log: list[str], ptx: str | None) -> Iterator[Diagnostic]:
    spills_told = any("warning" in line and "Registers are spilled" in line for line in log)
    refused = any("uses too much shared data" in line for line in log)
    local_told = any("warning" in line and "Local memory used" in line for line in log)
    kernel = arch = described = ""
    for line in log:
        if match := _ENTRY.search(line):
            kernel, arch = match.groups()
        elif match := _PROPERTIES.search(line):
            described = match[1]
        elif match := _STACK.search(line):
            frame, stores, loads = map(int, match.groups())
            name = _shown_name(described)
            if stores + loads and not spills_told:
                words = f"Registers are spilled to local memory in {name}: {stores} bytes stored, {loads} bytes loaded"
                yield _warning(words, "spills", _first_place(ptx, described, None))
            elif frame and not stores + loads and not local_told:
                words = f"{name} keeps {frame} bytes of each thread in local memory (a stack frame)"
                yield _warning(words, "stack frame", _first_place(ptx, described, r"(?:ld|st)\.local\b"))
        elif (match := _SHARED.search(line)) and int(match[1]) > STATIC_SHARED_BYTES and not refused:
            words = f"{_shown_name(kernel)} has {match[1]} bytes of static shared memory, and 49152 are sure; "
            words += f"ptxas takes more for {arch}, and nothing says that a launch does"
            yield _warning(words, "static shared memory", _first_place(ptx, kernel, None))


def _shown_name(symbol: str) -> str:
    name = demangle_text(symbol)
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"


def _warning(message: str, code: str, place: tuple[str | None, int | None]) -> Diagnostic:
    return Diagnostic(
        severity="warning", message=message[:500], file=place[0], line=place[1], code=code, hint=hint_for(message)
    )


def _first_place(ptx: str | None, kernel: str, instruction: str | None) -> tuple[str | None, int | None]:
    """Return the source's line of a kernel's first such instruction, or of the first that has one."""
    if ptx is None or not kernel:
        return None, None
    head = r"^[^\S\n]*(?:\.\w+[^\S\n]+)*\.(?:entry|func)\b[^\n]*?\b"
    begin = re.search(rf"{head}{re.escape(kernel)}\s*\(", ptx, re.MULTILINE)
    if begin is None:
        return None, None
    end = re.compile(r"^}", re.MULTILINE).search(ptx, begin.end())
    inside = re.compile(instruction or r"^[^\S\n]*\.loc\b", re.MULTILINE)
    at = inside.search(ptx, begin.end(), end.start() if end else len(ptx))
    if at is None:
        return None, None
    return source_place(ptx, ptx.count("\n", 0, at.end()) + 1)
