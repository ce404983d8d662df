"""The owner's own kernels, one by one, on the fake driver."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_mcp_judge.numerics.compare import STORAGE, compare, numbers
from gpu_mcp_judge.numerics.tensors import ITEM_BYTES

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
    row = [expected.ctypes.data, got.ctypes.data, stride, stride, expected.size, KIND(dtype), 0]  # no strides
    items = np.array([row], dtype=np.int64)
    counts = [ctypes.c_int64(count) for count in (1, 1, 64)]
    tolerances = [ctypes.c_double(rtol), ctypes.c_double(atol)]
    launch("fence", at(items), *counts, ctypes.c_uint64(5), *tolerances, at(wrongs))

    assert wrongs[0] == wrong
    assert (compare(expected, got, dtype, rtol, atol).wrong > 0) == (wrong > 0)


DISTRIBUTIONS = ["normal", "uniform", "offset", "outliers", "zeros", "large", "integers"]
"""As numbered in kernels.cu."""


def drawn(launch: Launch, dtype: str, distribution: str, count: int = 5003, sets: int = 3) -> np.ndarray[Any, Any]:
    """Return what the kernel draws, [sets, count]."""
    size = -(-count * ITEM_BYTES[dtype] // 256) * 256
    room = np.zeros(size * sets + 16, dtype=np.uint8)
    base = room[-room.ctypes.data % 16 :][: size * sets]
    counts = [ctypes.c_int64(number) for number in (size, count, sets)]
    kinds = [ctypes.c_int(number) for number in (KIND(dtype), DISTRIBUTIONS.index(distribution))]
    launch("fill", at(base), *counts, *kinds, ctypes.c_uint64(0x123456789ABCDEF))
    return base.view(STORAGE[dtype]).reshape(sets, -1)[:, :count]


@pytest.mark.parametrize(
    ("distribution", "mean", "deviation"),
    [("normal", 0, 1), ("uniform", 0.5, 0.2887), ("offset", 3, 1), ("large", 0, 1000)],
)
def test_the_gpu_draws_float64_with_all_bits_of_a_double(launch, distribution, mean, deviation):
    values = drawn(launch, "float64", distribution, 100_003)

    assert np.unique(values).size == values.size
    assert (values.astype(np.float32) == values).mean() < 1e-4
    assert values.mean() == pytest.approx(mean, abs=0.01 * deviation)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    if distribution == "uniform":
        bits = (values * 2.0**53).astype(np.int64)
        assert (bits == values * 2.0**53).all() and bits.min() >= 0 and bits.max() < 1 << 53
        assert [(bits >> place & 1).mean() for place in range(53)] == pytest.approx([0.5] * 53, abs=0.01)


@pytest.mark.parametrize(
    ("dtype", "distribution", "last"),
    [
        ("float32", "uniform", [0.33184314, 0.86108124, 0.06887913]),
        ("float32", "normal", [0.95453399, -1.13800263, -1.65850937]),
        ("bfloat16", "uniform", [0.33203125, 0.859375, 0.06884766]),
        ("float64", "integers", [33, 86, 6]),
        ("int32", "integers", [33, 86, 6]),
        ("int64", "integers", [33, 86, 6]),
    ],
)
def test_a_key_draws_the_same_on_the_gpu_as_ever(launch, dtype, distribution, last):
    values = numbers(drawn(launch, dtype, distribution)[2, -3:], dtype)

    assert values.tolist() == pytest.approx(last, rel=1e-5)


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("int8", -128, 127), ("uint8", 0, 255), ("int32", 0, 99), ("int64", 0, 99)]
)
def test_the_gpu_draws_every_value_of_a_byte_and_few_of_longer_integers(launch, dtype, least, most):
    values, times = np.unique(drawn(launch, dtype, "integers", 100_003), return_counts=True)

    assert values.tolist() == list(range(least, most + 1))
    assert times.tolist() == pytest.approx([times.mean()] * times.size, rel=0.2)
