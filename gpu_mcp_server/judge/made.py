"""Inputs that only the problem's own code can make: masks, indices, weights. The reference writes them."""

import resource
from typing import Any, List

import numpy as np
from devices import Buffers, Device
from memory_cpu import Region, share
from supervisor import Player
from tensors import layout
from verdicts import TooLarge

AT_ONCE_BYTES = 256 << 20
"""Of inputs that travel through a file: a job's files are limited, and a round's may be many."""


def draw(device: Device, buffers: Buffers, reference: Player, seed: int, timeout_s: float) -> str:
    """Fill all inputs; return what went wrong in the problem's code, empty if nothing.

    What the owner can draw it draws. Weights do not change: the reference writes them once, for all shapes.
    """
    buffers.fill()
    wrong = ""
    if not buffers.weights_written:
        wrong = _weights(device, buffers, reference, timeout_s)
        buffers.weights_written = True
    return wrong or _make(buffers, reference, seed, timeout_s)


def _which(buffers: Buffers, kind: str) -> List[int]:
    return [i for i, item in enumerate(buffers.inputs) if item.distribution == kind]


def _file(size: int, most_calls: int = 1) -> Region:
    """Return a file for `size` bytes a call, for as many calls as are wanted and one may hold."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most == resource.RLIM_INFINITY:
        most = AT_ONCE_BYTES
    elif size > most:
        text = "the problem is too large: inputs that its own code makes take %.3g GB a call, a file may have %.3g GB"
        raise TooLarge(text % (size / 1e9, most / 1e9))
    calls = min(most_calls, max(1, min(most, AT_ONCE_BYTES) // size))
    return Region(size * calls, writable_by_others=True)


def _weights(device: Device, buffers: Buffers, reference: Player, timeout_s: float) -> str:
    """Give every set the weights, which travel from the reference's process when they are first wanted."""
    which = _which(buffers, "weights")
    if not which:
        return ""
    where = layout([buffers.inputs[i] for i in which], 1, guarded=False)
    if device.weights is None:
        region = _file(where.total)
        wrong = _asked(reference, region, timeout_s, which=which, where=share(where), seed=0, kind="weights")
        if wrong:
            region.close()
            return wrong
        device.weights = region
    for place, number in enumerate(which):
        values = device.weights.tensor(where, buffers.inputs[number], place)
        buffers.put_input(number, np.broadcast_to(values, (buffers.sets, values.shape[1])))
    return ""


def _make(buffers: Buffers, reference: Player, seed: int, timeout_s: float) -> str:
    """Have the reference write inputs, as many sets at a time as fit a file."""
    which, sets = _which(buffers, "made"), buffers.sets
    if not which:
        return ""
    one = layout([buffers.inputs[i] for i in which], 1, guarded=False)
    region = _file(one.stride, sets)
    at_once = len(region.bytes) // one.stride
    try:
        for first in range(0, sets, at_once):
            where = one._replace(sets=min(at_once, sets - first))
            wrong = _asked(
                reference, region, timeout_s, which=which, where=share(where), seed=seed + first, kind="made"
            )
            if wrong:
                return wrong
            for place, number in enumerate(which):
                buffers.put_input(number, region.tensor(where, buffers.inputs[number], place), first)
    finally:
        region.close()
    return ""


def _asked(reference: Player, region: Region, timeout_s: float, **task: Any) -> str:
    """Have the reference write into a file; return its error, empty if there is none."""
    reference.thaw()
    return str(reference.ask("make", timeout_s, [region.fd], **task).get("error") or "")
