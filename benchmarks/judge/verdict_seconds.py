"""Seconds to a verdict, and whether its time could be confirmed: small problems, each candidate again and again.

    python benchmarks/judge/verdict_seconds.py [--times 5] [--rows 64] [--cols 256]          # on a processor
    python benchmarks/judge/verdict_seconds.py --device cuda --times 3 --json OUT            # on a GPU

Each evaluation has a new source, under your account: as an ordinary user without a control group a candidate on a
processor is stopped by signals. Prints a line a verdict and a summary of each case as JSON. The cases take turns, so
a run that ends early has some of each. Cases with a reference in torch need a judge's Python with torch.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from gpu_mcp_server.models.evaluation import Evaluation  # noqa: E402
from gpu_mcp_server.models.problem import ImportOverrides, TensorSpec  # noqa: E402
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource  # noqa: E402
from gpu_mcp_server.services.lab import Lab  # noqa: E402
from gpu_mcp_server.services.problems.formats.base import ProblemSource  # noqa: E402
from tests.laboratory import laboratory  # noqa: E402

EXAMPLES = ROOT / "examples" / "softmax"
MATRIX = {"shape": ["rows", "cols"], "dtype": "float32"}
TRITON = """
import triton
import triton.language as tl

@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * cols
    v = tl.load(x + row + at, mask=at < cols, other=-float("inf"))
    p = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row + at, p / tl.sum(p, axis=0), mask=at < cols)

def launch(x, y, rows, cols):
    softmax[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols))
"""
TWICE = """#include <cstdint>
__global__ void twice(const float *x, float *y, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }
extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
    twice<<<(rows * cols + 255) / 256, 256, 0, stream>>>(x, y, rows * cols); return cudaGetLastError(); }
"""
TWICE_REFERENCE = "def softmax(x):\n    return 2 * x\n"
MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.linear = torch.nn.Linear(wide, wide)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return [1024]
"""
NEW = MODEL.partition("def get_inputs")[0].replace("class Model", "class ModelNew")


@dataclass(frozen=True)
class Case:
    """A problem and one candidate's source; the problem is softmax's unless it has its own text."""

    name: str
    language: Any
    source: str
    reference: str = (EXAMPLES / "reference.py").read_text()
    framework: Any = "numpy"
    problem: str = ""


TORCH: dict[str, Any] = {"reference": (EXAMPLES / "reference_torch.py").read_text(), "framework": "torch"}
C, CUDA = (EXAMPLES / "naive.c").read_text(), (EXAMPLES / "vectorized.cu").read_text()
LINEAR = Case("linear and GELU, ModelNew", "python", NEW, problem=MODEL)
CASES = {
    "cpu": (Case("NumPy, C ABI", "c", C), Case("torch, C ABI", "c", C, **TORCH), LINEAR),
    "cuda": (
        Case("torch, C ABI", "cuda", CUDA, **TORCH),
        Case("torch, Triton", "triton", TRITON, **TORCH),
        LINEAR,
        Case("NumPy, C ABI", "cuda", CUDA),
        Case("NumPy, five lines of CUDA", "cuda", TWICE, TWICE_REFERENCE),
    ),
}
SIZES = {"cpu": (64, 256), "cuda": (2048, 1024)}


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--cols", type=int)
    parser.add_argument("--cases", default="", help="a word in the names of those that are wanted; all if absent")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no evaluation is begun that may end later")
    parser.add_argument("--judge-python", help="a Python with torch; cases with torch are left out if absent")
    parser.add_argument("--json", type=Path, help="every evaluation, written after each")
    options = parser.parse_args()
    rows, cols = SIZES[options.device]
    options.rows, options.cols = options.rows or rows, options.cols or cols
    return options


async def registered(lab: Lab, case: Case, options: argparse.Namespace) -> str:
    """Return the id of a case's problem."""
    if case.problem:
        info = await lab.evaluation.registry.import_file(ProblemSource("p.py", case.problem, wish=ImportOverrides()))
        return info.problem_id
    info = await lab.evaluation.registry.register(
        name=case.name, reference=case.reference, framework=case.framework, entry="softmax", rtol=1e-4, atol=1e-5,
        inputs=[TensorSpec.model_validate({"name": "x", **MATRIX})],
        outputs=[TensorSpec.model_validate({"name": "y", **MATRIX})],
        shapes=[{"rows": options.rows, "cols": options.cols}],
    )  # fmt: skip
    return info.problem_id


async def evidence_of(lab: Lab, found: Evaluation) -> dict[str, Any]:
    """Return the judge's seconds by part and step of its start, and by how much the GPU answered late behind gates."""
    if not found.evidence_artifact_id:
        return {}
    whole = json.loads(await lab.store.artifacts.read(found.evidence_artifact_id))
    steps = {f"start: {step}": seconds for step, seconds in (whole["evidence"].get("start_seconds") or {}).items()}
    gated = [shape.get("gated_samples") or {} for shape in whole["shapes"]]
    late = [{name: each.get(name) for name in ("calls_per_round", "later_us", "isolated_later_us")} for each in gated]
    return {"parts": {**whole["evidence"]["seconds"], **steps}, "late": late}


def row_of(case: Case, found: Evaluation, whole_s: float, evidence: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluation's figures."""
    shape = found.shapes[0] if found.shapes else None
    seconds = {name: round(found.seconds.get(name, 0.0), 2) for name in ("judge", "compile")}
    return {
        "case": case.name, "verdict": found.verdict or found.status, "reason": found.reason[:300],
        "whole_s": round(whole_s, 2), "judge_s": seconds["judge"], "compile_s": seconds["compile"],
        "time_us": shape.candidate.median_us if shape and shape.candidate else None, "speedup": found.speedup,
        "half_width": shape and shape.half_width, "basis": shape and shape.basis,
        "unconfirmable": found.unconfirmable(), "level": found.level, "line": shape.line_text() if shape else "",
        **evidence,
    }  # fmt: skip


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Judge the cases by turns; return a row for each evaluation."""
    rows: list[dict[str, Any]] = []
    end, longest = time.monotonic() + options.seconds, 0.0
    python = options.judge_python
    cases = [each for each in CASES[options.device] if options.cases in each.name]
    cases = [each for each in cases if python or (each.framework == "numpy" and not each.problem)]
    hosts = {"hosts": {"local": {"kind": "local", "judge_python": python}}} if python else {}
    async with laboratory(**hosts) as lab:
        problems = {each.name: await registered(lab, each, options) for each in cases}
        for number in range(options.times):
            for case in cases:
                if time.monotonic() + longest > end:
                    return rows
                remark = "#" if case.language in ("triton", "python") else "//"
                source = CandidateSource(f"{case.source}\n{remark} {number}\n", case.language, NAMES[case.language])
                begin = time.monotonic()
                found = await lab.evaluation.evaluator.evaluate(
                    problems[case.name], source, device=options.device, wait_s=300
                )
                whole = time.monotonic() - begin
                longest = max(longest, whole)
                rows.append(row_of(case, found, whole, await evidence_of(lab, found)))
                verdict, judge_s = rows[-1]["verdict"], rows[-1]["judge_s"]
                said = rows[-1]["line"] or rows[-1]["reason"]
                print(f"{case.name}: {verdict} {whole:.1f} s, judge {judge_s:.1f} s: {said}", flush=True)
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1))
    return rows


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line of JSON for each case: medians of what was measured."""
    by_case: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_case[row["case"]].append(row)
    lines: list[str] = []
    for name, own in by_case.items():
        timed = [row for row in own if row["time_us"]]
        seconds = [row["judge_s"] for row in own if row["judge_s"]]
        widths = [row["half_width"] for row in timed if row["half_width"]]
        figures = {
            "case": name, "judge_s": round(statistics.median(seconds), 2) if seconds else None,
            "half_width_percent": round(100 * statistics.median(widths), 3) if widths else None,
            "correct": sum(row["verdict"] == "correct" for row in own), "timed": len(timed),
            "confirmed": sum(not row["unconfirmable"] for row in timed), "of": len(own),
        }  # fmt: skip
        lines.append(json.dumps(figures))
    return lines


def main() -> None:
    """Judge them, and say what that took."""
    options = given()
    rows = asyncio.run(measure(options))
    levels = sorted({str(row["level"]) for row in rows})
    about = {"uid": os.getuid(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "level": levels}
    print("\n".join([json.dumps(about), *summary(rows)]))


if __name__ == "__main__":
    main()
