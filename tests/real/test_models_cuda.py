"""Models with large weights on a real GPU: where they are drawn, and that it makes no difference to the verdict."""

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problem_files.base import ProblemSource
from gpu_mcp_server.services.sources import Source
from tests.judge.harness import JUDGE
from tests.laboratory import laboratory
from tests.real.test_judge_cuda import missing

WHY = missing() or ("" if importlib.util.find_spec("torch") else "no torch here")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.skipif(bool(WHY), reason=WHY or "-")]
PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.gemm = nn.Linear(wide, wide)
        self.scale = nn.Parameter(torch.randn(wide))
    def forward(self, x):
        return torch.relu(self.gemm(x) * self.scale)

def get_inputs():
    return [torch.rand(64, 2048)]

def get_init_inputs():
    return [2048]
"""
SAME = PROBLEM.split("def get_inputs")[0].replace("class Model", "class ModelNew")
NAMED = SAME.replace("self.gemm", "self.linear")
READS = SAME.replace("self.scale =", "self.gemm.weight.detach().numpy()\n        self.scale =")
OTHER = SAME.replace("nn.Linear(wide, wide)", "nn.Linear(wide, wide, bias=False)")


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": sys.executable}}) as lab:
        yield lab


@pytest.mark.parametrize(
    ("text", "verdict", "drawn_on"),
    [
        pytest.param(SAME, "correct", "the GPU", id="the same"),
        pytest.param(NAMED, "correct", "the processor", id="other names"),
        pytest.param(READS, "correct", "the processor", id="reads its weights on the processor"),
        pytest.param(OTHER, "incorrect", "the processor", id="without the bias"),
    ],
)
async def test_large_weights_are_drawn_on_the_gpu_where_both_models_bear_it(lab: Lab, text, verdict, drawn_on):
    info = await lab.registry.import_file(ProblemSource("linear.py", PROBLEM))
    found = await lab.evaluator.evaluate(
        info.problem_id, Source(text, "python", "k.py"), device="cuda", timing=TimingOptions(tier="correctness")
    )

    assert found.verdict == verdict, found.summary()
    assert found.evidence["large_weights_drawn_on"] == drawn_on


def test_a_gpu_is_busy_for_as_long_as_it_is_told():
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import time; from cuda_driver import Driver; from switching import GpuTurns\n"
        "turns = GpuTurns(Driver(0)); turns.ping(); turns.spin(0.001); begin = time.perf_counter()\n"
        "said = [turns.spin(0.02) for _ in range(5)]; print(time.perf_counter() - begin, *said)\n"
    )

    ran = subprocess.run([sys.executable, "-c", script, str(JUDGE)], capture_output=True, text=True, check=True)
    took, *said = map(float, ran.stdout.split())
    assert said == [0.02] * 5
    assert 0.1 <= took < 0.2
