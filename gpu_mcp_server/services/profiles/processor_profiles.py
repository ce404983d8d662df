"""Plans profiles on a processor: timed calls of an attempt, or a program, with perf around them where it works."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.profile import KernelReading, ProfileLevel
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.profilers import perf_events
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.hosts.host_connections import device_name
from gpu_mcp_server.services.problems.shape_expressions import value
from gpu_mcp_server.services.problems.tensor_sizes import shape_bytes
from gpu_mcp_server.services.profiles import processor_drivers
from gpu_mcp_server.services.profiles.processor_ceilings import ProcessorCeilings
from gpu_mcp_server.services.profiles.profile_plans import ABOUT, FOLDER
from gpu_mcp_server.services.profiles.profile_targets import FOLDER as OURS
from gpu_mcp_server.services.profiles.profile_targets import ProfileTarget, dims_of
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob, ToolJob
from gpu_mcp_server.toolchains.processor_assembly import vectorization_report

TIMES, COMPILED, VECTORS = f"{FOLDER}/times.txt", f"{FOLDER}/compile.log", f"{FOLDER}/vectors.txt"
PROGRAM, DRIVER = f"{OURS}/profiled", f"{OURS}/driver"
PROFILER = "calls timed by their own program"
REPORTS = {
    "gcc": (f"-fopt-info-vec-optimized-missed={VECTORS}",),
    "clang": ("-Rpass=loop-vectorize", "-Rpass-missed=loop-vectorize", "-Rpass-analysis=loop-vectorize"),
}
"""Options by which a compiler says which loops became vectors."""
RUNS = 4
"""To compile, to time, to count, to sample: each may last as long as the caller allows."""


def plan_attempt(
    attempt: Attempt,
    source: CandidateSource,
    problem: Problem,
    where: ProfileTarget,
    level: ProfileLevel,
    what: RunTarget,
) -> tuple[ToolJob, ProfileTarget]:
    """Plan the profile of a C or C++ attempt: its source and our driver in one program, with the judge's options.

    Raises:
        BadRequest: If the launcher cannot be called alone.
        ToolMissing: If the host has no compiler for it.
    """
    dims = dims_of(problem, what.shape)
    main = DRIVER + processor_drivers.suffix_of(attempt)
    build = processor_drivers.build_alone(attempt, source, problem, where)
    reports = REPORTS["clang" if build.toolchain.name.startswith("clang") else "gcc"]
    kept = processor_drivers.arguments_alone(build, PROGRAM)
    timed = max(what.skip, 1), what.count or 0
    symbol = attempt.entry or "launch"
    files = {name: body.encode() for name, body in build.plan.files.items()}
    files[main] = processor_drivers.driver_of(problem, dims, symbol, timed)
    target = replace(where, attempt=attempt, shape=dims, sources=build.plan.files)
    tool = Tool(path=build.toolchain.path, version=build.toolchain.version, roots=list(build.plan.roots))
    command = (f"./{PROGRAM}",)
    compile_it = (build.plan.argv[0], "-g", *reports, "-Wno-deprecated", main, *kept)
    job = _job(target, level, what, command, compile_it, tool=tool, files=files, env=build.plan.env)
    return job.with_context(**_facts(symbol, problem, dims)), target


def plan_calls(target: ProfileTarget, problem: Problem, level: ProfileLevel, what: RunTarget) -> ToolJob:
    """Plan the profile of a Python attempt, whose calls our player times."""
    job = _job(target, level, what, target.argv, (), regions=True)
    symbol = (target.attempt.entry if target.attempt else None) or "launch"
    return job.with_context(**_facts(symbol, problem, target.shape or {}))


def plan_program(target: ProfileTarget, level: ProfileLevel, what: RunTarget) -> ToolJob:
    """Plan the profile of a whole program.

    Raises:
        BadRequest: If a part of it is asked for: which kernels a program has, a processor's profile does not know.
    """
    if what.kernel or what.skip or what.count:
        raise BadRequest(
            "kernel, skip and count choose launches on a GPU; on a processor a program is profiled as a whole.",
            hint="Leave them out.",
        )
    job = _job(target, level, what, target.argv, (), regions=False)
    return job.with_context(symbol=target.argv[0].rpartition("/")[2])


def _job(
    target: ProfileTarget,
    level: ProfileLevel,
    what: RunTarget,
    command: Sequence[str],
    compile_it: Sequence[str],
    *,
    regions: bool = True,
    tool: Tool | None = None,
    files: Mapping[str, bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> ToolJob:
    counted = level != "quick"
    plan = {
        "compile": list(compile_it),
        "command": list(command),
        "regions": regions,
        "count": counted,
        "limit_s": what.timeout_s,
        "folder": FOLDER,
    }
    context: dict[str, Any] = {
        "level": level,
        "profiler": PROFILER,
        "processor": True,
        "device": device_name(target.probe, "cpu"),
    }
    return ToolJob(
        kind="profile",
        purpose="profile",
        worker="run_perf",
        plan=plan,
        outputs=(ABOUT, TIMES, COMPILED, VECTORS),
        limit_s=RUNS * what.timeout_s,
        env=env or {},
        tool=tool,
        extra_files=files or {},
        context=context,
        gpus=0,
        counted=counted,
    )


def _facts(symbol: str, problem: Problem, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return what a settled profile needs to know of the problem."""
    moved = value(problem.bytes, "bytes", dims) if problem.bytes is not None else shape_bytes(problem, dims)
    flops = value(problem.flops, "flops", dims) if problem.flops is not None else None
    kind = "float64" if problem.outputs and problem.outputs[0].dtype == "float64" else "float32"
    return {"symbol": symbol, "bytes": moved, "flops": flops, "type": kind}


def reading_of(
    ended: FinishedToolJob, run: perf_events.ProcessorRun, sources: Mapping[str, str], ceilings: ProcessorCeilings
) -> KernelReading | None:
    """Return what a profile on a processor saw; `None` where the program did not come to its end."""
    context = ended.row.context
    if run.timed is None or run.timed.code:
        return None
    given, texts = _given(context, ceilings)
    said = b"\n".join(ended.files.get(path, b"") for path in (COMPILED, VECTORS)).decode("utf-8", "replace")
    report = [line for name in sources for line in vectorization_report(said, name)]
    texts |= {perf_events.VECTORS: "\n".join(report)} if report else {}
    times = perf_events.read_times(ended.files.get(TIMES, b""))
    return perf_events.reading_of(context["symbol"], run, times, given, texts)


def _given(context: Mapping[str, Any], ceilings: ProcessorCeilings) -> tuple[dict[str, float], dict[str, str]]:
    if context.get("bytes") is None:
        return {}, {}
    double = context["type"] == "float64"
    known: dict[str, float | None] = {
        "tensor bytes": context["bytes"],
        "flops": context["flops"],
        "stream GB/s": ceilings.stream_gb_s,
        "fma GFLOP/s": ceilings.float64_gflop_s if double else ceilings.float32_gflop_s,
        "cache bytes": ceilings.cache_bytes or None,
    }
    texts = {"problem": "declared", "type": "fp64" if double else "fp32"}
    if ceilings.why:
        texts["no ceilings"] = ceilings.why
    elif ceilings.threads:
        texts["ceilings"] = ceilings.describe(context["type"])
    return {name: float(value) for name, value in known.items() if value}, texts


def status_of(ended: FinishedToolJob, run: perf_events.ProcessorRun) -> tuple[str, str | None]:
    """Return how a profile on a processor ended, in a word, and why."""
    for seen, where in ((run.compiled, "the compiler"), (run.timed, "the program")):
        if seen is not None and seen.timed_out:
            return "timeout", f"{where} did not end within timeout_s: use a smaller shape"
        if seen is not None and seen.code:
            log = ended.files.get(COMPILED, b"").decode("utf-8", "replace") if where == "the compiler" else ended.output
            last = "; ".join(line for line in log.strip().splitlines()[-3:] if line.strip())
            return "failed", f"{where} ended with {seen.error or seen.code}: {last[:600]}"
    if run.timed is None:
        return ended.status if ended.status != "exited" else "failed", ended.done.record.note or None
    return "ok", None
