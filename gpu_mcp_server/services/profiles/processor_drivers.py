"""Writes programs that call a C or C++ attempt alone on a processor, once for a checker, or timed for a profiler."""

import json
import re
from collections.abc import Mapping, Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.services.builds.build_plans import PlannedBuild, build_of
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.profiles.profile_targets import ProfileTarget, tensor_of
from gpu_mcp_server.toolchains.base import OUTPUT
from gpu_mcp_server.toolchains.torch_bindings import is_extension

PROCESSOR_LANGUAGES = ("c", "cpp")
_NAME = re.compile(r"[A-Za-z_]\w{0,200}")
_FILL = """#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static uint32_t driver_state = 1;
static uint16_t driver_half(uint32_t exponent) {
    return (uint16_t)(exponent | (driver_state >> 31 << 15) | (driver_state >> 16 & 63));
}
static void *driver_tensor(size_t count, size_t size, int kind, int write) {
    void *at = 0;
    if (posix_memalign(&at, 64, count * size)) exit(3);
    for (size_t i = 0; write && i < count; i++) {
        driver_state = driver_state * 1664525u + 1013904223u;
        double value = (double)(driver_state >> 8) / 8388608.0 - 1.0;
        if (kind == 'f') ((float *)at)[i] = (float)value;
        else if (kind == 'd') ((double *)at)[i] = value;
        else if (kind == 'h') ((uint16_t *)at)[i] = driver_half(0x3800u);
        else if (kind == 'b') ((uint16_t *)at)[i] = driver_half(0x3f00u);
        else for (size_t k = 0; k < size; k++)
            ((unsigned char *)at)[i * size + k] = k ? 0 : (unsigned char)(driver_state >> 24 & (kind == '?' ? 1 : 3));
    }
    return at;
}
"""
_TIMED = r"""
static int64_t driver_ns(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static double driver_number(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}
static int64_t driver_waited_ns(void) {
    long long ran = 0, waited = 0;
    FILE *in = fopen("/proc/thread-self/schedstat", "r");
    if (in && fscanf(in, "%lld %lld", &ran, &waited) != 2) waited = 0;
    if (in) fclose(in);
    return waited;
}
static void driver_tell(const char *word) {
    static int to = -2, from = -2;
    char answer[8];
    if (to == -2) {
        const char *control = getenv("PERF_CONTROL"), *said = getenv("PERF_ANSWER");
        to = control ? open(control, O_WRONLY) : -1;
        from = said ? open(said, O_RDONLY) : -1;
    }
    if (to >= 0 && from >= 0 && write(to, word, strlen(word)) > 0 && read(from, answer, sizeof answer) > 0) return;
}
static void driver_write(const int64_t *took, long calls, int64_t wall, int64_t used, int64_t waited) {
    const char *path = getenv("TIMES");
    FILE *out = path ? fopen(path, "w") : 0;
    if (!out) return;
    fprintf(out, "%ld %lld %lld %lld\n", calls, (long long)wall, (long long)used, (long long)waited);
    for (long n = 0; n < calls && n < 1000; n++) fprintf(out, "%lld\n", (long long)took[n]);
    fclose(out);
}
"""
_TIMED_MAIN = """    static int64_t took[1000];
    double limit = 1e9 * driver_number("REGION_S", 0.3);
    long calls = 0, most = MOST;
    int64_t began, used, waited;
    for (int n = 0; !code && n < WARM - 1; n++) code = CALL;
    driver_tell("enable\\n");
    waited = driver_waited_ns(), began = driver_ns(CLOCK_MONOTONIC), used = driver_ns(CLOCK_PROCESS_CPUTIME_ID);
    while (!code && (most ? calls < most : calls < 3 || driver_ns(CLOCK_MONOTONIC) - began < limit)) {
        int64_t start = driver_ns(CLOCK_MONOTONIC);
        code = CALL;
        took[calls++ % 1000] = driver_ns(CLOCK_MONOTONIC) - start;
    }
    used = driver_ns(CLOCK_PROCESS_CPUTIME_ID) - used, began = driver_ns(CLOCK_MONOTONIC) - began;
    waited = driver_waited_ns() - waited;
    driver_tell("disable\\n");
    driver_write(took, calls, began, used, waited);
"""
"""The first call stands before it; MOST is 0 where the time decides."""
_KINDS = {"float32": ("f", 4), "float64": ("d", 8), "float16": ("h", 2), "bfloat16": ("b", 2), "bool": ("?", 1)}
_SIZES = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int8", "uint8", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int16", "uint16"), 2),
    **dict.fromkeys(("int32", "uint32"), 4),
    **dict.fromkeys(("int64", "complex64"), 8),
}
"""Bytes of an element."""


def suffix_of(attempt: Attempt) -> str:
    """Return the ending of a driver's name in the attempt's language."""
    return ".c" if attempt.language == "c" else ".cpp"


def build_alone(attempt: Attempt, source: CandidateSource, problem: Problem, where: ProfileTarget) -> PlannedBuild:
    """Plan the build of an attempt's library as the judge has it, to take its arguments for a program.

    Raises:
        BadRequest: If its launcher cannot be called alone.
        ToolMissing: If the host has no compiler for it.
    """
    language = attempt.language
    strided = any(layout.strides is not None for layout in problem.layouts.values())
    named = _NAME.fullmatch(attempt.entry or "launch")
    if is_extension(source.text) or strided or not named or language not in ("c", "cpp"):
        raise BadRequest(
            f"{attempt.attempt_id} cannot be called alone: it is an extension, or its inputs have strides.",
            hint="Write a program that calls it into a workspace, and give command and workspace_id.",
        )
    chosen = str((attempt.versions or {}).get("compiler") or "").partition(" ")[0] or None
    options = BuildOptions(flags=tuple(json.loads(attempt.flags or "[]")), compiler=chosen)
    return build_of(source, where.probe, where.host, options)


def arguments_alone(build: PlannedBuild, program: str, left_out: Sequence[str] = ()) -> list[str]:
    """Return a build's arguments, without the compiler, for a program in place of the library.

    Args:
        build: Of the library.
        program: The program's path.
        left_out: Beginnings of further arguments to leave out.
    """
    begins = ("-shared", "-Wl,", *left_out)
    return [program if word == OUTPUT else word for word in build.plan.argv[1:] if not word.startswith(begins)]


def driver_of(problem: Problem, dims: Mapping[str, int], symbol: str, timed: tuple[int, int] | None = None) -> bytes:
    """Return a program in C and in C++ that calls a launcher, each tensor in memory of its own.

    Args:
        problem: Whose tensors they are.
        dims: Sizes by symbol.
        symbol: The launcher.
        timed: Calls to make ahead, and how many to time at most (0: for `REGION_S` seconds, 3 at least); without it
            there is one call.
    """
    tensors = [*((t, 1) for t in problem.inputs), *((t, 0) for t in problem.outputs)]
    made = [_made(tensor, dims, write) for tensor, write in tensors]
    types = ", ".join(["void *"] * len(made) + ["int64_t"] * len(dims)) or "void"
    given = ", ".join([*(f"t{n}" for n in range(len(made))), *(str(size) for size in dims.values())])
    body = "\n".join(f"    void *t{n} = {text};" for n, text in enumerate(made))
    linkage = f'#ifdef __cplusplus\nextern "C"\n#endif\nint {symbol}({types});\n'
    once = f"{symbol}({given})"
    call = f"    int code = {once};\n"
    if timed is not None:
        ahead = _TIMED_MAIN.replace("WARM", str(timed[0])).replace("MOST", str(timed[1]))
        call += ahead.replace("CALL", once)
    call += '    if (code) fprintf(stderr, "the launcher returned %d\\n", code);\n'
    call += "".join(f"    free(t{n});\n" for n in range(len(made)))
    parts = [_FILL, _TIMED if timed is not None else "", linkage]
    return f"{''.join(parts)}int main(void) {{\n{body}\n{call}    return code != 0;\n}}\n".encode()


def _made(tensor: TensorSpec, dims: Mapping[str, int], write: int) -> str:
    kind, size = _KINDS.get(tensor.dtype) or ("i", _SIZES[tensor.dtype])
    return f"driver_tensor({tensor_of(tensor, dims)['count']}, {size}, '{kind}', {write})"
