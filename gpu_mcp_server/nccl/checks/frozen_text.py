"""Frozen text: what a stage's input holds outside EVOLVE-BLOCK markers stands unchanged in its result."""

from collections.abc import Mapping
from difflib import SequenceMatcher

from gpu_mcp_server.nccl.checks.findings import Finding
from gpu_mcp_server.nccl.program_model.markers import MarkerFault, blocks, frozen_text
from gpu_mcp_server.nccl.templates import INFRASTRUCTURE, infrastructure

SHOWN = 100


def findings(before: Mapping[str, str], after: Mapping[str, str]) -> list[Finding]:
    """Compare the files of a stage's input with what was made of it.

    Files without markers are frozen as a whole. New files may come.
    """
    found: list[Finding] = []
    for path, text in sorted(before.items()):
        if path not in after:
            found.append(_found(path, 1, "the file is gone"))
            continue
        if text != after[path]:
            found += _compared(path, text, after[path])
    return found


def infrastructure_findings(files: Mapping[str, str]) -> list[Finding]:
    """Return where the generated infrastructure is not as it was generated: all of it is frozen."""
    found: list[Finding] = []
    for path, text in sorted(files.items()):
        if path.rpartition("/")[2] == INFRASTRUCTURE and text != infrastructure():
            found += _compared(path, infrastructure(), text)
    return found


def marker_findings(files: Mapping[str, str]) -> list[Finding]:
    """Return markers that do not come in pairs."""
    found: list[Finding] = []
    for path, text in sorted(files.items()):
        try:
            blocks(text)
        except MarkerFault as fault:
            found.append(_found(path, _line_in(str(fault)), str(fault)))
    return found


def _compared(path: str, before: str, after: str) -> list[Finding]:
    try:
        frozen, now = frozen_text(before), frozen_text(after)
    except MarkerFault as fault:
        return [_found(path, _line_in(str(fault)), str(fault))]
    if frozen == now:
        return []
    old, new = frozen.split("\n"), now.split("\n")
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    found: list[Finding] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        was, became = " / ".join(old[a:b]).strip()[:SHOWN], " / ".join(new[c:d]).strip()[:SHOWN]
        place = _place(after, new, c)
        found.append(_found(path, place, f"frozen text changed: `{was}` became `{became}`"))
    return found[:10]


def _place(after: str, frozen: list[str], index: int) -> int:
    """Return the line in the whole text of a line of its frozen part."""
    lines, inside = after.split("\n"), set[int]()
    for block in blocks(after):
        inside |= set(range(block.first_line + 1, block.last_line))
    outside = [n for n in range(1, len(lines) + 1) if n not in inside]
    return outside[min(index, len(outside) - 1)] if outside and frozen else 1


def _line_in(text: str) -> int:
    digits = "".join(c for c in text.partition(":")[0] if c.isdigit())
    return int(digits) if digits else 1


def _found(path: str, line: int, text: str) -> Finding:
    return Finding(path, line, "frozen text", "error", text)
