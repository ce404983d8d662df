"""Allocations of a launcher when memory was not enough: wrapped at link time, read by the candidate process."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.toolchains import malloc_wrapper, nvcc
from gpu_mcp_server.toolchains.base import Toolchain
from tests.judge_package import packages

LAUNCHER = """
#include <cuda_runtime.h>
#include <cstdint>
extern "C" int launch(int64_t which, int64_t bytes) {
    void *at; float *typed; size_t pitch;
    switch (which) {
    case 0: return cudaMalloc(&at, bytes);
    case 1: return cudaMallocAsync(&typed, bytes, 0);
    case 3: return cudaMallocManaged(&typed, bytes);
    case 4: return cudaMallocHost(&at, bytes);
    case 5: return cudaHostAlloc(&typed, bytes, cudaHostAllocMapped);
    default: return cudaMallocPitch(&at, &pitch, 1000, bytes);
    }
}
"""
ASK = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
from gpu_mcp_judge.candidate import shared_library as library
from gpu_mcp_judge.candidate.candidate_process import CpuMemory
library.LIBRARY = sys.argv[2]
for which in (0, 1, 3, 4, 5, 6):
    one = library.Library({"symbol": "launch", "inputs": []}, CpuMemory())
    assert not one.load({})
    where = {"sets": 1, "stride": 0, "offsets": []}
    one.open({"inputs": where, "outputs": where, "dims": [which, 3 << 40], "named_dims": {}}, [0, 0])
    print(json.dumps(one.run(1)))
"""


def planned(source: str):
    return nvcc.plan(source, Toolchain("nvcc", shutil.which("nvcc") or "nvcc", "13.0"), "sm_90", name="k.cu")


def test_a_source_that_allocates_nothing_is_built_as_ever():
    plan = planned('extern "C" int launch() { return 0; }')

    assert not [a for a in plan.argv if "wrap" in a] and list(plan.files) == ["k.cu"]


def test_the_judge_knows_the_functions_by_the_same_numbers():
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); from gpu_mcp_judge.candidate import shared_library as c; print(json.dumps(c.ALLOCATE))"
    found = subprocess.run([sys.executable, "-c", code, packages()], check=True, capture_output=True).stdout

    assert json.loads(found) == list(malloc_wrapper.FUNCTIONS)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_an_allocation_that_fails_is_named_with_its_size_under_the_static_runtime(tmp_path: Path):
    """Without a GPU every allocation fails, with another code than out of memory: what was asked is recorded alike."""
    plan = planned(LAUNCHER)
    for name, text in plan.files.items():
        (tmp_path / name).write_text(text)
    subprocess.run(plan.argv, cwd=tmp_path, check=True, capture_output=True)
    assert "-cudart=static" in plan.argv

    run = subprocess.run(
        [sys.executable, "-c", ASK, packages(), tmp_path / plan.output], check=True, capture_output=True, text=True
    )
    replies = [json.loads(line) for line in run.stdout.splitlines()]
    assert all(reply["code"] for reply in replies), replies
    asked = [(reply["asked"]["by"], reply["asked"]["bytes"]) for reply in replies]
    names = ["cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc"]
    assert asked == [*((name, 3 << 40) for name in names), ("cudaMallocPitch", 3000 << 40)]
