"""Occupancy against values that others published or measured."""

import re
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import KernelResources
from gpu_mcp_server.toolchains.occupancy import AMD, NVIDIA, amd_waves, limits_of, occupancy

DATA = Path(__file__).parent / "data" / "hip"


def kernel(registers: int, shared: int = 0, arch: str = "sm_90", **more: int) -> KernelResources:
    return KernelResources.model_validate(
        {"kernel": "k", "registers_per_thread": registers, "shared_bytes": shared, "arch": arch, **more}
    )


@pytest.mark.parametrize(
    ("registers", "shared", "arch", "block", "blocks", "percent", "limiter"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers, 64K registers, 2048 threads.
        (37, 0, "sm_80", 128, 12, 75.0, "registers"),
        (37, 0, "sm_80", 320, 4, 62.5, "registers"),
        # Nsight Compute 2025.3.1 on an H200: theoretical occupancy of a tiled sgemm and of a Triton matmul's limits.
        (32, 8192, "sm_90", 1024, 2, 100.0, "warps"),
        # CUDA C++ Programming Guide: at most 227 KiB a block, and 1 KiB of each is the system's.
        (32, 227 * 1024, "sm_90", 128, 1, 6.2, "shared memory"),
        (32, 227 * 1024 + 1, "sm_90", 128, 0, 0.0, "shared memory"),
        (255, 0, "sm_90", 1024, 0, 0.0, "registers"),
        (16, 0, "sm_89", 32, 24, 50.0, "blocks"),
        (16, 0, "sm_86", 1024, 1, 66.7, "warps"),
    ],
)
def test_nvidia(registers, shared, arch, block, blocks, percent, limiter):
    found = occupancy(kernel(registers, shared, arch), block)
    assert found is not None
    assert (found.blocks, found.percent, found.limiter) == (blocks, percent, limiter)


def test_dynamic_shared_memory_counts():
    found = occupancy(kernel(32, 0), 256, dynamic_shared=98 * 1024)
    assert found is not None and (found.blocks, found.limiter) == (2, "shared memory")


@pytest.mark.parametrize(
    ("registers", "waves"),
    [(24, 8), (64, 8), (65, 7), (72, 7), (80, 6), (96, 5), (128, 4), (168, 3), (256, 2), (512, 1)],
)
def test_waves_of_a_simd_as_amd_s_table_for_cdna_has_them(registers, waves):
    # AMD, "MI200 performance counters and metrics" and the CDNA occupancy table of the ROCm documentation.
    assert amd_waves(registers, AMD["gfx90a"]) == waves


@pytest.mark.parametrize("name", ["spilled_clang15", "spilled_clang19", "waves_clang15", "waves_clang19"])
def test_waves_of_a_simd_as_clang_itself_says(name):
    text = (DATA / f"{name}.stderr").read_text()
    said = re.findall(r"VGPRs: (\d+) .*?AGPRs: (\d+) .*?Occupancy \[waves/SIMD\]: (\d+) ", text, re.DOTALL)
    assert said
    for vector, accumulation, waves in said:
        assert amd_waves(int(vector) + int(accumulation), AMD["gfx90a"]) == int(waves)


def test_accumulation_registers_share_the_file():
    found = occupancy(kernel(126, arch="gfx942", accumulation_registers=128), 256)
    assert found is not None and (found.blocks, found.percent, found.limiter) == (2, 25.0, "registers")


def test_an_unknown_architecture_has_none_and_features_do_not_matter():
    assert occupancy(kernel(32, arch="sm_61"), 128) is None
    assert limits_of("gfx90a:xnack-") == AMD["gfx90a"] and limits_of("sm_90a") == NVIDIA["90"]


@pytest.mark.parametrize("block", [0, -1, 1025])
def test_a_block_that_cannot_be_is_refused(block):
    with pytest.raises(BadRequest, match="1 to 1024"):
        occupancy(kernel(32), block)
