"""Compiled loops over elements (`elements.c`), where the host has a C compiler; NumPy does the same, more slowly."""

import ctypes
import hashlib
import os
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ..folders import CODE
from .tensors import Array

LIBRARY = os.path.join(CODE, "elements.so")
COMPILED = "compiled code"
INTERPRETED = "NumPy"


class Elements:
    """The loops, once they are loaded, or the lack of them."""

    def __init__(self) -> None:
        self._mark: Any = None
        self._draw: Any = None
        self.sha256: Dict[str, str] = {}
        """Of the file that is mapped, by its name, for the evidence."""

    def load(self, library: str = LIBRARY) -> None:
        """Load the library if it is there: it comes with the job, and this module may have been imported before."""
        try:
            loaded, self.sha256 = _mapped(library)
        except OSError:
            return
        pointer, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        self._mark, self._draw = loaded.mark_float32, loaded.draw_float32
        self._mark.argtypes = [pointer, pointer, count, number, number, number, pointer, pointer]
        self._draw.argtypes = [pointer, count, count, pointer, pointer, pointer]
        self._mark.restype = self._draw.restype = None

    @property
    def by(self) -> str:
        """Return the implementation's name, for the evidence."""
        return COMPILED if self._mark is not None else INTERPRETED

    def mark(
        self, expected: Array, got: Array, rtol: float, atol: float, least: float
    ) -> Optional[Tuple[Array, float, float]]:
        """Return of flat float32 arrays which elements are wrong, and the largest errors.

        Returns:
            `None` where nothing can be said here.
        """
        # The loops read raw pointers: a shorter, strided or other-typed array would be misread silently.
        if self._mark is None or not (_plain(expected) and _plain(got) and expected.size == got.size):
            return None
        worst: Array = np.zeros(2, dtype=np.float32)
        wrong: Array = np.empty(expected.size, dtype=np.bool_)
        # ctypes releases the GIL for the call, so slabs on several threads run side by side.
        self._mark(_at(expected), _at(got), expected.size, rtol, atol, least, _at(wrong), _at(worst))
        return wrong, float(worst[0]), float(worst[1])

    def draw(self, into: Array, chunk: int, table: Array, jitter: Array, state: Array) -> bool:
        """Fill a flat float32 array as `random_inputs` does, from a generator's state; False where that cannot be."""
        if self._draw is None or not (_plain(into) and _plain(table) and _plain(jitter)):
            return False
        self._draw(_at(into), into.size, chunk, _at(table), _at(jitter), _at(state))
        return True


def _mapped(library: str) -> Tuple[ctypes.CDLL, Dict[str, str]]:
    """Map a library; return it and the hash of the very file that is mapped.

    The descriptor stays open: the loader knows a library by its path, and this number must never mean another.
    """
    descriptor = os.open(library, os.O_RDONLY | os.O_CLOEXEC)
    with open(descriptor, "rb", closefd=False) as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return ctypes.CDLL("/proc/self/fd/%d" % descriptor), {os.path.basename(library): digest}


def _plain(array: Array) -> bool:
    return bool(array.dtype == np.float32 and array.flags.c_contiguous)


def _at(array: Array) -> int:
    return int(array.ctypes.data)


ELEMENTS = Elements()
