"""The owner's own kernels, one by one, on the fake driver."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.judge.harness import JUDGE

sys.path.insert(0, str(JUDGE))

from check import compare
from tensors import ITEM_BYTES

sys.path.remove(str(JUDGE))

KIND = list(ITEM_BYTES).index
"""The number of a type in kernels.cu."""
Launch = Callable[..., None]


@pytest.fixture
def launch(driver: Path) -> Launch:
    """Return a function that runs a kernel on the processor, with arguments of ctypes."""
    library = ctypes.CDLL(str(driver / "libcuda.so.1"))

    def run(name: str, *arguments: Any) -> None:
        function = ctypes.c_void_p()
        table = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(one) for one in arguments])
        library.cuCtxSetCurrent(ctypes.c_void_p(1))
        assert library.cuModuleGetFunction(ctypes.byref(function), None, name.encode()) == 0
        assert library.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, None, table, None) == 0

    return run


def at(array: np.ndarray[Any, Any]) -> ctypes.c_uint64:
    """Return where an array lies."""
    return ctypes.c_uint64(array.ctypes.data)


@pytest.mark.parametrize(
    ("dtype", "off", "wrong"),
    [("int32", 9999, 64), ("int64", 9999, 64), ("int64", 0, 0), ("float32", 9999, 0), ("float64", 10001, 64)],
)
def test_the_fence_has_the_tolerance_of_the_full_check(launch, dtype, off, wrong):
    expected, wrongs = np.full(1000, 1_000_000, dtype=dtype), np.zeros(1, dtype=np.uint64)
    got, stride, rtol, atol = expected + np.dtype(dtype).type(off), expected.nbytes, 1e-2, 1e-6
    row = [expected.ctypes.data, got.ctypes.data, stride, stride, expected.size, KIND(dtype)]
    items = np.array([row], dtype=np.int64)
    counts = [ctypes.c_int64(count) for count in (1, 1, 64)]
    tolerances = [ctypes.c_double(rtol), ctypes.c_double(atol)]
    launch("fence", at(items), *counts, ctypes.c_uint64(5), *tolerances, at(wrongs))

    assert wrongs[0] == wrong
    assert (compare(expected, got, dtype, rtol, atol).wrong > 0) == (wrong > 0)
