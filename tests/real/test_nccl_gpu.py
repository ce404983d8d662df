"""NCCL on real GPUs: the transformed programs verify, and faults that only a run can show are caught."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.models.nccl_check import NcclRunOptions
from gpu_mcp_server.nccl.stages.transformation import transform
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
PROGRAMS = Path("tests/nccl/programs")
OURS = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
"""What the machine wants of NCCL: jobs do not inherit it."""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "environment": OURS}}) as lab:
        host = await lab.nccl.verifier.hosts.describe_host(None)
        if host.nvlink_group_size < 2 or host.install is None:
            pytest.skip("needs two GPUs with NVLink, and NCCL with headers")
        yield lab


def transformed(name: str, old: str = "", new: str = "") -> tuple[dict[str, str], str, str]:
    text = (PROGRAMS / name).read_text(encoding="utf-8")
    result, made = transform({name: text}, name, nccl_version=(2, 28, 9))
    if old:
        assert old in made["ncclx_kernels.cuh"]
        made["ncclx_kernels.cuh"] = made["ncclx_kernels.cuh"].replace(old, new, 1)
    return {name: text, **made}, result.main or "", name


@pytest.mark.parametrize("name", ["alltoall.cu", "allreduce.cu"])
async def test_a_transformed_program_is_verified(lab: Lab, name: str):
    files, main, original = transformed(name)
    said = await lab.nccl.verifier.verify(files, main, original=original, options=NcclRunOptions())

    assert [c for c in said.checks if c.status == "failed"] == [], said.summary()
    assert said.verdict == "verified", said.summary()
    assert said.timings


async def test_an_element_that_is_not_copied_is_found_by_the_differential_program(lab: Lab):
    files, main, original = transformed("alltoall.cu", "for (; i < n; i += threads)", "for (; i + 1 < n; i += threads)")
    said = await lab.nccl.verifier.verify(files, main, original=original, options=NcclRunOptions())

    assert said.verdict == "failed"
    assert {c.name for c in said.checks if c.status == "failed"} & {"run", "differential", "stress"}, said.summary()
