"""EVOLVE-BLOCK markers, in comments of C++ or Python: lines between them may change, all others are frozen."""

import re
from dataclasses import dataclass

EVOLVE_START = "// EVOLVE-BLOCK-START"
EVOLVE_END = "// EVOLVE-BLOCK-END"
_MARKER = re.compile(r"\s*(?://|#)\s*EVOLVE-BLOCK-(START|END)\b.*")


class MarkerFault(ValueError):
    """Markers do not come in pairs."""


@dataclass(frozen=True)
class Block:
    """Lines that may change, the markers' own lines included; counted from 1."""

    first_line: int
    last_line: int


def blocks(text: str) -> list[Block]:
    """Return the blocks of a text.

    Raises:
        MarkerFault: If a block is opened within a block, ended without a start, or never ended.
    """
    found: list[Block] = []
    opened: int | None = None
    for number, line in enumerate(text.split("\n"), 1):
        match = _MARKER.fullmatch(line)
        if match is None:
            continue
        if (match.group(1) == "START") == (opened is not None):
            raise MarkerFault(f"line {number}: EVOLVE-BLOCK-{match.group(1)} is out of order")
        if opened is None:
            opened = number
        else:
            found.append(Block(opened, number))
            opened = None
    if opened is not None:
        raise MarkerFault(f"line {opened}: EVOLVE-BLOCK-START is never ended")
    return found


def frozen_text(text: str) -> str:
    """Return the lines outside blocks, the markers kept: two texts that differ in blocks alone are equal here.

    Raises:
        MarkerFault: As `blocks`.
    """
    lines = text.split("\n")
    for block in reversed(blocks(text)):
        del lines[block.first_line : block.last_line - 1]
    return "\n".join(lines)
