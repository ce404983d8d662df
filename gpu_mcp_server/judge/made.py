"""Inputs that only the problem's own code can make: masks, indices, weights. The reference writes them."""

import resource
from typing import List

import numpy as np
from devices import Buffers
from memory_cpu import Region, share
from supervisor import Player
from tensors import layout
from verdicts import TooLarge

AT_ONCE_BYTES = 256 << 20
"""Of inputs that travel through a file: a job's files are limited, and a round's may be many."""


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
    """Have the reference write inputs, as many sets at a time as fit a file; weights once, all sets have the same."""
    which: List[int] = [i for i, item in enumerate(buffers.inputs) if item.distribution == kind]
    if not which:
        return ""
    items, sets = [buffers.inputs[i] for i in which], buffers.sets
    one = layout(items, 1, guarded=False)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and one.total > most:
        text = "the problem is too large: inputs that its own code makes take %.3g GB a call, a file may have %.3g GB"
        raise TooLarge(text % (one.total / 1e9, most / 1e9))
    at_once = 1 if kind == "weights" else min(sets, max(1, AT_ONCE_BYTES // one.stride))
    region = Region(one.stride * at_once, writable_by_others=True)
    try:
        for first in range(0, 1 if kind == "weights" else sets, at_once):
            where = one._replace(sets=min(at_once, sets - first))
            reference.thaw()
            task = {"which": which, "where": share(where), "seed": seed + first, "kind": kind}
            reply = reference.ask("make", timeout_s, [region.fd], **task)
            if reply.get("error"):
                return str(reply["error"])
            for place, (number, item) in enumerate(zip(which, items)):
                values = region.tensor(where, item, place)
                alike = np.broadcast_to(values, (sets, item.count)) if kind == "weights" else values
                buffers.put_input(number, alike, first)
    finally:
        region.close()
    return ""
