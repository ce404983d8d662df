"""Memory files mapped by address, for processes that have nothing but ctypes."""

import ctypes
import mmap
import os
from ctypes import c_int, c_long, c_size_t, c_void_p

POPULATE_READ = 22
POPULATE_WRITE = 23
"""Advice that maps all pages at once, so that no timed call pays for a page fault.

Source: Linux 5.14, include/uapi/asm-generic/mman-common.h, MADV_POPULATE_*.
"""

FAILED = c_void_p(-1).value
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = c_void_p
LIBC.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
LIBC.munmap.argtypes = [c_void_p, c_size_t]
LIBC.madvise.argtypes = [c_void_p, c_size_t, c_int]


class Mapping:
    """A shared mapping of a whole memory file."""

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        self.size = os.fstat(descriptor).st_size
        self.writable = writable
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = LIBC.mmap(None, self.size, protection, mmap.MAP_SHARED, descriptor, 0)
        if address is None or address == FAILED:
            # ctypes keeps its own copy of errno per thread, which other library calls do not overwrite.
            code = ctypes.get_errno()
            raise OSError(code, "mmap: " + os.strerror(code))
        self.address = int(address)
        self._populated = 0
        # The mapping keeps the file alive by itself, so the descriptor would only use up the process's limit.
        os.close(descriptor)

    def populate(self, size: int) -> None:
        """Map the first `size` bytes now; an older system does it at the first, untimed round."""
        size = min(size, self.size)
        if size > self._populated:
            # Its result is not looked at: kernels before 5.14 refuse the advice, and faults then come untimed.
            LIBC.madvise(self.address, size, POPULATE_WRITE if self.writable else POPULATE_READ)
            self._populated = size

    def close(self) -> None:
        """Unmap; arrays over it must be gone."""
        LIBC.munmap(self.address, self.size)
