"""Triton ahead of time: real kernels for NVIDIA and AMD, without a GPU and without torch."""

import os
from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import object_files, triton
from gpu_mcp_server.toolchains.base import Toolchain
from gpu_mcp_server.toolchains.disassembly_listings import tensor_types
from gpu_mcp_server.workers.triton_aot import split
from tests.laboratory import laboratory

FOUND = Toolchain("triton", "/usr/bin/python3", "3.9.0", archs=("sm_80", "sm_90", "gfx942"))
SCALED = """import triton
import triton.language as tl


@triton.jit
def scaled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, v * 2.0, mask=at < n)
"""
MATMUL = """import triton
import triton.language as tl


@triton.jit
def matmul(A, B, C, N, BM: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BM), tl.float32)
    for k in range(0, N, BK):
        a = tl.load(A + rm[:, None] * N + (k + rk)[None, :])
        b = tl.load(B + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(C + rm[:, None] * N + rn[None, :], acc)
"""
TYPES = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32"}
MATRICES = {"A": "*fp16:16", "B": "*fp16:16", "C": "*fp32:16", "N": "i32:16"}


def test_types_carry_their_alignment():
    assert split({"x": "*fp32:16", "n": "i32"}) == ({"x": "*fp32", "n": "i32"}, ["x"])


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"signature": {"x": "*float"}}, "no type"),
        ({"signature": {"x": "*fp32; import os"}}, "no type"),
        ({"flags": ("-O3",)}, "no compiler flags"),
    ],
)
def test_what_triton_does_not_take_is_refused(wish, words):
    with pytest.raises(BadRequest, match=words):
        triton.plan("", FOUND, "sm_90", BuildOptions.model_validate(wish))


@pytest.mark.parametrize(
    ("given", "words"),
    [({"grid": 1}, "has no grid"), ({"signature": ["*fp32"]}, "signature"), ({"constants": {"B": []}}, "constants.B")],
)
def test_what_a_caller_says_of_triton_is_checked(given, words):
    with pytest.raises(BadRequest, match=words):
        BuildOptions().for_triton(given)


@pytest.mark.parametrize("arch", ["native", "sm_77", "gfx777", "cuda"])
def test_an_unknown_architecture_lists_the_known_ones(arch):
    with pytest.raises(BadRequest, match="Known are sm_80, sm_90, gfx942"):
        triton.plan("", FOUND, arch, BuildOptions())


OTHERS = [p for p in os.environ.get("TEST_TRITON_PYTHONS", "").split(":") if p]
"""Interpreters with further versions of Triton, such as 2.3.1 (with NumPy < 2 and setuptools), tried when named."""


@pytest.fixture(scope="module", params=["", *OTHERS])
async def lab(request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    host = {"kind": "local", **({"judge_python": request.param} if request.param else {})}
    async with laboratory(hosts={"local": host}) as lab:
        pythons = (await lab.hosts.probe("local")).toolchains.pythons
        if not any(p.triton for p in pythons):
            pytest.skip("Triton is not installed (pip install triton)")
        assert not request.param or pythons[0].path == request.param
        yield lab


async def knows(lab: Lab, arch: str) -> None:
    """Skip where this Triton makes no code for an architecture."""
    python = next(p for p in (await lab.hosts.probe("local")).toolchains.pythons if p.triton)
    if arch not in python.archs:
        pytest.skip(f"Triton {python.triton} does not know {arch}")


async def compiled(lab: Lab, source: str, **wish: object):
    given = {"arch": "sm_90", "signature": TYPES, "constants": {"BLOCK": 1024}, **wish}
    return await lab.builds.compiler.compile(
        CandidateSource(source, "triton", "k.py"), BuildOptions.model_validate(given)
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx90a", "gfx942"])
async def test_a_kernel_becomes_a_binary_with_resources_listing_and_occupancy(lab: Lab, arch: str):
    await knows(lab, arch)
    result = await compiled(lab, SCALED, arch=arch, constants={"BLOCK": 1024, "num_warps": 4})
    assert result.status == "ok", result.summary()
    (kernel,) = result.resources
    assert kernel.kernel.partition("_0d")[0] == "scaled", (
        "Triton 2 says of its arguments in the name which are divisible"
    )
    assert kernel.arch == arch and 0 < kernel.registers_per_thread < 64
    assert kernel.occupancy and kernel.occupancy.block_threads == 4 * (64 if arch.startswith("gfx9") else 32)
    listing = (await lab.store.artifacts.read(result.listing_artifact_id or "")).decode()
    assert object_files.architecture_in(listing).rstrip("a") in (arch, arch.rstrip("a"))
    assert "scaled" in listing
    binary = await lab.store.artifacts.read(result.artifact_id or "")
    (of_binary,) = object_files.kernels_of(binary, arch)
    assert of_binary.registers_per_thread == kernel.registers_per_thread
    if arch.startswith("sm_"):
        unknown = kernel.spill_store_bytes is None  # an older Triton keeps the log of ptxas to itself
        assert "spills unknown" in kernel.line_text() if unknown else kernel.spill_store_bytes == 0
        assert of_binary.spill_store_bytes is None and "spills unknown" in of_binary.line_text(), "a cubin does not"


async def test_spills_are_what_ptxas_says(lab: Lab):
    tight = {"signature": MATRICES, "constants": {"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 2, "maxnreg": 96}}
    (kernel,) = (await compiled(lab, MATMUL, **tight)).resources
    if kernel.spill_store_bytes is None:
        assert "spills unknown" in kernel.line_text(), "an older Triton keeps the log of ptxas to itself"
    else:
        assert kernel.spill_store_bytes > 0 and kernel.spill_load_bytes


@pytest.mark.parametrize(
    ("arch", "given", "types"),
    [
        *(("sm_90", "fp16", "fp16"), ("sm_90", "bf16", "bf16"), ("sm_90", "fp8e4nv", "fp8"), ("sm_90", "fp32", "tf32")),
        *(("sm_90", "i8", "int8"), ("sm_89", "fp8e4nv", "fp8"), ("sm_100", "fp8e4nv", "fp8 fp6 fp4")),
    ],
)
async def test_a_dot_is_told_by_the_type_of_its_instructions(lab: Lab, arch: str, given: str, types: str):
    await knows(lab, arch)
    signature = MATRICES | {"A": f"*{given}:16", "B": f"*{given}:16"} | ({"C": "*i32:16"} if given == "i8" else {})
    text = MATMUL.replace("tl.float32", "tl.int32") if given == "i8" else MATMUL
    result = await compiled(
        lab, text, arch=arch, signature=signature, constants={"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 2}
    )
    assert result.status == "ok", result.summary()
    kernels = await lab.builds.inspector.kernels(result.artifact_id or "", "local")
    found = {tensor_types(instruction.opcode) for kernel in kernels for instruction in kernel.instructions}

    assert found - {()} == {tuple(types.split())}


async def test_the_shared_memory_of_a_launch_is_counted_and_too_much_of_it_is_said(lab: Lab):
    matmul = {"signature": MATRICES, "constants": {"BM": 128, "BK": 64, "num_warps": 8, "num_stages": 3}}
    result = await compiled(lab, MATMUL, **matmul)
    assert result.resources[0].shared_bytes == 3 * 2 * 128 * 64 * 2
    assert result.resources[0].occupancy and result.resources[0].occupancy.blocks == 2
    matmul["constants"] = {"BM": 128, "BK": 64, "num_warps": 8, "num_stages": 8}
    result = await compiled(lab, MATMUL, **matmul)
    assert result.diagnostics[0].message.startswith("out of resource: shared memory, a block needs 262144 bytes")


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        (SCALED.replace("v * 2.0", "v * nope"), 9, "nope is not defined"),
        (SCALED.replace("import triton\n", "import nosuchmodule\n", 1), 1, "No module named 'nosuchmodule'"),
        (SCALED.replace("@triton.jit", "@triton.jit("), 5, "SyntaxError"),
    ],
)
async def test_an_error_is_at_its_line_of_the_file(lab: Lab, source: str, line: int, words: str):
    result = await compiled(lab, source)
    assert result.status == "failed" and result.diagnostics[0].line == line, result.summary()
    assert words in result.diagnostics[0].message


async def test_an_error_in_a_launch_at_the_files_top_is_told_as_tritons_compiler_tells_it(lab: Lab):
    launch = "\nscaled[(1,)](triton.MockTensor(tl.float32), triton.MockTensor(tl.float32), 9, BLOCK=16)\n"
    result = await compiled(lab, SCALED.replace("v * 2.0", "v * nope") + launch, kernel="")
    first = result.diagnostics[0]
    assert (first.line, first.column) == (9, 26), result.summary()
    assert "nope is not defined" in first.message and "BLOCK: tl.constexpr" not in result.summary()


async def test_an_error_in_a_function_that_the_kernel_calls_is_told_at_its_own_line(lab: Lab):
    helper = "\n\n@triton.jit\ndef doubled(v):\n    w = v + v\n    return w + nope\n"
    result = await compiled(lab, SCALED.replace("v * 2.0", "doubled(v)") + helper, kernel="scaled")
    first = result.diagnostics[0]
    assert first.line == 15 and "nope is not defined" in first.message, result.summary()


async def test_what_a_kernel_without_types_lacks_is_told_with_an_example(lab: Lab):
    top = "print('ptxas-blackwell info    : Used 8 registers')\n"
    said = (await compiled(lab, top + SCALED, signature={})).summary()
    assert "error: kernel scaled takes" in said and '"signature": {"x": "*fp32"' in said
    alone = (await compiled(lab, "from .utils import calculate_settings\n" + SCALED)).summary()
    assert "error: ImportError" in alone and "compiled alone, without its package" in alone


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"signature": {"x": "*fp32", "n": "i32"}}, "signature and constants lack y"),
        ({"constants": {"BLOCK": 64, "WRONG": 1}}, "it has no argument WRONG"),
        ({"kernel": "other"}, "there is no kernel 'other'; the file has scaled"),
    ],
)
async def test_arguments_that_do_not_fit_the_kernel_are_named(lab: Lab, wish: dict[str, object], words: str):
    result = await compiled(lab, SCALED, **wish)
    assert result.status == "failed" and words in result.diagnostics[0].message, result.summary()


async def test_a_file_that_asks_for_the_gpu_as_it_is_loaded_compiles(lab: Lab):
    top = "import triton\nTARGET = triton.runtime.driver.active.get_current_target()\nassert TARGET.arch == 90\n"
    source = top + SCALED + "\n\nraise RuntimeError('no display')\n"
    result = await compiled(lab, source, signature=TYPES, constants={"BLOCK": 1024}, arch="sm_90", kernel="scaled")
    assert result.status == "ok", result.summary()
    (said,) = result.diagnostics
    assert (said.severity, said.line) == ("warning", len(source.splitlines())) and "no display" in said.message


async def test_what_ptxas_refuses_is_an_error_of_ptxas_and_short(lab: Lab):
    bad = (
        'v = tl.inline_asm_elementwise("nosuch.f32 $0, $1;", "=r,r", [v], dtype=tl.float32, is_pure=True, pack=1)\n    '
    )
    result = await compiled(lab, SCALED.replace("tl.store(", bad + "tl.store("))
    assert result.status == "failed" and "nosuch" in result.diagnostics[0].message, result.summary()
    assert len(result.summary()) < 2000
