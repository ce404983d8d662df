"""Find constructs that a converter from CUDA to HIP or SYCL overlooks: they compile, or almost, and differ.

Source: AMD, "HIP porting guide" (warp size, lane masks, inline assembly); CUDA C++ Programming Guide (warp shuffles,
wmma, TMA, clusters); SYCL 2020 specification and Intel's "Migrate from CUDA to C++ with SYCL" for the equivalents.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal

from gpu_mcp_server.models.port import PortFinding
from gpu_mcp_server.toolchains.c_source import strip_comments

Target = Literal["hip", "sycl"]
SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".cxx", ".c", ".inl")
MAX_FINDINGS = 40
MAX_NAMES, MAX_PLACES = 8, 20

_HIP: tuple[tuple[str, str, str], ...] = (
    (
        "inline PTX",
        r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(",
        "PTX means nothing to AMD: write it in C++, or with AMDGCN builtins.",
    ),
    (
        "tensor memory accelerator",
        r"\bCUtensorMap\w*|\bcuTensorMap\w*|\bcp_async_bulk\w*|\b__grid_constant__\b",
        "There is no TMA: load tiles with ordinary vector loads into LDS.",
    ),
    ("wmma", r"\bnvcuda\b|\bwmma::|<mma\.h>", "Use rocWMMA (rocwmma::), or __builtin_amdgcn_mfma_* directly."),
    (
        "warp-group matrix instruction",
        r"\bwgmma\b|\bcute::|\bcutlass::",
        "Write it anew with MFMA, or Composable Kernel.",
    ),
    (
        "32-bit lane mask",
        r"\b0x[fF]{8}\b|\b__(?:shfl\w*|ballot|any|all|match_any|match_all|syncwarp|reduce_\w+)_sync\b|"
        r"\b__activemask\s*\(|\buint32_t\s+\w*mask\w*|\bunsigned(?:\s+int)?\s+\w*mask\w*",
        "A wave of gfx9 has 64 lanes: masks have 64 bits (unsigned long long); HIP's shuffles take none before ROCm 7.",
    ),
    (
        "warp size 32",
        r"\b(?:WARP_?SIZE|WSIZE|(?:THREADS|LANES)_PER_WARP)\b[^\n]{0,200}\b32\b|\bwarpSize\b"
        r"|\bblockDim\.\w\b[^;\n]{0,40}(?:/\s*32|>>\s*5)\b|\b__shfl\w*\s*\([^;\n]{0,200},\s*16\s*[,)]"
        r"|(?:threadIdx\.\w|\b(?:tid|lane|lid)\w*)\s*(?:[&]\s*31|[%/]\s*32|>>\s*5|(?:<|>=|==)\s*32|(?:<=|>|==)\s*31)\b"
        r"|=\s*16\s*;[^\n]{0,200}(?:>>=?\s*1|/=?\s*2)\b"
        r"|\bfor\s*\([^;\n]{0,100}=\s*1\s*;[^;\n]{0,100}(?:<\s*32|<=\s*16)\s*;[^\n]{0,100}(?:<<=?\s*1|\*=?\s*2)\b",
        "A wave of gfx9 has 64 lanes: take warpSize at run time, or __AMDGCN_WAVEFRONT_SIZE.",
    ),
    (
        "asynchronous copy",
        r"\b__pipeline_\w+|\bcuda::(?:pipeline|barrier|memcpy_async)\b|\bcp\.async\b",
        "There is no cp.async: copy through registers, and wait with __syncthreads().",
    ),
    ("thread block cluster", r"\bcluster_dims\b|\bthis_cluster\b|\bcluster_group\b", "There are no clusters."),
    (
        "architecture test",
        r"\b__CUDA_ARCH__\b",
        "Not defined for HIP: test __HIP_DEVICE_COMPILE__ and __gfx90a__ and the like.",
    ),
    (
        "libcu++ or CUB",
        r"<cub/|\bcub::|<cuda/(?:std/|atomic|barrier|pipeline)|\bcuda::std::",
        "Use hipCUB, or rocPRIM.",
    ),
    (
        "cooperative groups",
        r"\bcooperative_groups\b|\bcg::|\btiled_partition\b|\bcoalesced_threads\b|\bthread_block_tile\b",
        "HIP has groups and tiles, but no cg::reduce, scan or memcpy_async; a tile of 32 is half a wave of gfx9.",
    ),
    (
        "texture or surface",
        r"\btexture\s*<|\btex[123]D\w*\s*[<(]|\bsurf[123]D\w*\s*[<(]|\bcuda(?:Texture|Surface|BindTexture|UnbindTexture)\w*",
        "CDNA (gfx90a, gfx942) has no image instructions: load plainly. Elsewhere use texture objects, not texture<>.",
    ),
    (
        "cooperative launch",
        r"\bcudaLaunchCooperativeKernel\b|\bgrid_group\b|\bthis_grid\b",
        "HIP has it; check that the device does.",
    ),
)

_SYCL: tuple[tuple[str, str, str], ...] = (
    ("kernel", r"__global__\s+", "A lambda or function object in queue.submit; its arguments are captured."),
    ("launch", r"<<<", "parallel_for over nd_range: grid times block is the global range, block the local one."),
    (
        "shared memory",
        r"__shared__|extern\s+__shared__",
        "sycl::local_accessor, or sycl::ext::oneapi group_local_memory.",
    ),
    ("barrier", r"__syncthreads\s*\(", "sycl::group_barrier(item.get_group())."),
    (
        "warp function",
        r"__(?:shfl|ballot|any|all|syncwarp|reduce)\w*",
        "The sub-group's: permute, select, reduce; its size varies (8 to 64).",
    ),
    (
        "index",
        r"\b(?:threadIdx|blockIdx|blockDim|gridDim)\b",
        "nd_item: get_local_id, get_group, get_local_range; x is the last dimension.",
    ),
    (
        "memory",
        r"\bcuda(?:Malloc\w*|Memcpy\w*|Memset\w*|Free\w*)\b",
        "Unified shared memory: malloc_device, queue.memcpy, free.",
    ),
    ("stream or event", r"\bcuda(?:Stream|Event)\w*", "sycl::queue (in_order) and sycl::event."),
    ("atomic", r"\batomic[A-Z]\w+", "sycl::atomic_ref with order, scope and address space."),
    ("constant memory", r"__constant__", "A const buffer or captured values; there is no such memory."),
    ("library", r"\bcu(?:blas|fft|sparse|rand|solver|dnn)\w*", "oneMKL, or oneDNN."),
    ("inline PTX", r"\b(?:asm|__asm__)\s*(?:volatile)?\s*\(", "Write it in C++."),
    ("tensor core", r"\bwmma::|\bmma_sync\b|\bwgmma\b", "joint_matrix, or oneMKL and oneDNN."),
    (
        "texture or surface",
        r"\btex[123]D\w*|\bsurf\w+|cudaTexture\w*",
        "sycl::ext::oneapi bindless images, or plain loads.",
    ),
)

_LEFT = re.compile(
    r"\b(?:cuda[A-Z]\w+|cu[A-Z][a-z]\w+|CU[a-z]\w+|CUDA_\w+|cu(?:blas|fft|rand|sparse|solver|dnn)\w+|nvcuda)\b"
)
_THREAD = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w{1,100})[ \t]+\(?threadIdx\.\w\)?[ \t]*$", re.MULTILINE)
"""A source's own short names of a thread's index."""
_MEANT = re.compile(r"^CUDA_(?:VERSION|ARCH\w*)$|^cuda[A-Z]\w*_H\w*$")


@cache
def _compiled_rows(target: Target) -> tuple[tuple[str, re.Pattern[str], str], ...]:
    return tuple((kind, re.compile(pattern), advice) for kind, pattern, advice in (_HIP if target == "hip" else _SYCL))


def findings(files: Mapping[str, str], target: Target) -> list[PortFinding]:
    """Return each construct with the lines at which it stands, the most frequent first. Never raises."""
    places: dict[str, list[str]] = {}
    advice: dict[str, str] = {}
    rows = _compiled_rows(target)
    for path, text in sorted(files.items()):
        code = strip_comments(text)
        short = _THREAD.findall(code)
        named = re.compile(rf"\b(?:{'|'.join(short[:MAX_NAMES])})\b") if short else None
        for number, plain in enumerate(code.splitlines(), 1):
            line = named.sub("threadIdx.x", plain) if named else plain
            for kind, pattern, hint in rows:
                if pattern.search(line):
                    places.setdefault(kind, []).append(f"{path}:{number}")
                    advice[kind] = hint
    order = [kind for kind, _, _ in rows if kind in places]
    return [
        PortFinding(kind=kind, count=len(places[kind]), places=places[kind][:MAX_PLACES], advice=advice[kind])
        for kind in order
    ][:MAX_FINDINGS]


def remaining_cuda_names(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return names of CUDA that stand in converted files, with up to three places of each."""
    found: dict[str, list[str]] = {}
    for path, text in sorted(files.items()):
        for number, line in enumerate(strip_comments(text).splitlines(), 1):
            for match in _LEFT.finditer(line):
                if not _MEANT.match(match[0]):
                    found.setdefault(match[0], []).append(f"{path}:{number}")
    return {name: places[:3] for name, places in list(found.items())[:MAX_FINDINGS]}


def hip_name(path: str) -> str:
    """Return the name that a converted file gets."""
    stem, dot, suffix = path.rpartition(".")
    return f"{stem}.hip" if dot and suffix == "cu" else path
