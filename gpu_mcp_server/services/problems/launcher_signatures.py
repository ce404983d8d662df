"""Signatures that candidates must define, by kind of candidate: one parameter a tensor, then one a dimension.

Where gradients are answers too, they and what they are computed from are tensors like the others.
"""

import re
from collections.abc import Mapping, Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.problem import DType, Problem, TensorSpec
from gpu_mcp_server.toolchains.c_source import strip_comments
from gpu_mcp_server.toolchains.torch_bindings import is_extension

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
    "int16": "int16_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "complex64": "float",  # two each
    "float8_e4m3fnuz": "uint8_t",
    "float8_e5m2fnuz": "uint8_t",
    "float8_e8m0fnu": "uint8_t",
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
NOT_INT = ("void", "float", "double", "bool")
"""What a launcher may have been said to return, which is then no status."""
MISCALLED = re.compile(
    r"parameters and called with"
    r"|takes \w+ as [^*&\[:;]+ and gets [^:;]*\*"
    r"|takes \w+ as [^:;]*[*&\[][^:;]* and gets [^*:;]+:"
)
"""Said of a launcher that takes another number of parameters, a value for an address, or the reverse: the cause of
whatever else was seen. Other differences may be none."""
BYTES = {
    "float": 4, "double": 8, "int": 4, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "int16_t": 2, "uint16_t": 2,
    "__half": 2, "half": 2, "__nv_bfloat16": 2,
}  # fmt: skip
"""Of an element; none is known of `short` and `long`, which go with another word.

Pointers to characters and vectors are taken for any type, and are not here."""
SMALL_BYTES = {"int8_t": 1, "uint8_t": 1, "bool": 1}
"""Of elements that a launcher is called with, and that may be taken as characters."""
FLOATING = ("float16", "bfloat16", "float32", "float64")
MAX_NAME = 26
"""Letters of a name that gets a prefix."""


def with_gradients(
    framework: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return inputs with a cotangent for each output of floats, and outputs with a gradient for each input of floats.

    Raises:
        BadRequest: If the reference is not torch, or nothing can be differentiated.
    """
    given, answers = ([t for t in side if t.dtype in FLOATING] for side in (inputs, outputs))
    if framework != "torch" or not given or not answers:
        raise BadRequest("backward needs a torch reference with inputs and outputs of floats.", hint="Leave it out.")
    if any(len(t.name) > MAX_NAME for t in (*given, *answers)):
        raise BadRequest(f"backward needs names of at most {MAX_NAME} letters.", hint="Shorten them.")
    cotangents = [t.model_copy(update={"name": f"d_{t.name}", "distribution": "normal"}) for t in answers]
    gradients = [t.model_copy(update={"name": f"grad_{t.name}"}) for t in given]
    return [*inputs, *cotangents], [*outputs, *gradients]


def c_launcher(problem: Problem) -> str:
    """Return the launcher of a candidate for the processor; C++ puts extern "C" before it."""
    return _launcher(problem, C_TYPES, []).removeprefix(EXTERN_C)


def cuda_launcher(problem: Problem) -> str:
    """Return the launcher of a CUDA candidate."""
    return _launcher(problem, CUDA_TYPES, ["cudaStream_t stream"])


def tensors_of(problem: Problem) -> str:
    """Return inputs and outputs with types and shapes, as far as they are shown."""

    def said(tensors: Sequence[TensorSpec]) -> str:
        more = len(tensors) - MOST_SHOWN
        shown = [f"{t.name} {t.dtype} [{', '.join(map(str, t.shape))}]{laid(t)}" for t in tensors[:MOST_SHOWN]]
        return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])

    laid_out = {problem.inputs[int(at)].name: layout for at, layout in problem.layouts.items()}

    def laid(tensor: TensorSpec) -> str:
        layout = laid_out.get(tensor.name)
        if layout is None or layout.strides is None:
            return ""
        shared = layout.of is not None and problem.inputs[layout.of].name != tensor.name
        beside = f" in {problem.inputs[layout.of or 0].name}'s memory" if shared else ""
        return f" strides ({', '.join(map(str, layout.strides))}){beside}"

    return f"{said(problem.inputs)} -> {said(problem.outputs)}"


def python_launcher(problem: Problem) -> str:
    """Return what a Python candidate must define."""
    names = [t.name for t in [*problem.inputs, *problem.outputs]] + problem.symbols()
    names = names if len(problem.inputs) <= MOST_SHOWN else [f"{len(problem.inputs)} inputs", "outputs"]
    given = [t.name for t in problem.inputs[: problem.backward or None] if t.distribution != "weights"]
    forward = ", ".join(["self", *given])
    model = (
        "class ModelNew, constructed as Model is" if problem.kind == "module" else f"class ModelNew: forward({forward})"
    )
    return f"triton, launcher: def launch({', '.join(names)}); python: {model}"


def candidate_rules(problem: Problem) -> list[str]:
    """Return what holds for a candidate besides its signature: the whole of what it is called with and judged by."""
    outputs = ", ".join(t.name for t in problem.outputs)
    laid = "as said with the tensors" if problem.layouts else "row-major without gaps"
    return [
        f"All: tensors are {laid}; inputs are read-only; outputs ({outputs}) hold junk: write them in full at every "
        "call. A call returns 0 for success and is done when it returns (CUDA: when `stream` has passed it). Plans and "
        "scratch memory may be kept, answers not.",
        "C, C++: #include <stdint.h>; built with -O3 -march=native -fopenmp unless flags say otherwise; flags link too "
        "(-lm). CUDA: launch on `stream`, return cudaGetLastError(), no cudaDeviceSynchronize. Python launchers: torch "
        "tensors come in, write into the outputs. ModelNew: return new tensors.",
        *([] if problem.fixed_shapes else ["Hidden shapes are tried too: ones, primes, odd sizes, larger ones."]),
        "Next: evaluate_kernel with this problem_id, source and language (c, cpp, cuda, triton, launcher, python). "
        "Examples: read_doc gpu-mcp://docs/candidates.",
    ]


def signature_mismatch(problem: Problem, source: str, entry: str, language: str) -> str:
    """Say so if a C, C++ or CUDA source defines its launcher otherwise than it is called.

    C passes what it is given, so nothing else tells; read from the text, this explains a verdict and is none. A last
    parameter that a definition leaves out does no harm, and is named like one too many: the candidate failed.
    """
    facts = LANGUAGES.get(language)
    if facts is None or facts.launcher not in ("c", "cuda") or facts.device == "hip":
        return ""
    if len(problem.inputs) > MOST_SHOWN or is_extension(source):
        return ""
    plain = strip_comments(source)
    found = {
        (kind, text.strip()) for kind, text in re.findall(rf"\b(\w+)\s+{re.escape(entry)}\s*\(([^()]*)\)\s*\{{", plain)
    }
    if len(found) != 1:
        return ""
    ((kind, text),) = found
    parameters: list[str] = [] if text in ("", "void") else text.split(",")
    if any(len(re.findall(r"\w+", each)) < LEAST_WORDS for each in parameters):
        return ""  # a macro
    launcher = cuda_launcher if facts.launcher == "cuda" else c_launcher
    wanted = launcher(problem).replace("int launch(", f"int {entry}(")
    why = _difference(parameters, wanted.partition("(")[2].rstrip(")").split(","))
    if kind in NOT_INT:
        why = f"returns {kind} and must return int, 0 for success{f'; it {why}' if why else ''}"
    return f"{entry} {why}: {wanted}" if why else ""


def _difference(given: Sequence[str], wanted: Sequence[str]) -> str:
    """Return in what the parameters of a definition differ from those that it is called with."""
    if len(given) != len(wanted):
        return f"is defined with {len(given)} parameters and called with {len(wanted)}"
    names, chosen = ([re.findall(r"\w+", each)[-1] for each in some] for some in (wanted, given))
    for mine, theirs, name, called in zip(given, wanted, names, chosen, strict=True):
        # A name of another parameter is an exchange only where the one that belongs here is there too.
        if called != name and called in names and name in chosen:
            return f"has {called} where it gets {name}"
        own, right = _bytes(mine, BYTES), _bytes(theirs, BYTES | SMALL_BYTES)
        pointer, wanted_pointer = bool(re.search(r"[*[&]", mine)), "*" in theirs
        # A size that is taken as another whole number arrives all the same.
        if own and right and (pointer != wanted_pointer or (pointer and own != right)):
            return f"takes {called} as {' '.join(mine.split())} and gets {theirs.strip()}"
    return ""


def _bytes(parameter: str, known: Mapping[str, int]) -> int | None:
    words = re.findall(r"\w+", parameter)
    if "short" in words or "long" in words:
        return None
    return next((known[word] for word in words if word in known), None)


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
