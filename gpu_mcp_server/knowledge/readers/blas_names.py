"""Meanings of BLAS and LAPACK routines, told from their names: cuBLAS's and cuSOLVER's headers have no prose.

Source: the naming scheme of the reference BLAS and LAPACK; suffixes as cuBLAS, cuSOLVER and rocBLAS use them.
"""

import re

_OPERATIONS = {
    "gemm": "general matrix-matrix multiplication C = alpha*op(A)*op(B) + beta*C",
    "gemv": "general matrix-vector multiplication",
    "gbmv": "banded matrix-vector multiplication",
    "ger": "rank-1 update, outer product of two vectors",
    "symm": "symmetric matrix-matrix multiplication",
    "hemm": "Hermitian matrix-matrix multiplication",
    "symv": "symmetric matrix-vector multiplication",
    "spmv": "symmetric packed matrix-vector multiplication",
    "syrk": "symmetric rank-k update",
    "syrkx": "symmetric rank-k update, variant",
    "syr2k": "symmetric rank-2k update",
    "herk": "Hermitian rank-k update",
    "spr": "packed rank-1 update",
    "trsm": "solve a triangular system with multiple right-hand sides",
    "trsv": "solve a triangular system with a single right-hand side",
    "trmm": "triangular matrix-matrix multiplication",
    "trmv": "triangular matrix-vector multiplication",
    "axpy": "vector update y = alpha*x + y",
    "scal": "scale a vector by a constant",
    "dot": "dot product, inner product of two vectors",
    "dotu": "dot product of complex vectors, unconjugated",
    "dotc": "dot product of complex vectors, conjugated",
    "nrm2": "Euclidean norm of a vector",
    "asum": "sum of absolute values of a vector",
    "amax": "index of the element with the maximum absolute value",
    "amin": "index of the element with the minimum absolute value",
    "copy": "copy a vector",
    "swap": "swap two vectors",
    "rot": "apply a Givens rotation",
    "geam": "matrix addition and transposition C = alpha*op(A) + beta*op(B), out-of-place transpose",
    "dgmm": "multiply by a diagonal matrix",
    "getrf": "LU factorization with pivoting",
    "getrs": "solve a linear system from its LU factorization",
    "getri": "matrix inverse from an LU factorization",
    "matinv": "inverse of small matrices",
    "geqrf": "QR factorization",
    "gels": "least squares solve",
    "potrf": "Cholesky factorization",
    "potrs": "solve from a Cholesky factorization",
    "potri": "inverse from a Cholesky factorization",
    "syevd": "eigenvalues and eigenvectors of a symmetric matrix",
    "heevd": "eigenvalues and eigenvectors of a Hermitian matrix",
    "gesvd": "singular value decomposition",
    "gesvdj": "singular value decomposition by the Jacobi method",
    "sygvd": "generalized symmetric eigenvalue problem",
    "tpttr": "packed to full triangular",
}
_TYPES = {
    "S": "single precision float", "D": "double precision", "C": "single precision complex",
    "Z": "double precision complex", "H": "half precision",
}  # fmt: skip
_BATCHES = {
    "batched": "batch of many matrices by an array of pointers",
    "stridedbatched": "batch of many matrices, equally spaced, with a constant stride",
    "groupedbatched": "batch of many matrices in groups of different sizes",
}
_NAME = re.compile(
    r"^(?:cublas|cusolverDn|rocblas_)(?:Xt|xt)?(?:I|i)?(?P<type>[SDCZH]|[sdczh])?_?(?P<operation>gemm3m|[a-zA-Z0-9]+?)"
    r"(?P<batch>GroupedBatched|StridedBatched|Batched|_strided_batched|_batched)?(?P<form>Ex|_ex|3m|_bufferSize)?"
    r"(?:_v2|_64)*$"
)


def blas_meaning(name: str) -> str:
    """Return what a routine of cuBLAS, cuSOLVER or rocBLAS computes, "" if its name is none that is known."""
    found = _NAME.match(name)
    if found is None:
        return ""
    operation = "gemm" if name.startswith("cublasGemm") else found["operation"].lower()
    key = max((o for o in _OPERATIONS if operation.startswith(o)), key=len, default=None)
    if key is None:
        return ""
    kind = _TYPES.get((found["type"] or "").upper(), "")
    batch = _BATCHES.get((found["batch"] or "").lower().replace("_", ""), "")
    mixed = (
        "mixed precision with selectable data and compute types"
        if (found["form"] or "").lower() in ("ex", "_ex")
        else ""
    )
    return "; ".join(filter(None, [f"BLAS: {_OPERATIONS[key]}", kind, batch, mixed])) + "."
