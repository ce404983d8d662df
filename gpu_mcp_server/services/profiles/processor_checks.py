"""Plans checks on a processor: the compiler's sanitizers in a C or C++ attempt, or in a program that has them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.memory_check import CheckReport, CheckTool
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.profilers import host_sanitizers
from gpu_mcp_server.services.builds.build_plans import build_of
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.profiles.profile_targets import FOLDER, ProfileTarget, dims_of, tensor_of
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob
from gpu_mcp_server.toolchains.base import OUTPUT
from gpu_mcp_server.toolchains.torch_bindings import binds_torch

PROCESSOR_LANGUAGES = ("c", "cpp")
SANITIZERS: Mapping[CheckTool, tuple[str, str]] = {
    "memcheck": ("address,undefined", "AddressSanitizer and UBSan"),
    "racecheck": ("thread", "ThreadSanitizer"),
}
RECOVER: Mapping[CheckTool, tuple[str, ...]] = {"memcheck": ("-fsanitize-recover=address",), "racecheck": ()}
"""So that a program goes on behind its first mistake, and the others are told too."""
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:verbosity=1",
    "TSAN_OPTIONS": "verbosity=1",
    "OMP_NUM_THREADS": "4",
}
"""Leaks are left out: LeakSanitizer stops threads by ptrace. Verbosity tells whether a sanitizer runs at all."""
NOT_BUILT = (
    "no sanitizer runs in this program: compile it in the same command, as sh -c 'gcc -g -fsanitize={} a.c && ./a.out'"
)
UNSEEN_RUNTIME = "gcc's OpenMP runtime is not instrumented: a race across one of its barriers may be a false alarm"
DRIVER = f"{FOLDER}/driver"
PROGRAM = f"{FOLDER}/checked"
_NAME = re.compile(r"[A-Za-z_]\w{0,200}")
_FILL = """#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
_KINDS = {"float32": ("f", 4), "float64": ("d", 8), "float16": ("h", 2), "bfloat16": ("b", 2), "bool": ("?", 1)}
_SIZES = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int8", "uint8", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int16", "uint16"), 2),
    **dict.fromkeys(("int32", "uint32"), 4),
    **dict.fromkeys(("int64", "complex64"), 8),
}
"""Bytes of an element."""
WHOLE = "whole numbers in its inputs were 0 to 3: a table that larger ones would leave was not tried"


@dataclass(frozen=True)
class ProcessorCheck:
    """Commands and files of a check's job."""

    compile: tuple[str, ...]
    """Command of the compiler; empty where the program is there already."""
    command: tuple[str, ...]
    files: Mapping[str, bytes]
    env: Mapping[str, str]
    tool: Tool | None
    checker: str
    whole: bool = False
    """Whether our driver makes whole numbers for it."""


def sanitizers_of(tool: CheckTool) -> tuple[str, str]:
    """Return the value of `-fsanitize` for a check, and the sanitizers' names.

    Raises:
        BadRequest: If no sanitizer of a processor does it.
    """
    if tool not in SANITIZERS:
        raise BadRequest(
            f"{tool} needs a GPU.",
            hint="On a processor memcheck is AddressSanitizer with UBSan, racecheck is ThreadSanitizer.",
        )
    return SANITIZERS[tool]


def plan_attempt(
    attempt: Attempt,
    text: str,
    problem: Problem,
    shape: Mapping[str, int] | None,
    where: ProfileTarget,
    tool: CheckTool,
) -> tuple[ProcessorCheck, ProfileTarget]:
    """Plan the check of a C or C++ attempt: its source and our driver, in one program.

    Args:
        attempt: An evaluation.
        text: Its source.
        problem: Whose launcher it has.
        shape: At which it is called; the problem's last one unless given.
        where: The host, with its probe.
        tool: What is looked for.

    Raises:
        BadRequest: If the launcher cannot be called alone.
        ToolMissing: If the host has no compiler for it.
    """
    language, symbol = attempt.language, attempt.entry or "launch"
    strided = any(layout.strides is not None for layout in problem.layouts.values())
    if binds_torch(text) or strided or not _NAME.fullmatch(symbol) or language not in ("c", "cpp"):
        raise BadRequest(
            f"{attempt.attempt_id} cannot be called alone: it binds torch, or its inputs have strides.",
            hint="Write a program that calls it into a workspace, and give command and workspace_id.",
        )
    option, words = sanitizers_of(tool)
    source, dims = CandidateSource(text, language, NAMES[language]), dims_of(problem, shape)
    chosen = str((attempt.versions or {}).get("compiler") or "").partition(" ")[0] or None
    options = BuildOptions(flags=tuple(json.loads(attempt.flags or "[]")), compiler=chosen)
    build = build_of(source, where.probe, where.host, options)
    driver = DRIVER + (".c" if language == "c" else ".cpp")
    left_out = ("-shared", "-Wl,", "-O", "-g")
    kept = [PROGRAM if word == OUTPUT else word for word in build.plan.argv[1:] if not word.startswith(left_out)]
    more = ["-g", "-O1", "-fno-omit-frame-pointer", "-Wno-deprecated", f"-fsanitize={option}", *RECOVER[tool]]
    check = ProcessorCheck(
        compile=(build.plan.argv[0], *more, driver, *kept),
        command=(f"./{PROGRAM}",),
        files={
            **{name: body.encode() for name, body in build.plan.files.items()},
            driver: driver_of(problem, dims, symbol),
        },
        env={**build.plan.env, **ENVIRONMENT},
        tool=Tool(path=build.toolchain.path, version=build.toolchain.version, roots=list(build.plan.roots)),
        checker=f"{words} of {build.toolchain.name} {build.toolchain.version}",
        whole=any(tensor.dtype.removeprefix("u").startswith("int") for tensor in problem.inputs),
    )
    return check, replace(where, attempt=attempt, shape=dims, sources=build.plan.files)


def plan_program(target: ProfileTarget, tool: CheckTool) -> ProcessorCheck:
    """Plan the check of a program that was compiled with a sanitizer, or compiles itself so.

    Raises:
        BadRequest: If no sanitizer of a processor does it.
    """
    return ProcessorCheck((), target.argv, {}, ENVIRONMENT, None, sanitizers_of(tool)[1])


def driver_of(problem: Problem, dims: Mapping[str, int], symbol: str) -> bytes:
    """Return a program in C and in C++ that calls a launcher once, each tensor in memory of its own."""
    tensors = [*((t, 1) for t in problem.inputs), *((t, 0) for t in problem.outputs)]
    made = [_made(tensor, dims, write) for tensor, write in tensors]
    types = ", ".join(["void *"] * len(made) + ["int64_t"] * len(dims)) or "void"
    given = ", ".join([*(f"t{n}" for n in range(len(made))), *(str(size) for size in dims.values())])
    body = "\n".join(f"    void *t{n} = {text};" for n, text in enumerate(made))
    linkage = f'#ifdef __cplusplus\nextern "C"\n#endif\nint {symbol}({types});\n'
    call = f'    int code = {symbol}({given});\n    if (code) fprintf(stderr, "the launcher returned %d\\n", code);\n'
    return f"{_FILL}{linkage}int main(void) {{\n{body}\n{call}    return code != 0;\n}}\n".encode()


def _made(tensor: TensorSpec, dims: Mapping[str, int], write: int) -> str:
    kind, size = _KINDS.get(tensor.dtype) or ("i", _SIZES[tensor.dtype])
    return f"driver_tensor({tensor_of(tensor, dims)['count']}, {size}, '{kind}', {write})"


def judge_run(ended: FinishedToolJob, log: str, sources: Mapping[str, str]) -> tuple[str, str | None, CheckReport]:
    """Return status, note and report of a check on a processor."""
    context = ended.row.context
    compiled, checked = (_seen(ended.about.get(part)) for part in ("compiled", "checked"))
    if compiled.get("timed_out") is True:
        return "timeout", "the compiler did not end within timeout_s", CheckReport()
    if compiled and compiled.get("code"):
        why = log.strip()[:600] or compiled.get("error") or "the compiler said nothing"
        return "not_checked", f"it does not compile with the sanitizer: {why}", CheckReport()
    report = host_sanitizers.parse(log, sources)
    notes: list[str] = []
    if context["tool"] == "racecheck" and any("#pragma omp" in t for t in sources.values()):
        notes += [] if "clang" in context["checker"] else [UNSEEN_RUNTIME]
    if report.findings:
        return "findings", "; ".join(notes) or None, report
    if checked.get("timed_out") or ended.status == "timeout":
        return "timeout", "the time was over before anything was found: use a smaller shape", report
    if ended.status == "oom":
        return "oom", ended.done.record.note, report
    if not compiled and context.get("compiled"):
        return "failed", ended.done.record.note or "the job ended before the launcher was called", report
    if not compiled and not host_sanitizers.is_instrumented(log):
        return "not_checked", NOT_BUILT.format(SANITIZERS[context["tool"]][0]), report
    if checked.get("cut"):
        return "not_checked", "it printed more than 1 MiB; what came behind was not read: print less", report
    if checked.get("code") == 0:
        notes += [WHOLE] if context.get("whole") else []
        return "clean", "; ".join(notes) or None, report
    return "failed", f"the program ended with {checked.get('error') or checked.get('code')}, without findings", report


def _seen(part: Any) -> Mapping[str, Any]:
    """Return what the worker wrote of a command; empty where it is none, as the checked program can write there too."""
    return cast("Mapping[str, Any]", part) if isinstance(part, dict) else {}
