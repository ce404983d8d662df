"""Six NCCL programs through the pipeline, and faults that only a run can show, in one call on a machine with two GPUs.

`python benchmarks/nccl/two_gpus.py [--until static|build|run|all] [--jobs 4] [--budget-s 450] [--only WORD]`

What it needs, and says at its start whether it is there; the network is not needed, and nothing is downloaded:

- two GPUs that reach each other by NVLink or PCIe peer access, free of other work, driver 580 or later for CUDA 13;
- nvcc 12.9 or later with a host compiler, on the PATH or in `cuda` of the host's settings;
- NCCL 2.28.9 or later, header and library of one version (`nvidia-nccl-cu13` in this interpreter's environment);
- this interpreter with the server's dependencies (`pip install -e .`), tree-sitter-cuda among them;
- mpirun, mpicc and mpi.h for `mpi.cu`, and `--allow-run-as-root` in OMPI_ALLOW_RUN_AS_ROOT(_CONFIRM)=1 as root: without
  them that program alone fails;
- a sandbox level that sees the GPUs, or GPU_MCP_ACCEPT_UNCONFINED=true where namespaces are forbidden;
- NCCL_* variables that the machine wants, such as NCCL_NVLS_ENABLE=0 where multicast does not work: they are handed on;
- 4 GB of disk, 8 processor cores for `--jobs 4`: builds go side by side, GPUs are leased to one run at a time.

What would begin with less than a minute of the budget left is not begun, and what runs at its end is broken off; both
are said. Every row is printed as soon as it is known. Programs that have run on no GPU yet come first.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "toolsets")]
from gpu_mcp_server.nccl.stages.transformation import transform  # noqa: E402 - found from the root only

GIVEN = ROOT / "tests" / "nccl" / "programs"
PROGRAMS = {
    "halo.cu": "self",
    "sendrecv.cu": "self",
    "threads.cu": "self",
    "alltoall.cu": "self",
    "allreduce.cu": "self",
    "mpi.cu": "mpirun",
}
"""Each program, and what starts its ranks."""
FAULTS = {
    "parts of one pair out of their order": (
        "halo.cu",
        "for (int j = 0; j < i; j++) k += x.received[j].peer == peer;",
        "",
    ),
    "half a broadcast": ("halo.cu", "send + peer * step, bytes, tid", "send + peer * step, bytes / 2, tid"),
    "the last element of a part": (
        "alltoall.cu",
        "for (; i < n; i += threads) to[i]",
        "for (; i + 1 < n; i += threads) to[i]",
    ),
    "a part that is 16 bytes too long": (
        "alltoall.cu",
        "copy_bytes(to, send + peer * bytes, bytes, tid",
        "copy_bytes(to, send + peer * bytes, bytes + 16, tid",
    ),
    "maximum in the place of a sum": ("allreduce.cu", "op == ncclSum ? a + b", "op == ncclSum ? (a > b ? a : b)"),
    "wide loads at any offset": ("allreduce.cu", "const bool wide = ((so | ro) & 15) == 0;", "const bool wide = true;"),
    "half of what is no whole pack": (
        "allreduce.cu",
        "ro, rest, count - rest, ranks",
        "ro, rest, (count - rest) / 2, ranks",
    ),
}  # fmt: skip
"""A fault's name: program, text of its generated kernels, what stands there instead."""
RUN_LIMIT_S = 60
LEAST_S = 60
ENDING_S = 10


@dataclass(frozen=True)
class Item:
    """One row: what is asked of the command line."""

    table: str
    name: str
    prepare: Callable[[Path], list[str]]


def items() -> list[Item]:
    """Return all rows, programs before faults."""
    programs = [Item("program", name, _program(name, launcher)) for name, launcher in PROGRAMS.items()]
    return [*programs, *(Item("fault", name, _fault(*fault)) for name, fault in FAULTS.items())]


def _program(name: str, launcher: str) -> Callable[[Path], list[str]]:
    def prepare(folder: Path) -> list[str]:
        (folder / name).write_bytes((GIVEN / name).read_bytes())
        return ["run", str(folder / name), "--together", "--launcher", launcher]

    return prepare


def _fault(name: str, old: str, new: str) -> Callable[[Path], list[str]]:
    def prepare(folder: Path) -> list[str]:
        files, main = with_fault(name, old, new)
        for path, text in files.items():
            (folder / path).write_text(text, encoding="utf-8")
        return ["verify", str(folder / main), "--original", name, "--launcher", PROGRAMS[name]]

    return prepare


def with_fault(name: str, old: str, new: str) -> tuple[dict[str, str], str]:
    """Return a program of the tests, transformed, with one change in its generated kernels, and its main file.

    Raises:
        ValueError: If the generated kernels do not have the text just once.
    """
    given = {name: (GIVEN / name).read_text(encoding="utf-8")}
    result, made = transform(given, name)
    if made["ncclx_kernels.cuh"].count(old) != 1:
        raise ValueError(f"the generated kernels have {old!r} {made['ncclx_kernels.cuh'].count(old)} times, not once")
    made["ncclx_kernels.cuh"] = made["ncclx_kernels.cuh"].replace(old, new)
    return {**given, **made}, str(result.main)


def row_of(item: Item, folder: Path, until: str, end: float) -> str:
    """Do one item, and return its row.

    Args:
        item: What is to be done.
        folder: An empty one of its own.
        until: The last kind of check.
        end: When it must be over, in seconds of the monotonic clock.
    """
    began = time.monotonic()
    if end - began < LEAST_S:
        return f"| {item.table} | {item.name} | not run: the budget is spent | | 0 |"
    arguments = item.prepare(folder)
    command = [sys.executable, "-m", "gpu_mcp_server", "nccl", *arguments]
    command += ["--until", until, "--timeout", str(RUN_LIMIT_S), "--json"]
    said = _said(command, end - began)
    listed = said.get("steps") or said.get("checks")
    told = (
        [f"{s['name']}: {s['status']}" for s in listed]
        if isinstance(listed, list)
        else [str(said.get("headline") or said.get("error"))]
    )
    if "checks" in said and isinstance(listed, list):
        told = [f"{c['name']}: {c.get('evidence', '')[:160]}" for c in listed if c["status"] == "failed"] or [
            "nothing failed"
        ]
    outcome = said.get("status") or said.get("verdict") or "?"
    text = "; ".join(told).replace("|", "\\|").replace("\n", " ")
    return f"| {item.table} | {item.name} | {outcome} | {text} | {time.monotonic() - began:.0f} |"


def _said(command: list[str], limit_s: float) -> dict[str, object]:
    """Return what a command says as JSON; its last words as `headline` where it says none."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "toolsets"), os.environ.get("PYTHONPATH", "")])
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        out, told = started.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        out, told = _broken_off(started)
        return {"status": "broken off", "headline": f"the budget was spent; {_last(told)}"}
    try:
        return json.loads(out)
    except json.JSONDecodeError:
        return {"headline": _last(told) or f"no words, exit code {started.returncode}"}


def _broken_off(started: "subprocess.Popen[str]") -> tuple[str, str]:
    """End a command: kindly, so that it ends its job on the host, and then not."""
    started.send_signal(signal.SIGINT)
    try:
        return started.communicate(timeout=ENDING_S)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        return started.communicate()


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def missing() -> list[str]:
    """Return what this machine lacks, as far as it can be seen without running anything on a GPU."""
    found = [f"{tool} is not on the PATH" for tool in ("nvcc", "g++", "mpirun", "mpicc") if shutil.which(tool) is None]
    listed = (
        subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        if shutil.which("nvidia-smi")
        else None
    )
    gpus = listed.stdout.count("GPU ") if listed is not None else 0
    found += [f"{gpus} GPUs are seen, two are needed"] if gpus < 2 else []
    probe = [sys.executable, "-c", "import nvidia.nccl, pathlib; print(list(nvidia.nccl.__path__)[0])"]
    told = subprocess.run(probe, capture_output=True, text=True, check=False)
    home = Path(told.stdout.strip() or "/nowhere")
    if not (home / "include" / "nccl_device.h").is_file():
        found.append("this interpreter has no nvidia-nccl-cu13 with nccl_device.h: a system's NCCL may serve")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", default="all", choices=["static", "build", "run", "all"])
    parser.add_argument("--jobs", type=int, default=4, help="items at once")
    parser.add_argument("--budget-s", type=float, default=450, help="seconds for everything")
    parser.add_argument("--only", default="", help="a word in the names of the rows that are wanted")
    asked = parser.parse_args()
    end = time.monotonic() + asked.budget_s
    print("missing: " + ("; ".join(missing()) or "nothing that can be seen"))
    print("\n| kind | name | outcome | steps, or checks that failed | s |\n| --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(asked.jobs) as workers:
        pending = []
        for number, item in enumerate(i for i in items() if asked.only in i.name):
            folder = Path(made) / str(number)
            folder.mkdir()
            pending.append(workers.submit(row_of, item, folder, asked.until, end))
        for done in as_completed(pending):
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
