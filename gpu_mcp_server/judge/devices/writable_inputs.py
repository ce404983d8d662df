"""Inputs that the candidate may write to: copies of the owner's, compared with these after a call; nothing is judged.

Else inputs are mapped read-only, and a candidate that writes to one dies like one that reads astray.
"""

from typing import Any, Dict, Iterable, List, Tuple

import numpy as np

from ..numerics.tensors import Array
from .memory_cpu import CpuBuffers, Region
from .memory_cuda import CudaBuffers


def count_changes(pairs: Iterable[Tuple[Array, Array]]) -> List[int]:
    """Return of each input, as the owner has it and as the candidate left it, how many elements differ in any bit."""
    found: List[int] = []
    for pair in pairs:
        # Bits and not values are compared: NaN differs from itself, and -0.0 equals 0.0.
        before, after = (each.view(np.uint8).reshape(each.size, -1) for each in pair)
        found.append(int(np.count_nonzero((before != after).any(axis=1))))
    return found


class WritableCpuBuffers(CpuBuffers):
    """In files of which the candidate gets another one for its inputs."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.copy = Region(self.input_layout.total, writable_by_others=True)

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return layouts and descriptors; the candidate's inputs are writable."""
        fields, descriptors = super().describe(role)
        if role != "candidate":
            return fields, descriptors
        return dict(fields, writable=True), [self.copy.fd, self.output_region.fd]

    def publish(self) -> None:
        """Copy the inputs to where the candidate may write."""
        total = self.input_layout.total
        self.copy.bytes[:total] = self.input_region.bytes[:total]

    def count_changes(self) -> List[int]:
        """Return of each input how many elements of the first call were changed."""
        given = (self.copy.tensor(self.input_layout, item, number)[0] for number, item in enumerate(self.inputs))
        return count_changes((self.input_elements(number), after) for number, after in enumerate(given))

    def close(self) -> None:
        """Give the copy back."""
        self.copy.close()


class WritableCudaBuffers(CudaBuffers):
    """The candidate's copy of the inputs, which it may write to."""

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return layouts and descriptors; the candidate's inputs are writable."""
        fields, descriptors = super().describe(role)
        return (dict(fields, writable=True) if role == "candidate" else fields), descriptors

    def count_changes(self) -> List[int]:
        """Return of each input how many elements of the first call were changed."""
        places = [self.given.address + offset for offset in self.input_layout.offsets]
        given = (self.tools.elements(at, item) for at, item in zip(places, self.inputs))
        return count_changes((self.input_elements(number), after) for number, after in enumerate(given))
