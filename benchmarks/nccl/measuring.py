"""Helpers of `ranks.py`: run and time programs of its own, note results, find missing tools."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock, Thread
from typing import Any

from gpu_mcp_server.nccl.checks.run_output import timings
from gpu_mcp_server.nccl.stages.transformation import transform

ROOT = Path(__file__).parents[2]
PROGRAM = "alltoall.cu"
DIFFERENTIAL = ROOT / "gpu_mcp_server" / "nccl" / "checks" / "differential.cu"
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
MEASURED = ("AlltoAll", "AllReduce", "AllGather", "ReduceScatter")
ENDING_S, TIMES_S, SETUP_S = 10.0, 180.0, 60.0


@dataclass
class Results:
    """Results so far; written down with every row."""

    folder: Path
    ranks: int
    document: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: list[str] = field(default_factory=list[str])
    _lock: Any = field(default_factory=RLock)

    def add(self, key: str, value: object, *lines: str) -> None:
        """Keep a value, and print lines of the report."""
        with self._lock:
            self.document.setdefault(key, []).append(value)
            self.tell(*lines)

    def tell(self, *lines: str) -> None:
        """Print lines of the report, and write everything down."""
        with self._lock:
            self.lines += lines
            print("\n".join(lines), flush=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            base = self.folder / f"nccl-{self.ranks}"
            base.with_suffix(".json").write_text(json.dumps(self.document, indent=1), encoding="utf-8")
            base.with_suffix(".md").write_text("\n".join(self.lines) + "\n", encoding="utf-8")


def environment() -> dict[str, str]:
    """Return the surroundings of every command: jobs get what NCCL wants by the host's settings, not from here."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "toolsets"), os.environ.get("PYTHONPATH", "")])
    wanted = {k: v for k, v in os.environ.items() if k.startswith("NCCL_")} | MULTICAST_OFF
    return {
        **os.environ,
        **MULTICAST_OFF,
        "PYTHONPATH": path,
        "GPU_MCP_HOSTS__LOCAL__ENVIRONMENT": json.dumps(wanted),
    }


def run_command(
    command: list[str], limit_s: float, heard: Callable[[str], None] = lambda line: None
) -> tuple[int | None, str, str]:
    """Run a command; no exit code where it was broken off: kindly, so that its job on the host ends, and then not.

    Each line of its stderr is handed to `heard` as soon as it is there.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, start_new_session=True, env=environment()
    ) as started:
        return _listened(started, limit_s, heard)


def _listened(
    started: subprocess.Popen[str], limit_s: float, heard: Callable[[str], None]
) -> tuple[int | None, str, str]:
    assert started.stdout is not None and started.stderr is not None
    out: list[str] = []
    told: list[str] = []

    def listen() -> None:
        for line in started.stderr or ():
            told.append(line)
            heard(line.rstrip("\n"))

    readers = [Thread(target=listen), Thread(target=lambda: out.append((started.stdout or sys.stdin).read()))]
    for reader in readers:
        reader.start()
    code = _code(started, limit_s)
    for reader in readers:
        reader.join()
    return code, "".join(out), "".join(told)


def _code(started: subprocess.Popen[str], limit_s: float) -> int | None:
    """Wait for a process; end it at the limit."""
    try:
        return started.wait(limit_s)
    except subprocess.TimeoutExpired:
        started.send_signal(signal.SIGINT)
    try:
        started.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    return None


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def measure(results: Results, end: float) -> None:
    """Say what setting up costs by ranks, and the times of collectives by size; plain processes, no sandbox."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        given = (ROOT / "tests" / "nccl" / "programs" / PROGRAM).read_text(encoding="utf-8")
        files = transform({PROGRAM: given}, PROGRAM)[1]
        for path, text in files.items():
            (folder / path).write_text(text, encoding="utf-8")
        defines = [f"-DCHECK_{name.upper()}" for name in MEASURED]
        _set_up(results, _built(Path(__file__).with_name("setup.cu"), folder, []), end)
        program = _built(DIFFERENTIAL, folder, defines)
        code, out, told = run_command([program, str(results.ranks), "time"], min(TIMES_S, end - time.monotonic()))
        results.tell("", "| collective | bytes | plain, us | windows, us | device, us |", "| --- " * 5 + "|")
        for t in timings(out):
            row = f"| {t.collective} | {t.size_bytes} | {t.original_us:.1f} | {t.stage_a_us:.1f} | {t.device_us:.1f} |"
            results.add("times", t.model_dump(), row)
        if code != 0:
            results.add("problems", told[-2000:], f"times: exit code {code}: {last_line(told)}")


def _set_up(results: Results, program: str, end: float) -> None:
    results.tell("", "| ranks | step | ms, slowest | MiB of device memory, most |", "| --- " * 4 + "|")
    for ranks in range(2, results.ranks + 1):
        code, out, told = run_command([program, str(ranks)], min(SETUP_S, end - time.monotonic()))
        steps: dict[str, list[tuple[float, float]]] = {}
        for step, ms, mib in re.findall(r"^setup .*step=(\S+) ms=(\S+) mib=(\S+)$", out, re.MULTILINE):
            steps.setdefault(step, []).append((float(ms), float(mib)))
        for step, seen in steps.items():
            ms, mib = max(m for m, _ in seen), max(m for _, m in seen)
            row = {"ranks": ranks, "step": step, "ms": ms, "mib": mib}
            results.add("setup", row, f"| {ranks} | {step} | {ms:.1f} | {mib:.1f} |")
        if code != 0:
            results.add("problems", told[-2000:], f"set-up of {ranks} ranks: exit code {code}: {last_line(told)}")


def _built(source: Path, folder: Path, defines: list[str]) -> str:
    """Compile a program against this interpreter's NCCL.

    Raises:
        RuntimeError: If it does not compile, with the compiler's words.
    """
    home, made = _nccl(), folder / source.stem
    given = [f"-I{home}/include", f"-L{home}/lib", "-Xlinker", "-rpath", "-Xlinker", f"{home}/lib"] if home else []
    command = ["nvcc", "-std=c++17", "-O2", "-arch=native", *defines, f"-I{folder}", *given, str(source)]
    told = subprocess.run(
        [*command, "-o", str(made), "-l:libnccl.so.2"], capture_output=True, text=True, check=False, env=environment()
    )
    if told.returncode:
        raise RuntimeError(f"{source.name} does not compile: {(told.stdout + told.stderr)[-1500:]}")
    return str(made)


def _nccl() -> Path | None:
    """Return the folder of NCCL's wheel in this interpreter's environment."""
    probe = [sys.executable, "-c", "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])"]
    told = subprocess.run(probe, capture_output=True, text=True, check=False)
    home = Path(told.stdout.strip() or "/nowhere")
    return home if (home / "include" / "nccl_device.h").is_file() else None


def _version(home: Path | None) -> str:
    text = (home / "include" / "nccl.h").read_text(encoding="utf-8") if home else ""
    return ".".join(re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) +(\d+)", text)) or "unknown"


def printed(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return f"{command[0]}: not here"
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    return (told.stdout or told.stderr).strip()


def describe_machine(ranks: int) -> dict[str, str]:
    """Return what the figures rest on: date, cards, driver, links, versions."""
    smi = printed(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total,persistence_mode", "--format=csv,noheader"
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"Linux {platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "GPUs": "; ".join(smi.splitlines()),
        "ranks": str(ranks),
        "NVLink of the first": "; ".join(sorted(set(re.findall(r"\bNV\d+\b", printed("nvidia-smi", "topo", "-m"))))),
        "nvcc": last_line(printed("nvcc", "--version")),
        "NCCL header": _version(_nccl()),
        "multicast": ", ".join(f"{k}={v}" for k, v in MULTICAST_OFF.items()),
        "missing": "; ".join(missing_tools(ranks)) or "nothing that can be seen",
    }


def missing_tools(ranks: int) -> list[str]:
    """Return what this machine lacks, as far as it can be seen without running anything on a GPU."""
    found = [f"{tool} is not on the PATH" for tool in ("nvcc", "g++", "mpirun", "mpicc") if shutil.which(tool) is None]
    gpus = printed("nvidia-smi", "-L").count("GPU ") if shutil.which("nvidia-smi") else 0
    found += [f"{gpus} GPUs are seen, {ranks} are needed"] if gpus < ranks else []
    if _nccl() is None:
        found.append("this interpreter has no nvidia-nccl-cu13 with nccl_device.h: a system's NCCL may serve")
    return found
