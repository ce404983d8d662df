"""Communicated buffers as two versions of a program left them: moves must agree in every byte, sums within rounding."""

from collections.abc import Mapping
from dataclasses import dataclass

RELATIVE = 2.0**-20
"""Of the largest value: eight float32 roundings, as orders of adding up differ.

Source: |error| <= (n-1) u sum|x|, u = 2**-24, Higham, Accuracy and Stability of Numerical Algorithms, 4.2; up to 17
ranks.
"""


@dataclass(frozen=True)
class BufferDifference:
    """A buffer that two versions left differently."""

    name: str
    text: str


def compare(original: Mapping[str, bytes], candidate: Mapping[str, bytes], *, reduces: bool) -> list[BufferDifference]:
    """Compare buffers by name.

    Args:
        original: Content by name, of the program with host collectives.
        candidate: The same of the program under check.
        reduces: Whether sums are among the collectives: then float32 may differ by rounding.
    """
    found: list[BufferDifference] = []
    for name in sorted(original):
        there = candidate.get(name)
        if there is None:
            found.append(BufferDifference(name, "is not among the communicated buffers any more"))
        elif there != original[name]:
            text = _difference(original[name], there, reduces)
            if text:
                found.append(BufferDifference(name, text))
    return found


def _difference(want: bytes, got: bytes, reduces: bool) -> str:
    import numpy as np  # importing it takes 0.1 s, and only a comparison needs it

    if len(want) != len(got):
        return f"has {len(got)} bytes instead of {len(want)}"
    a, b = np.frombuffer(want, np.uint8), np.frombuffer(got, np.uint8)
    wrong = a != b
    if reduces and len(want) % 4 == 0:
        x, y = np.frombuffer(want, np.float32), np.frombuffer(got, np.float32)
        finite = np.isfinite(x) & np.isfinite(y)
        bound = RELATIVE * float(np.max(np.abs(x[finite]), initial=0.0))
        with np.errstate(all="ignore"):
            off = ~((np.abs(x - y) <= bound) | (x.view(np.uint32) == y.view(np.uint32)))
        if not off.any():
            return ""
        where = f"the first at element {int(off.argmax())}"
        return f"{int(off.sum())} of {len(x)} float32 are off by more than {bound:.3g}, {where}"
    return f"{int(wrong.sum())} of {len(want)} bytes differ, the first at byte {int(wrong.argmax())}"
