"""Captures what profilers and checkers say of the programs in `programs/`, on a machine with a GPU: about three minutes.

`python3 tests/profilers/data/capture.py [--into FOLDER]` with nvcc, ncu, compute-sanitizer, cuda-gdb, proton and a
python3 that has torch and Triton on the PATH. What cannot be had is named, its old capture stays, and the exit code is
1. Pages of ncu and traces are cut to what this package reads, as whole ones are hundreds of kilobytes; everything else
is as it was said, but for the folder, which becomes `/src`. Tests compute what they expect from the programs and the
pages, so that captures of another day or device need no new tests.
"""

import argparse
import csv
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[2] / "gpu_mcp_server"
MARK = "========="
ABOUT = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size")
KEPT = re.compile(
    r"(Device|CC|device__attribute_(display_name|multiprocessor_count)|launch__(block|grid)_size|"
    r"launch__(grid|block)_dim_[xyz]|smsp__average_warps_issue_stalled_\w+_per_issue_active\.ratio|"
    r"breakdown:(sm__throughput|gpu__compute_memory_throughput)\.avg\.pct_of_peak_sustained_elapsed|"
    r"smsp__pcsamp_warps_issue_stalled_\w+?(?<!_not_issued)|"
    r"smsp__sass_thread_inst_executed_op_[fd](fma|add|mul)_pred_on\.sum\.per_cycle_elapsed|"
    r"sm__sass_thread_inst_executed_op_[fd]fma_pred_on\.sum\.peak_sustained|"
    r"sm__ops_path_tensor_op_hg?mma_src_b?fp?16\w*_sparsity_off\.sum\.(per_cycle_elapsed|peak_sustained))"
)
SANITIZED = (
    # capture, program's mode, options of compute-sanitizer
    ("clean", "clean", "--tool memcheck --padding 64"),
    ("memcheck", "past_end", "--tool memcheck --padding 64"),
    ("memcheck_wild", "wild", "--tool memcheck --padding 64 --print-limit 4"),
    ("memcheck_leak", "leak", "--tool memcheck --leak-check full"),
    ("memcheck_launch", "refused", "--tool memcheck --leak-check full"),
    ("racecheck", "race", "--tool racecheck --racecheck-report analysis"),
    ("racecheck_all", "race", "--tool racecheck --racecheck-report all --print-limit 6"),
    ("initcheck", "unwritten", "--tool initcheck --print-limit 5"),
    ("synccheck", "bad_mask", "--tool synccheck --print-limit 4"),
)
PROTON = (("scopes", "hatchet"), ("flops", "hatchet"), ("trace", "chrome_trace"), ("samples", "hatchet"))
CORE = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
    "CUDA_COREDUMP_GENERATION_FLAGS": "skip_abort",
    "CUDA_COREDUMP_FILE": "core.cu",
}


class Capture:
    """One round of captures."""

    def __init__(self, folder: Path, into: Path) -> None:
        self.folder, self.into = folder, into
        self.read = "".join(p.read_text(encoding="utf-8") for p in sorted((PACKAGE / "profilers").glob("*.py")))
        self.failed: list[str] = []

    def say(self, *argv: str, env: dict[str, str] | None = None) -> str:
        """Run a command beside the programs and return what it wrote to both its outputs."""
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=240,
            check=False,
        )
        return done.stdout.replace(str(self.folder), "/src")

    def keep(self, name: str, text: str, *needed: str) -> None:
        """Keep a capture that has what it is there for."""
        if not text.strip() or any(n not in text for n in needed):
            raise ValueError(f"nothing of {needed} in what was said:\n{text[-1500:]}")
        path = self.into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{name}: {len(text.encode()):,} bytes", flush=True)

    def part(self, name: str, take: Callable[[], None]) -> None:
        """Take one part; what goes wrong with it is said and does not stop the others."""
        try:
            take()
        except (OSError, ValueError, KeyError, ImportError, subprocess.TimeoutExpired) as error:
            self.failed.append(name)
            print(f"NOT CAPTURED {name}: {error}", flush=True)

    def wanted(self, column: str) -> bool:
        """Say whether a column or metric is one that this package reads."""
        if column in ABOUT or KEPT.fullmatch(column):
            return True
        name = column.removesuffix(".avg.pct_of_peak_sustained_elapsed")
        return f'"{name}"' in self.read or f'"{column}"' in self.read

    def table(self, text: str) -> str:
        """Return a page of ncu with the columns that are read, and what stands before it."""
        start = text.index('"ID",')
        rows = list(csv.reader(io.StringIO(text[start:])))
        keep = [n for n, name in enumerate(rows[0]) if self.wanted(name)]
        return text[:start] + quoted([row[n] for n in keep if n < len(row)] for row in rows if row)

    def ncu(self) -> None:
        """Profile the program: each page as CSV, what the reader's module gives, and a table behind other output."""
        self.say(
            "ncu",
            "--clock-control",
            "none",
            "--set",
            "full",
            "--import-source",
            "yes",
            "-f",
            "-o",
            "full",
            "./kernels",
            "profiled",
        )
        page = ["ncu", "--import", "full.ncu-rep", "--csv", "--page"]
        self.keep("ncu/raw.csv", self.table(self.say(*page, "raw", "--print-units", "base")), "saxpy", "tiled<")
        self.keep("ncu/details.csv", rules(self.say(*page, "details")), "Estimated Speedup")
        source = self.say(*page, "source", "--print-source", "cuda,sass", "-k", "regex:tiled")
        self.keep("ncu/source.csv", lines(source), "// HOT")
        mixed = self.say(
            "ncu",
            "--clock-control",
            "none",
            "--csv",
            "--page",
            "raw",
            "--set",
            "basic",
            "-k",
            "saxpy",
            "-c",
            "1",
            "./kernels",
            "profiled",
        )
        self.keep("ncu/mixed.txt", self.table(mixed), "==PROF== Connected", "profiled: no error")

    def report(self) -> None:
        """Read the report with ncu's own module, as a job does."""
        program = importlib.util.spec_from_file_location("profiled", PACKAGE / "workers" / "run_profiler.py")
        assert program is not None and program.loader is not None
        profiled: Any = importlib.util.module_from_spec(program)
        program.loader.exec_module(profiled)
        sys.path[:0] = profiled.reader_folders(shutil.which("ncu") or "ncu")
        read = profiled.read_report(str(self.folder / "full.ncu-rep"))
        for kernel in read["kernels"]:
            kernel["metrics"] = {k: v for k, v in kernel["metrics"].items() if self.wanted(k)}
            kernel["lines"] = [{**x, "file": Path(x["file"]).name} for x in kernel["lines"][:4]]
        self.keep("ncu/report.json", json.dumps(read, indent=1), "breakdown:", "// HOT")

    def triton(self) -> None:
        """Profile the kernels of Triton with ncu, without their warm-up."""
        command = "ncu --clock-control none --set full -k regex:softmax_kernel|product_kernel --launch-skip 2 -c 2 -f -o triton"
        self.say(*command.split(), "python3", "kernels.py", "plain")
        page = self.say("ncu", "--import", "triton.ncu-rep", "--csv", "--page", "raw", "--print-units", "base")
        self.keep("ncu/triton_raw.csv", self.table(page), "softmax_kernel", "product_kernel")

    def sanitizer(self, name: str, options: str, program: Sequence[str], env: dict[str, str] | None = None) -> None:
        """Run a program under compute-sanitizer."""
        self.say("compute-sanitizer", *options.split(), "--log-file", f"{name}.log", *program, env=env)
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        self.keep(f"sanitizer/{name}.txt", text.replace(str(self.folder), "/src"), MARK, "SUMMARY")

    def core(self) -> None:
        """Let a kernel break, and cuda-gdb say where, asked as a job asks it."""
        self.say("./kernels", "wild", env=CORE)
        said = self.say("cuda-gdb", "-batch", "-nx", "-ex", "target cudacore core.cu")
        self.keep("sanitizer/cuda_gdb.txt", said, "CUDA Exception")

    def proton(self, mode: str, kind: str) -> None:
        """Let Proton time the kernels of Triton."""
        said = self.say("python3", "kernels.py", mode, mode)
        made = sorted(self.folder.glob(f"{mode}*.{kind}"))
        if not made:
            raise ValueError(f"Proton left no file:\n{said[-1500:]}")
        self.keep(f"proton/{mode}.{kind}", made[0].read_text(encoding="utf-8"), "softmax_kernel")

    def command_line(self) -> None:
        """Let Proton's own command time a script."""
        command = ["proton"] if shutil.which("proton") else ["python3", "-m", "triton.profiler.proton"]
        said = self.say(*command, "-n", "cli", "-k", "triton", "kernels.py", "plain")
        path = self.folder / "cli.hatchet"
        if not path.exists():
            raise ValueError(f"proton left no file:\n{said[-1500:]}")
        self.keep("proton/cli.hatchet", path.read_text(encoding="utf-8"), "softmax_kernel")

    def torch(self) -> None:
        """Let torch.profiler time the same."""
        self.say("python3", "kernels.py", "torch", "torch")
        rows = (self.folder / "torch.averages.json").read_text(encoding="utf-8")
        self.keep("torch/averages.json", rows, "product_kernel", "aten::")
        whole = json.loads((self.folder / "torch.trace.json").read_text(encoding="utf-8"))
        self.keep("torch/trace.json", json.dumps(short_trace(whole), indent=1), "deviceProperties", '"kernel"')


def quoted(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as ncu writes them: every field in quotes."""
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue()


def rules(text: str) -> str:
    """Return page `details` without most rows that have a metric and no rule."""
    rows = list(csv.reader(io.StringIO(text[text.index('"ID",') :])))
    name, metric, kind = (rows[0].index(n) for n in ("Rule Name", "Metric Name", "Rule Type"))
    kept = rows[:1]
    for row in rows[1:]:
        rule = row[name] if len(row) > name else ""
        if (
            (rule and row[kind] == "OPT")
            or (rule and row[name].startswith("SOL"))
            or row[metric] in ("Duration", "Elapsed Cycles")
        ):
            kept.append(row)
    return quoted(kept)


def lines(text: str) -> str:
    """Return page `source` with one instruction after each line of source."""
    kept: list[list[str]] = []
    after = 0
    for row in csv.reader(io.StringIO(text[text.index('"File Path"') :])):
        after = 0 if not row or row[0] else after + 1
        if row and after < 2:
            kept.append(row)
    return quoted(kept)


def short_trace(whole: dict[str, Any]) -> dict[str, Any]:
    """Return a Chrome trace with its first events of each kind."""
    kept: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for event in whole["traceEvents"]:
        kind = str(event.get("cat") or event.get("ph"))
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= (10 if kind == "kernel" else 2):
            kept.append(event)
    about = {k: whole[k] for k in ("schemaVersion", "deviceProperties", "displayTimeUnit") if k in whole}
    return {**about, "traceEvents": kept}


def main() -> None:
    """Take all captures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=HERE, help="Where the folders of captures are.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for program in (HERE / "programs").iterdir():
            shutil.copy(program, folder)
        take = Capture(folder, parser.parse_args().into)
        print(take.say("nvcc", "-arch=native", "-lineinfo", "-o", "kernels", "kernels.cu"), end="")
        take.part("ncu", take.ncu)
        take.part("ncu's module", take.report)
        take.part("ncu and Triton", take.triton)
        for capture, mode, options in SANITIZED:
            take.part(capture, lambda c=capture, m=mode, o=options: take.sanitizer(c, o, ["./kernels", m]))
        off = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        script = ["python3", "kernels.py", "past_end"]
        take.part(
            "memcheck_triton",
            lambda: take.sanitizer("memcheck_triton", "--tool memcheck --padding 64 --print-limit 3", script, off),
        )
        take.part("cuda-gdb", take.core)
        for mode, kind in PROTON:
            take.part(f"proton {mode}", lambda m=mode, k=kind: take.proton(m, k))
        take.part("proton's command", take.command_line)
        take.part("torch", take.torch)
    for tool in ("nvcc", "ncu", "compute-sanitizer", "cuda-gdb"):
        path = shutil.which(tool)
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout if path else ""
        print(tool, *said.strip().split("\n")[-2:])
    if take.failed:
        raise SystemExit(f"not captured: {', '.join(take.failed)}")


if __name__ == "__main__":
    main()
