"""The reference's buffers as NumPy arrays; bfloat16 as its bits in uint16."""

import ctypes
import resource
import time
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from ..memory.mapped_file import Mapping
from ..numerics.compare import STORAGE
from ..numerics.small_floats import SHORT, short_bits
from ..numerics.tensors import Array, Tensor

NATIVE: Dict[str, Any] = dict(STORAGE, bool=np.bool_)
"""What the reference's function gets and returns; to the owner a bool is a byte, 0 or 1."""


class BadResult(Exception):
    """The reference returned something else than the problem declares: no candidate can be compared with it."""


def check_shape(item: Tensor, shape: Sequence[int]) -> None:
    """Refuse another shape than the declared one."""
    if tuple(shape) != item.shape:
        text = "output %s has shape %s, declared as %s; declare that, or let the reference return what is declared"
        if len(shape) == len(item.shape):
            text = (
                "output %s has shape %s, declared as %s; shapes that follow the inputs' values are not judged: pad it; "
                "a size that follows from others takes a constraint, such as oh == h // 2"
            )
        raise BadResult(text % (item.name, list(shape), list(item.shape)))


class NumpyArrays:
    """Maps the owner's memory files."""

    store_later = False

    def __init__(self) -> None:
        self.maps: List[Mapping] = []
        self.inputs: List[Tuple[Any, ...]] = []
        self.targets: List[Tuple[Any, ...]] = []
        self.outputs: Sequence[Tensor] = ()
        self.said: Dict[str, None] = {}

    def versions(self) -> Dict[str, str]:
        """Return what computes."""
        return {"numpy": np.__version__}

    def open(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], message: Dict[str, Any], descriptors: List[int]
    ) -> None:
        """Map inputs (read-only) and expected outputs."""
        if descriptors:
            self.close()
            for each in self.maps:
                each.close()
            self.maps = [Mapping(descriptors[0], writable=False), Mapping(descriptors[1], writable=True)]
        for each, where in zip(self.maps, (message["inputs"], message["outputs"])):
            # Page faults are taken here, outside the clock that times the reference.
            each.populate(where["stride"] * where["sets"])
        self.outputs = outputs
        self.inputs = self.view(0, message["inputs"], inputs)
        self.targets = self.view(1, message["outputs"], outputs)

    def begin(self) -> None:
        """Begin nothing: there is no context."""

    def start(self) -> None:
        """Prepare nothing."""

    def view(self, number: int, where: Dict[str, Any], items: Sequence[Tensor]) -> List[Tuple[Any, ...]]:
        """Return the tensors of every set as arrays over a map: 0 is that of the inputs."""
        memory: Any = (ctypes.c_uint8 * self.maps[number].size).from_address(self.maps[number].address)
        whole: Array = np.frombuffer(memory, dtype=np.uint8)
        # NumPy refuses a write with an exception that names it; the mapping alone would end the process.
        whole.flags.writeable = number > 0
        sets: List[Tuple[Any, ...]] = []
        for start in range(0, where["sets"] * where["stride"], where["stride"]):
            parts = ((item, whole[start + at : start + at + item.nbytes]) for at, item in zip(where["offsets"], items))
            sets.append(tuple(part.view(NATIVE[item.dtype]).reshape(item.shape) for item, part in parts))
        return sets

    def close(self) -> None:
        """Let the arrays go and keep the maps: the next shape lies in the same files, unless it comes with others."""
        self.inputs, self.targets = [], []

    def store(self, number: int, results: Sequence[Any]) -> None:
        """Convert and copy the results of one call."""
        for item, target, result in zip(self.outputs, self.targets[number], results):
            target[...] = self.converted(item, result)

    def converted(self, item: Tensor, result: Any) -> Array:
        """Return a result in the declared dtype, or say why it cannot be one."""
        got = np.asarray(result)
        check_shape(item, got.shape)
        stored = NATIVE[item.dtype]
        if item.dtype in SHORT:
            return got if got.dtype == stored else short_bits(got, item.dtype)
        if got.dtype != stored:
            if got.dtype.kind not in "biuf" or (got.dtype.kind == "f" and np.dtype(stored).kind != "f"):
                raise BadResult("output %s is %s, declared as %s" % (item.name, got.dtype, item.dtype))
            self.said["the reference returns %s for %s; it is converted to %s" % (got.dtype, item.name, item.dtype)] = (
                None
            )
        return got

    def answers(self, call: int) -> Tuple[Any, ...]:
        """Return what a call's answers are."""
        return self.targets[call]

    def ping(self) -> None:
        """Do nothing: to be running again is all."""

    def spin(self, seconds: float) -> float:
        """Keep a core busy for a while; return for how long."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            pass
        return time.perf_counter() - begin

    def finish(self) -> None:
        """Wait for nothing: NumPy returns when it is done."""

    def peak_bytes(self) -> int:
        """Return the most memory that this process ever had."""
        # Linux counts ru_maxrss in KiB.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def notes(self) -> List[str]:
        """Return what was converted."""
        return list(self.said)
