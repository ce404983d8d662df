"""KernelBench's own evaluation against ours: the same problems, the same kernels, side by side in one run.

    python benchmarks/judge/kernelbench.py --kernelbench FOLDER --json OUT --problems 1,36,19

FOLDER is a checkout of https://github.com/ScalingIntelligence/KernelBench (MIT); it is not part of this repository.
Needs a GPU, nvcc, and a Python with torch, Triton and ninja that the judge may use. Each cell is a whole evaluation:

- theirs: `eval_kernel_against_ref` with 5 correctness and 100 timing trials in a fresh process, build folder and
  caches empty (cold), then again (built).
- ours: `evaluate_kernel` on a registered problem of basis `kernelbench`, the store empty (cold), then again (built).
  KernelBench's evaluation runs between our two. Where its time is known already, the benchmark sleeps as long instead:
  no user sends the same source again within a second.

Problem 19 has inputs from torch.rand, of which a copy is the answer, and problem 23 has outputs below KernelBench's
tolerance, so that zeros pass; ours refuses both as they stand, so 19 is imported with normal inputs, 23 with atol 1e-8.
The run stops after --deadline-s with what it has; all five take about 20 minutes, two or three 8.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

KERNELS = Path(__file__).parent / "kernelbench_kernels"
NEEDS_GEMM = (1, 76)
PAUSE_S = 6.0
"""What theirs takes at least."""
FILES = {
    1: "level1/1_Square_matrix_multiplication_.py",
    19: "level1/19_ReLU.py",
    23: "level1/23_Softmax.py",
    36: "level1/36_RMSNorm_.py",
    76: "level2/76_Gemm_Add_ReLU.py",
}
WISHES: dict[int, dict[str, Any]] = {19: {"distribution": "normal"}, 23: {"atol": 1e-8}}
ONE = ("self", "x", "x")
FORMS = {
    1: ("self", "a, b", "a, b"),
    19: ONE,
    23: ONE,
    36: ("self, num_features, eps=1e-5", "x", "x"),
    76: ("self, in_features, out_features, bias_shape", "x", "x, self.bias, self.gemm.weight"),
}
"""Of ModelNew: parameters of __init__ and forward, arguments of the launcher."""
SHAPES = {1: "(4096, 4096)", 19: "x.shape", 23: "x.shape", 36: "x.shape", 76: "(1024, 8192)"}
INIT76 = """
        self.gemm = torch.nn.Linear(in_features, out_features, bias=False)
        self.bias = torch.nn.Parameter(torch.randn(bias_shape))"""

THEIRS = """
import importlib.util, json, sys, time, types
begin = time.perf_counter()
for name in ("requests", "dotenv", "openai", "litellm", "datasets", "tqdm", "pydantic"):
    if importlib.util.find_spec(name) is None:
        class Stub(types.ModuleType):
            def __getattr__(self, what):
                if what.startswith("__"):
                    raise AttributeError(what)
                return lambda *a, **k: None
        sys.modules[name] = Stub(name)
sys.path.insert(0, sys.argv[1] + "/src")
import torch
from kernelbench.eval import eval_kernel_against_ref
given = json.load(open(sys.argv[2]))
result = eval_kernel_against_ref(given["problem"], given["candidate"], num_correct_trials=5, num_perf_trials=100,
    measure_performance=True, build_dir=given["build"], device=torch.device("cuda:0"), backend=given["backend"],
    precision=torch.float32)
print("RESULT " + json.dumps({"compiled": result.compiled, "correct": result.correctness, "runtime": result.runtime,
    "reference": getattr(result, "ref_runtime", None), "inside_s": time.perf_counter() - begin,
    "said": str(result.metadata)[:500]}))
"""


def cuda_source(number: int) -> str:
    """Return a whole .cu file with an extern C launcher."""
    head = (KERNELS / "gemm.cuh").read_text() if number in NEEDS_GEMM else ""
    return head + (KERNELS / f"{number}.cu").read_text()


def triton_source(number: int) -> str:
    """Return a file with Triton kernels and a launcher."""
    head = (KERNELS / "gemm.py").read_text() if number in NEEDS_GEMM else ""
    return head + (KERNELS / f"{number}.py").read_text()


def model(number: int, call: str) -> str:
    """Return a ModelNew whose forward makes its output and calls the kernel."""
    init, forward, _ = FORMS[number]
    more = INIT76 if number == 76 else ""
    return f"""

class ModelNew(torch.nn.Module):
    def __init__({init}):
        super().__init__(){more}

    def forward(self, {forward}):
        {call}
"""


def as_triton_model(number: int) -> str:
    """Return KernelBench's form of the Triton kernel."""
    _, forward, given = FORMS[number]
    first = forward.split(",", maxsplit=1)[0]
    call = f"y = torch.empty({SHAPES[number]}, device={first}.device, dtype=torch.float32)\n"
    return (
        "import torch\n" + triton_source(number) + model(number, call + f"        launch({given}, y)\n        return y")
    )


def as_load_inline(number: int) -> str:
    """Return KernelBench's form of the CUDA kernel."""
    _, _, given = FORMS[number]
    names = [f"t{i}" for i in range(len(given.split(",")))]
    shape = {1: "{4096, 4096}", 76: "{1024, 8192}"}.get(number, "t0.sizes()")
    pointers = ", ".join(f"{n}.data_ptr<float>()" for n in names)
    signature = "torch::Tensor forward(" + ", ".join(f"torch::Tensor {n}" for n in names) + ")"
    wrapper = f"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
{signature} {{
    auto y = torch::empty({shape}, t0.options());
    TORCH_CHECK(launch({pointers}, y.data_ptr<float>(), at::cuda::getCurrentCUDAStream()) == 0);
    return y;
}}
"""
    head = "import torch\nfrom torch.utils.cpp_extension import load_inline\n\n"
    head += f"CUDA = r'''{cuda_source(number)}{wrapper}'''\n"
    head += f"extension = load_inline('kernel_{number}', ['{signature};'], [CUDA], functions=['forward'])\n"
    return head + model(number, f"return extension.forward({given})")


def theirs(folder: Path, kernelbench: Path, problem: str, candidate: str, backend: str, limit_s: float) -> Any:
    """Evaluate once by KernelBench; caches lie in `folder`."""
    folder.mkdir(exist_ok=True)
    task = {"problem": problem, "candidate": candidate, "backend": backend, "build": str(folder / "build")}
    (folder / "task.json").write_text(json.dumps(task))
    environment = dict(os.environ, TRITON_CACHE_DIR=str(folder / "triton"), TORCH_EXTENSIONS_DIR=str(folder / "ext"))
    begin = time.perf_counter()
    argv = [sys.executable, "-c", THEIRS, str(kernelbench), str(folder / "task.json")]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"wall_s": None, "failed": f"not done in {limit_s:.0f} s"}
    wall_s = time.perf_counter() - begin
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
    if line is None:
        return {"wall_s": wall_s, "failed": (done.stderr or done.stdout)[-1500:]}
    return {"wall_s": wall_s, **json.loads(line[7:])}


async def ours(lab: Any, problem_id: str, text: str, language: str) -> dict[str, Any]:
    """Evaluate once by ours."""
    from gpu_mcp_server.models.evaluation import TimingOptions
    from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource

    source, timing = CandidateSource(text, language, NAMES[language]), TimingOptions(baseline="eager")  # type: ignore[arg-type]
    begin = time.perf_counter()
    result = await lab.evaluation.evaluator.evaluate(problem_id, source, device="cuda", timing=timing)
    wall_s = time.perf_counter() - begin
    found: dict[str, Any] = {"wall_s": wall_s, "verdict": result.verdict, "reason": result.reason[:600]}
    if result.evidence_artifact_id:
        whole = json.loads(await lab.store.artifacts.read(result.evidence_artifact_id))
        names = {
            "steps": "start_seconds",
            "device": "device_seconds",
            "parts": "seconds",
            "first_calls_s": "first_calls_s",
        }
        found |= {name: whole["evidence"].get(key) for name, key in names.items()}
        rounds = [
            (s["samples"]["calls_per_round"], len(s["samples"]["candidate_us"]))
            for s in whole["shapes"]
            if s.get("samples")
        ]
        found |= {"calls and rounds": rounds, "trials": whole["trials_summary"], "errors": whole["evidence"]["errors"]}
    if result.job_id:
        record = (await lab.jobs.runner.poll(result.job_id, "local")).record
        if record.started_at is not None and record.wall_s is not None:
            ends_s = record.ended_at - record.started_at - record.wall_s if record.ended_at is not None else None
            found["job_s"] = {"before": record.started_at - record.submitted_at, "runs": record.wall_s, "ends": ends_s}
    shape = result.shapes[0] if result.shapes else None
    found |= {"status": result.status, "seconds": result.seconds, "notes": list(shape.notes) if shape else []}
    if shape and shape.candidate and shape.reference:
        found |= {"candidate_us": shape.candidate.median_us, "reference_us": shape.reference.median_us}
        times = shape.model_dump(include={"basis", "speedup", "speedup_low", "speedup_high", "on_gpu", "in_loop"})
        found |= times | {"half_width": shape.half_width, "unconfirmable": shape.unconfirmable}
    return found


class Comparison:
    """One run over some problems."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.kernelbench, self.folder = given.kernelbench.absolute(), folder
        self.languages: Sequence[str] = given.languages.split(",")
        self.ours_only: bool = given.ours_only
        self.turns = 1 if given.cold else 2
        self.end = time.monotonic() + given.deadline_s
        self.cells: list[dict[str, Any]] = []
        self.imports: dict[int, Any] = {}

    def left_s(self) -> float:
        """Return the time that is left."""
        return self.end - time.monotonic()

    async def problem(self, lab: Any, number: int) -> None:
        """Import a problem, then judge every form of its kernels by both."""
        from gpu_mcp_server.errors import GpuMcpError
        from gpu_mcp_server.models.problem import ImportOverrides
        from gpu_mcp_server.services.problems.formats.base import ProblemSource

        text = (self.kernelbench / "KernelBench" / FILES[number]).read_text()
        begin = time.perf_counter()
        try:
            wish = ImportOverrides(basis="kernelbench", **WISHES.get(number, {}))
            source = ProblemSource(Path(FILES[number]).name, text, wish=wish)
            info = await lab.evaluation.registry.import_file(source)
        except GpuMcpError as error:
            self.imports[number] = {"failed": str(error)[:1500]}
            return
        self.imports[number] = {"wall_s": time.perf_counter() - begin, "notes": info.notes}
        forms = [
            ("C ABI CUDA", cuda_source(number), "cuda", as_load_inline(number), "cuda"),
            ("Triton", triton_source(number), "triton", as_triton_model(number), "triton"),
            ("ModelNew, load_inline", as_load_inline(number), "python", as_load_inline(number), "cuda"),
        ]
        done: dict[str, list[Any]] = {}
        for name, mine, language, other, backend in (form for form in forms if form[2] in self.languages):
            cell: dict[str, Any] = {"problem": number, "candidate": name, "ours": [], "theirs": []}
            self.cells.append(cell)
            for turn in range(self.turns):
                if self.left_s() < 20:
                    cell["left_out"] = "no time"
                    break
                try:
                    cell["ours"].append(await ours(lab, info.problem_id, mine, language))
                except GpuMcpError as error:
                    cell["ours"].append({"failed": str(error)[:1500], "wall_s": None})
                if self.ours_only:
                    print(json.dumps(cell["ours"][-1])[:1500], flush=True)
                    await asyncio.sleep(PAUSE_S)
                    continue
                if other in done and len(done[other]) > turn:
                    cell["theirs"].append(done[other][turn])
                    await asyncio.sleep(min(PAUSE_S, done[other][turn]["wall_s"] or PAUSE_S))
                    continue
                at = self.folder / f"{number}-{backend}"
                cell["theirs"].append(
                    await asyncio.to_thread(
                        theirs, at, self.kernelbench, text, other, backend, max(10.0, self.left_s() - 5)
                    )
                )
                done.setdefault(other, []).append(cell["theirs"][turn])
                print(json.dumps(cell)[:400], flush=True)


def ratios(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return theirs over ours by form, cold and built, with medians."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(c["candidate"] for c in cells):
        for turn, label in enumerate(("cold", "built")):
            pairs = [
                (c["theirs"][turn].get("wall_s"), c["ours"][turn].get("wall_s"))
                for c in cells
                if c["candidate"] == name and len(c["theirs"]) > turn and len(c["ours"]) > turn
            ]
            values = [t / o for t, o in pairs if t and o]
            if values:
                found[f"{name}, {label}"] = {"median": statistics.median(values), "each": values}
    return found


def environment() -> Mapping[str, Any]:
    """Return machine, driver, versions and date."""
    line = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,temperature.gpu", "--format=csv,noheader"]
    said = subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()
    versions = "import torch, triton; print(torch.__version__, triton.__version__)"
    torch = subprocess.run([sys.executable, "-c", versions], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "gpu": said,
        "torch, triton": torch,
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(),
    }


async def compare(comparison: Comparison, numbers: list[int]) -> None:
    """Open a fresh laboratory and compare."""
    from tests.laboratory import laboratory

    async with laboratory(hosts={"local": {"kind": "local", "judge_python": sys.executable}}) as lab:
        await lab.evaluation.runs.close()  # confirmation runs would be beside their evaluations
        for number in numbers:
            if comparison.left_s() > 30:
                await comparison.problem(lab, number)


def main() -> None:
    """Compare and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--problems", default="1,36,19,23,76")
    parser.add_argument("--languages", default="cuda,triton,python", help="of the forms: C ABI, Triton, load_inline")
    parser.add_argument("--deadline-s", type=float, default=450.0)
    parser.add_argument("--ours-only", action="store_true", help="to see where our time goes; no ratios")
    parser.add_argument("--cold", action="store_true", help="each once, and not again with everything built")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(given, Path(folder))
        try:
            asyncio.run(compare(comparison, [int(n) for n in given.problems.split(",")]))
        finally:
            whole = {
                "command": " ".join(sys.argv),
                "environment": environment(),
                "imports": comparison.imports,
                "ratios, theirs over ours": ratios(comparison.cells),
                "cells": comparison.cells,
            }
            given.json.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(whole["ratios, theirs over ours"], indent=1))


if __name__ == "__main__":
    main()
