"""Compiles and judges the examples of docs/reference/candidates.md for a GPU, and an extension of torch, a row each.

`python benchmarks/languages/launchers.py [--json OUT] [--device cpu|cuda] [NAME ...]`, with the packages in the Python
that GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON names. A language whose package is not there is a row that says so. Rows come in
a table; seconds are by the clock, of the compile, and of the first call of the first shape that is judged.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.package_files import CANDIDATES, page
from gpu_mcp_server.services.builds.candidate_source import CandidateSource, launcher_language
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.toolchains.python_languages import imports_of

REFERENCE = "import torch\ndef reference(x):\n    return torch.softmax(x, -1)\n"
SHAPE = {"cpu": {"rows": 3, "cols": 40}, "cuda": {"rows": 4096, "cols": 1000}}
EXTENSION = Path(__file__).parent / "torch_softmax.cu"
HEADING = re.compile(r"####? ([^\n]+)\n\n```python\n(.*?)```", re.DOTALL)
TENSOR = "fp32[64,1000]"
WISH = {"library": False, "signature": {"x": TENSOR, "y": TENSOR}, "constants": {"rows": 64, "cols": 1000}}


def sources() -> dict[str, CandidateSource]:
    """Return the examples by their headings; Triton's is the first Python of the page."""
    text = page(CANDIDATES)
    (triton, *_) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (cuda, *_) = re.findall(r"```cuda\n(.*?)```", text, re.DOTALL)
    launchers = {"Triton": triton} | {title: code for title, code in HEADING.findall(text) if "def launch" in code}
    extension = EXTENSION.read_text(encoding="utf-8")
    return {
        **{name: CandidateSource(code, launcher_language(code), "kernel.py") for name, code in launchers.items()},
        "CUDA C++": CandidateSource(cuda, "cuda", "kernel.cu"),
        "Extension of torch, CUDA": CandidateSource(extension, "cuda", "kernel.cu"),
    }


async def compiled(lab: Lab, source: CandidateSource, arch: str) -> dict[str, Any]:
    """Compile an example, of a launcher what it launches."""
    began = time.monotonic()
    launcher = source.language != "cuda"
    wish = BuildOptions.model_validate({**(WISH if launcher else {}), "arch": arch})
    try:
        made = await lab.builds.compiler.compile(replace(source, language="launcher") if launcher else source, wish)
    except GpuMcpError as error:
        return {"compiled": f"no: {error}"[:120]}
    if made.status != "ok":
        first = made.diagnostics[0].message if made.diagnostics else made.note or ""
        return {"compiled": "by its first call" if "launched no kernel" in first else f"{made.status}: {first}"[:120]}
    registers = ", ".join(str(kernel.registers_per_thread) for kernel in made.resources)
    seconds = round(time.monotonic() - began, 1)
    return {"by": made.compiler, "compiled": f"{arch}, registers {registers}", "compile_s": seconds}


async def judged(lab: Lab, problem: str, source: CandidateSource, device: str) -> dict[str, Any]:
    """Judge an example."""
    timing = TimingOptions(tier="smoke" if device == "cpu" else "performance")
    try:
        found = await lab.evaluation.evaluator.evaluate(problem, source, device=device, timing=timing, wait_s=500)
    except GpuMcpError as error:
        return {"judged": f"not: {error}"[:120]}
    whole: dict[str, Any] = (
        json.loads(await lab.store.artifacts.read(found.evidence_artifact_id or "")) if found.evidence else {}
    )
    evidence: dict[str, Any] = whole.get("evidence", {})
    first = (evidence.get("first_calls_s") or [None])[0]
    said = " ".join(filter(None, [found.verdict, found.note or found.reason]))[:160]
    packages = ", ".join(" ".join(each) for each in evidence.get("candidate_packages", {}).items())
    best = found.shapes[-1].candidate if found.shapes else None
    return {
        "judged": said, "card": whole.get("device"), "first_call_s": first, "packages": packages,
        "median_us": best.median_us if best else None, "speedup": found.speedup,
    }  # fmt: skip


async def main() -> None:
    """Print a row for each language."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", choices=sorted(SHAPE), default="cpu")
    parser.add_argument("--arch", default="sm_90a")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-bench-") as folder:
        os.chmod(folder, 0o711)  # noqa: PTH101 - a Path would block the loop, says ASYNC240
        async with Lab.open(Settings(data_dir=Path(folder), index_documentation=False)) as lab:
            x, y = (TensorSpec(name=name, dtype="float32", shape=["rows", "cols"]) for name in "xy")
            problem = await lab.evaluation.registry.register(
                name="softmax", reference=REFERENCE, inputs=[x], outputs=[y], shapes=[SHAPE[asked.device]],
                rtol=1e-5, atol=1e-7,
            )  # fmt: skip
            for name, source in sources().items():
                if asked.names and not name.startswith(tuple(asked.names)):
                    continue
                kernels = "CUDA"
                if source.language != "cuda":
                    kernels = ", ".join(one.name for one in imports_of(source.text).languages()) or "PyTorch"
                row = {"language": name, "kernels": kernels, **await compiled(lab, source, asked.arch)}
                row |= await judged(lab, problem.problem_id, source, asked.device)
                rows.append(row)
                sys.stdout.write(" | ".join(f"{key} {value}" for key, value in row.items() if value) + "\n")
                sys.stdout.flush()
                if asked.json:
                    asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
