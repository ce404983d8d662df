"""The GPUs of this host, by NVML (the pure module pynvml travels with hostd)."""

import json
import os
import pwd
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

PRETEND = "GPU_MCP_HOSTD_GPUS"
"""Environment variable with the path of a JSON list of GPUs that this host pretends to have; for tests."""
DRIVER_NODES = ("/dev/nvidiactl", "/dev/dxg")
THROTTLE = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Besides 0x1, idle. Source: nvml.h, nvmlClocksThrottleReason*."""
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class Nvml:
    """NVML, started at the first question and kept."""

    def __init__(self) -> None:
        self._state: Optional[str] = None
        self._nvml: Any = None
        self._nvlinks: Optional[Dict[str, List[str]]] = None

    def why_not(self) -> str:
        """Start NVML if need be; say why it cannot be used, or nothing."""
        if self._state is None:
            self._state = "" if PRETEND in os.environ else self._start()
        return self._state

    def _start(self) -> str:
        if not any(os.path.exists(n) for n in DRIVER_NODES):
            return "no NVIDIA driver on this host"
        try:
            import pynvml  # type: ignore[import-untyped]  # large, and needed only where there is a driver
        except ImportError:
            return "the module pynvml is not with hostd"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return str(error)
        self._nvml = pynvml
        return ""

    def driver(self) -> Optional[str]:
        """Return the driver's version."""
        if self.why_not() or self._nvml is None:
            return None
        return _text(self._nvml.nvmlSystemGetDriverVersion())

    def gpus(self) -> List[Dict[str, Any]]:
        """Describe every GPU now."""
        if self.why_not():
            return []
        if self._nvml is None:
            return _pretended()
        found = [self._gpu(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        if self._nvlinks is None:
            self._nvlinks = self._find_nvlinks([str(g["uuid"]) for g in found])
        return [dict(g, nvlink=self._nvlinks.get(str(g["uuid"]), [])) for g in found]

    def pids(self, uuid: str) -> List[int]:
        """Return the compute processes of a GPU; none when it is not there."""
        if self.why_not():
            return []
        if self._nvml is None:
            return [int(p) for g in _pretended() if g["uuid"] == uuid for p in g["pids"]]
        return ask(lambda: self._pids(self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))) or []

    def _pids(self, handle: Any) -> List[int]:
        return [int(p.pid) for p in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)]

    def _find_nvlinks(self, uuids: List[str]) -> Dict[str, List[str]]:
        """Return for each GPU those that it reaches by NVLink, directly or through a switch."""
        nvml = self._nvml
        handles = {u: nvml.nvmlDeviceGetHandleByUUID(u.encode()) for u in uuids} if len(uuids) > 1 else {}

        def are_joined(a: str, b: str) -> bool:
            how = nvml.NVML_P2P_CAPS_INDEX_NVLINK
            return ask(lambda: nvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], how)) == nvml.NVML_P2P_STATUS_OK

        return {a: [b for b in handles if b != a and are_joined(a, b)] for a in handles}

    def _gpu(self, index: int) -> Dict[str, Any]:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        major, minor = ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle)) or (None, None)
        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return {
            "index": index,
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "name": _text(nvml.nvmlDeviceGetName(handle)),
            "arch": "sm_%d%d" % (major, minor) if major is not None else None,
            "minor": ask(lambda: nvml.nvmlDeviceGetMinorNumber(handle)),
            "memory_total_bytes": int(memory.total),
            "memory_used_bytes": int(memory.used),
            "utilization_percent": ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            "temperature_c": ask(lambda: int(nvml.nvmlDeviceGetTemperature(handle, 0))),
            "power_w": power / 1000.0 if power is not None else None,
            "sm_clock_mhz": ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, 1))),
            "pids": ask(lambda: self._pids(handle)) or [],
            **self._more(handle),
        }

    def _more(self, handle: Any) -> Dict[str, Any]:
        """Return clocks, limits, what throttles, MIG, and the processes with their owners."""
        nvml = self._nvml
        limit = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        reasons = ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        mig = ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        processes: List[Any] = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        return {
            "power_limit_w": limit / 1000.0 if limit is not None else None,
            "sm_clock_max_mhz": ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, 1))),
            "memory_clock_mhz": ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, 2))),
            "throttle": None if reasons is None else [text for bit, text in THROTTLE.items() if reasons & bit],
            "mig": None if mig is None else bool(mig),
            "processes": [process(int(p.pid), getattr(p, "usedGpuMemory", None)) for p in processes[:16]],
        }


def _pretended() -> List[Dict[str, Any]]:
    """Return the GPUs that a test's file names, read anew at each question."""
    with open(os.environ[PRETEND], "rb") as text:
        listed: List[Dict[str, Any]] = json.loads(text.read().decode("ascii"))
    usual: Dict[str, Any] = {
        "name": "Pretended GPU",
        "arch": "sm_90",
        "minor": None,
        "memory_total_bytes": 80 << 30,
        "memory_used_bytes": 0,
        "utilization_percent": 0,
        "temperature_c": None,
        "power_w": None,
        "sm_clock_mhz": None,
        "pids": [],
        "nvlink": [],
    }
    return [dict(usual, index=index, **gpu) for index, gpu in enumerate(listed)]


def process(pid: int, used: Any) -> Dict[str, Any]:
    """Describe a process on a GPU; of one that is in another namespace only the number is known."""
    name: Optional[str] = None
    user: Optional[str] = None
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as text:
            name = text.read().strip()
        uid = os.stat("/proc/%d" % pid).st_uid
        user = ask(lambda: pwd.getpwuid(uid).pw_name) or "uid %d" % uid
    except OSError:
        pass
    return {"pid": pid, "name": name, "user": user, "memory_bytes": used if isinstance(used, int) else None}


def leased_by_scheduler(gpus: List[Dict[str, Any]], environ: Mapping[str, str]) -> List[Dict[str, Any]]:
    """Return the GPUs that belong to this batch job; all outside of one.

    SLURM_STEP_GPUS and SLURM_JOB_GPUS hold physical numbers, unlike CUDA_VISIBLE_DEVICES, which counts from 0 where
    devices are confined; there NVML shows only ours, and nothing is left to choose. Source: srun(1), sbatch(1).
    """
    ids = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    if "SLURM_JOB_ID" not in environ or (not ids and "SLURM_CLUSTER_NAME" not in environ):
        return gpus
    wanted = {int(n) for n in (ids or "").split(",") if n.isdigit()}
    if len(gpus) <= len(wanted):
        return gpus
    return [g for g in gpus if (g["minor"] if g.get("minor") is not None else g["index"]) in wanted]


def ask(question: Any) -> Any:
    """Return what NVML answers, or None where the device does not know."""
    try:
        return question()
    except Exception:  # every device lacks another few of NVML's answers, each with its own error class
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def device_nodes(gpus: List[Dict[str, Any]]) -> List[str]:
    """Return the device nodes that a job with these GPUs needs, and no others.

    Source: on two H200s, binding nvidiaN, nvidiactl and nvidia-uvm alone confined CUDA to GPU N, and ncu worked.
    """
    nodes = [n for n in CONTROL_NODES if os.path.exists(n)] if gpus else []
    return nodes + ["/dev/nvidia%d" % g["minor"] for g in gpus if g.get("minor") is not None]


def device_groups(nodes: List[str]) -> List[int]:
    """Return the groups that own nodes which not everybody may open."""
    groups: Set[int] = set()
    for node in nodes:
        info = os.stat(node)
        if info.st_mode & 0o006 != 0o006:
            groups.add(info.st_gid)
    return sorted(groups)


def driver_library() -> Optional[Tuple[str, str]]:
    """Find libcuda.so.1: its path and folder."""
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f.startswith("/")]
    folders += [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/usr/lib/wsl/lib",
        "/usr/local/cuda/compat",
    ]
    for folder in folders:
        path = os.path.join(folder, "libcuda.so.1")
        if os.path.exists(path):
            return path, folder
    return None
