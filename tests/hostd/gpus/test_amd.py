"""AMD's GPUs as amdsmi shows them: shapes of its own text (7.0.2), rebuilt here; no AMD GPU was there to ask."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mcp_server.hostd.gpus import amd, amd_programs
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


def lab_of(gpu: Gpu) -> LabStatus:
    return LabStatus(hosts=[HostStatus(host="a", kind="local", reachable=True, gpus=[gpu])])


def test_a_gpu_is_described_as_nvidias_are():
    (found,) = amd.AmdSmi(rebuilt()).gpus()
    gpu = Gpu(**{k: v for k, v in found.items() if k in FIELDS})
    assert set(found) - {"bdf"} <= FIELDS and (gpu.vendor, gpu.name, gpu.arch) == (
        "amd",
        "AMD Instinct MI300X",
        "gfx942",
    )
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (196592 << 20, 283 << 20)
    assert (gpu.utilization_percent, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (37, 47, 140, 750)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.memory_clock_mhz) == (132, 2100, 900)
    assert gpu.throttle == ["power cap"] and gpu.mig is False
    assert [(p.pid, p.memory_bytes) for p in gpu.processes] == [(os.getpid(), 1 << 30)] and gpu.processes[0].user
    said = lab_of(gpu).summary()
    assert "MI300X gfx942 283/196592 MiB" in said and "140/750 W" in said and ", free" in said
    assert ", shown only" in lab_of(gpu.model_copy(update={"shown_only": True})).summary()


def test_what_a_device_refuses_to_say_is_absent_and_the_rest_is_there():
    names = [
        n for n in vars(rebuilt()) if n.startswith("amdsmi_get_gpu") or n.endswith("_info") or n.endswith("metric")
    ]
    for name in [*names, "amdsmi_get_violation_status"]:
        (found,) = amd.AmdSmi(rebuilt(**{name: refusing})).gpus()
        Gpu(**{k: v for k, v in found.items() if k in FIELDS})
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


def amount(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


AMD_SMI: dict[str, Any] = {
    "list": [{"gpu": 0, "bdf": "0000:05:00.0", "uuid": "35ff74a1-0000-1000-80d0-d7f37ab1dd1d", "kfd_id": 1}],
    "static": {
        "gpu_data": [
            {
                "gpu": 0, "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
                "limit": {"max_power": amount(750, "W")}, "partition": {"compute_partition": "CPX"},
            }
        ]
    },
    "metric": [
        {
            "gpu": 0, "usage": {"gfx_activity": amount(37, "%"), "umc_activity": "N/A"},
            "power": {"socket_power": amount(140, "W")}, "temperature": {"edge": "N/A", "hotspot": amount(47, "C")},
            "clock": {"gfx_0": {"clk": amount(132, "MHz"), "max_clk": amount(2100, "MHz")}, "mem_0": {"clk": amount(900, "MHz")}},
            "mem_usage": {"total_vram": amount(196592, "MB"), "used_vram": amount(283, "MB")},
        }
    ],
    "process": [{"gpu": 0, "process_list": [{"process_info": {"name": "python3", "pid": os.getpid(), "memory_usage": {"vram_mem": amount(1 << 30, "B")}}}]}],
}  # fmt: skip
ROCM_SMI: dict[str, Any] = {
    "card1": {"Card Series": "AMD INSTINCT MI250X", "VRAM Total Memory (B)": "68702699520"},
    "card0": {
        "Unique ID": "0xdc9bc0a1f2d0a6a3", "Card series": "AMD INSTINCT MI250X", "GFX Version": "gfx90a",
        "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10960896", "GPU use (%)": "62",
        "Temperature (Sensor edge) (C)": "35.0", "Temperature (Sensor junction) (C)": "38.0",
        "Average Graphics Package Power (W)": "93.0", "Max Graphics Package Power (W)": "560.0",
        "sclk clock speed:": "(800Mhz)", "mclk clock speed:": "(1600Mhz)",
    },
    "system": {"Driver version": "6.3.6"},
}  # fmt: skip


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for programs of a host with the driver and an amdsmi that cannot be imported."""
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(amd, "DRIVER_NODE", str(tmp_path / "kfd"))
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    monkeypatch.setattr(amd_programs, "FOLDERS", str(tmp_path))
    return tmp_path


def put(folder: Path, name: str, answers: dict[str, Any]) -> None:
    for what, answer in answers.items():
        (folder / what).write_text(json.dumps(answer))
    (folder / name).write_text(f"#!/bin/sh\necho 'WARNING: AMD SMI is old'\nexec /bin/cat {folder}/$1\n")
    (folder / name).chmod(0o755)


def test_where_no_module_works_amd_smi_is_asked(programs: Path):
    assert not amd.AmdSmi().asks_a_program(), "there is no program yet"
    put(programs, "rocm-smi", {"--showproductname": ROCM_SMI})
    put(programs, "amd-smi", AMD_SMI)
    smi = amd.AmdSmi()
    assert smi.gpus() == [] and smi.asks_a_program()
    (found,) = smi.by_program()
    gpu = Gpu(**{k: v for k, v in found.items() if k in FIELDS})
    assert (gpu.uuid[:8], gpu.name, gpu.arch, gpu.mig) == ("35ff74a1", "AMD Instinct MI300X", "gfx942", True)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (196592 << 20, 283 << 20)
    assert (gpu.utilization_percent, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (37, 47, 140, 750)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.memory_clock_mhz) == (132, 2100, 900)
    assert [(p.pid, p.memory_bytes) for p in gpu.processes] == [(os.getpid(), 1 << 30)]


def test_and_rocm_smi_where_that_is_all_there_is(programs: Path):
    put(programs, "rocm-smi", {"--showproductname": ROCM_SMI})
    smi = amd.AmdSmi()
    assert smi.asks_a_program()
    gpu, other = (Gpu(**{k: v for k, v in g.items() if k in FIELDS}) for g in smi.by_program())
    assert (gpu.index, gpu.uuid, gpu.name, gpu.arch) == (0, "0xdc9bc0a1f2d0a6a3", "AMD INSTINCT MI250X", "gfx90a")
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (68702699520, 10960896)
    assert (gpu.utilization_percent, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (62, 38, 93, 560)
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz) == (800, 1600) and other.index == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["gpu", "gpu_data", "asic", "metric", "mem_usage", "total_vram", "value", "unit", "card0", "GPU use (%)", "process_list"]), inner, max_size=4),
)  # fmt: skip


@given(JSON, JSON)
def test_no_answer_makes_it_raise(one: Any, other: Any):
    amd_programs.from_amd_smi(
        {"list": one, "static": other, "metric": one, "process": [{"gpu": 0, "process_list": other}]}
    )
    amd_programs.from_rocm_smi(one)
    amd_programs.parse_json(f"noise\n{json.dumps(one)[:40]}")
