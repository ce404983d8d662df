"""Ten tasks that strangers would bring, and the candidates in the order in which an agent tries them.

The operations are those of public programs that many people start from; every line here is our own. A body is put
behind the signature that the server's answer says, so a contract that the answer leaves out cannot be met.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """One source, and why an agent would write it now."""

    because: str
    """What the answer before must have said, for an agent to come to it; empty where it needs no reason."""
    source: str
    """`{launcher}` stands for the signature of the answer to register_problem."""
    note: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Task:
    """Task for an agent, and the candidates that are tried on it."""

    name: str
    after: str
    """Where people know it from."""
    language: str
    problem: dict[str, Any]
    candidates: tuple[Candidate, ...]
    compiled_only: bool = False
    target: str = "verdict: correct"
    """What the last answer must say."""
    wrong_problem: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the first registration has otherwise, as people write it; None where they leave it out."""
    because: str = ""
    """What the refusal must say, for an agent to come to the right one."""


def tensor(name: str, *shape: str, dtype: str = "float32", **more: str) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape), **more}


def problem(name: str, reference: str, inputs: list[Any], outputs: list[Any], **more: Any) -> dict[str, Any]:
    given = {"name": name, "reference": f"import numpy as np\n\n{reference}", "inputs": inputs, "outputs": outputs}
    return {**given, "rtol": 1e-4, "atol": 1e-5, **more}


ROWS = [{"rows": 64, "cols": 768}, {"rows": 1024, "cols": 1024}]
RMS_NORM = problem(
    "rms_norm",
    "def reference(x, w):\n    return w * x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5)\n",
    [tensor("x", "rows", "cols"), tensor("w", "cols")],
    [tensor("y", "rows", "cols")],
    shapes=ROWS,
)
RMS_BODY = """{
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t c = 0; c < cols; c++) sum += x[r * cols + c] * x[r * cols + c];
        float scale = 1 / sqrtf(sum / cols + 1e-5f);
        for (int64_t c = 0; c < cols; c++) y[r * cols + c] = w[c] * x[r * cols + c] * scale;
    }
    return 0;
}
"""
INT8_MATMUL = problem(
    "int8_matmul",
    "def reference(a, b, s):\n    return (a.astype(np.int32) @ b.astype(np.int32).T) * s[None, :]\n",
    [tensor("a", "m", "k", dtype="int8"), tensor("b", "n", "k", dtype="int8"), tensor("s", "n")],
    [tensor("y", "m", "n")],
    shapes=[{"m": 16, "n": 64, "k": 256}, {"m": 64, "n": 256, "k": 512}],
)
INT8_BODY = """{
    #pragma omp parallel for
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            SUM sum = 0;
            for (int64_t p = 0; p < k; p++) sum += (SUM)a[i * k + p] * b[j * k + p];
            y[i * n + j] = sum * s[j];
        }
    return 0;
}
"""
LAYER_NORM = problem(
    "layer_norm",
    "def reference(x, g, b):\n    m = x.mean(axis=1, keepdims=True)\n    v = x.var(axis=1, keepdims=True)\n"
    "    return (x - m) / np.sqrt(v + 1e-5) * g + b\n",
    [tensor("x", "rows", "cols"), tensor("g", "cols"), tensor("b", "cols")],
    [tensor("y", "rows", "cols")],
    shapes=ROWS,
    trials={"constraints": ["cols >= 2"]},
)
LAYER_BODY = """{
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < cols; c++) sum += in[c];
        float mean = sum / cols;
        for (int64_t c = 0; c < cols; c++) squares += (in[c] - mean) * (in[c] - mean);
        float scale = 1 / sqrtf(squares / (DIVISOR) + 1e-5f);
        for (int64_t c = 0; c < cols; c++) y[r * cols + c] = (in[c] - mean) * scale * g[c] + b[c];
    }
    return 0;
}
"""
STENCIL = problem(
    "jacobi_2d",
    "def reference(x):\n    y = x.copy()\n    y[1:-1, 1:-1] = 0.2 * (x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + "
    "x[2:, 1:-1] + x[:-2, 1:-1])\n    return y\n",
    [tensor("x", "h", "w")],
    [tensor("y", "h", "w")],
    shapes=[{"h": 128, "w": 130}, {"h": 1000, "w": 1000}],
)
STENCIL_BODY = """{
    EDGES
    #pragma omp parallel for
    for (int64_t i = 1; i < h - 1; i++)
        for (int64_t j = 1; j < w - 1; j++) {
            const float *at = x + i * w + j;
            y[i * w + j] = 0.2f * (at[0] + at[-1] + at[1] + at[w] + at[-w]);
        }
    return 0;
}
"""
ROW_MAX = problem(
    "row argmax value",
    "def reference(x):\n    return x.max(axis=1)\n",
    [tensor("x", "rows", "cols")],
    [tensor("y", "rows")],
    shapes=ROWS,
)
MAX_BODY = """{
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        int64_t c = 0;
        for (; c + 4 <= cols; c += 4)
            for (int k = 0; k < 4; k++) top[k] = fmaxf(top[k], x[r * cols + c + k]);
        TAIL
        y[r] = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
    }
    return 0;
}
"""
HEAD = "#include <math.h>\n#include <stdint.h>\n"
MATH = {"flags": ["-O3", "-march=native", "-fopenmp", "-lm"]}

TRANSPOSE = problem(
    "transpose",
    "def reference(x):\n    return np.ascontiguousarray(x.T)\n",
    [tensor("x", "rows", "cols")],
    [tensor("y", "cols", "rows")],
    shapes=ROWS,
)
TRANSPOSE_CU = """#include <cstdint>
#include <cuda_runtime.h>
constexpr int TILE = 32;

__global__ void transpose(const float *x, float *y, int64_t rows, int64_t cols) {
    __shared__ float tile[TILE][PAD];
    int64_t c = blockIdx.x * int64_t(TILE) + threadIdx.x, r = blockIdx.y * int64_t(TILE) + threadIdx.y;
    if (r < rows && c < cols) tile[threadIdx.y][threadIdx.x] = x[r * cols + c];
    __syncthreads();
    r = blockIdx.y * int64_t(TILE) + threadIdx.x, c = blockIdx.x * int64_t(TILE) + threadIdx.y;
    if (r < rows && c < cols) y[c * rows + r] = tile[threadIdx.x][threadIdx.y];
}

{launcher} {
    dim3 blocks((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    transpose<<<blocks, dim3(TILE, TILE), 0, stream>>>(x, y, rows, cols);
    return cudaGetLastError();
}
"""
ROW_SUM = problem(
    "row sum",
    "def reference(x):\n    return x.sum(axis=1)\n",
    [tensor("x", "rows", "cols")],
    [tensor("y", "rows")],
    shapes=ROWS,
    atol=1e-3,
)
ROW_SUM_CU = """#include <cstdint>
#include <cuda_runtime.h>

__global__ void row_sum(const float *x, float *y, int64_t cols) {
    float sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += 32) sum += x[blockIdx.x * cols + c];
    for (int half = 16; half; half /= 2) sum += SHUFFLE(sum, half);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

{launcher} {
    row_sum<<<rows, 32, 0, stream>>>(x, y, cols);
    return cudaGetLastError();
}
"""
GEMM = problem(
    "half gemm",
    "def reference(a, b):\n    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float32)\n",
    [tensor("a", "m", "k", dtype="float16"), tensor("b", "k", "n", dtype="float16")],
    [tensor("y", "m", "n")],
    shapes=[{"m": 64, "n": 64, "k": 64}, {"m": 256, "n": 256, "k": 128}],
    rtol=1e-2,
    atol=1e-2,
    trials={"constraints": ["m % 16 == 0", "n % 16 == 0", "k % 16 == 0"]},
)
GEMM_CU = """#include <cstdint>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

__global__ void gemm(const __half *a, const __half *b, float *y, int64_t n, int64_t k) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, ORDER> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int64_t p = 0; p < k; p += 16) {
        wmma::load_matrix_sync(left, a + blockIdx.y * 16 * k + p, k);
        wmma::load_matrix_sync(right, b + p * n + blockIdx.x * 16, n);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(y + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
}

{launcher} {
    gemm<<<dim3(n / 16, m / 16), 32, 0, stream>>>(a, b, y, n, k);
    return cudaGetLastError();
}
"""
GELU = problem(
    "gelu",
    "def reference(x):\n    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))\n",
    [tensor("x", "n")],
    [tensor("y", "n")],
    shapes=[{"n": 1000}, {"n": 1_000_000}],
)
GELU_HIP = """#include <cstdint>
#include <hip/hip_runtime.h>

__global__ void gelu(const float *x, float *y, int64_t n) {
    int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i] * (1 + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

{launcher} {
    gelu<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
    return hipGetLastError();
}
"""
ADD = problem(
    "scaled add",
    "def reference(x, z):\n    return 2 * x + z\n",
    [tensor("x", "n"), tensor("z", "n")],
    [tensor("y", "n")],
    shapes=[{"n": 1000}, {"n": 1_000_000}],
)
ADD_TRITON = """import triton
import triton.language as tl


@triton.jit
def scaled_add(x, z, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(y + at, 2 * tl.load(x + at, mask=mask) + tl.load(z + at, mask=mask), mask=mask)


def launch(x, z, y, n):
    scaled_add[(triton.cdiv(n, 1024),)](x, z, y, n, BLOCK=1024)
"""
SPECIALIZED = {
    "triton": {
        "signature": {"x": "*fp32:16", "z": "*fp32:16", "y": "*fp32:16", "n": "i32"},
        "constants": {"BLOCK": 1024},
    }
}
NO_DEVICE = "compile_kernel"

TASKS = (
    Task(
        "RMS norm", "llama2.c and what is made of it", "c", RMS_NORM,
        (
            Candidate("int launch(", f"#include <math.h>\n{{launcher}} {RMS_BODY}", "first draft"),
            Candidate("int64_t", f"{HEAD}{{launcher}} {RMS_BODY}", "with stdint.h", MATH),
        ),
        wrong_problem={"outputs": [tensor("y", "N*D")]}, because="a name is a letter",
    ),
    Task(
        "int8 matrix product", "quantized inference in C", "c", INT8_MATMUL,
        (
            Candidate("int8_t* a", f"{HEAD}#define SUM int16_t\n{{launcher}} {INT8_BODY}", "sums of 16 bits"),
            Candidate("elements are wrong", f"{HEAD}#define SUM int32_t\n{{launcher}} {INT8_BODY}", "sums of 32 bits"),
        ),
        wrong_problem={"rtol": None, "atol": None}, because="rtol is null, and must be given",
    ),
    Task(
        "layer norm", "llm.c's forward pass", "c", LAYER_NORM,
        (
            Candidate("int64_t cols", f"{HEAD}#define DIVISOR cols - 1\n{{launcher}} {LAYER_BODY}", "draft", MATH),
            Candidate("elements are wrong", f"{HEAD}#define DIVISOR cols\n{{launcher}} {LAYER_BODY}", "biased", MATH),
        ),
        wrong_problem={"trials": {"constraint": "cols >= 2"}}, because="its keys: constraints",
    ),
    Task(
        "five-point stencil", "PolyBench's Jacobi", "c", STENCIL,
        (
            Candidate("junk", f"{HEAD}#define EDGES\n{{launcher}} {STENCIL_BODY}", "inner points"),
            Candidate(
                "wrong",
                f"{HEAD}#include <string.h>\n#define EDGES memcpy(y, x, h * w * sizeof(float));\n"
                f"{{launcher}} {STENCIL_BODY}",
                "edges copied first",
            ),
        ),
    ),
    Task(
        "maximum of each row", "reductions by hand, four at a time", "c", ROW_MAX,
        (
            Candidate("int launch(", f"{HEAD}#define TAIL\n{{launcher}} {MAX_BODY}", "four lanes", MATH),
            Candidate(
                "hidden shape" , f"{HEAD}#define TAIL for (; c < cols; c++) top[0] = fmaxf(top[0], x[r * cols + c]);\n"
                f"{{launcher}} {MAX_BODY}", "with a tail", MATH,
            ),
        ),
    ),
    Task(
        "tiled transpose", "NVIDIA's samples", "cuda", TRANSPOSE,
        (
            Candidate(NO_DEVICE, TRANSPOSE_CU.replace("PAD", "TILE + cols"), "padded by a variable", {"block": 1024}),
            Candidate("[TILE + cols]", TRANSPOSE_CU.replace("PAD", "TILE + 1"), "padded by one", {"block": 1024}),
        ),
        compiled_only=True, target="spills 0+0 B, shared 4224 B",
        wrong_problem={"shapes": [{"rows": 64}]}, because="gives cols no value",
    ),
    Task(
        "row sum by warps", "every course on reductions", "cuda", ROW_SUM,
        (
            Candidate(NO_DEVICE, ROW_SUM_CU.replace("SHUFFLE(", "__shfl_down("), "as before Volta"),
            Candidate("__shfl_down", ROW_SUM_CU.replace("SHUFFLE(", "__shfl_down_sync(0xffffffffu, "), "with a mask"),
        ),
        compiled_only=True, target="spills 0+0 B",
    ),
    Task(
        "tensor-core product", "tutorials on wmma", "cuda", GEMM,
        (
            Candidate(NO_DEVICE, GEMM_CU.replace("ORDER", "row"), "order misspelled"),
            Candidate('"row" is undefined', GEMM_CU.replace("ORDER", "wmma::row_major"), "order named"),
        ),
        compiled_only=True, target="spills 0+0 B",
    ),
    Task(
        "GELU for AMD", "ports of llm.c", "hip", GELU,
        (Candidate(NO_DEVICE, GELU_HIP, "one thread an element", {"arch": "gfx942"}),),
        compiled_only=True, target="0 spilled",
    ),
    Task(
        "scaled add in Triton", "Triton's first tutorial", "triton", ADD,
        (
            Candidate("", ADD_TRITON, "without its types"),
            Candidate("signature", ADD_TRITON, "with its types", SPECIALIZED),
        ),
        wrong_problem={"inputs": [tensor("x", "n", dtype="fp32"), tensor("z", "n", dtype="fp32")]}, because="'float32'",
        compiled_only=True, target="spills 0+0 B",
    ),
)  # fmt: skip
