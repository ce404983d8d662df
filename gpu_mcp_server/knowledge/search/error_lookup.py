"""From a message of a compiler, CUDA or NCCL to the entry that explains it."""

import re
from collections.abc import Sequence

from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.search.known_messages import parts_of_message, plain_words

MESSAGE_CHARS = 600
MENTIONED = 6
OUTPUT_CHARS = 8_000
COMPLAINTS = 6
_ERROR_NAME = re.compile(
    r"\b(cudaError[A-Za-z0-9]+|CUDA_ERROR_[A-Z0-9_]+|hipError[A-Za-z0-9]+|nccl[A-Z]\w*Error|ncclInvalid\w+|NVRTC_ERROR_\w+"
    r"|CUBLAS_STATUS_\w+|MPI_ERR_\w+)\b"
)
_MISNAMED = re.compile(
    r"(?:identifier|name|variable|function|member|token|class|struct|symbol|reference to|declaration of(?: function)?) "
    r"[\"'`‘]([A-Za-z_]\w{2,80})"  # noqa: RUF001 - gcc's own quotation marks
)
_COMPLAINT = re.compile(
    r"\bcuda\w*[ _:-]*(?:error|failure)|cudaError|CUDA_ERROR_|nccl\w*[ :]+.*(?:error|failure)"
    r"|unhandled (?:cuda|system) error|hipError|MPI_ERR_|MPI_ABORT|illegal memory access|misaligned address"
    r"|device-side assert|launch failure|OutOfResources|out of resource|enough slots available",
    re.IGNORECASE,
)


def address_of(library: IndexReader, message: str) -> str | None:
    """Return the address of the entry that explains a message, `None` if we know none.

    An error's own name first, then the messages that our guides know, then a name that the compiler does not.
    """
    message = message[:MESSAGE_CHARS]
    for name in _ERROR_NAME.findall(message)[:MENTIONED]:
        uri = library.of_name(name)
        if uri is not None:
            return uri
    plain = f" {plain_words(message)} "
    for said, uri in _known(library):
        if all(part in plain for part in said):
            return uri
    found = _MISNAMED.search(message)
    if found is None:
        return None
    return library.of_name(found.group(1)) or library.nearest(found.group(1))


def error_lines(output: str) -> list[str]:
    """Return the lines of a program's output that may be an error of CUDA, NCCL, HIP, MPI or Triton, the last ones."""
    lines = [line for line in output[-OUTPUT_CHARS:].splitlines() if _COMPLAINT.search(line)]
    return lines[-COMPLAINTS:]


def _known(library: IndexReader) -> tuple[tuple[Sequence[str], str], ...]:
    """Return the messages that are explained: the parts that a message must have, longest first, and the address."""
    known = [(parts_of_message(said), uri) for said, uri in library.messages()]
    return tuple(sorted(known, key=lambda each: -sum(map(len, each[0]))))
