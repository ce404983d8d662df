"""Reasons for which a model's results are copied; the allocator is the real one, over this process's memory."""

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_mcp_server.judge.candidate import torch_mempool
from gpu_mcp_server.judge.candidate.torch_mempool import Pool

RUNTIME = """
#include <cstddef>
#include <cstdlib>
typedef void *cudaStream_t;
enum { cudaSuccess };
static int cudaSetDevice(int) { return cudaSuccess; }
static int cudaMalloc(void **at, size_t bytes) { return (*at = malloc(bytes)) ? cudaSuccess : 1; }
static int cudaFree(void *at) { return free(at), cudaSuccess; }
"""
ARENA = 4096


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("pool")
    (folder / "cuda_runtime.h").write_text(RUNTIME)
    source = Path(torch_mempool.__file__).with_name("pool.cu")
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-I", folder, "-o", folder / "pool.so", "-x", "c++", source]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(folder / "pool.so"))
    found.pool_alloc.restype, found.pool_alloc.argtypes = (
        ctypes.c_uint64,
        [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p],
    )
    found.pool_free.argtypes = [ctypes.c_uint64, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    return found


class Tensor:
    dtype, shape, conjugate = "float32", (8,), False

    def __init__(self, at: int) -> None:
        self.at = at

    def stride(self):
        return (1,)

    def is_neg(self):
        return False

    def is_conj(self):
        return self.conjugate

    def data_ptr(self):
        return self.at

    def element_size(self):
        return 4


class LazyProduct(Tensor):
    """A subclass, as one whose product is computed at the first look."""


@pytest.fixture
def pool(library: ctypes.CDLL):
    arena = ctypes.create_string_buffer(ARENA)
    at = ctypes.addressof(arena)
    library.pool_region(ctypes.c_uint64(at), ctypes.c_uint64(ARENA))
    found = Pool.__new__(Pool)
    found.torch, found.library, found.arena, found.size = SimpleNamespace(Tensor=Tensor), library, at, ARENA
    yield found
    library.pool_region(ctypes.c_uint64(0), ctypes.c_uint64(0))
    del arena


def why(pool: Pool, one: Tensor, two: Tensor) -> str:
    return pool.why_not(pool.places([one], [Tensor(0)]), pool.places([two], [Tensor(0)]))


def test_results_in_the_arena_stay_there(pool: Pool, library: ctypes.CDLL):
    assert why(pool, Tensor(library.pool_alloc(32, 0, None)), Tensor(library.pool_alloc(32, 0, None))) == ""


def test_a_result_that_found_the_arena_full_is_not_said_to_be_from_elsewhere(pool: Pool, library: ctypes.CDLL):
    first = library.pool_alloc(512, 0, None)
    library.pool_alloc(ARENA - 512, 0, None)
    second = library.pool_alloc(1024, 0, None)
    # torch cuts a segment into blocks, so a result may begin anywhere in it.
    assert why(pool, Tensor(first), Tensor(second + 512)) == (
        "the model's other tensors filled the 4.1e-06 GB that the judge has for outputs"
    )
    library.pool_free(second, 1024, 0, None)
    assert "from before the call" in why(pool, Tensor(first), Tensor(second + 512))


def test_a_result_from_elsewhere_says_what_may_have_made_it(pool: Pool):
    kept = ctypes.create_string_buffer(64)
    assert "as of a CUDA graph" in why(pool, Tensor(ctypes.addressof(kept)), Tensor(ctypes.addressof(kept)))


def test_a_result_that_computes_when_it_is_read_is_named_by_its_type(pool: Pool, library: ctypes.CDLL):
    inside = library.pool_alloc(32, 0, None)
    assert "a LazyProduct, no plain torch.Tensor" in why(pool, LazyProduct(inside), LazyProduct(inside))
    conjugate = Tensor(inside)
    conjugate.conjugate = True
    assert "lazy negation or conjugate" in why(pool, conjugate, conjugate)
