"""On which device a candidate is judged."""

from collections.abc import Mapping

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.models.build import LANGUAGES, JudgedKind
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.hosts.host_connections import HostProbe

PYTHON_KINDS: Mapping[str, JudgedKind] = {n: f.judged_as for n, f in LANGUAGES.items() if f.launcher == "python"}
"""Languages of candidates that are Python files, and how the judge calls them."""
VENDOR_OF: Mapping[str, str] = {"cuda": "nvidia", "hip": "amd"}
"""Devices that are GPUs, and whose."""


def check_device(device: str, probe: HostProbe, host: str) -> None:
    """Return if a host has the GPU of a device.

    Raises:
        ToolMissing: If it has none.
    """
    missing = {"cuda": not probe.gpus, "hip": not probe.amd_gpus}.get(device, False)
    if missing:
        raise ToolMissing(
            "A CUDA device" if device == "cuda" else "An AMD device",
            host,
            hint="Name a host that has one (gpu_status), or use compile_kernel, which needs none.",
        )


def _named(problem: Problem, source: CandidateSource) -> str | None:
    """Return the device that a problem names; only a program does. A folder is a candidate of nothing else.

    Raises:
        BadRequest: If a folder is given for a kernel.
    """
    if problem.program is None and (source.language == "program" or source.files is not None):
        raise BadRequest(
            "This problem wants a kernel, not a program or a folder.",
            hint="Give one file; list_problems has its launcher.",
        )
    return problem.program.device if problem.program else None


def device_of(device: str | None, problem: Problem, source: CandidateSource, probe: HostProbe, host: str) -> str:
    """Return the device on which a candidate is judged: `cpu`, `cuda` or `hip`; there a kernel is only compiled.

    Args:
        device: What was asked for, if anything.
        problem: What it answers.
        source: The candidate.
        probe: The host.
        host: Its name.

    Raises:
        BadRequest: If the language does not run there.
        ToolMissing: If the host has no such device.
    """
    device = device or _named(problem, source)
    home = LANGUAGES[source.language].device
    if home == "hip":
        if device is not None or problem.program is not None:
            raise BadRequest("A HIP source is for an AMD device.", hint="Leave `device` out.")
        return "hip"
    either = source.language in PYTHON_KINDS or problem.program is not None
    gpu = home == "cuda" or (either and "cuda" in probe.devices())
    chosen = device or ("cuda" if gpu else "cpu")
    known = either or home in ("cpu", "cuda")
    if not known or (not either and (chosen == "cuda") != (home == "cuda")):
        raise BadRequest(
            f"A {source.language} source cannot be judged on {chosen}.", hint="C and C++ run on cpu, CUDA on cuda."
        )
    check_device(chosen, probe, host)
    return chosen


def versions_of(probe: HostProbe, device: str) -> dict[str, str]:
    """Return what stands with an attempt: versions of compilers and judge, and the device's architecture (`arch`)."""
    found: dict[str, str | None] = {n: c.version for n, c in probe.compilers.items() if n in ("gcc", "g++")}
    found["nvcc"] = probe.nvcc.version if probe.nvcc else None
    if probe.judge:
        found |= {"python": probe.judge.version, "numpy": probe.judge.numpy, "torch": probe.judge.torch}
    gpus = {"cuda": probe.gpus, "hip": probe.amd_gpus}.get(device)
    found["arch"] = str(gpus[0].get("arch") or "") if gpus else probe.machine
    return {name: version for name, version in found.items() if version}
