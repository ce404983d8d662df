"""C and C++ declarations: what they declare, and how they are shown."""

import re
from dataclasses import dataclass

from gpu_mcp_server.knowledge.readers import doxygen

SIGNATURE_CHARS = 1_500
"""Of all overloads of a function together."""

_ATTRIBUTE = re.compile(
    r"\b(?:__attribute__|__declspec|__launch_bounds__|alignas|__align__|__dv|__dparm|__specialization_static|DEPRECATED"
    r"|CUDA_CB|HIP_DEPRECATED|ROCBLAS_DEPRECATED_MSG|__CUDA_DEPRECATED|CUSPARSE_DEPRECATED\w*|NCCL_API|__MPI_DEPRECATED"
    r"|__mpi_interface_\w+__|__opal_attribute_\w+__|__DEVICE_FUNCTIONS_STATIC_DECL__)\s*\((?:[^()]|\([^()]*\))*\)"
)
_RECORD = re.compile(
    r"(?:typedef\s+)?(?:extern \"C\"\s*)?(?:__\w+__\s+)*(enum|struct|union|class)\b(?:\s+class)?"
    r"(?:\s+__\w+__|\s+__HIP_\w+)*"
    r"(?:\s+\w+\((?:[^()]|\([^()]*\))*\))?\s*(\w+)?"
)
_TEMPLATE = re.compile(r"^template\s*<[^{;]*?>\s*(?=[a-zA-Z_])")
_POINTER = re.compile(r"\(\s*\*\s*(\w+)\s*\)\s*\(")
_CALLED = re.compile(r"(?<!\w)([A-Za-z_]\w*)\s*\(")
_STATEMENT = re.compile(r"(?:if|for|while|switch|return|sizeof|static_assert|asm)$")
_NOISE = re.compile(
    r"\b(?:extern|CUDARTAPI|CUDAAPI|CUBLASWINAPI|CUSPARSEAPI|__cudart_builtin__|ROCBLAS_EXPORT|CUSOLVERAPI|CUFFTAPI"
    r"|CURANDAPI|NVRTCAPI|OMPI_DECLSPEC|NCCL_DEVICE_INLINE|NCCL_HOST_DEVICE_INLINE|__host__"
    r"|NVSHMEMI_HOSTDEVICE_PREFIX)\b ?"
)
_MEMBER = re.compile(
    r"(?P<comment>/\*.*?(?:\*/|\Z)|//[^\n]*)|(?P<name>[A-Za-z_]\w*)[ \t]*(?:\s*=\s*(?P<value>[^,/}\n]+))?"
    r"|(?P<line>\n)|.",
    re.DOTALL,
)


@dataclass
class Enumerator:
    """An enumerator."""

    name: str
    written: str
    """Its value, as the header has it."""
    value: int | None
    comment: str = ""


def declared_names(text: str) -> tuple[str | None, list[str]]:
    """Return the kind of a declaration (`function`, `type`, `enum` or `None`) and the names it declares."""
    text = re.sub(r"\s+", " ", text).strip()
    if text.startswith("template"):
        text = _TEMPLATE.sub("", text)
    bare = _ATTRIBUTE.sub("", text)
    record = _RECORD.match(text)
    if record and ("{" in text or "(" not in bare):
        own = [record.group(2)] if record.group(2) and not record.group(2).startswith("__") else []
        after = re.findall(r"}\s*(?:\w+_ALIGN\w*\s*)?(\w+)\s*[;,]?\s*$", text)
        return ("enum" if record.group(1) == "enum" else "type"), list(dict.fromkeys(own + after))
    if text.startswith("typedef"):
        found = _POINTER.search(bare) or re.search(r"(\w+)\s*;?\s*$", bare)
        return "type", [found.group(1)] if found else []
    if text.startswith("using"):
        found = re.match(r"using\s+(\w+)\s*=", text)
        return "type", [found.group(1)] if found else []
    found = _CALLED.search(bare)
    if found and not _STATEMENT.match(found.group(1)):
        return "function", [found.group(1)]
    return None, []


def signature(text: str) -> str:
    """Return a function's declaration on one line, without body, attributes that say nothing, and export macros."""
    line = re.sub(r"\{.*$", "", re.sub(r"\s+", " ", text).strip()).strip().rstrip(";") + ";"
    line = re.sub(r"//[^;]*$|/\*.*?(?:\*/|$)", "", line)
    line = re.sub(r"__dv\((.*?)\)", r"= \1", line)
    line = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)\s*", "", line)
    return re.sub(r"\s+;$", ";", _NOISE.sub("", line).strip())


def record_text(text: str) -> str:
    """Return a struct or enum with its comments as plain text."""
    lines = re.sub(r"/\*+<?\s*|\s*\*+/|^\s*\*\s?", " ", text, flags=re.MULTILINE)
    return doxygen.plain(re.sub(r"\n\s*\n+", "\n", re.sub(r"[ \t]+", " ", lines)))


def members(text: str) -> list[Enumerator]:
    """Return the enumerators of an enum with their values and comments; an implicit value follows from the last."""
    inner = text[text.index("{") + 1 :] if "{" in text else ""
    inner = inner[: inner.rindex("}")] if "}" in inner else inner
    found: list[Enumerator] = []
    pending, same_line, following = "", False, 0
    for match in _MEMBER.finditer(inner):
        if comment := match["comment"]:
            words = doxygen.plain(doxygen.strip_comment(comment))
            if found and (re.match(r"/\*[*!]<|//[/!]<", comment) or same_line):
                found[-1].comment = f"{found[-1].comment} {words}".strip()
            else:
                pending = f"{pending} {words}".strip() if comment.startswith("//") else words
        elif name := match["name"]:
            written = (match["value"] or "").strip()
            value = _number(written) if written else following
            following = value + 1 if value is not None else following
            found.append(Enumerator(name, written, value, pending))
            pending, same_line = "", True
        elif match["line"]:
            same_line = False
    return found


def _number(text: str) -> int | None:
    text = text.strip("() ").rstrip("uUlL")
    try:
        return int(text, 0)
    except ValueError:
        return None
