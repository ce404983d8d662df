"""Python candidates and KernelBench's problems on a real GPU, through the whole laboratory."""

import importlib.util
import shutil
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import ImportOverrides
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.laboratory import laboratory
from tests.real.test_judge_cuda import missing

WHY = missing() or ("" if importlib.util.find_spec("torch") else "no torch here")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.skipif(bool(WHY), reason=WHY or "-")]

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, wide, narrow):
        super().__init__()
        self.gemm = nn.Linear(wide, narrow)

    def forward(self, x):
        return torch.relu(self.gemm(x))

def get_inputs():
    return [torch.rand(1024, 2048)]

def get_init_inputs():
    return [2048, 1024]
"""
SOFTMAX = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.randn(4096, 4096)]

def get_init_inputs():
    return []
"""
TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * cols + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    p = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + at, p / tl.sum(p, axis=0))

def launch(x, y):
    softmax[(4096,)](x, y, 4096, BLOCK=4096)
"""
AUTOTUNED = TRITON.replace(
    "@triton.jit",
    "@triton.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], key=['cols'])\n@triton.jit",
)
INLINE = """
import torch
from torch.utils.cpp_extension import load_inline

CUDA = r'''
#include <torch/extension.h>
__global__ void softmax(const float *x, float *y) {
    __shared__ float part[256];
    const float *in = x + blockIdx.x * 4096; float *out = y + blockIdx.x * 4096;
    float top = -1e30f, sum = 0;
    for (int c = threadIdx.x; c < 4096; c += 256) top = fmaxf(top, in[c]);
    part[threadIdx.x] = top; __syncthreads();
    for (int i = 0; i < 256; i++) top = fmaxf(top, part[i]);
    __syncthreads();
    for (int c = threadIdx.x; c < 4096; c += 256) sum += expf(in[c] - top);
    part[threadIdx.x] = sum; __syncthreads(); sum = 0;
    for (int i = 0; i < 256; i++) sum += part[i];
    for (int c = threadIdx.x; c < 4096; c += 256) out[c] = expf(in[c] - top) / sum;
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    softmax<<<4096, 256>>>(x.data_ptr<float>(), y.data_ptr<float>());
    return y;
}
'''
extension = load_inline("own_softmax", ["torch::Tensor run(torch::Tensor x);"], [CUDA], functions=["run"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension.run(x)
"""
MODEL = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {body}\n"
TO = "torch.softmax(x, dim=1)"
EAGER = TimingOptions(baseline="eager")
CASES = [
    ("triton", TRITON, "correct", ""),
    ("triton", AUTOTUNED, "correct", ""),
    ("triton", TRITON.replace("cols + tl", "cols + 1 + tl", 1), "bad", ""),
    ("python", MODEL.format(body=f"return {TO}"), "correct", ""),
    ("python", MODEL.format(body=f"return ({TO}).t().contiguous().t()"), "correct", ""),
    ("python", MODEL.format(body=f"t = {TO}; self.kept = getattr(self, 'kept', t); return self.kept"), "bad", ""),
    ("python", MODEL.format(body="return x"), "incorrect", ""),
    ("python", MODEL.format(body=f"x.mul_(2); return {TO}"), "incorrect", "writes to input x ("),
    ("python", MODEL.format(body=f"s = torch.cuda.Stream(); s.__enter__; y = {TO}; return y"), "correct", ""),
]


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": sys.executable}}) as lab:
        yield lab


async def evaluated(lab: Lab, text: str, language: Any, problem: str = SOFTMAX, **wish: Any) -> Any:
    info = await lab.evaluation.registry.import_file(
        ProblemSource("p.py", problem, wish=ImportOverrides(**{"atol": 1e-7, **wish}))
    )
    return await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(text, language, "k.py"), device="cuda", timing=EAGER
    )


@pytest.mark.parametrize(("language", "text", "verdict", "reason"), CASES)
async def test_a_python_candidate_gets_its_verdict_on_the_gpu(lab: Lab, language, text, verdict, reason):
    found = await evaluated(lab, text, language)

    assert found.verdict in (("incorrect", "cheat") if verdict == "bad" else (verdict,)), found.summary()
    assert reason in found.reason
    assert found.verdict != "correct" or found.speedup, found.summary()


STRIDED = {
    "transposed": f"return ({TO}).t().contiguous().t()",
    "behind an odd offset": f"y = x.new_empty(4096 * 4096 + 1); y[1:] = ({TO}).view(-1); return y[1:].view(4096, 4096)",
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in STRIDED.items()])
async def test_results_of_any_strides_are_not_copied_within_the_clock(lab: Lab, body: str):
    found = await evaluated(lab, MODEL.format(body=body), "python")
    again = await evaluated(lab, MODEL.format(body=body.replace(TO, "torch.softmax(x * 1.001, dim=1)")), "python")

    assert found.verdict == "correct" and found.speedup, found.summary()
    assert "no copy in the clock" in str(found.shapes[0].notes)
    assert again.verdict == "incorrect", again.summary()


async def test_a_result_with_gaps_is_copied_and_timed(lab: Lab):
    """Left in place, the result would slow the copies that the judge puts behind calls."""
    body = f"y = x.new_empty(4096, 4160); y[:, 32:4128] = {TO}; return y[:, 32:4128]"
    found = await evaluated(lab, MODEL.format(body=body), "python")

    assert found.verdict == "correct" and found.speedup, found.summary()
    assert "have gaps between them" in str(found.shapes[0].notes)


async def test_a_channels_last_model_is_as_fast_as_it_is(lab: Lab):
    """Inputs and results, neither is made row-major."""
    shape = "torch.randn(32, 64, 56, 56).to(memory_format=torch.channels_last)"
    problem = SOFTMAX.replace("torch.randn(4096, 4096)", shape).replace("softmax(x, dim=1)", "relu(x) * 2")
    body = "assert x.stride()[1] == 1; return torch.relu(x) * 2"
    found = await evaluated(lab, MODEL.format(body=body), "python", problem)

    assert found.verdict == "correct" and found.speedup and 0.8 < found.speedup < 1.25, found.summary()
    assert "no copy in the clock" in str(found.shapes[0].notes)


async def test_load_inline_runs_unchanged(lab: Lab):
    if not shutil.which("ninja"):
        pytest.skip("no ninja here")
    found = await evaluated(lab, INLINE, "python")

    assert found.verdict == "correct", found.summary()


async def test_a_module_with_weights_is_registered_and_judged_on_the_gpu(lab: Lab):
    found = await evaluated(lab, PROBLEM.replace("class Model(", "class ModelNew("), "python", PROBLEM, atol=1e-4)

    assert found.verdict == "correct", found.summary()
    assert "2 alike by the common seed" in str(found.shapes[0].notes)
