"""Plan a profile: the profiler for each level and target, and its command."""

from typing import Any

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.models.profile import ProfileLevel
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.profilers import ncu, rocprof_commands
from gpu_mcp_server.services.profiles.profile_targets import FOLDER as OURS
from gpu_mcp_server.services.profiles.profile_targets import ProfileTarget
from gpu_mcp_server.services.profiles.tool_jobs import ToolJob, ToolJobs

FOLDER = f"{OURS}/profile"
ABOUT, REPORT = f"{FOLDER}/about.json", f"{FOLDER}/report.ncu-rep"
PAGES = ("report.json", "raw.csv", "details.csv", "source.csv", "ncu.log")
COLLECTED = tuple(f"out-{n}.{kind}" for n in range(4) for kind in ("hatchet", "json", "sqlite", "csv", "db"))
ROCPROF = "rocprofv3"
MOST_TABLES = 12
"""As many files as the worker keeps."""
NO_COUNTERS = "hardware counters: level quick reads none; level standard does"


def plan_profile(level: ProfileLevel, target: ProfileTarget, tools: ToolJobs, what: RunTarget) -> ToolJob:
    """Plan a profile.

    Raises:
        ToolMissing: If the host has no profiler for it.
    """
    if target.vendor == "amd":
        return _amd(level, target, tools, what)
    if level == "quick":
        return _quick(target, tools, what.timeout_s)
    profiler = tools.tool(target, "ncu")
    arch = next((str(g["arch"]) for g in target.probe.gpus if g.get("arch")), "")
    options = ncu.options(level, what.kernel, what.skip, what.count or 1, arch=arch)
    argv = [profiler.path, *options, "--log-file", f"{FOLDER}/ncu.log", "-f", "-o", REPORT[: -len(".ncu-rep")]]
    plan = {"argv": [*argv, *target.argv], "folder": FOLDER, "report": REPORT, "ncu": profiler.path}
    outputs = (ABOUT, REPORT, *(f"{FOLDER}/{page}" for page in PAGES))
    context: dict[str, Any] = {"level": level, "profiler": f"ncu {profiler.version}"}
    return _job(plan, outputs, context, what.timeout_s, profiler)


def _amd(level: ProfileLevel, target: ProfileTarget, tools: ToolJobs, what: RunTarget) -> ToolJob:
    """Plan for rocprofv3: the program runs once for its kernels' times, and once more for each group of counters."""
    found = target.probe.toolchains.tools.get(ROCPROF)
    if found is None:
        raise ToolMissing(ROCPROF, target.host, hint="It comes with ROCm (package rocprofiler-sdk), in /opt/rocm/bin.")
    first, *more = rocprof_commands.commands(found.path, level, what.kernel, f"{FOLDER}/rocprof", target.argv)
    collect = [f"{FOLDER}/rocprof/**/{name}" for name in rocprof_commands.FILES]
    plan = {"argv": first, "more": more, "folder": FOLDER, "collect": collect}
    missing = [NO_COUNTERS] if level == "quick" else []
    if what.skip or what.count:
        missing.append("skip and count: rocprofv3 is given all launches, on AMD's GPUs `kernel` alone chooses")
    context: dict[str, Any] = {
        "level": level,
        "profiler": f"{ROCPROF} {found.version}",
        "missing": missing,
        "device": target.probe.amd_gpus[0]["name"],
    }
    outputs = (ABOUT, *(f"{FOLDER}/out-{n}.csv" for n in range(MOST_TABLES)))
    return _job(plan, outputs, context, what.timeout_s, found)


def _quick(target: ProfileTarget, tools: ToolJobs, timeout_s: float) -> ToolJob:
    context: dict[str, Any] = {
        "level": "quick",
        "missing": [NO_COUNTERS],
        "device": target.probe.gpus[0]["name"] if target.probe.gpus else None,
    }
    outputs = (ABOUT, *(f"{FOLDER}/{name}" for name in COLLECTED))
    if target.is_python:
        script = f"{OURS}/python_profile.py"
        argv = [target.argv[0], script, f"{FOLDER}/timeline", *target.argv[1:]]
        plan = {"argv": argv, "folder": FOLDER, "collect": [f"{FOLDER}/timeline*"]}
        context["profiler"] = "Proton or torch.profiler"
        extra = {script: (WORKERS / "python_profile.py").read_bytes()}
        return _job(plan, outputs, context, timeout_s, None, extra)
    if "nsys" not in target.probe.toolchains.tools:
        raise ToolMissing(
            "nsys, which times the kernels of a program that is no Python,",
            target.host,
            hint="Use level standard, which needs ncu alone, or install Nsight Systems.",
        )
    profiler = tools.tool(target, "nsys")
    base = f"{FOLDER}/timeline"
    argv = [profiler.path, "profile", "-t", "cuda", "-o", base, "--force-overwrite", "true", "--export", "sqlite"]
    plan = {"argv": [*argv, *target.argv], "folder": FOLDER, "collect": [f"{base}.sqlite"]}
    context["profiler"] = f"nsys {profiler.version}"
    return _job(plan, outputs, context, timeout_s, profiler)


def _job(
    plan: dict[str, Any],
    outputs: tuple[str, ...],
    context: dict[str, Any],
    timeout_s: float,
    tool: Tool | None,
    extra: dict[str, bytes] | None = None,
) -> ToolJob:
    return ToolJob(
        kind="profile",
        purpose="profile",
        worker="run_profiler",
        plan=plan,
        outputs=outputs,
        limit_s=timeout_s,
        env={},
        tool=tool,
        extra_files=extra or {},
        context=context,
    )
