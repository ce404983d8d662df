"""Memory files mapped by address, for processes that have nothing but ctypes."""

import ctypes
import mmap
import os

MAP_POPULATE = 0x8000
"""Maps all pages at once, so that no timed call pays for a page fault.

Source: Linux, include/uapi/asm-generic/mman.h.
"""

FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """A shared mapping of a whole memory file."""

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        self.size = os.fstat(descriptor).st_size
        libc = ctypes.CDLL(None, use_errno=True)
        self._map = libc.mmap
        self._map.restype = ctypes.c_void_p
        self._map.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        self._unmap = libc.munmap
        self._unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = self._map(None, self.size, protection, mmap.MAP_SHARED | MAP_POPULATE, descriptor, 0)
        if address is None or address == FAILED:
            code = ctypes.get_errno()
            raise OSError(code, "mmap: " + os.strerror(code))
        self.address = int(address)
        os.close(descriptor)

    def close(self) -> None:
        """Unmap; arrays over it must be gone."""
        self._unmap(self.address, self.size)
