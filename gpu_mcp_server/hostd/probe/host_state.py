"""Says what a host's GPUs are and how the host stands; without starting anything, but for AMD's program."""

import os
from typing import Any, Dict, Optional, Set

from ..gpus.kfd import add_details, runtime_folder
from ..gpus.nvml import driver_library
from ..jobs.host_resources import Host


def describe_gpus(host: Host) -> Dict[str, Any]:
    """Describe what drivers know; not in a forked child, where NVML does not work."""
    library = driver_library()
    nvml, kfd = host.gpus.nvml, host.gpus.kfd
    gpus, amd_gpus = nvml.gpus(), kfd.gpus()
    return {
        "driver": nvml.driver(),
        "driver_library": library[0] if library else None,
        "rocm_libraries": runtime_folder(),
        "gpus": gpus,
        "amd_gpus": amd_gpus,
        "why_no_gpu": "" if gpus or amd_gpus else "; ".join([nvml.why_none(), *kfd.left_out]),
    }


def look_around(host: Host, wishes: Dict[str, Any]) -> Dict[str, Any]:
    """Describe the host besides its GPUs, as `host_probe.describe_host`, in a process that was forked for that."""
    from .host_probe import describe_host  # there alone: hostd is up a tenth sooner without

    return describe_host(host, wishes)


def gpu_state(host: Host) -> Dict[str, Any]:
    """Return how each GPU stands, what processors and memory have to do, and how many jobs there are.

    `amd` has those that AMD's library shows and no job can have.
    """
    gpus = host.gpus.all_gpus()
    ours: Set[int] = host.job_pids() if any(g["pids"] for g in gpus) else set()
    for gpu in gpus:
        gpu["locked_by"] = host.locks.holder(gpu["uuid"])
        pids = gpu.pop("pids")
        gpu["foreign"] = None if pids is None else len(set(pids) - ours)
    gpus, amd = add_details(gpus, host.amd.gpus())
    return {
        "gpus": gpus,
        "jobs_running": len(host.folders.unfinished_jobs()),
        "load": _load(),
        "memory_available_bytes": available_memory_bytes(),
        "why_none": host.gpus.nvml.why_not(),
        "amd": amd,
        "locks": {"fault": host.locks.fault(), "note": host.locks.note()},
        "left_out": [*host.gpus.left_out(), *host.amd.left_out],
        "job_uids": host.free_uids(),
    }


def ask_amd_program(host: Host, state: Dict[str, Any]) -> Dict[str, Any]:
    """Return what `gpu_state` said with what ROCm's program adds to it; that may take seconds."""
    gpus, others = add_details(state["gpus"], host.amd.by_program())
    return dict(state, gpus=gpus, amd=others)


def available_memory_bytes() -> Optional[int]:
    """Return the memory that programs can still have without swapping; None where the kernel does not say.

    Source: Linux, Documentation/filesystems/proc.rst, MemAvailable.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as text:
            for line in text:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def _load() -> Optional[float]:
    """Return how many threads ran or were ready to, on average over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
