"""The GPUs of this host, by NVML (the pure module pynvml travels with hostd)."""

import os
from typing import Any, Dict, List, Optional, Set, Tuple

DRIVER_NODES = ("/dev/nvidiactl", "/dev/dxg")
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class Nvml:
    """NVML, started at the first question and kept."""

    def __init__(self) -> None:
        self._state: Optional[str] = None
        self._nvml: Any = None

    def why_not(self) -> str:
        """Start NVML if need be; say why it cannot be used, or nothing."""
        if self._state is None:
            self._state = self._start()
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
        return _text(self._nvml.nvmlSystemGetDriverVersion()) if not self.why_not() else None

    def gpus(self) -> List[Dict[str, Any]]:
        """Describe every GPU now."""
        if self.why_not():
            return []
        return [self._gpu(i) for i in range(self._nvml.nvmlDeviceGetCount())]

    def _gpu(self, index: int) -> Dict[str, Any]:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        major, minor = _ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle)) or (None, None)
        power = _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return {
            "index": index,
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "name": _text(nvml.nvmlDeviceGetName(handle)),
            "arch": "sm_%d%d" % (major, minor) if major is not None else None,
            "minor": _ask(lambda: nvml.nvmlDeviceGetMinorNumber(handle)),
            "memory_total_bytes": int(memory.total),
            "memory_used_bytes": int(memory.used),
            "utilization_percent": _ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            "temperature_c": _ask(lambda: int(nvml.nvmlDeviceGetTemperature(handle, 0))),
            "power_w": power / 1000.0 if power is not None else None,
            "sm_clock_mhz": _ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, 1))),
            "pids": _ask(lambda: [int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]) or [],
        }


def _ask(question: Any) -> Any:
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
