"""What a candidate must define, by the kind of candidate: one parameter a tensor, then one a dimension."""

import re
from collections.abc import Mapping, Sequence

from gpu_mcp_server.models.problem import DType, Problem

MOST_SHOWN = 60
"""Inputs of a launcher that is shown in full; a module with more weights is for a ModelNew."""
C_TYPES: Mapping[DType, str] = {
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float32": "float",
    "float64": "double",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
    "float4_e2m1fn_x2": "uint8_t",
}

CUDA_TYPES: Mapping[DType, str] = {
    **C_TYPES,
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
    "float4_e2m1fn_x2": "__nv_fp4x2_e2m1",
}
"""Source: cuda_fp16.h, cuda_bf16.h, cuda_fp8.h, cuda_fp4.h of CUDA 13."""
LEAST_WORDS = 2
"""Of a parameter: type and name."""
EXTERN_C = 'extern "C" '


def c_launcher(problem: Problem) -> str:
    """Return the launcher of a candidate for the processor; C++ puts extern "C" before it."""
    return _launcher(problem, C_TYPES, []).removeprefix(EXTERN_C)


def cuda_launcher(problem: Problem) -> str:
    """Return the launcher of a CUDA candidate."""
    return _launcher(problem, CUDA_TYPES, ["cudaStream_t stream"])


def python_launcher(problem: Problem) -> str:
    """Return what a Python candidate must define."""
    names = [t.name for t in [*problem.inputs, *problem.outputs]] + problem.symbols()
    names = names if len(problem.inputs) <= MOST_SHOWN else [f"{len(problem.inputs)} inputs", "outputs"]
    given = [t.name for t in problem.inputs[: problem.backward or None] if t.distribution != "weights"]
    forward = ", ".join(["self", *given])
    model = (
        "class ModelNew, constructed as Model is" if problem.kind == "module" else f"class ModelNew: forward({forward})"
    )
    return f"triton: def launch({', '.join(names)}); python: {model}"


def miscounted(problem: Problem, source: str, entry: str, language: str) -> str:
    """Say so if a C, C++ or CUDA source defines its launcher with another number of parameters than it is called with.

    C passes what it is given, so nothing else tells; read from the text, this explains a verdict and is none. A last
    parameter that a definition leaves out does no harm, and is named like one too many: the candidate failed.
    """
    if language not in ("c", "cpp", "cuda") or len(problem.inputs) > MOST_SHOWN:
        return ""
    plain = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", source, flags=re.DOTALL)  # to the end: else a search from each /*
    found: set[str] = {
        str(match).strip() for match in re.findall(rf"\bint\s+{re.escape(entry)}\s*\(([^()]*)\)\s*\{{", plain)
    }
    wanted = (cuda_launcher if language == "cuda" else c_launcher)(problem).replace("int launch(", f"int {entry}(")
    expected = wanted.count(",") + 1
    parameters: list[list[str]] = [[] if text in ("", "void") else text.split(",") for text in found]
    if len(parameters) != 1 or len(parameters[0]) == expected:
        return ""
    if any(len(re.findall(r"\w+", each)) < LEAST_WORDS for each in parameters[0]):
        return ""  # a macro
    return f"{entry} is defined with {len(parameters[0])} parameters and called with {expected}: {wanted}"


def _launcher(problem: Problem, types: Mapping[DType, str], last: Sequence[str]) -> str:
    if len(problem.inputs) > MOST_SHOWN:
        return f"{EXTERN_C}int launch(...) with a pointer each to {len(problem.inputs)} inputs and the outputs"
    parameters = [
        *(f"const {types[tensor.dtype]}* {tensor.name}" for tensor in problem.inputs),
        *(f"{types[tensor.dtype]}* {tensor.name}" for tensor in problem.outputs),
        *(f"int64_t {symbol}" for symbol in problem.symbols()),
        *last,
    ]
    return f"{EXTERN_C}int launch({', '.join(parameters)})"
