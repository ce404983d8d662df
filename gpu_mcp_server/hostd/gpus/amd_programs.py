"""AMD's GPUs by ROCm's programs, amd-smi or the older rocm-smi, where this Python has no amdsmi that works.

What they print differs between versions, so everything is optional. Nobody here had an AMD GPU: never seen live.

Source: ROCm documentation, "AMD SMI CLI tool" (`static`, `metric`, `process`, `list`, each with `--json`; 7.x puts the
list below `gpu_data`) and "ROCm SMI CLI" (`--json`: an object for each card, values as text).
"""

import json
import os
import re
import shutil
import subprocess
from typing import Any, Dict, List, Optional, cast

from .nvml import process

TIMEOUT_S = 10
FOLDERS = os.pathsep.join((os.environ.get("PATH", ""), "/opt/rocm/bin:/usr/bin"))
QUESTIONS = ("list", "static", "metric", "process")
CARD = re.compile(r"card(\d{1,3})$")
ROCM_SMI = ("--showproductname", "--showuniqueid", "--showmeminfo", "vram", "--showuse", "--showpower", "--showtemp")
ROCM_SMI_MORE = ("--showclocks", "--showmaxpower", "--showbus", "--json")
MIB = 1 << 20
LARGEST = 1 << 60
UNITS = {"B": 1, "KB": 1 << 10, "MB": MIB, "GB": 1 << 30}


def program() -> str:
    """Return the program to ask, empty when there is none."""
    return shutil.which("amd-smi", path=FOLDERS) or shutil.which("rocm-smi", path=FOLDERS) or ""


def gpus(path: str) -> List[Dict[str, Any]]:
    """Describe every GPU as NVML's are described; may take seconds."""
    if os.path.basename(path) == "rocm-smi":
        return from_rocm_smi(_asked([path, *ROCM_SMI, *ROCM_SMI_MORE]))
    return from_amd_smi({what: _asked([path, what, "--json"]) for what in QUESTIONS})


def _asked(argv: List[str]) -> Any:
    """Return the JSON that a program prints, whatever stands before it; None when there is none."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_json(done.stdout.decode("utf-8", "replace"))


def parse_json(text: str) -> Any:
    """Return the JSON in a text; None when there is none."""
    start = re.search(r"^[\[{]", text, re.MULTILINE)
    try:
        return json.loads(text[start.start() :]) if start else None
    except (ValueError, RecursionError):
        return None


def from_amd_smi(said: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Understand amd-smi: what it says to each question; never raises."""
    by_gpu: Dict[int, Dict[str, Any]] = {}
    for what in QUESTIONS:
        for row in _rows(said.get(what)):
            number = row.get("gpu")
            if isinstance(number, int):
                by_gpu.setdefault(number, {})[what] = row
    return [_of_amd_smi(number, by_gpu[number]) for number in sorted(by_gpu)]


def _rows(value: Any) -> List[Dict[str, Any]]:
    listed: Any = cast("Dict[str, Any]", value).get("gpu_data") if isinstance(value, dict) else value
    rows = cast("List[Any]", listed) if isinstance(listed, list) else []
    return [cast("Dict[str, Any]", row) for row in rows if isinstance(row, dict)]


def _of_amd_smi(number: int, said: Dict[str, Any]) -> Dict[str, Any]:
    def text(*path: str) -> Optional[str]:
        value = _below(said, *path)
        return value if isinstance(value, str) and value not in ("", "N/A") else None

    def amount(*path: str) -> Optional[float]:
        return _amount(_below(said, *path))

    limit = amount("static", "limit", "max_power") or amount("static", "limit", "socket_power_limit")
    partition = text("static", "partition", "compute_partition")
    return {
        "vendor": "amd",
        "bdf": text("list", "bdf"),
        "index": number,
        "uuid": text("list", "uuid") or "amd-%d" % number,
        "name": text("static", "asic", "market_name") or "AMD GPU",
        "arch": text("static", "asic", "target_graphics_version"),
        "memory_total_bytes": _bytes(_below(said, "metric", "mem_usage", "total_vram")),
        "memory_used_bytes": _bytes(_below(said, "metric", "mem_usage", "used_vram")),
        "utilization_percent": _whole(amount("metric", "usage", "gfx_activity")),
        "temperature_c": _whole(amount("metric", "temperature", "hotspot")),
        "power_w": amount("metric", "power", "socket_power"),
        "power_limit_w": limit,
        "sm_clock_mhz": _whole(amount("metric", "clock", "gfx_0", "clk")),
        "sm_clock_max_mhz": _whole(amount("metric", "clock", "gfx_0", "max_clk")),
        "memory_clock_mhz": _whole(amount("metric", "clock", "mem_0", "clk")),
        "throttle": None,
        "mig": None if partition is None else partition != "SPX",
        "processes": _processes(_below(said, "process", "process_list")),
    }


def _processes(listed: Any) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    for row in cast("List[Any]", listed)[:16] if isinstance(listed, list) else []:
        about = _below({"row": row}, "row", "process_info")
        pid = _below({"about": about}, "about", "pid")
        if isinstance(pid, int):
            used = _bytes(_below({"about": about}, "about", "memory_usage", "vram_mem"))
            found.append(process(pid, used))
    return found


def from_rocm_smi(said: Any) -> List[Dict[str, Any]]:
    """Understand rocm-smi; never raises. Names of values are compared without case, as they changed it."""
    cards = cast("Dict[str, Any]", said) if isinstance(said, dict) else {}
    found: List[Dict[str, Any]] = []
    for name, card in cards.items():
        match = CARD.match(name)
        if match and isinstance(card, dict):
            values = {str(k).lower(): v for k, v in cast("Dict[str, Any]", card).items()}
            found.append(_of_rocm_smi(int(match[1]), values))
    return sorted(found, key=lambda gpu: gpu["index"])


def _of_rocm_smi(number: int, values: Dict[str, Any]) -> Dict[str, Any]:
    def amount(*names: str) -> Optional[float]:
        return next((a for a in (_amount(values.get(n)) for n in names) if a is not None), None)

    return {
        "vendor": "amd",
        "bdf": values.get("pci bus") if isinstance(values.get("pci bus"), str) else None,
        "index": number,
        "uuid": str(values.get("unique id") or "amd-%d" % number),
        "name": str(values.get("card series") or values.get("device name") or "AMD GPU"),
        "arch": values.get("gfx version") if isinstance(values.get("gfx version"), str) else None,
        "memory_total_bytes": _whole(amount("vram total memory (b)")),
        "memory_used_bytes": _whole(amount("vram total used memory (b)")),
        "utilization_percent": _whole(amount("gpu use (%)")),
        "temperature_c": _whole(amount("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")),
        "power_w": amount("current socket graphics package power (w)", "average graphics package power (w)"),
        "power_limit_w": amount("max graphics package power (w)"),
        "sm_clock_mhz": _whole(amount("sclk clock speed:")),
        "sm_clock_max_mhz": None,
        "memory_clock_mhz": _whole(amount("mclk clock speed:")),
        "throttle": None,
        "mig": None,
        "processes": [],
    }


def _below(value: Any, *path: str) -> Any:
    for key in path:
        value = cast("Dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return value


def _amount(value: Any) -> Optional[float]:
    """Return the number in `{"value": 47, "unit": "C"}`, `47`, `"47.0"` or `"(800Mhz)"`; None for "N/A"."""
    value = _below(value, "value") if isinstance(value, dict) else value
    if isinstance(value, str):
        match = re.search(r"\d{1,18}(?:\.\d{1,9})?", value)
        return float(match[0]) if match else None
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
    return float(value) if known else None


def _bytes(value: Any) -> Optional[int]:
    unit = _below(value, "unit") if isinstance(value, dict) else None
    amount = _amount(value)
    return None if amount is None else int(amount * UNITS.get(str(unit or "MB"), 1))


def _whole(value: Optional[float]) -> Optional[int]:
    return None if value is None else round(value)
