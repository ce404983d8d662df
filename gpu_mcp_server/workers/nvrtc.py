"""Compiles CUDA source without host code by NVRTC, the compiler as a library; it may crash or hang without harm.

LIBRARIES (paths of libnvrtc-builtins and libnvrtc) is put before this source.

Source: CUDA documentation, "NVRTC", functions nvrtcCreateProgram to nvrtcDestroyProgram; mallopt(3).
"""

import ctypes
import os
import sys
from typing import Any, Dict, List

LIBRARIES: List[str] = globals().get("LIBRARIES", [])
HEADERS = {
    "stdint.h": "typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;"
    "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;"
    "typedef unsigned long long uint64_t; typedef unsigned long long uintptr_t; typedef long long intptr_t;\n",
    "stddef.h": "typedef long long ptrdiff_t;\n",
    "float.h": "#define FLT_MAX 3.402823466e+38F\n#define FLT_MIN 1.175494351e-38F\n"
    "#define FLT_EPSILON 1.192092896e-07F\n"
    "#define DBL_MAX 1.7976931348623158e+308\n#define DBL_MIN 2.2250738585072014e-308\n"
    "#define DBL_EPSILON 2.2204460492503131e-16\n",
    "limits.h": "#define INT_MAX 2147483647\n#define INT_MIN (-INT_MAX - 1)\n#define UINT_MAX 4294967295u\n",
    "math.h": "#ifndef INFINITY\n#define INFINITY (__int_as_float(0x7f800000))\n"
    "#define NAN (__int_as_float(0x7fffffff))\n#endif\n#define M_PI 3.14159265358979323846\n",
    "cuda_runtime.h": "",
    "device_launch_parameters.h": "",
}
"""What sources include out of habit and NVRTC has no file for: it knows the names itself, or they are few."""
PHASES = "/tmp/phases.csv"
"""Into the log it would not come beside what ptxas says."""
NAMES = {"stdint.h": "cstdint", "stddef.h": "cstddef", "float.h": "cfloat", "limits.h": "climits", "math.h": "cmath"}
STD_TYPES = " ".join("using ::%sint%d_t;" % (u, n) for u in ("", "u") for n in (8, 16, 32, 64))

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT_BYTES = 64 << 20

_held: Dict[str, Any] = {}


def library() -> Any:
    """Return libnvrtc, loaded once."""
    if "nvrtc" not in _held:
        for path in LIBRARIES[:-1]:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)  # libnvrtc asks for it by name, and then it is there already
        _held["nvrtc"] = ctypes.CDLL(LIBRARIES[-1])
    return _held["nvrtc"]


def keep_memory() -> None:
    """Let malloc keep what is freed: a compile otherwise takes 800 pages anew, a tenth of its time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's alone
    if mallopt is not None:
        for parameter in (M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD):
            mallopt(parameter, KEPT_BYTES)


def prepare() -> None:
    """Load the library and let it compile something, which takes most of the time of a first compile."""
    keep_memory()
    source = b"__global__ void k(float *x) { x[threadIdx.x] *= 2.f; }"
    for more in ([], [b"-minimal"]):
        compile_source(source, b"k.cu", [b"-arch=sm_90", b"-lineinfo", b"--ptxas-options=-v", *more])


def headers() -> Dict[bytes, bytes]:
    """Return the headers that we stand in for, by name."""
    found: Dict[bytes, bytes] = {}
    for name, text in HEADERS.items():
        found[name.encode()] = ("#pragma once\n" + text).encode()
        if name in NAMES:
            more = "namespace std { %s }\n" % STD_TYPES if name == "stdint.h" else ""
            found[NAMES[name].encode()] = ('#pragma once\n#include "%s"\n%s' % (name, more)).encode()
    return found


def compile_source(source: bytes, name: bytes, options: List[bytes]) -> Dict[str, Any]:
    """Compile one source.

    Returns:
        `code`, the result of nvrtcCompileProgram, `log`, and the bytes of `cubin` and `ptx` as far as there are any.
    """
    nvrtc = library()
    program = ctypes.c_void_p()
    ours = headers()
    texts = (ctypes.c_char_p * len(ours))(*ours.values())
    names = (ctypes.c_char_p * len(ours))(*ours.keys())
    code = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, len(ours), texts, names)
    if code:
        raise SystemExit("nvrtcCreateProgram failed with %d" % code)
    given = (ctypes.c_char_p * len(options))(*options)
    code = nvrtc.nvrtcCompileProgram(program, len(options), given)
    found: Dict[str, Any] = {"code": code}
    for what, call in (("log", "ProgramLog"), ("ptx", "PTX"), ("cubin", "CUBIN")):
        size = ctypes.c_size_t()
        if getattr(nvrtc, "nvrtcGet%sSize" % call)(program, ctypes.byref(size)) or size.value <= 1:
            found[what] = b""
            continue
        data = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, "nvrtcGet%s" % call)(program, data)
        # With -v the log is two texts, and ptxas's errors are the second one, behind a NUL.
        found[what] = {"cubin": data.raw, "log": data.raw.replace(b"\0", b"")}.get(what, data.value)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return found


def main(arguments: List[str]) -> None:
    """Compile a file of the working folder; the log goes to stderr, the results into files.

    Args:
        arguments: File, name of the cubin, name of the PTX, options of NVRTC.
    """
    file, cubin, ptx, options = arguments[0], arguments[1], arguments[2], arguments[3:]
    with open(file, "rb") as text:
        source = text.read()
    done = compile_source(source, file.encode(), [o.encode() for o in options] + [b"--time=" + PHASES.encode()])
    for path, data in ((cubin, done["cubin"]), (ptx, done["ptx"])):
        if data:
            with open(path, "wb") as out:
                out.write(data)
    sys.stderr.buffer.write(done["log"])
    if os.path.exists(PHASES):
        with open(PHASES, "rb") as table:
            sys.stderr.buffer.write(b"\n" + table.read())
    sys.stderr.flush()
    os._exit(1 if done["code"] else 0)  # without the library's own tidying up
