"""Effects of known libraries' calls on the pointers that they get, and calls that are known to do nothing.

Sources: the reference pages of cuBLAS, cuDNN, cuFFT, cuSPARSE, cuRAND and CUB of CUDA 13.0, of Thrust 3.0 (CCCL), and
MPI 4.1, which takes device pointers where it was built for CUDA. A call that no table knows is unknown, not harmless.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    ParsedSource,
    arguments,
    field,
    is_cast,
    name_of,
    strip_casts,
    walk,
)

BETA = "0"
"""In a table: the scaling of what was in the output. Where it is zero, the output is written and not read."""


@dataclass(frozen=True)
class PointerAccess:
    """Access of a call to one of its arguments."""

    node: Node
    reads: bool
    writes: bool
    is_unknown: bool = False


_TABLE: dict[str, str] = {
    # cuBLAS: r read, w written, b both, 0 beta, . neither; `b` after a `0` counts as written where beta is zero
    r"cublas[SDCZH]gemm3?m?(?:_v2|_64|_v2_64)?": ".......r.r.0b",
    r"cublas(?:Gemm|[SC]gemm|Cgemm3m)Ex(?:_64)?": ".......r..r..0b",
    r"cublas[SDCZH]gemm3?m?StridedBatched(?:_64)?": ".......r..r..0b",
    r"cublasGemmStridedBatchedEx(?:_64)?": ".......r...r...0b",
    r"cublas[SDCZ]gemv(?:_v2|_64|_v2_64)?": ".....r.r.0b",
    r"cublas[SDCZ]gemvStridedBatched(?:_64)?": ".....r..r..0b",
    r"cublas[SDCZ](?:symv|hemv)(?:_v2|_64|_v2_64)?": "....r.r.0b",
    r"cublas[SDCZ](?:syrk|herk)(?:_v2|_64|_v2_64)?": "......r.0b",
    r"cublas[SDCZ](?:symm|hemm|syr2k|her2k)(?:_v2|_64|_v2_64)?": "......r.r.0b",
    r"cublas[SDCZ]geam(?:_64)?": "......r..r.w",
    r"cublas[SDCZ]dgmm(?:_64)?": "....r.r.w",
    r"cublas[SDCZ]trsm(?:_v2|_64|_v2_64)?": "........r.b",
    r"cublas[SDCZ]trsv(?:_v2|_64|_v2_64)?": ".....r.b",
    r"cublas[SDCZ]axpy(?:_v2|_64|_v2_64)?": "...r.b",
    r"cublasAxpyEx(?:_64)?": "....r..b",
    r"cublas(?:[SDCZ]|Cs|Zd)scal(?:_v2|_64|_v2_64)?": "...b",
    r"cublasScalEx(?:_64)?": "....b",
    r"cublas[SDCZ]copy(?:_v2|_64|_v2_64)?": "..r.w",
    r"cublas[SDCZ]swap(?:_v2|_64|_v2_64)?": "..b.b",
    r"cublas[SDCZ]dot[uc]?(?:_v2|_64|_v2_64)?": "..r.r.w",
    r"cublas(?:[SD]|Sc|Dz)(?:nrm2|asum)(?:_v2|_64|_v2_64)?": "..r.w",
    r"cublasI[sdcz]a(?:max|min)(?:_v2|_64|_v2_64)?": "..r.w",
    r"cublas[SDCZ]ger[uc]?(?:_v2|_64|_v2_64)?": "....r.r.b",
    r"cublasSetVector(?:Async)?": "..r.w",
    r"cublasGetVector(?:Async)?": "..r.w",
    r"cublasSetMatrix(?:Async)?": "...r.w",
    r"cublasGetMatrix(?:Async)?": "...r.w",
    r"cublasLtMatmul": "...r.r.0r.w",
    r"cublasLtMatrixTransform": "...r.0r.w",
    # cuDNN
    r"cudnnConvolutionForward": "...r.r..w.0.b",
    r"cudnnConvolutionBackwardData": "...r.r..w.0.b",
    r"cudnnConvolutionBackwardFilter": "...r.r..w.0.b",
    r"cudnnConvolutionBackwardBias": "...r0.b",
    r"cudnn(?:Activation|Pooling)Forward": "....r0.b",
    r"cudnnSoftmaxForward": ".....r0.b",
    r"cudnnSoftmaxBackward": ".....r.r0.b",
    r"cudnnActivationBackward": "....r.r.r0.b",
    r"cudnnAddTensor": "...r0.b",
    r"cudnnTransformTensor": "...r0.b",
    r"cudnnScaleTensor": "..b",
    r"cudnnSetTensor": "..w",
    r"cudnnOpTensor": "....r..r0.b",
    r"cudnnReduceTensor": "..w.w...r0.b",
    r"cudnnBatchNormalizationForwardInference": ".....r.w.rrrr",
    r"cudnnBatchNormalizationForwardTraining": ".....r.w.rr.bb.ww",
    # cuFFT
    r"cufftExec(?:C2C|R2C|C2R|Z2Z|D2Z|Z2D)": ".rw",
    r"cufftXtExec": ".rw",
    # cuSPARSE: descriptors stand for the pointers that they were made with
    r"cusparseSpMV": "...rr0b..w",
    r"cusparseSpMM": "....rr0b..w",
    r"cusparseSpSV_solve": "...rrw",
    r"cusparseDenseToSparse_convert": ".rw.w",
    r"cusparseSparseToDense": ".rw.w",
    r"cusparse(?:Gather)": ".rw",
    r"cusparse(?:Scatter)": ".rw",
    r"cusparseAxpby": "..r0b",
    # cuRAND
    r"curandGenerate(?:LongLong)?(?:Uniform|Normal|LogNormal|Poisson)?(?:Double)?": ".w",
    # the memcpy family that the trace does not know as copies or fills
    r"cudaMemcpyToSymbol(?:Async)?": "wr",
    r"cudaMemcpyFromSymbol(?:Async)?": "wr",
    r"(?:cudaMemcpyToArray|cudaMemcpy2DToArray)(?:Async)?": "w..r",
    r"cudaMemcpyBatchAsync": "wr",
    r"cuMemcpy(?:DtoD|HtoD|DtoH)?(?:Async)?(?:_v2)?": "wr",
    r"cuMemcpyPeer(?:Async)?": "w.r",
    r"cuMemsetD(?:8|16|32)(?:Async)?(?:_v2)?": "w",
    r"cudaMemset3D(?:Async)?": "w",
    r"(?:std::)?mem(?:cpy|move)": "wr",
    r"(?:std::)?memset": "w",
    # MPI with device pointers
    r"MPI_I?[bsr]?[sS]end|MPI_[BSR]send": "r",
    r"MPI_(?:Recv|Irecv)": "w",
    r"MPI_I?[bB]cast": "b",
    r"MPI_I?[aA]llreduce|MPI_I?[rR]educe|MPI_I?[rR]educe_scatter(?:_block)?|MPI_I?[sS]can": "rw",
    r"MPI_I?(?:[aA]llgatherv?|[aA]lltoall|[gG]atherv?|[sS]catter)": "r..w",
    r"MPI_I?(?:[sS]catterv|[aA]lltoallv)": "r...w",
    r"MPI_Sendrecv": "r....w",
    r"MPI_(?:Put|Accumulate)": "r",
    r"MPI_Get": "w",
    # CUB: the first two arguments are temporary storage
    r"cub::Device(?:Segmented)?Reduce::(?:Sum|Min|Max|ArgMin|ArgMax|Reduce|TransformReduce)": "..rw",
    r"cub::Device(?:Segmented)?Scan::\w*": "..rw",
    r"cub::Device(?:Segmented)?(?:RadixSort|Sort|MergeSort)::(?:Stable)?SortKeys(?:Descending)?": "..rw",
    r"cub::Device(?:Segmented)?(?:RadixSort|Sort)::(?:Stable)?SortPairs(?:Descending)?": "..rwrw",
    r"cub::DeviceMergeSort::(?:Stable)?SortPairs": "..bb",
    r"cub::DeviceSelect::Flagged": "..rrww",
    r"cub::DeviceSelect::(?:If|Unique)": "..rww",
    r"cub::DevicePartition::If": "..rww",
    r"cub::DeviceHistogram::HistogramEven": "..rw",
    r"cub::DeviceRunLengthEncode::Encode": "..rwww",
    # Thrust, an execution policy left out
    r"thrust::(?:fill|fill_n|sequence|generate|tabulate|uninitialized_fill)": "w",
    r"thrust::(?:copy|copy_if|transform_inclusive_scan|inclusive_scan|exclusive_scan|adjacent_difference)": "r.w",
    r"thrust::(?:copy_n|gather)": "r.w",
    r"thrust::gather": "r.rw",
    r"thrust::scatter": "r.rw",
    r"thrust::(?:reduce|count|count_if|max_element|min_element|minmax_element|find|find_if|transform_reduce)": "r",
    r"thrust::(?:all_of|any_of|none_of|is_sorted)": "r",
    r"thrust::(?:inner_product|equal)": "r.r",
    r"thrust::(?:sort|stable_sort|for_each|for_each_n|replace|replace_if|unique|remove|remove_if|reverse)": "b",
    r"thrust::(?:sort_by_key|stable_sort_by_key)": "b.b",
    r"thrust::reduce_by_key": "r.rww",
    r"thrust::swap_ranges": "b.b",
}
"""A library's function as a pattern, and a letter for each argument."""
DESCRIPTORS: dict[str, tuple[int, tuple[int, ...]]] = {
    "cusparseCreateDnVec": (0, (2,)),
    "cusparseCreateConstDnVec": (0, (2,)),
    "cusparseCreateDnMat": (0, (4,)),
    "cusparseCreateConstDnMat": (0, (4,)),
    "cusparseCreateCsr": (0, (6,)),
    "cusparseCreateSpVec": (0, (4,)),
}
"""Function: (argument that receives a descriptor, arguments with the values that it stands for)."""
LIBRARIES = re.compile(r"\b(?:cublas|cudnn|cufft|cusparse|curand|thrust::|cub::|cuMemcpy|cuMemset)\w*")
"""What a macro may hide and the analysis has to see."""
_POLICY = re.compile(
    r"thrust::(?:cuda::|hip::)?par(?:_nosync)?(?:\.on)?(?:\(.*\))?(?:\.on\(.*\))?"
    r"|thrust::(?:device|host|seq)|\w*policy|\w*exec"
)
HARMLESS = re.compile(
    r"(?:std::)?(?:(?:f|s|sn|v|vf)?printf|puts|fputs|perror|exit|abort|assert|free|malloc|calloc|swap|move|forward|min|max"
    r"|ceil|floor|sqrt|abs|fabs|pow|to_string|make_\w+|getenv|ato\w|str\w+|addressof|tie|atexit|u?sleep)"
    r"|\.(?:push_back|emplace_back|emplace|insert|resize|reserve|assign|at|size|data|get|begin|end|reset|release|join|find)"
    r"|thrust::(?:raw_pointer_cast|device_pointer_cast|make_\w+)|sizeof|\w*[Ee]rror\w*"
    r"|D?CHECK(?:_\w+)?|(?:cublas|cudnn|cufft|cusparse|cusolver|curand)\w*(?:Create|Destroy|Set|Init|Heuristic|Descriptor|Workspace|Plan|bufferSize"
    r"|preprocess|analysis)\w*|MPI_\w+|omp_\w+|pthread_\w+|nvtx\w+|nvml\w+|nvshmem_(?:free|malloc|ptr)|p?nccl\w+|ncclx::\w+"
    r"|cuda(?!Memcpy|Memset|Graph\w*Mem)\w+|cu(?!Memcpy|Memset)[A-Z]\w+|hip(?!Memcpy|Memset)[A-Z]\w+"
)
"""Calls that touch no memory behind a device pointer, although they may get one."""
_TYPES = re.compile(r"(?:const|unsigned|void|char|float|double|int|long|half|size_t|u?int\d+_t|dim3|bool)\b.*")


def library_access(source: ParsedSource, call: Node) -> list[PointerAccess] | None:
    """Return what a call of a known library reads and writes; None where no table knows it."""
    written = qualified_name(source, call)
    given = arguments(call)
    letters = letters_of(written)
    if letters is None:
        return _device_operation(source, call)
    if written.startswith("thrust::"):
        if given and _POLICY.fullmatch(source.text_without_space(given[0])):
            given = given[1:]
        if written == "thrust::transform":
            letters = "r.rw" if len(given) > 4 else "r.w"
    overwrites = False
    found: list[PointerAccess] = []
    for letter, node in zip(letters, given, strict=False):
        if letter == BETA:
            overwrites = _is_zero(source, node)
        elif letter != ".":
            reads, writes = letter in "rb" and not overwrites, letter in "wb"
            if reads or writes:
                found.append(PointerAccess(node, reads, writes))
    return found


@cache
def _compiled_table() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), letters) for pattern, letters in _TABLE.items())


@lru_cache(maxsize=4096)
def letters_of(written: str) -> str | None:
    """Return the letters of a function's arguments."""
    if written == "thrust::transform":
        return "r.w"
    return next((letters for pattern, letters in _compiled_table() if pattern.fullmatch(written)), None)


def qualified_name(source: ParsedSource, call: Node) -> str:
    """Return a callee as written, template arguments left out, `::` before it too."""
    callee = field(call, "function")
    if callee is None or callee.type == "field_expression":
        return name_of(source, call)
    text, depth, kept = source.text_without_space(callee), 0, ""
    for letter in text:
        depth += letter == "<"
        kept += letter if not depth else ""
        depth -= letter == ">"
    return kept.removeprefix("::")


def is_harmless(source: ParsedSource, call: Node) -> bool:
    """Say whether a call is known to touch no memory behind a device pointer."""
    callee = field(call, "function")
    is_method = callee is not None and callee.type == "field_expression"
    name = ("." if is_method else "") + qualified_name(source, call)
    return (
        is_cast(call)
        or not name.strip(".")
        or HARMLESS.fullmatch(name) is not None
        or _TYPES.fullmatch(name) is not None
    )


def pointers_in(source: ParsedSource, node: Node) -> list[Node]:
    """Return the expressions in an argument that may be pointers: itself, or the members of an aggregate."""
    node = strip_casts(node)
    if node.type == "compound_literal_expression":
        node = field(node, "value") or node
    if node.type == "initializer_list":
        return [p for c in node.named_children for p in pointers_in(source, c)]
    if node.type == CALL and field(node, "function") is not None and _constructs(source, node):
        return [p for a in arguments(node) for p in pointers_in(source, a)]
    if node.type != "identifier":
        return [node]
    made = declaration_of(source, node)
    start = initializer_of(made) if made is not None else None
    if start is None or start.type not in {"initializer_list", "argument_list"}:
        return [node]
    inside = [p for c in start.named_children if c.type != "comment" for p in pointers_in(source, c)]
    return [node, *inside]


def _constructs(source: ParsedSource, call: Node) -> bool:
    return name_of(source, call).endswith(("Arguments", "Args", "Params", "Ref"))


def _device_operation(source: ParsedSource, call: Node) -> list[PointerAccess] | None:
    """Read `op(args)`, `op.run(args)` of a CUTLASS device operation: A and B and C are read, D is written."""
    given = arguments(call)
    if not given:
        return None
    listed = _arguments_of(source, given[0])
    if listed is None:
        return None
    refs = [c for c in listed if c.type == "initializer_list" and c.named_child_count > 1]
    if len(refs) < 4:
        return None
    firsts = [r.named_children[0] for r in refs[-5:][:4]] if len(refs) > 4 else [r.named_children[0] for r in refs[:4]]
    return [PointerAccess(n, number < 3, number == 3) for number, n in enumerate(firsts)]


def _arguments_of(source: ParsedSource, node: Node) -> list[Node] | None:
    """Return the parts of a `Gemm::Arguments`, made here or in the declaration of a variable."""
    node = strip_casts(node)
    text = ""
    if node.type == "identifier":
        made = declaration_of(source, node)
        start = initializer_of(made) if made is not None else None
        text = made.type_text if made is not None else ""
        node = start if start is not None else node
    elif node.type in {CALL, "compound_literal_expression"}:
        text = source.text_without_space(node).split("(")[0].split("{")[0]
        node = field(node, "arguments") or field(node, "value") or node
    if not text.endswith("Arguments") or node.type not in {"argument_list", "initializer_list"}:
        return None
    return [c for c in node.named_children if c.type != "comment"]


def _is_zero(source: ParsedSource, node: Node) -> bool:
    """Say whether a scaling factor is a constant zero, as `&zero` with `const float zero = 0` is."""
    node = strip_casts(node)
    if node.type == "identifier":
        made = declaration_of(source, node)
        start = initializer_of(made) if made is not None else None
        if start is None or _is_assigned(source, made.scope if made is not None else node, source.text(node)):
            return False
        node = start
    return re.fullmatch(r"[({]?0+\.?0*(?:[eE][+-]?\d+)?[fFlL]?[)}]?", source.text_without_space(node)) is not None


def _is_assigned(source: ParsedSource, scope: Node, name: str) -> bool:
    for inner in walk(scope):
        left = field(inner, "left") if inner.type == "assignment_expression" else None
        if left is not None and source.text(left) == name:
            return True
    return False
