"""Verdicts beyond correct and incorrect, on a real GPU: no baseline, where a model or a launcher broke."""

import importlib.util
import shutil
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.baselines import LATER
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory
from tests.real.test_judge_cuda import missing

WHY = missing() or ("" if importlib.util.find_spec("torch") else "no torch here")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.skipif(bool(WHY), reason=WHY or "-")]
NUMPY = "import numpy as np\ndef reference(x):\n    return 2 * x + 1\n"
TORCH = "import torch\ndef reference(x):\n    return 2 * x + 1\n"
LAUNCHER = """
#include <cstdint>
#include <cuda_runtime.h>
__global__ void affine(const float *x, float *y, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i] + 1;
}
extern "C" int launch(const float *x, float *y, int64_t n, cudaStream_t stream) {
    HOST
    affine<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
"""
BEYOND = """
import torch, triton, triton.language as tl

@triton.jit
def affine(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at + (1 << 40), tl.load(x + at, mask=at < n) * 2 + 1, mask=at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        affine[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), SIZE=256)
        return y
"""
MODEL = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x + 1\n"


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": sys.executable}}) as lab:
        yield lab


async def judged(lab: Lab, reference: str, text: str, language: Any, n: int = 1 << 22, **timing: Any) -> Any:
    x, y = (TensorSpec(name=name, dtype="float32", shape=["n"]) for name in "xy")
    problem = await lab.evaluation.registry.register(
        name="affine", inputs=[x], outputs=[y], shapes=[{"n": n}], rtol=1e-5, atol=1e-6, reference=reference
    )
    source = CandidateSource(text, language, "k.cu" if language == "cuda" else "k.py")
    return await lab.evaluation.evaluator.evaluate(
        problem.problem_id, source, device="cuda", timing=TimingOptions(**timing)
    )


async def test_a_numpy_reference_is_no_baseline_and_the_time_ranks(lab: Lab):
    # Beside a slow reference a round has few calls: one must be long enough for the clock.
    slow = "for (int64_t begun = clock64(); clock64() < begun + 60000; ) {}\n    if (i < n) y[i]"
    found = await judged(lab, NUMPY, LAUNCHER.replace("HOST", "").replace("if (i < n) y[i]", slow), "cuda")

    assert found.verdict == "correct", found.summary()
    assert found.speedup is None and "no GPU baseline; give a torch reference" in found.summary()
    assert found.time_us, found.summary()
    best = await lab.store.experience.list("best", problem_id=found.problem_id)
    assert [attempt.attempt_id for attempt in best.attempts] == [found.attempt_id]


async def test_the_first_verdict_comes_without_torch_compile(lab: Lab):
    found = await judged(lab, TORCH, MODEL, "python", 1 << 26)
    assert found.verdict == "correct" and found.baseline == LATER, found.summary()
    again = await judged(lab, TORCH, MODEL, "python", 1 << 26, baseline="compiled")

    assert again.compiled_speedup, again.summary()


@pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="no compute-sanitizer")
async def test_a_models_illegal_access_is_located_by_compute_sanitizer(lab: Lab):
    found = await judged(lab, TORCH, BEYOND, "python", tier="correctness")

    assert found.verdict == "incorrect", found.summary()
    assert "affine" in found.evidence["memcheck"], found.summary()


async def test_a_launcher_that_crashes_on_the_host_has_a_stack(lab: Lab):
    text = LAUNCHER.replace("HOST", "if (x[3] == 7) return 1; // the GPU's memory, read by the host")
    found = await judged(lab, TORCH, text, "cuda", tier="correctness")

    assert found.verdict == "incorrect" and "SIGSEGV" in found.reason, found.summary()
    assert any("launch" in line for line in found.stack), (found.stack, found.evidence)
