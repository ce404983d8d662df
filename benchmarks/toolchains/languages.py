"""Compiles one source of each language twice, as an agent would: `python benchmarks/toolchains/languages.py`.

What the host lacks is said in the table. Nothing runs: it needs no GPU. CUTLASS and torch are found in the Python that
GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON names.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.build import BuildOptions, Language
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

TWICE = (
    "torch::Tensor twice(torch::Tensor x) {{ {body} }}\n"
    'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("twice", &twice); }}\n'
)
EXTENSION = "#include <torch/extension.h>\n" + TWICE.format(body="return 2 * x;")
CUDA_EXTENSION = (
    "#include <torch/extension.h>\n#include <c10/cuda/CUDAStream.h>\n"
    "__global__ void doubled(const float *x, float *y, int64_t n) {\n"
    "    int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;\n    if (at < n) y[at] = 2 * x[at];\n}\n"
    + TWICE.format(
        body="auto y = torch::empty_like(x); int64_t n = x.numel();"
        " doubled<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>"
        "(x.data_ptr<float>(), y.data_ptr<float>(), n); return y;"
    )
)
KERNEL = "__global__ void doubled(float *x, int n) { int i = blockIdx.x * 256 + threadIdx.x; if (i < n) x[i] *= 2; }\n"
TRITON = (
    "import triton\nimport triton.language as tl\n\n@triton.jit\ndef doubled(x, n, BLOCK: tl.constexpr):\n"
    "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
    "    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)\n"
)
SIGNATURE = {"signature": {"x": "*fp32:16", "n": "i32"}, "constants": {"BLOCK": 1024}}
C = "int launch(const float *x, float *y, long n) {\n  for (long i = 0; i < n; i++) y[i] = 2 * x[i];\n  return 0; }\n"
GEMM = (Path(__file__).parent / "cutlass_gemm.cu").read_text(encoding="utf-8")
ROWS: tuple[tuple[str, Language, str, dict[str, object]], ...] = (
    ("C", "c", C, {}),
    ("CUDA, kernels alone", "cuda", KERNEL, {"arch": "sm_90a"}),
    ("CUTLASS 3 GEMM", "cuda", GEMM, {"arch": "sm_90a"}),
    ("extension of torch, C++", "cpp", EXTENSION, {}),
    ("extension of torch, CUDA", "cuda", CUDA_EXTENSION, {"arch": "sm_90a"}),
    ("HIP", "hip", "#include <hip/hip_runtime.h>\n" + KERNEL, {"arch": "gfx90a"}),
    ("Triton", "triton", TRITON, {"arch": "sm_90", **SIGNATURE}),
)  # fmt: skip


async def main() -> None:
    """Print a line for each language."""
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-bench-") as folder:
        os.chmod(folder, 0o711)  # noqa: PTH101 - a Path would block the loop, says ASYNC240
        async with Lab.open(Settings(data_dir=Path(folder), index_documentation=False)) as lab:
            for name, language, text, options in ROWS:
                wish = BuildOptions.model_validate({"library": False, **options})
                said: list[str] = []
                for _ in range(2):
                    began = time.monotonic()
                    try:
                        made = await lab.builds.compiler.compile(CandidateSource(text, language, f"k.{language}"), wish)
                    except GpuMcpError as error:
                        said = [f"not compiled: {error}"]
                        break
                    taken = f"{time.monotonic() - began:.3g} s"
                    kernels = ", ".join(f"{k.registers_per_thread} registers" for k in made.resources)
                    first = made.diagnostics[0].line_text().partition("\n")[0][:160] if made.diagnostics else ""
                    said = [made.compiler, made.status, kernels, first, *said[4:], taken]
                sys.stdout.write(" | ".join([name, *said]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
