"""Programs as strangers write them: values of their own classes, statistics, drawn weights; captured and put back."""

import asyncio
import json
import types
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.workers.program_hooks import replace_function
from tests.laboratory import laboratory
from tests.services.programs.overlay_runs import overlay_environment, run_program
from tests.services.programs.test_overlay_calls import run
from tests.services.programs.test_problem_capture import PYTHON, capture, needs_torch

pytestmark = [pytest.mark.timeout(1500), needs_torch]
VALUES = """
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch


class Mode(Enum):
    HALF = "half"
    DOUBLE = "double"


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Config:
    scale: float = 2.0
    mode: Mode = Mode.DOUBLE


@dataclass
class Output:
    best: torch.Tensor
    parts: OrderedDict


def mixed(pair, config):
    assert config.mode is Mode.DOUBLE
    sums = pair.left + config.scale * pair.right
    return Output(sums.max(dim=-1), OrderedDict(sums=sums))


torch.manual_seed(0)
found = mixed(Pair(torch.randn(4, 8), torch.randn(4, 8)), Config())
print(found.best.values.sum().item(), found.best.indices.sum().item(), found.parts["sums"].sum().item())
"""
MIXED = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, left, right):
        sums = left + 2 * right
        return (*sums.max(dim=-1), sums)
"""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        yield lab


async def test_values_of_a_program_s_own_classes_are_recorded_judged_and_put_back(lab: Lab):
    found = await capture(lab, VALUES, "__main__:mixed")
    assert found.problem, found.summary()
    assert found.sets[0].inputs == ["pair_0 float32[4, 8]", "pair_1 float32[4, 8]"]
    source = CandidateSource(MIXED, "python", NAMES["python"])
    verdict = await lab.evaluation.evaluator.evaluate(
        found.problem.problem_id, source, timing=TimingOptions(tier="correctness"), wait_s=1200
    )
    assert verdict.verdict == "correct", verdict.summary()
    workspace = (await lab.store.workspaces.write(None, {"program.py": VALUES})).workspace_id
    applied = await lab.programs.overlays.apply(verdict.attempt_id, workspace)
    async with lab.store.workspaces.laid_out(applied.workspace_id) as folder:
        plain, overlay = await asyncio.to_thread(run_program, folder), overlay_environment(folder)
        assert await asyncio.to_thread(run_program, folder, **overlay) == plain
        told = [json.loads(path.read_text()) for path in folder.glob("counts.*")]
    assert told == [[{"calls": 1, "passed_on": 0}]]


MODULES = """
import torch


class Act(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.tanh

    def forward(self, x):
        return self.act(x)


net = torch.nn.Sequential(Act(), torch.nn.BatchNorm1d(8), torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8)))
net(torch.randn(4, 8))
"""


async def test_modules_that_a_kernel_cannot_stand_for_are_explained(lab: Lab):
    acted = await capture(lab, MODULES, "Sequential.0")
    assert acted.problem, acted.summary()
    trained = await capture(lab, MODULES, "Sequential.1")
    said = "it changes its buffers (running_mean, running_var, num_batches_tracked), which a kernel in its place would"
    assert trained.problem is None and said in trained.summary()
    evaluated = await capture(lab, MODULES.replace("net(torch", "net.eval()(torch"), "Sequential.1")
    assert evaluated.problem, evaluated.summary()
    normed = await capture(lab, MODULES, "Sequential.2")
    assert normed.problem is None and "ParametrizedLinear, which has no name in its module" in normed.summary()


WITHOUT_MEMORY = """
import torch


def doubled(x):
    return x + x


x = torch.eye(4)
torch.vmap(doubled)(x)
doubled(x.to_sparse())
print("went on")
"""


async def test_tensors_without_memory_end_no_program(lab: Lab):
    found = await capture(lab, WITHOUT_MEMORY, "__main__:doubled")
    assert "cannot be captured: a tensor of layout sparse_coo" in found.summary() and "went on" in found.summary()
    vmapped = await capture(lab, WITHOUT_MEMORY.replace("doubled(x.to_sparse())", ""), "__main__:doubled")
    assert "cannot be captured: a tensor without memory, as torch.func (vmap, grad) passes it" in vmapped.summary()
    once = await capture(lab, WITHOUT_MEMORY.replace("x.to_sparse()", "x"), "__main__:doubled")
    assert once.problem and [s.calls for s in once.sets] == [1], once.summary()
    assert "other calls were not recorded: a tensor without memory" in once.summary()


OPERATORS = """
import torch
import triton
import triton.language as tl


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@torch.library.custom_op("strangers::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return doubled(x)
"""
USES = """
import functools
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
import operators


@functools.lru_cache(None)
def tripled(x):
    return 3 * x


@torch.library.custom_op("strangers::quadrupled", mutates_args=())
def quadrupled(x: torch.Tensor) -> torch.Tensor:
    return 4 * x


@quadrupled.register_fake
def _(x):
    return torch.empty_like(x)


if __name__ == "__main__":
    x = torch.randn(4, 8)
    tripled(operators.Doubled.apply(quadrupled(x)))
    tripled.cache_clear()
"""


async def test_operators_of_a_program_are_captured_as_functions_and_cached_ones_stay_cached(lab: Lab):
    files = {"program.py": USES, "operators.py": OPERATORS}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    found = {
        target: await lab.programs.capture.capture([PYTHON, "program.py"], target, workspace)
        for target in (
            "operators:doubled", "__main__:quadrupled", "__main__:tripled", "strangers::doubled", "operators:Doubled",
            "operators:Doubled.apply",
        )
    }  # fmt: skip
    said = {target: each.summary() for target, each in found.items()}
    captured = [target for target, each in found.items() if each.problem]
    assert captured == ["operators:doubled", "__main__:quadrupled", "operators:Doubled.apply"], said
    assert not any("the program ended" in each for each in said.values()), said
    assert "capture the Python function that is it or calls it" in said["strangers::doubled"]
    assert "register it again" not in said["strangers::doubled"]
    assert "it is an autograd.Function: name a function that its forward calls" in said["operators:Doubled"]


SUMS = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton
import triton.language as tl


@triton.jit
def total(x, y, BLOCK: tl.constexpr):
    tl.store(y, tl.sum(tl.load(x + tl.arange(0, BLOCK))))


y = torch.zeros(1)
for _ in range(2):
    total[(1,)](torch.ones(64), y, BLOCK=64)
print("sum", y.item())
"""


async def test_hot_spots_of_a_program_that_interprets_triton_are_found(lab: Lab):
    workspace = (await lab.store.workspaces.write(None, {"program.py": SUMS})).workspace_id
    found = await lab.programs.hotspots.find([PYTHON, "program.py"], workspace)
    assert found.status == "ok" and "the program ended with" not in found.summary(), found.summary()


def test_a_method_without_an_object_stays_one_where_it_is_replaced():
    class Scale:
        @staticmethod
        def twice(x: int) -> int:
            return 2 * x

        @classmethod
        def thrice(cls, x: int) -> int:
            return 3 * x

    module = types.ModuleType("scales")
    module.__dict__["Scale"] = Scale
    for name in ("twice", "thrice"):

        def wrap(function: Callable[[int], int]) -> Callable[[int], int]:
            return lambda x: 10 * function(x)

        assert replace_function(module, f"Scale.{name}", wrap)
    assert (Scale.twice(1), Scale().twice(1), Scale.thrice(1), Scale().thrice(1)) == (20, 20, 30, 30)


async def test_calls_before_a_hook_is_there_are_not_denied(lab: Lab):
    files = {"program.py": "import part\n", "part.py": "import torch\ndef f(x):\n    return 2 * x\nf(torch.ones(3))\n"}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    found = await lab.programs.capture.capture([PYTHON, "program.py"], "part:f", workspace)
    assert "part:f was never called after part was imported" in found.summary()


def test_a_kernel_s_first_weights_take_no_random_numbers_of_the_program(tmp_path: Path):
    checks = """
import types

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
    def forward(self, x):
        return torch.full_like(x, 7)

overlay.plan["form"], overlay._file = "model", types.SimpleNamespace(ModelNew=ModelNew)
torch.manual_seed(1)
without = torch.rand(3)
torch.manual_seed(1)
assert by_kernel(x) and torch.equal(torch.rand(3), without)
"""
    run(tmp_path, "()", checks)
