"""NCCL programs, faults that only a run can show, and times, on a machine with several GPUs: two, four, eight.

`python benchmarks/nccl/ranks.py RANKS [--parts measure,faults,programs,more,kernels] [--each 2] [--out FOLDER]
[--until static|build|run|all] [--jobs 3] [--budget-s 460] [--only WORD] [--given FOLDER]`

- `measure`: what a communicator, windows and a device communicator cost from 2 ranks to RANKS, then all-to-all,
  all-reduce, all-gather and reduce-scatter from 1 KiB to 64 MiB: host NCCL on plain memory, on windows, and the device,
  by turns;
- `faults`: six faults of one rank or of one place that no static rule sees, each with what the checks say of it;
- `programs`: those in FOLDER and three of the tests through `nccl run`, each stage verified; `more`: the other four;
- `kernels`: seven changes of one generated kernel.

With `--each 2` each program and each fault has two ranks, so that two run at once on four GPUs, each on a pair. Parts
come in the order given: `programs,faults` begins faults when programs leave GPUs free.

What it needs, and says at its start whether it is there; the network is not needed, and nothing is downloaded:

- RANKS GPUs that reach each other by NVLink, free of other work, driver 580 or later for CUDA 13;
- nvcc 12.9 or later with a host compiler, on the PATH or in `cuda` of the host's settings;
- NCCL 2.28.9 or later, header and library of one version (`nvidia-nccl-cu13` in this interpreter's environment);
- this interpreter with the server's dependencies (`pip install -e .`), tree-sitter-cuda among them;
- mpirun, mpicc and mpi.h for `mpi.cu`, `halo.cu` and `parity.cu`: without them these fail;
- a sandbox level that sees the GPUs, or GPU_MCP_ACCEPT_UNCONFINED=true where namespaces are forbidden;
- 4 GB of disk, 16 processor cores for `--jobs 3`: builds go side by side, GPUs are leased to one run at a time.

Variables of the environment that begin with NCCL_ are handed on to all runs. NVLink multicast is off in every one.
What would begin with less than a minute of the budget left is not begun, and what runs at its end is broken off; both
are said. A row for each check, and one for each item, is printed and written to FOLDER/nccl-RANKS.json and .md as soon
as it is known.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "toolsets")]
from measuring import Results, describe_machine, last_line, measure, run_command  # noqa: E402

from gpu_mcp_server.nccl.stages.transformation import transform  # noqa: E402 - found from the root only

GIVEN = ROOT / "tests" / "nccl" / "programs"
PROGRAMS = {
    "alltoall.cu": "self",
    "allreduce.cu": "self",
    "mpi.cu": "mpirun",
}
MORE = {"sendrecv.cu": "self", "threads.cu": "self", "halo.cu": "mpirun", "parity.cu": "mpirun"}
"""Each program, quick ones first, and what starts its ranks. Those that start them take their number as an argument."""
KERNELS = "ncclx_kernels.cuh"
CALL = "\n    NCCLCHECK(ncclx::AlltoAll(d_send, d_recv, count, ncclFloat, comm, stream));"
ODD = (
    ("static void run_rank", "static int odd = 0;\nstatic void run_rank"),
    ("    if (fork() == 0) {", "    odd = r == nranks - 1;\n    if (fork() == 0) {"),
)
"""The last rank knows that it is the one with the fault, by a way that no rule follows."""
RUN_FAULTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "a window too small on one rank": (
        "alltoall.device.cu", (*ODD, ("mem_alloc(&d_recv, bytes)", "mem_alloc(&d_recv, bytes - odd * (bytes / 2))"))
    ),
    "a count that differs by rank": (
        "alltoall.device.cu", (*ODD, ("run_rank(r, nranks, count, sh)", "run_rank(r, nranks, count - odd, sh)"))
    ),
    "a fence in the place of the last barrier": (
        KERNELS,
        (
            (
                "    copy_bytes(to, send + peer * bytes, bytes, tid, threads);\n  }\n"
                "  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);",
                "    copy_bytes(to, send + peer * bytes, bytes, tid, threads);\n  }\n  __threadfence_system();",
            ),
        ),
    ),
    "the slot of another rank": (
        KERNELS,
        (
            (
                "ncclGetLsaPointer(rw, ro, peer)) + rank * bytes;\n    copy_bytes(to, send +",
                "ncclGetLsaPointer(rw, ro, peer)) + (ranks - 1 - rank) * bytes;\n    copy_bytes(to, send +",
            ),
        ),
    ),
    "a rank that comes too late": (
        "alltoall.device.cu", (*ODD, (CALL, f"\n    if (it == odd * 3 && odd) sleep(3600);{CALL}"))
    ),
    "one rank skips a collective": ("alltoall.device.cu", (*ODD, (CALL, f"\n    if (it != odd * 7){CALL}"))),
}  # fmt: skip
"""A fault's name: the file of `alltoall.cu`, transformed, and what stands where in it. What hangs, twice to the limit,
comes last."""
KERNEL_FAULTS = {
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
RUN_LIMIT_S, FAULT_LIMIT_S = 45, 20
"""Seconds of each run; memcheck of a program ends at the first too, and is then `skipped`."""
LEAST_S = 60


@dataclass(frozen=True)
class Item:
    """One row: what is asked of the command line."""

    table: str
    name: str
    prepare: Callable[[Path], list[str]]


def items(ranks: int, parts: str = "programs,more,faults,kernels", given: Path | None = None) -> list[Item]:
    """Return the rows of some parts: faults of a run, programs, faults of generated kernels."""
    others = sorted(given.glob("*.c[cu]")) if given is not None else []
    found = {
        "faults": [Item("fault", name, _fault(ranks, "alltoall.cu", *fault)) for name, fault in RUN_FAULTS.items()],
        "programs": [Item("program", path.name, _program(ranks, path, "self", bare=True)) for path in others]
        + [Item("program", name, _program(ranks, GIVEN / name, by)) for name, by in PROGRAMS.items()],
        "more": [Item("program", name, _program(ranks, GIVEN / name, by)) for name, by in MORE.items()],
        "kernels": [
            Item("fault", name, _fault(ranks, program, KERNELS, ((old, new),)))
            for name, (program, old, new) in KERNEL_FAULTS.items()
        ],
    }
    return [item for part in parts.split(",") for item in found.get(part, [])]


def _program(ranks: int, path: Path, launcher: str, *, bare: bool = False) -> Callable[[Path], list[str]]:
    def prepare(folder: Path) -> list[str]:
        (folder / path.name).write_bytes(path.read_bytes())
        return ["run", str(folder / path.name), *_start(ranks, launcher, bare=bare), "--timeout", str(RUN_LIMIT_S)]

    return prepare


def _fault(ranks: int, name: str, path: str, changes: tuple[tuple[str, str], ...]) -> Callable[[Path], list[str]]:
    def prepare(folder: Path) -> list[str]:
        files, main = with_fault(name, path, changes)
        for path_, text in files.items():
            (folder / path_).write_text(text, encoding="utf-8")
        started = [*_start(ranks, {**PROGRAMS, **MORE}[name]), "--timeout", str(FAULT_LIMIT_S)]
        return ["verify", str(folder / main), "--original", name, *started]

    return prepare


def _start(ranks: int, launcher: str, *, bare: bool = False) -> list[str]:
    given = ["--arg", str(ranks)] if launcher == "self" and not bare else []
    return ["--ranks", str(ranks), "--launcher", launcher, *given]


def with_fault(name: str, path: str, changes: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], str]:
    """Return a program of the tests, transformed, with changes in one file of it, and its main file.

    Raises:
        ValueError: If that file does not have a text just once.
    """
    given = {name: (GIVEN / name).read_text(encoding="utf-8")}
    result, made = transform(given, name)
    for old, new in changes:
        if made[path].count(old) != 1:
            raise ValueError(f"{path} has {old!r} {made[path].count(old)} times, not once")
        made[path] = made[path].replace(old, new)
    return {**given, **made}, str(result.main)


def row_of(
    item: Item, folder: Path, until: str, end: float, tell: Callable[[str], None] = print
) -> tuple[str, dict[str, Any]]:
    """Do one item, and return its row and what was said.

    Args:
        item: What is to be done.
        folder: An empty one of its own.
        until: The last kind of check.
        end: When it must be over, in seconds of the monotonic clock.
        tell: Given a row for each check as soon as it ends.
    """
    began = time.monotonic()
    if end - began < LEAST_S:
        return f"| {item.table} | {item.name} | not run: the budget is spent | | 0 |", {}
    arguments = item.prepare(folder)
    command = [sys.executable, "-m", "gpu_mcp_server", "nccl", *arguments, "--until", until, "--json"]
    said = _said(command, end - began, _check_rows(item, began, tell))
    listed = said.get("steps") or said.get("checks")
    told = (
        [f"{s['name']}: {s['status']}, {s.get('reason', '')[:300]}, {s.get('seconds', 0):.0f} s" for s in listed]
        if isinstance(listed, list)
        else [str(said.get("headline") or said.get("error"))]
    )
    if "checks" in said and isinstance(listed, list):
        told = [f"{c['name']}: {c.get('evidence', '')[:500]}" for c in listed if c["status"] == "failed"] or [
            "nothing failed"
        ]
    outcome = said.get("status") or said.get("verdict") or "?"
    text = "; ".join(told).replace("|", "\\|").replace("\n", " ")
    return f"| {item.table} | {item.name} | {outcome} | {text} | {time.monotonic() - began:.0f} |", said


def _check_rows(item: Item, began: float, tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return the listener to a command's progress that makes a row of each check that ended."""
    step = ""

    def heard(line: str) -> None:
        nonlocal step
        if line.startswith("verify stage"):
            step = f", {line}"
        elif line.startswith("check ") and ": " in line:
            name, said = line.removeprefix("check ").split(": ", 1)
            status, _, evidence = said.replace("|", "\\|").partition(", ")
            seconds = time.monotonic() - began
            tell(f"| check | {item.name}{step} | {name}: {status} | {evidence} | {seconds:.0f} |")

    return heard


def _add_check(results: Results, row: str) -> None:
    results.add("checks", row, row)


def _said(command: list[str], limit_s: float, heard: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return what a command says as JSON; its last words as `headline` where it says none."""
    code, out, told = run_command(command, limit_s, heard)
    if code is None:
        return {"status": "broken off", "headline": f"the budget was spent; {last_line(told)}"}
    try:
        return json.loads(out)
    except json.JSONDecodeError:
        return {"headline": last_line(told) or f"no words, exit code {code}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int, help="how many GPUs, one rank each")
    parser.add_argument("--parts", default="measure,faults,programs,more,kernels", help="what is done, in this order")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the results")
    parser.add_argument("--until", default="all", choices=["static", "build", "run", "all"])
    parser.add_argument("--jobs", type=int, default=3, help="items at once")
    parser.add_argument("--each", type=int, help="ranks of each program and fault; RANKS if absent")
    parser.add_argument("--budget-s", type=float, default=460, help="seconds for everything")
    parser.add_argument("--only", default="", help="a word in the names of the rows that are wanted")
    parser.add_argument("--given", type=Path, help="folder of other programs for `programs`")
    asked = parser.parse_args()
    end = time.monotonic() + asked.budget_s
    results = Results(asked.out, asked.ranks)
    results.document["about"] = describe_machine(asked.ranks)
    results.tell(*(f"- {k}: {v}" for k, v in results.document["about"].items()))
    if "measure" in asked.parts:
        try:
            measure(results, end)
        except RuntimeError as error:
            results.add("problems", str(error), f"not measured: {error}")
    results.tell("", "| kind | name | outcome | steps, or checks that failed | s |", "| --- " * 5 + "|")
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(asked.jobs) as workers:
        pending = {}
        for number, item in enumerate(
            i for i in items(asked.each or asked.ranks, asked.parts, asked.given) if asked.only in i.name
        ):
            folder = Path(made) / str(number)
            folder.mkdir()
            pending[workers.submit(row_of, item, folder, asked.until, end, partial(_add_check, results))] = item
        for done in as_completed(pending):
            row, said = done.result()
            results.add("rows", {"name": pending[done].name, "said": said}, row)


if __name__ == "__main__":
    main()
