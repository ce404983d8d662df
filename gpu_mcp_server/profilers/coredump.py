"""Parser of cuda-gdb's report on a GPU core dump: which exception, in which kernel, at which line.

Source: cuda-gdb 13.0 on a light core dump (CUDA_ENABLE_LIGHTWEIGHT_COREDUMP) of an H200.
"""

import re
from collections.abc import Mapping

from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.sanitizer import line_of

ENVIRONMENT: Mapping[str, str] = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
    "CUDA_COREDUMP_GENERATION_FLAGS": "skip_abort",
}
"""Makes the driver write where a kernel broke, at no cost until one does; the program sees the same error."""
FILE = ".gpu-core"
_EXCEPTION = re.compile(r"CUDA Exception: (.{1,120})")
_TRIGGERED = re.compile(r"triggered at PC 0x[0-9a-f]+\s+(.{1,2000}?)\s+\(([^()\s]+):(\d{1,9})\)")
_FRAME = re.compile(
    r"^#0\s+(?:0x[0-9a-f]+ in )?(.{1,2000}?)(?:<<<.*?>>>)? \(.*\)(?: at (\S+):(\d{1,9}))?", re.MULTILINE
)
_FOCUS = re.compile(r"block \((\d+,\d+,\d+)\), thread \((\d+,\d+,\d+)\)")
_ILLEGAL = re.compile(
    r"illegal memory access|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address|"
    r"cudaErrorMisalignedAddress|device-side assert|illegal instruction|unspecified launch failure|"
    r"cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED",
    re.IGNORECASE,
)


def parse(text: str, sources: Mapping[str, str] | None = None) -> str | None:
    """Return one line on what broke where, `None` if the text does not say; never raises."""
    exception = _EXCEPTION.search(text)
    place, frame, focus = _TRIGGERED.search(text), _FRAME.search(text), _FOCUS.search(text)
    if exception is None and place is None:
        return None
    found = place or frame
    said = exception[1].strip() if exception else "GPU exception"
    if found is not None:
        said += f" in {short_name(found[1])}"
        if found[2]:
            line = line_of(sources or {}, found[2], int(found[3]))
            said += f" at {found[2].rpartition('/')[2]}:{found[3]}" + (f" `{line}`" if line else "")
    return said + (f", block ({focus[1]}) thread ({focus[2]})" if focus else "")


def kernel_fault(output: str) -> str | None:
    """Return the words with which CUDA's run time reports that a kernel broke, `None` if it does not."""
    match = _ILLEGAL.search(output)
    return match[0] if match else None
