"""Large weights are drawn on the GPU where the problem's model bears it and the candidate makes none of its own."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.judge.harness import JUDGE, torch_python

sys.path.insert(0, str(JUDGE))

import players
from devices import Device

sys.path.remove(str(JUDGE))

SEED = 11
LARGE = {"torch_seed": SEED, "large_there": True}
SMALL = {"torch_seed": SEED, "large_there": False}
TASK: dict[str, Any] = {
    "device": "cuda",
    "problem": "module",
    "candidate": "library",
    "round_ms": 10,
    "inputs": [
        {"name": "x", "shape": [4], "distribution": "normal"},
        {"name": "w", "shape": [1024, 1024], "distribution": "weights"},
    ],
}


class Gpu(Device):
    kind = "cuda"


class Stub:
    """A player that answers what it is told to."""

    prepare_s = 0.0

    def __init__(self, role: str, *replies: dict[str, Any]) -> None:
        self.role, self.replies = role, list(replies)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.link = self
        self.frozen = False

    def pending(self, timeout_s: float) -> bool:
        return True

    def tell(self, do: str, **fields: Any) -> None:
        self.asked.append((do, fields))

    def hear(self, timeout_s: float) -> dict[str, Any]:
        assert not self.frozen
        return self.replies.pop(0) if self.asked else {}

    def ask(self, do: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        self.tell(do, **fields)
        return self.hear(timeout_s)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False


@pytest.fixture
def bring(monkeypatch):
    monkeypatch.setattr(players.Players, "_link", lambda self, role: None)
    monkeypatch.setattr(players, "rehearsed_cost", lambda player, *more: None)

    def bring_on(reference: Stub, other: Stub, **task: Any) -> players.Players:
        both = players.Players({**TASK, **task}, SEED)
        both.start(Gpu(), other, reference, both.starts_beside(reference))
        return both

    return bring_on


@pytest.mark.parametrize("there", [True, False])
def test_the_reference_draws_large_weights_on_the_gpu_if_its_model_bears_it(bring, there):
    reference, candidate = Stub("reference", {"large_there": there}), Stub("candidate", {})
    both = bring(reference, candidate)

    assert reference.asked == [("start", LARGE)]
    assert candidate.asked == [("load", {"torch_seed": SEED})]
    assert both.drawn_on_gpu == there
    assert candidate.frozen and not reference.frozen


def test_beside_a_candidate_that_makes_its_own_it_draws_all_where_kernelbench_does(bring):
    reference, candidate = Stub("reference", {"large_there": False}), Stub("candidate", {})

    assert not bring(reference, candidate, candidate="model").drawn_on_gpu
    assert reference.asked == [("start", SMALL)]


@pytest.mark.parametrize(
    "task",
    [
        {"device": "cpu"},
        {"candidate": "model"},
        {"problem": "function"},
        {"inputs": [{"name": "w", "shape": [1024, 1023], "distribution": "weights"}]},
        {"inputs": [{"name": "x", "shape": [4096, 4096], "distribution": "normal"}]},
    ],
)
def test_nothing_changes_where_no_weight_is_large_or_there_is_no_gpu(task):
    assert not players.may_draw_there({**TASK, **task})


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, large_tensors
from large_tensors import LargeOnes, constructed
N = 1 << 20
def places(make):
    with LargeOnes(torch.device("meta")):
        return [str(t.device) for t in make()]
class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.Parameter(torch.from_numpy(torch.randn(1024, 1024).numpy()))
class Keeps(torch.nn.Linear):
    def __init__(self):
        super().__init__(1024, 1024)
        self.table = torch.zeros(N)
def linear():
    torch.manual_seed(5)
    return torch.nn.Linear(1024, 1024)
meta = torch.device("meta")
print(json.dumps(eval(sys.argv[2])))
"""
CASES = {
    "places(lambda: [torch.randn(1024, 1024), torch.zeros((N,)), torch.full((N,), 2.0), torch.empty(size=(N,), device=None)])": [
        "meta"
    ]
    * 4,
    "places(lambda: [torch.randn(1024, 1023), torch.ones(N - 1), torch.arange(N), torch.randperm(N)])": ["cpu"] * 4,
    "places(lambda: [torch.zeros(N, device='cpu'), torch.rand(N, generator=torch.Generator()), "
    "torch.empty(N, out=torch.empty(N, device='cpu'))])": ["cpu"] * 3,
    "places(lambda: torch.nn.Linear(1024, 1024).parameters())": ["meta", "cpu"],
    "[constructed(linear, meta, large_there=large)[1] for large in (True, False)]": [True, False],
    "(lambda a, b: bool((a.weight == b.weight).all()))(*[constructed(linear, torch.device('cpu'), large_there=True)[0] "
    "for _ in range(2)])": True,
    "[constructed(Reads, meta, large_there=True)[1], constructed(linear, None, large_there=True)[1]]": [False, False],
    "constructed(Keeps, meta, large_there=True)[1]": False,
}


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize("what", list(CASES))
def test_what_is_large_is_made_there_and_the_rest_stays(what):
    ran = subprocess.run(
        [torch_python(), "-I", "-c", SCRIPT, str(JUDGE), what], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == CASES[what]
