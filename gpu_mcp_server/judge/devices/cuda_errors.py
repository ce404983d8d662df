"""Explains a launcher's return value that is a CUDA error, as `return cudaGetLastError();` makes it."""

from typing import Any, Dict, Tuple, cast

OUT_OF_MEMORY = 2
STAGES: Dict[int, Tuple[str, str]] = {
    1: ("cudaErrorInvalidValue", "launch error: an argument of a call or of a launch is out of range"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    9: ("cudaErrorInvalidConfiguration", "launch error: grid, block or shared memory beyond what the GPU takes"),
    98: ("cudaErrorInvalidDeviceFunction", "launch error: the kernel was not compiled for this GPU"),
    101: ("cudaErrorInvalidDevice", "launch error: no such device"),
    209: ("cudaErrorNoKernelImageForDevice", "launch error: the kernel was not compiled for this GPU"),
    218: ("cudaErrorInvalidPtx", "launch error: its PTX could not be compiled"),
    222: ("cudaErrorUnsupportedPtxVersion", "launch error: compiled by a newer toolkit than the driver knows"),
    700: ("cudaErrorIllegalAddress", "illegal address: an access outside the buffers, or a write to an input"),
    701: ("cudaErrorLaunchOutOfResources", "launch error: more registers a block than there are; use fewer threads"),
    702: ("cudaErrorLaunchTimeout", "the kernel ran longer than the display allows"),
    710: ("cudaErrorAssert", "an assertion in the kernel failed"),
    715: ("cudaErrorIllegalInstruction", "illegal instruction"),
    716: (
        "cudaErrorMisalignedAddress",
        "misaligned address: vector accesses need addresses that are multiples of theirs",
    ),
    717: ("cudaErrorInvalidAddressSpace", "an address of another memory space"),
    719: ("cudaErrorLaunchFailure", "the kernel failed while it ran"),
    720: ("cudaErrorCooperativeLaunchTooLarge", "launch error: a cooperative grid that does not fit the GPU at once"),
    900: ("cudaErrorStreamCaptureUnsupported", "a call that cannot be recorded"),
}
"""By number, which runtime and driver share. Source: driver_types.h, enum cudaError, CUDA 13.0."""


def meaning(code: int, free_bytes: int, all_bytes: int, asked: Any = None) -> str:
    """Return the name and stage of what a launcher returned in brackets, empty for one that is no known error.

    `asked` is what the candidate says of the allocation that failed: `by`, `bytes`. It is told, not believed.
    """
    if code not in STAGES:
        return ""
    name, text = STAGES[code]
    if code == OUT_OF_MEMORY:
        there = (free_bytes / 1e9, all_bytes / 1e9)
        text += ": %s more than the %.3g GB that were free, of %.3g GB" % (_wanted(asked), *there)
    return " (%s, %s)" % (name, text)


def _wanted(asked: Any) -> str:
    """Return what was asked for in words, as far as that can be read."""
    found = cast("Dict[str, Any]", asked) if isinstance(asked, dict) else {}
    size, by = found.get("bytes"), found.get("by")
    # The text comes from the candidate, so only a plain name and a plausible size enter the verdict.
    if isinstance(size, int) and 0 < size < 1 << 64 and isinstance(by, str) and by.isidentifier():
        return "%s asked for %.4g GB (%d bytes)," % (by[:40], size / 1e9, size)
    return "what it asked for was"
