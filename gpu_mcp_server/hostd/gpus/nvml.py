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
GPU_IS_LOST = 15
"""Source: nvml.h, NVML_ERROR_GPU_IS_LOST."""
HOTTEST_C = 200
MOST_MHZ = 100_000
MOST_MILLIWATTS = 100_000_000
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class NvmlLibrary:
    """NVML, started at the first question and kept.

    Attributes:
        left_out: GPUs that the last look left out, each with the reason.
    """

    def __init__(self) -> None:
        self.left_out: List[str] = []
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
        return _text(query_nvml(self._nvml.nvmlSystemGetDriverVersion))

    def gpus(self) -> List[Dict[str, Any]]:
        """Describe every GPU now; what a device does not know is None, and `left_out` names who cannot be used."""
        self.left_out = []
        if self.why_not():
            return []
        if self._nvml is None:
            return _pretended()
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except Exception as error:  # NVML's own classes, which cannot be named without it
            self.left_out = ["all GPUs are left out: NVML does not count them: %s" % error]
            return []
        found = [g for g in map(self._usable, range(count)) if g is not None]
        uuids = [str(g["uuid"]) for g in found]
        if self._nvlinks is None or sorted(self._nvlinks) != sorted(uuids):
            self._nvlinks = self._find_nvlinks(uuids)
        return [dict(g, nvlink=self._nvlinks.get(str(g["uuid"]), [])) for g in found]

    def why_none(self) -> str:
        """Say why the last look found no GPU, as far as NVML knows; empty where it simply counts none."""
        return self.why_not() or "; ".join(self.left_out)

    def _usable(self, index: int) -> Optional[Dict[str, Any]]:
        """Describe a GPU; None and a reason in `left_out` where it has no handle or no UUID, or has left the bus."""
        try:
            return self._gpu(index)
        except Exception as error:  # NVML's own classes, which cannot be named without it
            self.left_out.append("GPU %d is left out: NVML says: %s" % (index, error))
            return None

    def pids(self, uuid: str) -> List[int]:
        """Return the compute processes of a GPU; none when it is not there."""
        if self.why_not():
            return []
        if self._nvml is None:
            return [int(p) for g in _pretended() if g["uuid"] == uuid for p in g["pids"] or ()]
        return query_nvml(lambda: self._pids(self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))) or []

    def _pids(self, handle: Any) -> List[int]:
        return [int(p.pid) for p in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)]

    def _find_nvlinks(self, uuids: List[str]) -> Dict[str, List[str]]:
        """Return for each GPU those that it reaches by NVLink, directly or through a switch."""
        nvml = self._nvml
        handles = {u: query_nvml(lambda u=u: nvml.nvmlDeviceGetHandleByUUID(u.encode())) for u in uuids}

        def are_joined(a: str, b: str) -> bool:
            how = nvml.NVML_P2P_CAPS_INDEX_NVLINK
            return (
                query_nvml(lambda: nvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], how)) == nvml.NVML_P2P_STATUS_OK
            )

        return {a: [b for b in handles if b != a and are_joined(a, b)] for a in handles}

    def _gpu(self, index: int) -> Dict[str, Any]:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = query_present_gpu(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))  # unified memory has no answer
        major, minor = query_present_gpu(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle)) or (None, None)
        return {
            "index": index,
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "name": _text(query_present_gpu(lambda: nvml.nvmlDeviceGetName(handle))) or "NVIDIA GPU of unknown name",
            "arch": "sm_%d%d" % (major, minor) if major is not None else None,
            "minor": query_present_gpu(lambda: nvml.nvmlDeviceGetMinorNumber(handle)),
            "memory_total_bytes": _within(memory and memory.total, 1, 1 << 60),
            "memory_used_bytes": _within(memory and memory.used, 0, 1 << 60),
            "utilization_percent": _within(
                query_present_gpu(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0, 100
            ),
            "temperature_c": _celsius(query_present_gpu(lambda: nvml.nvmlDeviceGetTemperature(handle, 0))),
            "power_w": _watts(query_present_gpu(lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
            "sm_clock_mhz": _within(query_present_gpu(lambda: nvml.nvmlDeviceGetClockInfo(handle, 1)), 0, MOST_MHZ),
            **self._more(handle),
        }

    def _more(self, handle: Any) -> Dict[str, Any]:
        """Return clocks, limits, what throttles, MIG, and the processes with their owners."""
        nvml = self._nvml
        reasons = query_present_gpu(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        mig = query_present_gpu(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        listed: Optional[List[Any]] = query_present_gpu(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return {
            "power_limit_w": _watts(query_present_gpu(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
            "sm_clock_max_mhz": _within(
                query_present_gpu(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, 1)), 0, MOST_MHZ
            ),
            "memory_clock_mhz": _within(query_present_gpu(lambda: nvml.nvmlDeviceGetClockInfo(handle, 2)), 0, MOST_MHZ),
            "throttle": None if reasons is None else [text for bit, text in THROTTLE.items() if reasons & bit],
            "mig": None if mig is None else bool(mig),
            "pids": None if listed is None else [int(p.pid) for p in listed],
            "processes": [process(int(p.pid), getattr(p, "usedGpuMemory", None)) for p in (listed or [])[:16]],
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
        user = query_nvml(lambda: pwd.getpwuid(uid).pw_name) or "uid %d" % uid
    except OSError:
        pass
    return {"pid": pid, "name": name, "user": user, "memory_bytes": used if isinstance(used, int) else None}


def scheduler_gpus(gpus: List[Dict[str, Any]], environ: Mapping[str, str]) -> List[Dict[str, Any]]:
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


def query_nvml(question: Any) -> Any:
    """Return what NVML answers, or None where the device does not know."""
    try:
        return question()
    except Exception:  # every device lacks another few of NVML's answers, each with its own error class
        return None


def query_present_gpu(question: Any) -> Any:
    """Return the same of a GPU that is there; that a GPU has left the bus is raised."""
    try:
        return question()
    except Exception as error:
        if getattr(error, "value", None) == GPU_IS_LOST:
            raise
        return None


def _text(value: Any) -> Optional[str]:
    if value is None:
        return None
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


def _within(value: Any, least: int, most: int) -> Optional[int]:
    """Return a number that can be true; NVML fills in all ones for what it does not know."""
    return int(value) if value is not None and least <= value <= most else None


def _celsius(value: Any) -> Optional[int]:
    """Return a temperature, which NVML hands over without its sign."""
    signed = value - (1 << 32) if value is not None and value >= 1 << 31 else value
    return _within(signed, -HOTTEST_C, HOTTEST_C)


def _watts(milliwatts: Any) -> Optional[float]:
    value = _within(milliwatts, 0, MOST_MILLIWATTS)
    return None if value is None else value / 1000.0


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
