"""The CUDA driver, as much of it as the judge needs, by ctypes: neither torch nor a toolkit has to be there."""

import ctypes
import os
import time
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_ushort,
    c_void_p,
)
from typing import Any, Dict, List, Sequence, Tuple

from ..verdicts import JudgeFailed, TooLarge

LIBRARY = "libcuda.so.1"
CONTROL = "/dev/nvidiactl"
Handle = c_uint64
Address = c_uint64

PINNED = 1
ON_DEVICE = 1
POSIX_DESCRIPTOR = 1
READ = 1
READ_WRITE = 3
"""Source: cuda.h, CUmemAllocationType, CUmemLocationType, CUmemAllocationHandleType, CUmemAccess_flags."""

OUT_OF_MEMORY = 2
"""Source: cuda.h, CUDA_ERROR_OUT_OF_MEMORY."""

MAJOR, MINOR, MULTIPROCESSORS, L2_BYTES = 75, 76, 16, 38
"""Source: cuda.h, CUdevice_attribute."""


class Location(Structure):
    """CUmemLocation."""

    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationFlags(Structure):
    """The last member of CUmemAllocationProp."""

    _fields_ = [
        ("compressionType", c_ubyte),
        ("gpuDirectRDMACapable", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class AllocationProperties(Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location", Location),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", AllocationFlags),
    ]


class AccessDescription(Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", c_int)]


Uuid = c_ubyte * 16
"""CUuuid."""

RELEASE_THRESHOLD = 4
"""CU_MEMPOOL_ATTR_RELEASE_THRESHOLD."""

SIGNATURES: Dict[str, List[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [POINTER(c_int)],
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetUuid_v2": [POINTER(Uuid), c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuMemGetInfo_v2": [POINTER(c_size_t), POINTER(c_size_t)],
    "cuMemGetAllocationGranularity": [POINTER(c_size_t), POINTER(AllocationProperties), c_int],
    "cuMemCreate": [POINTER(Handle), c_size_t, POINTER(AllocationProperties), c_uint64],
    "cuMemRelease": [Handle],
    "cuMemAddressReserve": [POINTER(Address), c_size_t, c_size_t, Address, c_uint64],
    "cuMemAddressFree": [Address, c_size_t],
    "cuMemMap": [Address, c_size_t, c_size_t, Handle, c_uint64],
    "cuMemUnmap": [Address, c_size_t],
    "cuMemSetAccess": [Address, c_size_t, POINTER(AccessDescription), c_size_t],
    "cuMemExportToShareableHandle": [c_void_p, Handle, c_int, c_uint64],
    "cuMemImportFromShareableHandle": [POINTER(Handle), c_void_p, c_int],
    "cuMemAlloc_v2": [POINTER(Address), c_size_t],
    "cuMemFree_v2": [Address],
    "cuMemcpyHtoD_v2": [Address, c_void_p, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, Address, c_size_t],
    "cuMemcpyDtoD_v2": [Address, Address, c_size_t],
    "cuMemsetD8_v2": [Address, c_ubyte, c_size_t],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostGetDevicePointer_v2": [POINTER(Address), c_void_p, c_uint],
    "cuStreamWaitValue32_v2": [c_void_p, Address, c_uint, c_uint],
    "cuStreamWriteValue32_v2": [c_void_p, Address, c_uint, c_uint],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuModuleLoadData": [POINTER(c_void_p), c_char_p],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuLaunchKernel": [c_void_p] + [c_uint] * 6 + [c_uint, c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
}


class CudaError(JudgeFailed):
    """A call of the driver failed."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__("%s: %s" % (call, name))
        self.name = name


class OutOfMemory(CudaError, TooLarge):
    """The GPU has no memory left for what the judge itself needs."""


def prepare() -> None:
    """Begin to use the driver where a GPU is shown already; no context is made, so nothing is on the GPU.

    Where none is shown the driver's library is only mapped: it would remember that there was none.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return  # whoever needs it says so
    if is_shown():
        library.cuInit(0)  # what it returns it returns again to whoever needs it


def is_shown() -> bool:
    """Say whether this process can reach a GPU of NVIDIA's."""
    return os.path.exists(CONTROL) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


class Driver:
    """The driver library with a context of the job's one device: the primary one, which the runtime API shares."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise JudgeFailed("no CUDA driver: %s" % error) from None
        for name, arguments in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes = arguments
            function.restype = c_int
        self.seconds: Dict[str, float] = {}
        """What it took to begin."""
        begin = time.perf_counter()
        self.call("cuInit", 0)
        self.seconds["driver"] = time.perf_counter() - begin
        device = c_int()
        self.call("cuDeviceGet", byref(device), 0)
        self.device = device.value
        self.context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), self.device)
        self.enter()
        self.seconds["context"] = time.perf_counter() - begin - self.seconds["driver"]

    def enter(self) -> None:
        """Make the context the calling thread's: to the driver each thread has one of its own, none at first."""
        self.call("cuCtxSetCurrent", self.context)

    def error_name(self, code: int) -> str:
        """Return the name of an error."""
        text = c_char_p()
        if self.library.cuGetErrorName(code, byref(text)) or not text.value:
            return "CUDA error %d" % code
        return text.value.decode()

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver.

        Raises:
            OutOfMemory: If that is why it does not return CUDA_SUCCESS.
            CudaError: If it is something else.
        """
        code = getattr(self.library, name)(*arguments)
        if code:
            raise (OutOfMemory if code == OUT_OF_MEMORY else CudaError)(name, self.error_name(code))

    def synchronize(self) -> None:
        """Wait for everything in the context."""
        self.call("cuCtxSynchronize")

    def keep_pooled(self) -> None:
        """Have the device's own pool keep what a program gives back to it, where the driver has pools.

        By default it goes back to the system at every wait, and is had anew at the next call that is waited for by
        itself; in a round, which waits once, it is not. Source: CUDA driver API, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD.
        """
        pool, most = c_void_p(), c_uint64(2**64 - 1)
        if not hasattr(self.library, "cuMemPoolSetAttribute"):
            return
        if not self.library.cuDeviceGetDefaultMemPool(byref(pool), c_int(self.device)):
            self.library.cuMemPoolSetAttribute(pool, c_int(RELEASE_THRESHOLD), byref(most))

    def attribute(self, number: int) -> int:
        """Return a device attribute."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    def name(self) -> str:
        """Return the device's name."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 256, self.device)
        return text.value.decode()

    def uuid(self) -> str:
        """Return the device's UUID as NVML writes it."""
        value = Uuid()
        self.call("cuDeviceGetUuid_v2", byref(value), self.device)
        digits = bytes(value).hex()
        return "GPU-" + "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])

    def version(self) -> str:
        """Return the CUDA version that the driver supports."""
        value = c_int()
        self.call("cuDriverGetVersion", byref(value))
        return "%d.%d" % (value.value // 1000, value.value % 1000 // 10)

    def memory(self) -> Tuple[int, int]:
        """Return free and all memory of the device in bytes."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def upload(self, to: int, data: Any, size: int) -> None:
        """Copy from host memory at address `data`."""
        self.call("cuMemcpyHtoD_v2", to, data, size)

    def download(self, into: Any, at: int, size: int) -> None:
        """Copy to host memory at address `into`."""
        self.call("cuMemcpyDtoH_v2", into, at, size)

    def copy(self, to: int, at: int, size: int) -> None:
        """Copy on the device and wait."""
        self.call("cuMemcpyDtoD_v2", to, at, size)
        self.synchronize()

    def allocate(self, size: int) -> int:
        """Return memory that nobody else sees."""
        address = Address()
        self.call("cuMemAlloc_v2", byref(address), max(size, 1))
        return int(address.value)

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""
        self.call("cuMemFree_v2", address)


class Shared:
    """Device memory that travels between processes as a file descriptor."""

    def __init__(self, driver: Driver, handle: int, size: int, access: int) -> None:
        self.driver, self.handle, self.size = driver, handle, size
        self.descriptor = -1
        address = Address()
        driver.call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
        self.address = int(address.value)
        driver.call("cuMemMap", self.address, size, 0, handle, 0)
        description = AccessDescription(Location(ON_DEVICE, driver.device), access)
        driver.call("cuMemSetAccess", self.address, size, byref(description), 1)

    @classmethod
    def create(cls, driver: Driver, size: int) -> "Shared":
        """Allocate at least `size` bytes and export them."""
        wanted = AllocationProperties()
        wanted.type = PINNED
        wanted.requestedHandleTypes = POSIX_DESCRIPTOR
        wanted.location = Location(ON_DEVICE, driver.device)
        grain = c_size_t()
        driver.call("cuMemGetAllocationGranularity", byref(grain), byref(wanted), 0)
        whole = (size + grain.value - 1) // grain.value * grain.value
        handle = Handle()
        driver.call("cuMemCreate", byref(handle), whole, byref(wanted), 0)
        made = cls(driver, int(handle.value), whole, READ_WRITE)
        number = c_int(-1)
        driver.call("cuMemExportToShareableHandle", byref(number), made.handle, POSIX_DESCRIPTOR, 0)
        made.descriptor = number.value
        return made

    @classmethod
    def adopt(cls, driver: Driver, descriptor: int, size: int, *, writable: bool) -> Tuple["Shared", bool]:
        """Map memory that another process exported; return it and whether the access is as narrow as asked."""
        handle = Handle()
        driver.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), POSIX_DESCRIPTOR)
        os.close(descriptor)
        if writable:
            return cls(driver, int(handle.value), size, READ_WRITE), True
        try:
            # A driver may refuse narrower access than the exporter's. The owner then compares the inputs with its own
            # copy.
            return cls(driver, int(handle.value), size, READ), True
        except CudaError:
            return cls(driver, int(handle.value), size, READ_WRITE), False

    def close(self) -> None:
        """Unmap and release."""
        self.driver.call("cuMemUnmap", self.address, self.size)
        self.driver.call("cuMemAddressFree", self.address, self.size)
        self.driver.call("cuMemRelease", self.handle)
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Kernels:
    """Functions of a module: a PTX text, which ends in a zero byte, or a cubin."""

    THREADS = 256

    def __init__(self, driver: Driver, image: bytes) -> None:
        self.driver = driver
        module = c_void_p()
        driver.call("cuModuleLoadData", byref(module), image)
        self.module = module
        self.functions: Dict[str, c_void_p] = {}
        self.blocks = driver.attribute(MULTIPROCESSORS) * 16

    def launch(self, name: str, work: int, arguments: Sequence[Any]) -> None:
        """Launch on the legacy default stream, with a thread for each of `work` items as far as blocks go.

        Arguments are ctypes values; each kernel strides over what is left.
        """
        if name not in self.functions:
            function = c_void_p()
            self.driver.call("cuModuleGetFunction", byref(function), self.module, name.encode())
            self.functions[name] = function
        pointers = (c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
        blocks = max(1, min(self.blocks, (work + self.THREADS - 1) // self.THREADS))
        self.driver.call(
            "cuLaunchKernel", self.functions[name], blocks, 1, 1, self.THREADS, 1, 1, 0, None, pointers, None
        )
