"""Inputs that only the problem's own code can make: masks, indices, weights. The reference writes them."""

from typing import List

from devices import Buffers
from memory_cpu import Region, share
from supervisor import Player
from tensors import layout


def draw(buffers: Buffers, reference: Player, seed: int, timeout_s: float) -> str:
    """Fill all inputs; return what went wrong in the problem's code, empty if nothing.

    What the owner can draw it draws. Weights are written once, as they do not change.
    """
    buffers.fill()
    wrong = ""
    if not buffers.weights_written:
        wrong = _make(buffers, reference, "weights", 0, timeout_s)
        buffers.weights_written = True
    return wrong or _make(buffers, reference, "made", seed, timeout_s)


def _make(buffers: Buffers, reference: Player, kind: str, seed: int, timeout_s: float) -> str:
    which: List[int] = [i for i, item in enumerate(buffers.inputs) if item.distribution == kind]
    if not which:
        return ""
    where = layout([buffers.inputs[i] for i in which], buffers.sets, guarded=False)
    region = Region(where.total, writable_by_others=True)
    try:
        reference.thaw()
        reply = reference.ask("make", timeout_s, [region.fd], which=which, where=share(where), seed=seed, kind=kind)
        if reply.get("error"):
            return str(reply["error"])
        for place, number in enumerate(which):
            buffers.put_input(number, region.tensor(where, buffers.inputs[number], place))
    finally:
        region.close()
    return ""
