"""The smallest program that uses a GPU, by the driver alone, and what it tells of the driver.

Laid into the job as a file. Without arguments it launches one kernel; with `about` it also tries to export memory, and
to map it read-only, and prints what came of that as JSON.

Source: cuda.h: CUmemAllocationProp, CUmemAccessDesc; the handle type of a file descriptor is 1, access flags 1 and 3.
"""

import ctypes
import json
import sys
from typing import Any, Dict

PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry tiny(.param .u64 p) {
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 7;
    st.global.u32 [%rd2], %r1;
    ret;
}
\0"""


class MemLocation(ctypes.Structure):
    """CUmemLocation, and behind it the rest of CUmemAllocationProp."""

    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int), ("device", ctypes.c_int)]
    _fields_ += [("security", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class MemAccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("where", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


def call_driver(library: Any, name: str, *arguments: Any) -> None:
    """Call the driver.

    Raises:
        OSError: With the driver's name of the error.
    """
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(text))
        raise OSError("%s: %s" % (name, (text.value or b"error %d" % code).decode()))


def launch(library: Any) -> None:
    """Run the kernel and wait for it."""
    module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    call_driver(library, "cuModuleLoadData", ctypes.byref(module), PTX)
    call_driver(library, "cuModuleGetFunction", ctypes.byref(function), module, b"tiny")
    call_driver(library, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(256))
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
    sizes = [ctypes.c_uint(n) for n in (1, 1, 1, 1, 1, 1, 0)]
    call_driver(library, "cuLaunchKernel", function, *sizes, None, arguments, None)
    call_driver(library, "cuCtxSynchronize")


def probe_memory_sharing(library: Any) -> Dict[str, str]:
    """Return what export and read-only mapping say, nothing when they work."""
    found: Dict[str, str] = {}
    wanted = MemLocation(1, 1, 1, 0)
    size, handle, address, descriptor = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int()
    try:
        call_driver(library, "cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(wanted), 0)
        call_driver(library, "cuMemCreate", ctypes.byref(handle), size, ctypes.byref(wanted), ctypes.c_uint64(0))
        call_driver(library, "cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0))
        found["memory export"] = ""
        zero = (ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        call_driver(library, "cuMemAddressReserve", ctypes.byref(address), size, *zero)
        call_driver(library, "cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = MemAccessDesc(1, 0, 1)
        call_driver(library, "cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
        found["read-only mapping"] = ""
    except OSError as error:
        found["read-only mapping" if "memory export" in found else "memory export"] = str(error)
    return found


def main() -> None:
    """Launch, and tell."""
    library = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call_driver(library, "cuInit", 0)
    call_driver(library, "cuDeviceGet", ctypes.byref(device), 0)
    call_driver(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call_driver(library, "cuCtxSetCurrent", context)
    launch(library)
    if sys.argv[1:] == ["about"]:
        print(json.dumps(probe_memory_sharing(library)))


if __name__ == "__main__":
    main()
