"""A model that keeps its outputs: each call writes to other memory, unless it would write to the old one."""

import json
import subprocess

import pytest

from tests.judge.harness import torch_python
from tests.judge_package import packages

SCRIPT = """
import contextlib, json, sys, types
sys.path.insert(0, sys.argv[1])
import torch
from gpu_mcp_judge.candidate import kernelbench_model
from gpu_mcp_judge.candidate.kernelbench_model import ModelFile
from gpu_mcp_judge.candidate.torch_mempool import Pool

exec(sys.argv[2])
x, names = [torch.randn(4, 6) for _ in range(3)], {}

class Everywhere(Pool):  # takes all memory for the arena's
    def __init__(self):
        self.torch, self.arena, self.size = torch, 0, 1 << 62
    use = staticmethod(contextlib.nullcontext)
    name = staticmethod(lambda call, place, offset: names.update({(call, place): offset}))

model = object.__new__(ModelFile)
vars(model).update(
    torch=torch, pool=Everywhere(), interpreted=False, interpreter=None, why_copied="", reused=None, known={}, at="", said={}, device=types.SimpleNamespace(index=0), weights_said="",
    decided=False, pooled=False, kept=[], strides=None, settled=True, given=1, constants={}, model=Model(),
    memory=types.SimpleNamespace(returned=None), dims=[],
    task={"inputs": [{}], "outputs": [{"name": "y"}]}, inputs=[[each] for each in x],
    outputs=[[torch.empty(4, 6)] for _ in x],
)
error = model.first().get("error") or model.run(3).get("error")
answers = model.kept or model.outputs
right = [torch.equal(answer[0], each * 2) for answer, each in zip(answers, x)]
print(json.dumps([model.reused is not None, model.why_copied, len(set(names.values())), right, error, list(model.said)]))
"""
KEPT = """
class Model(torch.nn.Module):
    y = None
    def forward(self, x):
        if self.y is None:
            self.y = torch.empty_like(x)
        return torch.mul(x, 2, out=self.y)
"""
AT_START = KEPT.replace("y = None", "y = torch.empty(4, 6)", 1)
BY_ADDRESS = """
class Model(torch.nn.Module):
    y = torch.empty(4, 6)
    place = y.detach()
    def forward(self, x):
        torch.mul(x, 2, out=self.place)
        return self.y
"""
IN_PART = KEPT.replace("return torch.mul(x, 2, out=self.y)", "self.y[:, 1:] = x[:, 1:] * 2; return self.y").replace(
    "torch.empty_like(x)", "x * 2"
)
FRESH = "class Model(torch.nn.Module):\n    def forward(self, x): return x * 2\n"
VIEW = KEPT.replace("return torch.mul(x, 2, out=self.y)", "torch.mul(x, 2, out=self.y); return self.y[:]")

TAKEN_AWAY = """
import torch._inductor.cudagraph_trees as trees
trees.get_manager = lambda index, create: trees  # as torch.compile has one in mode reduce-overhead, on a GPU alone
class Model(torch.nn.Module):
    y = torch.empty(0)
    def forward(self, x):
        self.y.data = torch.empty(0)
        self.y = x * 2
        return self.y
"""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(
    ("text", "reused"),
    [(KEPT, True), (AT_START, True), (BY_ADDRESS, False), (IN_PART, False), (VIEW, False), (FRESH, None)],
    ids=["kept", "made at start", "by its address", "in part", "a view", "fresh"],
)
def test_outputs_that_a_model_keeps_are_copied_only_where_they_must_be(text: str, reused: bool | None):
    done = subprocess.run(
        [torch_python(), "-I", "-c", SCRIPT, packages(), text],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, why, places, right, error, said = json.loads(done.stdout)

    assert not error and found == bool(reused), (found, why, error)
    assert why.startswith("two calls returned the same memory" if reused is False else "")
    assert all(right) or text == IN_PART  # which is wrong wherever it writes
    if reused:
        assert places == 3
        assert said == ["outputs that the model keeps get other memory in each call: no copy in the clock"]


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_an_answer_that_the_next_call_takes_away_is_copied_behind_its_own_call():
    done = subprocess.run([torch_python(), "-I", "-c", SCRIPT, packages(), TAKEN_AWAY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, why, _, right, error, said = json.loads(done.stdout)

    assert not error and right == [True] * 3, error
    assert not found and why == "torch.compile's CUDA graphs answer in memory of their own"
    assert said == ["the outputs are copied into the judge's, within the clock: " + why]
