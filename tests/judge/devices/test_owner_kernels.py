"""The owner's own kernels, one by one, on the fake driver."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_mcp_judge.numerics.compare import STORAGE, numbers
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


def fence_of(launch: Launch, row: list[int], sets: int, key: int = 5) -> np.ndarray[Any, Any]:
    """Return the words that the fence takes of one output."""
    seen, items = np.zeros(sets * 64, dtype=np.uint64), np.array([row], dtype=np.int64)
    counts = [ctypes.c_int64(count) for count in (1, sets, 64)]
    launch("fence", at(items), *counts, ctypes.c_uint64(key), at(seen))
    return seen


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_the_fence_takes_elements_as_they_are_and_others_for_another_key(launch, dtype):
    """A NaN is one bit pattern among others; whether elements are right is for the full check."""
    got = np.random.default_rng(1).integers(0, 256, (3, 1000 * ITEM_BYTES[dtype])).astype(np.uint8)
    words = got.view(f"uint{8 * ITEM_BYTES[dtype]}")
    row = [got.ctypes.data, got.strides[0], 1000, ITEM_BYTES[dtype], 0]
    seen = fence_of(launch, row, 3)

    assert all(np.isin(some, one).all() for some, one in zip(seen.reshape(3, 64), words, strict=True))
    assert (fence_of(launch, row, 3) == seen).all()
    assert (fence_of(launch, row, 3, key=6) != seen).any()


def test_the_fence_takes_no_element_between_those_of_an_output_with_strides(launch):
    got, view = np.zeros(4000, dtype=np.float32), np.array([1, 1000, 4], dtype=np.int64)
    got[::4] = np.arange(1, 1001)
    seen = fence_of(launch, [got.ctypes.data, got.nbytes, 1000, 4, view.ctypes.data], 1)

    assert (seen.astype(np.uint32).view(np.float32) > 0).all()


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
