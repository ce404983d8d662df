"""AMD's GPUs of this host, by amdsmi, for people and agents to see; which ones a job can have is KFD's (`kfd`).

The module comes with ROCm or from PyPI, and both need ROCm's libamd_smi: without it the import fails with a KeyError.
Nobody here had an AMD GPU: fields and units are those of the module's own text, 7.0.2, and were never seen live.

Source: `amdsmi_interface.py` of amdsmi 7.0.2; ROCm documentation, "AMD SMI Python API".
"""

import importlib
import os
import sys
from typing import Any, Dict, List, Optional

from . import amd_programs
from .nvml import process, query_nvml

DRIVER_NODE = "/dev/kfd"
PLACES = ("/opt/rocm/share/amd_smi",)
"""Where ROCm puts the module when no Python has it."""
VIOLATIONS = {
    "active_ppt_pwr": "power cap",
    "active_socket_thrm": "socket thermal",
    "active_hbm_thrm": "memory thermal",
    "active_vr_thrm": "voltage regulator thermal",
    "active_prochot_thrm": "hardware thermal",
}
MICROWATTS_FROM = 100_000
"""The power limit is in W in some versions and in microwatts in others; no GPU is limited to less than 0.1 W."""
WHOLE = ("SPX", "N/A", "")


class AmdSmi:
    """amdsmi, started at the first question and kept."""

    def __init__(self, module: Any = None) -> None:
        self._state: Optional[str] = None
        self._smi: Any = module
        self.left_out: List[str] = []
        """GPUs that the last look left out, each with the reason."""
        self.program = ""
        """amd-smi or rocm-smi, where there is a driver and no amdsmi; empty otherwise, and before the first use."""

    def why_not(self) -> str:
        """Start amdsmi if need be; say why it cannot be used, or nothing."""
        if self._state is None:
            self._state = self._start()
            self.program = amd_programs.program() if self._state and os.path.exists(DRIVER_NODE) else ""
        return self._state

    def asks_a_program(self) -> bool:
        """Say whether a program must be asked, which takes so long that a child should do it."""
        return bool(self.why_not() and self.program)

    def by_program(self) -> List[Dict[str, Any]]:
        """Describe every GPU as the program has it."""
        return amd_programs.gpus(self.program)

    def _start(self) -> str:
        if self._smi is None:
            if not os.path.exists(DRIVER_NODE):
                return "no AMD driver on this host"
            sys.path.extend(p for p in PLACES if os.path.isdir(p) and p not in sys.path)
            try:
                self._smi = importlib.import_module("amdsmi")  # needed only where there is a driver
            except Exception as error:  # a KeyError where ROCm's library is missing
                return "amdsmi cannot be imported: %r" % error
        try:
            self._smi.amdsmi_init()
        except Exception as error:  # its own classes, which cannot be named without it
            return "amdsmi: %s" % error
        return ""

    def gpus(self) -> List[Dict[str, Any]]:
        """Describe every GPU now, as NVML's are described."""
        self.left_out = []
        if self.why_not():
            return []
        handles: List[Any] = query_nvml(self._smi.amdsmi_get_processor_handles) or []
        return [g for g in (self._usable(n, handle) for n, handle in enumerate(handles)) if g is not None]

    def _usable(self, index: int, handle: Any) -> Optional[Dict[str, Any]]:
        """Describe a GPU; None and a reason in `left_out` where amdsmi's answers have another shape than ours."""
        try:
            return self._gpu(index, handle)
        except Exception as error:  # what another version of amdsmi returns is not known here
            self.left_out.append("AMD GPU %d is left out: amdsmi's answers are not understood: %r" % (index, error))
            return None

    def _gpu(self, index: int, handle: Any) -> Dict[str, Any]:
        smi = self._smi
        asic: Dict[str, Any] = query_nvml(lambda: smi.amdsmi_get_gpu_asic_info(handle)) or {}
        memory: Dict[str, Any] = query_nvml(lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        busy: Dict[str, Any] = query_nvml(lambda: smi.amdsmi_get_gpu_activity(handle)) or {}
        power: Dict[str, Any] = query_nvml(lambda: smi.amdsmi_get_power_info(handle)) or {}
        core: Dict[str, Any] = query_nvml(lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)) or {}
        of_memory: Dict[str, Any] = query_nvml(lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.MEM)) or {}
        limit = _number(power.get("power_limit"))
        partition: Optional[str] = query_nvml(lambda: str(smi.amdsmi_get_gpu_compute_partition(handle)))
        spot, now = (
            query_nvml(lambda: smi.AmdSmiTemperatureType.HOTSPOT),
            query_nvml(lambda: smi.AmdSmiTemperatureMetric.CURRENT),
        )
        return {
            "vendor": "amd",
            "bdf": query_nvml(lambda: str(smi.amdsmi_get_gpu_device_bdf(handle))),
            "index": index,
            "uuid": str(query_nvml(lambda: smi.amdsmi_get_gpu_device_uuid(handle)) or "amd-%d" % index),
            "name": str(asic.get("market_name") or "AMD GPU"),
            "arch": asic.get("target_graphics_version"),
            "memory_total_bytes": _from_mib(memory.get("vram_total")),
            "memory_used_bytes": _from_mib(memory.get("vram_used")),
            "utilization_percent": _number(busy.get("gfx_activity")),
            "temperature_c": _number(query_nvml(lambda: smi.amdsmi_get_temp_metric(handle, spot, now))),
            "power_w": _number(power.get("current_socket_power")) or _number(power.get("average_socket_power")),
            "power_limit_w": limit / 1e6 if limit and limit >= MICROWATTS_FROM else limit,
            "sm_clock_mhz": _number(core.get("clk")),
            "sm_clock_max_mhz": _number(core.get("max_clk")),
            "memory_clock_mhz": _number(of_memory.get("clk")),
            "throttle": self._throttle(handle),
            "mig": None if partition is None else partition not in WHOLE,
            "processes": self._processes(handle),
        }

    def _throttle(self, handle: Any) -> Optional[List[str]]:
        status: Optional[Dict[str, Any]] = query_nvml(lambda: self._smi.amdsmi_get_violation_status(handle))
        return None if status is None else [text for key, text in VIOLATIONS.items() if status.get(key) is True]

    def _processes(self, handle: Any) -> List[Dict[str, Any]]:
        listed: List[Dict[str, Any]] = query_nvml(lambda: self._smi.amdsmi_get_gpu_process_list(handle)) or []
        found: List[Dict[str, Any]] = []
        for one in listed[:16]:
            used: Dict[str, Any] = one.get("memory_usage") or {}
            about = process(int(one["pid"]), _number(used.get("vram_mem")))
            found.append(dict(about, name=about["name"] or one.get("name")))
        return found


def _number(value: Any) -> Optional[int]:
    """Return a number; None for "N/A", which amdsmi says of what a device does not know."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _from_mib(value: Any) -> Optional[int]:
    mib = _number(value)
    return None if mib is None else mib << 20
