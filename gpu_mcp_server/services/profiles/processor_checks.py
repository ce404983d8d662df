"""Plans checks on a processor: the compiler's sanitizers in a C or C++ attempt, or in a program that has them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.memory_check import CheckReport, CheckTool
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.profilers import host_sanitizers
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.profiles import processor_drivers
from gpu_mcp_server.services.profiles.profile_targets import FOLDER, ProfileTarget, dims_of
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob

SANITIZERS: Mapping[CheckTool, tuple[str, str]] = {
    "memcheck": ("address,undefined", "AddressSanitizer and UBSan"),
    "racecheck": ("thread", "ThreadSanitizer"),
}
RECOVER: Mapping[CheckTool, tuple[str, ...]] = {"memcheck": ("-fsanitize-recover=address",), "racecheck": ()}
"""So that a program goes on behind its first mistake, and the others are told too."""
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=0:verbosity=1",
    "TSAN_OPTIONS": "verbosity=1",
    "OMP_NUM_THREADS": "4",
}
"""LeakSanitizer stops threads by ptrace, as a checker's job may. Verbosity tells whether a sanitizer runs at all."""
NO_LEAKS = "whether it leaks is unknown: LeakSanitizer could not stop the program's threads on this host"
NO_RUNTIME = (
    "; clang's sanitizers are a package of their own: apt-get install libclang-rt-19-dev (its version, of clang)"
)
NOT_BUILT = (
    "no sanitizer runs in this program: compile it in the same command, as sh -c 'gcc -g -fsanitize={} a.c && ./a.out'"
)
UNSEEN_RUNTIME = "gcc's OpenMP runtime is not instrumented: a race across one of its barriers may be a false alarm"
DRIVER = f"{FOLDER}/driver"
PROGRAM = f"{FOLDER}/checked"
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
    source: CandidateSource,
    problem: Problem,
    shape: Mapping[str, int] | None,
    where: ProfileTarget,
    tool: CheckTool,
) -> tuple[ProcessorCheck, ProfileTarget]:
    """Plan the check of a C or C++ attempt: its source and our driver, in one program.

    Args:
        attempt: An evaluation.
        source: Its source.
        problem: Whose launcher it has.
        shape: At which it is called; the problem's last one unless given.
        where: The host, with its probe.
        tool: What is looked for.

    Raises:
        BadRequest: If the launcher cannot be called alone.
        ToolMissing: If the host has no compiler for it.
    """
    option, words = sanitizers_of(tool)
    dims, main = dims_of(problem, shape), DRIVER + processor_drivers.suffix_of(attempt)
    build = processor_drivers.build_alone(attempt, source, problem, where)
    kept = processor_drivers.arguments_alone(build, PROGRAM, left_out=("-O", "-g"))
    more = ["-g", "-O1", "-fno-omit-frame-pointer", "-Wno-deprecated", f"-fsanitize={option}", *RECOVER[tool]]
    check = ProcessorCheck(
        compile=(build.plan.argv[0], *more, main, *kept),
        command=(f"./{PROGRAM}",),
        files={
            **{name: body.encode() for name, body in build.plan.files.items()},
            main: processor_drivers.driver_of(problem, dims, attempt.entry or "launch"),
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


def judge_run(ended: FinishedToolJob, log: str, sources: Mapping[str, str]) -> tuple[str, str | None, CheckReport]:
    """Return status, note and report of a check on a processor."""
    context = ended.row.context
    compiled, checked = (_seen(ended.about.get(part)) for part in ("compiled", "checked"))
    if compiled.get("timed_out") is True:
        return "timeout", "the compiler did not end within timeout_s", CheckReport()
    if compiled and compiled.get("code"):
        why = log.strip()[:600] or compiled.get("error") or "the compiler said nothing"
        why += NO_RUNTIME if "libclang_rt" in why else ""
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
    leaks_unknown = host_sanitizers.missed_leaks(log) and "the launcher returned" not in log
    notes += [NO_LEAKS] if leaks_unknown else []
    if checked.get("code") == 0 or (compiled and leaks_unknown):
        notes += [WHOLE] if context.get("whole") else []
        return "clean", "; ".join(notes) or None, report
    return "failed", f"the program ended with {checked.get('error') or checked.get('code')}, without findings", report


def _seen(part: Any) -> Mapping[str, Any]:
    """Return what the worker wrote of a command; empty where it is none, as the checked program can write there too."""
    return cast("Mapping[str, Any]", part) if isinstance(part, dict) else {}
