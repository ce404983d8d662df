"""Compiles HIP source without host code by HIPRTC, the compiler as a library; it may crash or hang without harm.

LIBRARY (path of libhiprtc, or of libamdhip64 before ROCm 5.3) and BUILT_IN are put before this source.

Source: ROCm documentation, "HIP RTC Programming Guide", functions hiprtcCreateProgram to hiprtcDestroyProgram.
"""

import ctypes
import os
import re
import sys
from typing import Any, Dict, List

LIBRARY: str = globals().get("LIBRARY", "")
BUILT_IN: List[str] = globals().get("BUILT_IN", [])
"""Headers that the library knows by itself; the files of these names would define all of it a second time."""
MORE = {
    "float.h": "#define FLT_MAX __FLT_MAX__\n#define FLT_MIN __FLT_MIN__\n#define FLT_EPSILON __FLT_EPSILON__\n"
    "#define DBL_MAX __DBL_MAX__\n#define DBL_MIN __DBL_MIN__\n#define DBL_EPSILON __DBL_EPSILON__\n",
    "limits.h": "#define INT_MAX __INT_MAX__\n#define INT_MIN (-INT_MAX - 1)\n#define UINT_MAX (2u * INT_MAX + 1u)\n",
    "math.h": '#ifndef INFINITY\n#define INFINITY __builtin_inff()\n#define NAN __builtin_nanf("")\n#endif\n'
    "#define M_PI 3.14159265358979323846\n",
}
SAME = {"cfloat": "float.h", "climits": "limits.h", "cmath": "math.h"}
_GIVEN_NAME = re.compile(rb"/tmp/comgr-[^/\s]+/input/CompileSource")

_held: Dict[str, Any] = {}


def library() -> Any:
    """Return the library, loaded once."""
    if "hiprtc" not in _held:
        _held["hiprtc"] = ctypes.CDLL(LIBRARY)
    return _held["hiprtc"]


def prepare() -> None:
    """Load the library and let it compile something, which takes a third of the time of a first compile."""
    compile_source(b"__global__ void k(float *x) { x[threadIdx.x] *= 2.f; }", b"k.hip", [b"--offload-arch=gfx90a"])


def compile_source(source: bytes, name: bytes, options: List[bytes]) -> Dict[str, Any]:
    """Compile one source.

    Returns:
        `code`, the result of hiprtcCompileProgram, `log`, with the source under its own name, and `object`.
    """
    hiprtc = library()
    program = ctypes.c_void_p()
    texts = [("#pragma once\n" + MORE.get(SAME.get(n, n), "")).encode() for n in BUILT_IN]
    headers = (ctypes.c_char_p * len(texts))(*texts)
    names = (ctypes.c_char_p * len(texts))(*(n.encode() for n in BUILT_IN))
    code = hiprtc.hiprtcCreateProgram(ctypes.byref(program), source, name, len(texts), headers, names)
    if code:
        raise SystemExit("hiprtcCreateProgram failed with %d" % code)
    given = (ctypes.c_char_p * len(options))(*options)
    found: Dict[str, Any] = {"code": hiprtc.hiprtcCompileProgram(program, len(options), given)}
    for what, call in (("log", "ProgramLog"), ("object", "Code")):
        size = ctypes.c_size_t()
        if getattr(hiprtc, "hiprtcGet%sSize" % call)(program, ctypes.byref(size)) or size.value <= 1:
            found[what] = b""
            continue
        data = ctypes.create_string_buffer(size.value)
        getattr(hiprtc, "hiprtcGet%s" % call)(program, data)
        found[what] = data.raw if what == "object" else _GIVEN_NAME.sub(lambda _: name, data.value)
    hiprtc.hiprtcDestroyProgram(ctypes.byref(program))
    return found


def main(arguments: List[str]) -> None:
    """Compile a file of the working folder; the log goes to stderr, the code object into a file.

    Args:
        arguments: File, name of the code object, options of HIPRTC.
    """
    file, target, options = arguments[0], arguments[1], arguments[2:]
    with open(file, "rb") as text:
        source = text.read()
    done = compile_source(source, file.encode(), [o.encode() for o in options])
    if done["object"] and not done["code"]:
        with open(target, "wb") as out:
            out.write(done["object"])
    sys.stderr.buffer.write(done["log"])
    sys.stderr.flush()
    os._exit(1 if done["code"] else 0)  # without the library's own tidying up
