"""Names that nothing indexed has: said first, with the library that they are of where their prefix tells it."""

import re
from collections.abc import Sequence

from gpu_mcp_server.knowledge.search.edition_scope import EditionRow

LIBRARIES = (
    ("cudnn", "cudnn", "cuDNN"),
    ("curand", "curand", "cuRAND"),
    ("cublas", "cublas", "cuBLAS"),
    ("cufft", "cufft", "cuFFT"),
    ("cusparse", "cusparse", "cuSPARSE"),
    ("cusolver", "cusolver", "cuSOLVER"),
    ("cutensor", "cutensor", "cuTENSOR"),
    ("cufile", "cufile", "cuFile"),
    ("nvshmem", "nvshmem", "NVSHMEM"),
    ("nvjpeg", "nvjpeg", "nvJPEG"),
    ("nppi|npps", "npp", "NPP"),
    ("nvml", "nvml", "NVML"),
    ("cute", "cutlass", "CUTLASS"),
    ("cutlass", "cutlass", "CUTLASS"),
    ("cub", "cccl", "CCCL"),
    ("thrust", "cccl", "CCCL"),
    ("nccl", "nccl", "NCCL"),
    ("miopen", "miopen", "MIOpen"),
    ("rocfft|hipfft", "rocfft", "rocFFT"),
    ("rocrand|hiprand", "rocrand", "rocRAND"),
    ("hip", "hip", "HIP"),
    ("omp_|gomp_|kmp_", "openmp", "OpenMP"),
    ("mkl_|oneapi::mkl|oneapi.mkl", "onemkl", "oneMKL"),
    ("mpi_", "mpi", "MPI"),
    ("ompi_|opal_|prte_|pmix_", "openmpi", "Open MPI"),
    ("sycl", "sycl", "SYCL"),
    ("tl.|triton", "triton", "Triton"),
    ("tilelang", "tilelang", "TileLang"),
    ("helion", "helion", "Helion"),
)
"""Beginnings of names in lower case, what `docs add --library` would call their library, and its own name."""


def describe_missing_name(name: str, editions: Sequence[EditionRow]) -> str:
    """Say that nothing indexed has a name, and how its library would be added where that is not indexed."""
    text = f"nothing indexed is called {name}"
    for beginnings, library, title in LIBRARIES:
        if re.match(beginnings.replace(".", r"\."), name.lower()):
            if library in {word for each in editions for word in (each.library.lower(), each.family.lower())}:
                return text
            return f"{text}; {title} is not indexed here: gpu-mcp-server docs add PATH --library {library}"
    return text
