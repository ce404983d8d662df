"""Machine code by kernel: of listings captured here and of what the compilers make."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import object_files
from gpu_mcp_server.toolchains.disassembly_listings import opcode_summary, parse, tensor_types, view_of

DATA = Path(__file__).parent / "data"
KERNEL = """__global__ void add(const float4 *a, float4 *b, int n) {
  __shared__ float s[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = i; __syncthreads();
  if (i < n) { float4 v = a[i]; v.x += s[255 - threadIdx.x]; b[i] = v; atomicAdd(&b[0].x, 1.f); }
}
__global__ void small(float *x) { x[0] = 1.f; }
"""
SASS = """
//--------------------- .text._Z1kPf   --------------------------
_Z1kPf:
\t//## File "/job/k.cu", line 3
        /*0000*/                   LDG.E.128.CONSTANT R4, desc[UR6][R6.64] ;
        /*0010*/               @P0 LDG.E.U8 R5, desc[UR6][R8.64] ;
        /*0020*/              @!P1 STG.E.64 desc[UR6][R6.64], R4 ;
\t//## File "/job/k.cu", line 4
        /*0030*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0040*/                   STL.64 [R1+0x8], R2 ;
        /*0050*/                   RED.E.ADD.F32 desc[UR4][R2.64], R5 ;
        /*0060*/                   EXIT ;
"""
AMD = """scaled:
\t.loc\t1 7 3 ; k.py:7:3
\tglobal_load_dwordx4 v[0:3], v[4:5], off
\tds_read_b128 v[0:3], v4
\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
\tglobal_store_dword v0, v1, s[0:1]
\tglobal_store_b128 v0, v[1:4], s[0:1]
\tscratch_store_dword off, v1, off
\ts_endpgm
\ts_nop 0
"""


def test_sass_is_told_apart_by_width_and_kind_with_its_source_lines():
    (kernel,) = parse(SASS, "sass")
    assert kernel.name == "k(float*)" and [i.line for i in kernel.instructions] == [3, 3, 3, 4, 4, 4, 4]
    assert kernel.instructions[1].text == "@P0 LDG.E.U8 R5, desc[UR6][R8.64]"
    assert opcode_summary(kernel.instructions, "sass") == {
        "global load 128 bit": 1, "global load 8 bit": 1, "global store 64 bit": 1, "tensor": 1, "local memory": 1,
        "atomic": 1, "branch": 1,
    }  # fmt: skip


def test_amdgcn_is_told_apart_by_width_and_kind_without_its_padding():
    (kernel,) = parse(AMD, "amdgcn")
    assert len(kernel.instructions) == 7 and kernel.instructions[0].line == 7
    assert opcode_summary(kernel.instructions, "amdgcn") == {
        "global load 128 bit": 1, "LDS load": 1, "tensor": 1, "global store 32 bit": 1, "global store 128 bit": 1,
        "scratch memory": 1, "branch": 1,
    }  # fmt: skip


def test_ptx_shows_vectors_and_files_that_stand_at_its_end():
    text = (
        ".version 9.0\n.target sm_90\n.visible .entry _Z1kPf(\n\t.param .u64 p\n)\n{\n\t.loc 1 2 3\n"
        "\tld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];\n@%p1 bra L;\n\twgmma.mma_async.sync x;\n\tret;\n}\n"
        '.file 1 "/job/k.cu"\n'
    )
    (kernel,) = parse(text, "ptx")
    assert view_of(text) == "ptx" and kernel.instructions[0].file == "k.cu"
    assert opcode_summary(kernel.instructions, "ptx") == {"branch": 2, "global load v4": 1, "tensor": 1}


@given(st.text(max_size=400), st.binary(max_size=400), st.sampled_from(["sass", "ptx", "amdgcn"]))
@settings(max_examples=150, deadline=None)
def test_no_text_and_no_bytes_make_the_readers_raise(text, data, view):
    for listing in (text, SASS + text, AMD[:50] + text + AMD[50:]):
        for kernel in parse(listing, view):
            opcode_summary(kernel.instructions, view)
    object_files.kernels_of(data)
    object_files.kernels_of(b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xbe\x00" + data * 10)
    object_files.kernels_of(b"__CLANG_OFFLOAD_BUNDLE__" + data)


async def compiled(lab: Lab, text: str, language: str, **wish: object):
    source = CandidateSource(text, language, "k" + {"cuda": ".cu", "hip": ".hip"}[language])  # type: ignore[arg-type]
    result = await lab.builds.compiler.compile(source, BuildOptions.model_validate({"library": False, **wish}))
    assert result.status == "ok", result.summary()
    return result


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
async def test_sass_and_ptx_of_what_was_compiled(lab: Lab, compiler: str):
    toolchains = (await lab.hosts.probe("local")).toolchains
    if "nvdisasm" not in toolchains.tools or (compiler == "nvrtc" and toolchains.nvrtc is None):
        pytest.skip("nvdisasm or NVRTC is not installed")
    if compiler == "nvcc" and (await lab.hosts.probe("local")).nvcc is None:
        pytest.skip("nvcc is not installed")
    result = await compiled(lab, KERNEL, "cuda", arch="sm_90", compiler=compiler)
    seen = await lab.builds.inspector.inspect(result.attempt_id or "", kernel="add", max_lines=5)
    assert (seen.view, seen.arch, seen.kernel) == ("sass", "sm_90", "add(float4 const*, float4*, int)")
    assert seen.kernels[0].opcodes["global load 128 bit"] == 1 and seen.kernels[0].opcodes["atomic"] == 1
    assert "@k.cu:" in seen.text and seen.last_line == 5 and (seen.left_out_lines or 0) > 20
    assert len(seen.summary()) < 8000
    again = await lab.builds.inspector.inspect(result.artifact_id or "", kernel="add", first_line=6)
    assert again.first_line == 6 and again.listing_artifact_id == seen.listing_artifact_id
    ptx = await lab.builds.inspector.inspect(result.attempt_id or "", view="ptx", kernel="small")
    assert ptx.kernels[0].opcodes == {"branch": 1, "global store scalar": 1, "other": ptx.kernels[0].opcodes["other"]}


EVERYWHERE = {"fp16": "fp16", "fp16_sums": "fp16", "bf16": "bf16", "tf32": "tf32", "int8": "int8", "uint8": "int8"} | {
    "fp64": "fp64"
}
AMPERE = EVERYWHERE | {"nibbles": "int4", "bits": "binary"}
GROUPS = {f"{name}_group": name for name in ("fp16", "bf16", "tf32", "fp8", "int8")} | {"bits_group": "binary"}
DESCRIBED = {"kind_f16": "fp16 bf16 tf32", "kind_tf32": "fp16 bf16 tf32", "kind_i8": "int8", "kind_mxf4": "fp4"} | {
    "kind_f8f6f4": "fp8 fp6 fp4",
    "kind_mxf8": "fp8 fp6 fp4",
}
TENSOR_CORES = {
    "sm_80": AMPERE,
    "sm_89": AMPERE | {"fp8": "fp8"},
    # From Hopper on the warp's own instruction is made of others: of fp8 only wgmma and tcgen05 are.
    "sm_90a": EVERYWHERE | GROUPS | {"fp8": "fp16"},
    "sm_100a": EVERYWHERE | DESCRIBED | {"fp8": "fp16"},
    "sm_120a": EVERYWHERE
    | {name: name for name in ("fp8", "fp6", "fp4")}
    | {"fp8_with_fp4": "fp8 fp4", "mxfp8": "fp8", "nvfp4": "fp4"},
}


@pytest.mark.parametrize("arch", TENSOR_CORES)
async def test_the_types_of_tensor_core_instructions_are_told_apart(lab: Lab, arch: str):
    probe = await lab.hosts.probe("local")
    if probe.nvcc is None or "nvdisasm" not in probe.toolchains.tools:
        pytest.skip("nvcc or nvdisasm is not installed")
    text, flags = (DATA / "tensor_cores.cu").read_text(), [f"-DARCH={arch.strip('sm_a')}"]
    result = await compiled(lab, text, "cuda", arch=arch, compiler="nvcc", flags=flags)
    kernels = await lab.builds.inspector.kernels(result.artifact_id or "", "local")
    found = {k.name: [types for i in k.instructions if (types := tensor_types(i.opcode))] for k in kernels}

    assert {name: " ".join(each[0]) for name, each in found.items()} == TENSOR_CORES[arch]
    assert all(len(set(each)) == 1 for each in found.values())
    assert all(opcode_summary(kernel.instructions, "sass")["tensor"] == len(found[kernel.name]) for kernel in kernels)


async def test_amdgcn_out_of_a_library_with_its_resources(lab: Lab):
    toolchains = (await lab.hosts.probe("local")).toolchains
    if not toolchains.hip or "llvm-objdump" not in toolchains.tools:
        pytest.skip("hipcc or llvm-objdump is not installed")
    result = await compiled(lab, (DATA / "hip" / "spilled.hip").read_text(), "hip", arch="gfx90a")
    seen = await lab.builds.inspector.inspect(result.attempt_id or "", kernel="spilled")
    assert (seen.view, seen.arch) == ("amdgcn", "gfx90a")
    assert seen.kernels[0].opcodes["global load 32 bit"] == 96 and seen.kernels[0].opcodes["scratch memory"] > 100
    assert seen.resources[0].spilled_registers == result.resources[0].spilled_registers


async def test_what_is_no_code_or_not_there_is_said(lab: Lab):
    text = await lab.store.artifacts.put(b"just words\n", name="words.txt")
    with pytest.raises(BadRequest, match="neither a GPU binary"):
        await lab.builds.inspector.inspect(text)
    listing = await lab.store.artifacts.put(SASS.encode(), name="k.sass")
    with pytest.raises(NotFound, match=r"The sass has: k\(float\*\)"):
        await lab.builds.inspector.inspect(listing, kernel="nope")
    with pytest.raises(BadRequest, match="7 instructions"):
        await lab.builds.inspector.inspect(listing, first_line=8)
    with pytest.raises(NotFound):
        await lab.builds.inspector.inspect("a-nope")
