"""Inputs that only the problem's own code can make: masks, indices, weights. The reference writes them."""

import time
from typing import Any, List

from ..channel.supervisor_client import Player
from ..devices.device import Buffers, Device
from ..numerics.tensors import Layout, layout
from .input_transfer import ByFile, carrier_of


def draw(device: Device, buffers: Buffers, reference: Player, seed: int, timeout_s: float) -> str:
    """Fill all inputs; return what went wrong in the problem's code, empty if nothing.

    What the owner can draw it draws. Weights do not change: the reference writes them once for a round's buffers,
    and where they travel in a file once for all shapes.
    """
    buffers.fill()
    wrong = ""
    if not buffers.weights_written:
        wrong = _weights(device, buffers, reference, timeout_s)
        buffers.weights_written = True
    begin = time.perf_counter()
    wrong = wrong or _make(device, buffers, reference, seed, timeout_s)
    buffers.made_s = time.perf_counter() - begin
    return wrong


def _which(buffers: Buffers, kind: str) -> List[int]:
    return [i for i, item in enumerate(buffers.inputs) if item.distribution == kind]


def _weights(device: Device, buffers: Buffers, reference: Player, timeout_s: float) -> str:
    """Give every set the weights, which travel from the reference's process when they are first wanted."""
    which = _which(buffers, "weights")
    if not which:
        return ""
    where = layout([buffers.inputs[i] for i in which], 1, guarded=False)
    device.weights_bytes = where.total
    carrier = device.weights or carrier_of(device, buffers, where.total)
    try:
        if carrier is not device.weights:
            wrong = _asked(reference, carrier, where, timeout_s, which=which, seed=0, kind="weights")
            if wrong:
                return wrong
            if isinstance(carrier, ByFile) and not device.by_case:
                device.weights = carrier  # on a GPU another copy is had sooner than room to keep one
        for place, number in enumerate(which):
            carrier.spread(buffers, number, where, place)
    finally:
        if carrier is not device.weights:
            carrier.close()
    return ""


def _make(device: Device, buffers: Buffers, reference: Player, seed: int, timeout_s: float) -> str:
    """Have the reference write inputs, as many sets at a time as travel together."""
    which, sets = _which(buffers, "made"), buffers.sets
    if not which:
        return ""
    one = layout([buffers.inputs[i] for i in which], 1, guarded=False)
    carrier = carrier_of(device, buffers, one.stride, sets)
    try:
        for first in range(0, sets, carrier.calls):
            where = one._replace(sets=min(carrier.calls, sets - first))
            # The seed advances by sets, so batches of another size make the very same inputs.
            wrong = _asked(reference, carrier, where, timeout_s, which=which, seed=seed + first, kind="made")
            if wrong:
                return wrong
            for place, number in enumerate(which):
                carrier.put(buffers, number, where, place, first)
    finally:
        carrier.close()
    return ""


def _asked(reference: Player, carrier: Any, where: Layout, timeout_s: float, **task: Any) -> str:
    """Have the reference write into what travels; return its error, empty if there is none."""
    reference.thaw()
    reply = reference.ask("make", timeout_s, [carrier.descriptor], **carrier.told(where), **task)
    return str(reply.get("error") or "")
