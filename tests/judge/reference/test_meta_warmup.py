"""Describing a module problem imports nothing more: torch's own imports come before a job's turn on a GPU."""

import json
import subprocess

import pytest

from tests.judge.harness import torch_python
from tests.judge_package import packages

SCRIPT = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
from gpu_mcp_judge.reference import kernelbench_problem, meta_warmup
before = set(sys.modules)
module = types.ModuleType("problem")
exec(sys.argv[2], module.__dict__)
told = kernelbench_problem.ModuleProblem(module, {}, 1, None).describe()
print(json.dumps([sorted(set(sys.modules) - before), told["outputs"][0]["shape"]]))
"""
PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, size, 3), torch.nn.BatchNorm2d(size), torch.nn.GELU())
    def forward(self, x):
        return torch.softmax(self.layers(x).flatten(1).max(1, keepdim=True).values + x.mean((1, 2, 3))[:, None], 1)
def get_inputs():
    return [torch.randn(2, 3, 8, 8).half().float()]
def get_init_inputs():
    return [4]
"""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_a_problem_is_described_without_an_import():
    done = subprocess.run(
        [torch_python(), "-I", "-c", SCRIPT, packages(), PROBLEM],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip

    assert json.loads(done.stdout) == [[], [2, 1]]
