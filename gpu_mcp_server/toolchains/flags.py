"""Allow-list of the compiler flags that a caller may give.

A list of what is allowed, not of what is forbidden: compilers have hundreds of flags that read, write or run
files (`-o`, `-fplugin=`, `-wrapper`, `-specs=`, `@file`, `--run`, `-Xlinker`, `-ccbin`), and new ones each year.

Source: GCC 12 manual, chapter "GCC Command Options"; `nvcc --help` of CUDA 13.0; `clang --help` 19.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from gpu_mcp_server.errors import BadRequest

MAX_FLAGS = 64
MAX_FLAG_CHARACTERS = 512

_HIP_PATTERNS = (
    r"-m(?:no-)?(?:unsafe-fp-atomics|wavefrontsize64|cumode|sram-ecc|xnack|tgsplit)",
    r"-f(?:no-)?gpu-(?:rdc|flush-denormals-to-zero|approx-transcendentals|sanitize)",
    r"-ffp-contract=(?:on|off|fast|fast-honor-pragmas)",
    r"--gpu-max-threads-per-block=[0-9]{1,4}",
    r"-f(?:no-)?(?:hip-fp32-correctly-rounded-divide-sqrt|cuda-flush-denormals-to-zero)",
)

CC_LIBRARIES = ("m", "gomp", "pthread", "dl", "rt", "atomic")
HIP_LIBRARIES = (*CC_LIBRARIES, "hipblas", "rocblas", "hipfft", "hiprand", "hipsparse", "hipsolver", "MIOpen")
FOUND_LIBRARIES = (
    *("cuda", "nvrtc", "nvJitLink", "cublas", "cublasLt", "cufft", "curand", "cusparse", "cusolver", "cudnn", "nccl"),
)
"""Those that are looked for on the host: a toolkit need not have them."""
NVCC_LIBRARIES = (*CC_LIBRARIES, "cudart", "cudadevrt", *FOUND_LIBRARIES)

_CODE_GENERATION = (
    "fast-math|unsafe-math-optimizations|associative-math|reciprocal-math|finite-math-only|signed-zeros|trapping-math"
    "|math-errno|rounding-math|signaling-nans|cx-limited-range|fp-contract|excess-precision|unroll-(?:all-)?loops"
    "|(?:tree-)?(?:slp-)?vectorize|tree-loop-[a-z-]+|tree-parallelize-loops|vect-cost-model|simd-cost-model"
    "|(?:peel|split|unswitch)-loops|prefetch-loop-arrays|loop-[a-z-]+|graphite|graphite-identity"
    "|inline|inline-functions|inline-limit|strict-aliasing|strict-overflow|wrapv|omit-frame-pointer|openmp|openmp-simd"
    "|lto|ipa-[a-z-]+|gcse|schedule-insns2?|modulo-sched|rename-registers|exceptions|rtti|builtin|permissive|pic|PIC"
    "|visibility|common|plt|semantic-interposition|function-sections|data-sections|align-(?:functions|loops|jumps|labels)"
    "|template-depth|constexpr-(?:depth|loop-limit|ops-limit)|concepts|signed-char|unsigned-char|stack-protector"
    "|merge-constants|delete-null-pointer-checks|max-errors|sized-deallocation|aligned-new"
)
_PLAIN_VALUE = r"[A-Za-z0-9][A-Za-z0-9.,+_-]*"

_CC_PATTERNS = (
    r"-O(?:[0-3sgz]|fast)?",
    r"-std=[a-z]+\+?\+?[0-9a-z]+",
    r"-W(?![lpa],)[a-z0-9+=_-]*",
    r"-w|-pedantic|-pedantic-errors|-ansi|-pipe|-pthread|-s",
    r"-g[0-3]?|-ggdb[0-3]?",
    rf"-f(?:no-)?(?:{_CODE_GENERATION})(?:={_PLAIN_VALUE})?",
    rf"-m(?!llvm)(?:no-)?[a-z0-9][a-z0-9.-]*(?:={_PLAIN_VALUE})?",
    rf"--param={_PLAIN_VALUE}=[0-9]+",
)

_BOOLEAN = "(?:true|false)"
_NVCC_PATTERNS = (
    r"-O[0-3]?",
    r"-std=c\+\+[0-9a-z]+",
    r"-W(?![lpa],)[a-z0-9=_,-]*",
    r"-w|-g|-G|-lineinfo|-res-usage|-restrict|-pg?",
    r"-use_fast_math|-extended-lambda|-expt-extended-lambda|-expt-relaxed-constexpr|-extra-device-vectorization",
    rf"-(?:ftz|prec-div|prec-sqrt|fmad|rdc|relocatable-device-code|source-in-ptx)={_BOOLEAN}",
    r"-maxrregcount=[0-9]{1,3}",
    r"-diag-(?:suppress|error|warn)=[0-9,]+",
    r"-default-stream=(?:legacy|null|per-thread)",
    r"-Ofast-compile=(?:0|min|mid|max)",
    r"-(?:threads|split-compile)=[0-9]{1,2}",
)

_PTXAS_PATTERNS = (
    r"-O[0-3]",
    r"-(?:v|Werror|warn-spills|warn-lmem-usage|warn-double-usage|disable-optimizer-constants)",
    r"-(?:dlcm|def-load-cache|dscm|def-store-cache)=[a-z]{2}",
    r"-(?:maxrregcount|register-usage-level)=[0-9]{1,3}",
    rf"-(?:allow-expensive-optimizations|fmad|return-at-end|preserve-relocs)={_BOOLEAN}",
)

_NVCC_LONG = {
    # every spelling that nvcc takes, to the one that is checked
    "--optimize": "-O",
    "--define-macro": "-D",
    "--undefine-macro": "-U",
    "--include-path": "-I",
    "--library": "-l",
    "--ptxas-options": "-Xptxas",
    "--compiler-options": "-Xcompiler",
    "--device-debug": "-G",
    "--debug": "-g",
    "--generate-line-info": "-lineinfo",
    "--resource-usage": "-res-usage",
    "--disable-warnings": "-w",
    "--Ofast-compile": "-Ofast-compile",
    "-Ofc": "-Ofast-compile",
}
_NVRTC_NAMES = {
    "-use_fast_math": "--use_fast_math",
    "-ftz": "--ftz",
    "-prec-div": "--prec-div",
    "-prec-sqrt": "--prec-sqrt",
    "-fmad": "--fmad",
    "-rdc": "--relocatable-device-code",
    "-restrict": "--restrict",
    "-extra-device-vectorization": "--extra-device-vectorization",
    "-diag-suppress": "--diag-suppress",
    "-diag-error": "--diag-error",
    "-diag-warn": "--diag-warn",
    "-Ofast-compile": "--Ofast-compile",
    "-split-compile": "--split-compile",
}
_TAKES_VALUE = ("-D", "-U", "-I", "-l")
_NVCC_TAKES_VALUE = (
    "-Xptxas",
    "-Xcompiler",
    "-maxrregcount",
    "-std",
    "-diag-suppress",
    "-default-stream",
    "-Ofast-compile",
)

CC_ALLOWED = (
    "-O0 to -O3, -Os, -Ofast, -D, -U, -I of a relative folder, -std=, -W*, -g, -m* (such as -march=), --param=, "
    "-pthread, -f* that steer code generation (such as -ffast-math, -funroll-loops), and -l of "
    + ", ".join(CC_LIBRARIES)
)
NVCC_ALLOWED = (
    "-O0 to -O3, -D, -U, -I of a relative folder, -std=, -W*, -g, -G, -use_fast_math, -ftz=, -prec-div=, -prec-sqrt=, "
    "-fmad=, -maxrregcount=, -rdc=, -diag-suppress=, --extended-lambda, --expt-relaxed-constexpr, "
    "-Xptxas (optimisation, caching, warnings), -Xcompiler (what gcc may be given) and -l of "
    + ", ".join(NVCC_LIBRARIES)
)


@dataclass(frozen=True)
class _Rules:
    patterns: tuple[str, ...]
    libraries: tuple[str, ...]
    allowed: str


@cache
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rf"(?:{p})\Z") for p in patterns)


_CC = _Rules(_CC_PATTERNS, CC_LIBRARIES, CC_ALLOWED)
_NVCC = _Rules(_NVCC_PATTERNS, NVCC_LIBRARIES, NVCC_ALLOWED)
_HIP = _Rules(
    _CC_PATTERNS + _HIP_PATTERNS,
    HIP_LIBRARIES,
    CC_ALLOWED + ", " + ", ".join(HIP_LIBRARIES[len(CC_LIBRARIES) :]) + "; -m* and -fgpu-* of AMD's targets",
)
_PTXAS = _Rules(_PTXAS_PATTERNS, (), "-O*, -v, -dlcm=, -dscm=, -maxrregcount=, -register-usage-level=, -warn-*")


def checked_cc_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return flags for gcc or clang, each as one argument.

    Raises:
        BadRequest: If one is not allowed; the hint names those that are.
    """
    return tuple(_checked(flag, _CC) for flag in _joined(_plain(flags), _TAKES_VALUE, ""))


def checked_nvrtc_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return flags for NVRTC in its spelling, each as one argument; those for the host compiler alone are dropped.

    Raises:
        BadRequest: If one is not allowed; the hint names those that are.
    """
    kept: list[str] = []
    for flag in checked_nvcc_flags(flags):
        name = flag.partition("=")[0]
        if name in _NVRTC_NAMES:
            kept.append(_NVRTC_NAMES[name] + flag[len(name) :])
        elif name == "-Xptxas":
            kept.append("--ptxas-options=" + flag.partition("=")[2])
        elif flag.startswith(("-D", "-U", "-I", "-std=", "-maxrregcount=", "-lineinfo", "-G", "-w")):
            kept.append(flag)
    return tuple(kept)


def checked_hip_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return flags for hipcc or clang with HIP, each as one argument.

    Raises:
        BadRequest: If one is not allowed; the hint names those that are.
    """
    for flag in flags:
        if flag.startswith("--offload-arch"):
            raise BadRequest(
                f"The compiler flag {flag} is not given here.", hint="The architecture is the argument `arch`."
            )
    return tuple(_checked(flag, _HIP) for flag in _joined(_plain(flags), _TAKES_VALUE, ""))


def checked_nvcc_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return flags for nvcc in their short spelling, each as one argument.

    Raises:
        BadRequest: If one is not allowed; the hint names those that are.
    """
    short = [_short(flag) for flag in _plain(flags)]
    joined = _joined(_joined(short, _TAKES_VALUE, ""), _NVCC_TAKES_VALUE, "=")
    return tuple(_checked_nvcc(flag) for flag in joined)


COMPUTE = (
    *("cublas", "cublasLt", "cufft", "cusparse", "cusolver", "cudnn"),
    *("hipblas", "rocblas", "hipfft", "hipsparse", "MIOpen"),
)
"""Libraries to which a launcher could leave its work, of those that may be linked."""


def linked_libraries(flags: Sequence[str], among: Sequence[str] = COMPUTE) -> list[str]:
    """Return the flags that link some libraries, in whatever spelling."""
    return [flag for flag in flags if flag.removeprefix("--library=").removeprefix("-l").strip() in among]


def libraries(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the `-l` flags: the linker wants them after the source."""
    return tuple(flag for flag in flags if flag.startswith("-l") and flag != "-lineinfo")


def _plain(flags: Sequence[str]) -> list[str]:
    if len(flags) > MAX_FLAGS:
        raise BadRequest(f"{len(flags)} compiler flags; the limit is {MAX_FLAGS}.", hint="Use #define in the source.")
    for flag in flags:
        if len(flag) > MAX_FLAG_CHARACTERS or not flag.isprintable() or not flag or set(flag) & set("`$"):
            raise BadRequest(
                f"The compiler flag {flag[:80]!r} is empty, too long, or has characters that no flag needs.",
                hint="Give each flag as one list item, without quotes.",
            )
    return list(flags)


def _joined(flags: Sequence[str], with_value: Sequence[str], joint: str) -> list[str]:
    """Join `-D X` to `-DX`."""
    out: list[str] = []
    rest = iter(flags)
    for flag in rest:
        if flag in with_value:
            value = next(rest, None)
            if value is None:
                raise BadRequest(f"The compiler flag {flag} lacks its value.", hint=f"Give it as {flag}{joint}VALUE.")
            out.append(flag + joint + value)
        else:
            out.append(flag)
    return out


def _short(flag: str) -> str:
    name, equals, value = flag.partition("=")
    if name in _NVCC_LONG:
        short = _NVCC_LONG[name]
        return short + value if equals and short in ("-O", *_TAKES_VALUE) else short + equals + value
    return flag[1:] if flag.startswith("--") else flag


def _checked_nvcc(flag: str) -> str:
    if re.match(r"-(?:arch|gencode|code|gpu-architecture|gpu-code|generate-code)\b", flag):
        raise BadRequest(
            f"The compiler flag {flag} is not given here.", hint="The architecture is the argument `arch`."
        )
    for prefix, rules in (("-Xptxas=", _PTXAS), ("-Xcompiler=", _CC)):
        if flag.startswith(prefix):
            for value in flag[len(prefix) :].split(","):
                # ptxas takes one dash or two; gcc's --param must stay as it is.
                _checked(value[1:] if rules is _PTXAS and value.startswith("--") else value, rules, prefix)
            return flag
    return _checked(flag, _NVCC)


def _checked(flag: str, rules: _Rules, prefix: str = "") -> str:
    if any(pattern.match(flag) for pattern in _compiled(rules.patterns)):
        return flag
    if re.match(r"-[DU][A-Za-z_]\w*(?:\([\w, ]*\))?(?:=.*)?\Z", flag) and not prefix:
        return flag
    if flag.startswith("-I") and not prefix:
        folder = PurePosixPath(flag[2:])
        if flag[2:] and not folder.is_absolute() and ".." not in folder.parts:
            return flag
        raise BadRequest(f"{flag} leaves the workspace.", hint="-I takes a folder relative to the workspace.")
    if flag.startswith("-l") and flag[2:] in rules.libraries and not prefix:
        return flag
    raise BadRequest(f"The compiler flag {prefix}{flag} is not allowed.", hint=f"Allowed are {rules.allowed}.")
