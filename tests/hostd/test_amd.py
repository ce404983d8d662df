"""AMD's GPUs as amdsmi shows them: shapes of its own text (7.0.2), rebuilt here; no AMD GPU was there to ask."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mcp_server.hostd import amd
from gpu_mcp_server.models.host import Gpu, HostStatus, LabStatus

FIELDS = set(Gpu.model_fields)


def rebuilt(**other: Any) -> SimpleNamespace:
    """Return a module like amdsmi with one MI300X; `other` replaces functions."""
    functions: dict[str, Any] = {
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["handle"],
        "amdsmi_get_gpu_device_uuid": lambda _: "35ff74a1-0000-1000-80d0-d7f37ab1dd1d",
        "amdsmi_get_gpu_asic_info": lambda _: {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "target_graphics_version": "gfx942"},
        "amdsmi_get_gpu_vram_usage": lambda _: {"vram_total": 196592, "vram_used": 283},
        "amdsmi_get_gpu_activity": lambda _: {"gfx_activity": 37, "umc_activity": 3, "mm_activity": "N/A"},
        "amdsmi_get_power_info": lambda _: {"socket_power": 140, "current_socket_power": 140, "average_socket_power": "N/A", "power_limit": 750000000},
        "amdsmi_get_temp_metric": lambda _, kind, metric: {("hot", "now"): 47}[kind, metric],
        "amdsmi_get_clock_info": lambda _, kind: {"gfx": {"clk": 132, "max_clk": 2100}, "mem": {"clk": 900, "max_clk": 1300}}[kind],
        "amdsmi_get_violation_status": lambda _: {"active_ppt_pwr": True, "active_hbm_thrm": False, "active_vr_thrm": "N/A"},
        "amdsmi_get_gpu_compute_partition": lambda _: "SPX",
        "amdsmi_get_gpu_process_list": lambda _: [{"name": "python3", "pid": os.getpid(), "mem": 0, "memory_usage": {"vram_mem": 1 << 30}}],
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hot"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT="now"),
    }  # fmt: skip
    return SimpleNamespace(**{**functions, **other})


def refusing(*_: Any) -> Any:
    raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")


def test_a_gpu_is_described_as_nvidias_are():
    (found,) = amd.AmdSmi(rebuilt()).gpus()
    gpu = Gpu(**{k: v for k, v in found.items() if k in FIELDS})
    assert set(found) <= FIELDS and (gpu.vendor, gpu.name, gpu.arch) == ("amd", "AMD Instinct MI300X", "gfx942")
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (196592 << 20, 283 << 20)
    assert (gpu.utilization_percent, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (37, 47, 140, 750)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.memory_clock_mhz) == (132, 2100, 900)
    assert gpu.throttle == ["power cap"] and gpu.mig is False
    assert [(p.pid, p.memory_bytes) for p in gpu.processes] == [(os.getpid(), 1 << 30)] and gpu.processes[0].user
    said = LabStatus(hosts=[HostStatus(host="a", kind="local", reachable=True, gpus=[gpu])]).summary()
    assert "MI300X gfx942 283/196592 MiB" in said and "140/750 W" in said and "shown only" in said


def test_what_a_device_refuses_to_say_is_absent_and_the_rest_is_there():
    names = [
        n for n in vars(rebuilt()) if n.startswith("amdsmi_get_gpu") or n.endswith("_info") or n.endswith("metric")
    ]
    for name in [*names, "amdsmi_get_violation_status"]:
        (found,) = amd.AmdSmi(rebuilt(**{name: refusing})).gpus()
        Gpu(**found)
    (found,) = amd.AmdSmi(
        rebuilt(amdsmi_get_power_info=lambda _: {"average_socket_power": 90, "power_limit": 300})
    ).gpus()
    assert (found["power_w"], found["power_limit_w"]) == (90, 300)


def test_without_driver_or_library_there_are_none_and_it_is_said_why(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(amd, "DRIVER_NODE", str(tmp_path / "kfd"))
    assert amd.AmdSmi().gpus() == [] and "no AMD driver" in amd.AmdSmi().why_not()
    (tmp_path / "kfd").touch()

    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')\n")  # as the wheel does without ROCm
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert "libamd_smi.so" in amd.AmdSmi().why_not() and amd.AmdSmi().gpus() == []
    assert "NOT_SUPPORTED" in amd.AmdSmi(rebuilt(amdsmi_init=refusing)).why_not()
