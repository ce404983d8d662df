"""Large weights are drawn on the GPU where both models bear it, and on the processor in both where one does not."""

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
    "candidate": "model",
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


def test_both_draw_large_weights_on_the_gpu(bring):
    reference, candidate = Stub("reference", {"large_there": True}), Stub("candidate", {"large_there": True})
    both = bring(reference, candidate)

    assert reference.asked == [("start", LARGE)]
    assert candidate.asked == [("load", LARGE)]
    assert both.weights == LARGE and candidate.frozen and not reference.frozen


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_where_one_cannot_both_are_constructed_as_by_kernelbench(bring, first, second):
    reference = Stub("reference", {"large_there": first}, {"large_there": False})
    candidate = Stub("candidate", {"large_there": second}, {"large_there": False})
    both = bring(reference, candidate)

    assert reference.asked == [("start", LARGE), ("load", SMALL)]
    assert candidate.asked == [("load", LARGE), ("construct", SMALL)]
    assert both.weights == SMALL and candidate.frozen and not reference.frozen
    assert "weights drawn again" in both.steps


def test_a_model_that_fails_when_it_is_constructed_again_is_told_so(bring):
    candidate = Stub("candidate", {"large_there": False}, {"error": "the file cannot be loaded: ValueError"})
    with pytest.raises(players.incorrect("").__class__, match="ValueError"):
        bring(Stub("reference", {"large_there": True}, {"large_there": False}), candidate)


def test_a_candidate_that_constructs_nothing_gets_the_weights_wherever_they_were_drawn(bring):
    reference, candidate = Stub("reference", {"large_there": True}), Stub("candidate", {})
    assert bring(reference, candidate, candidate="library").weights == LARGE
    assert len(reference.asked) == 1


@pytest.mark.parametrize(
    "task",
    [
        {"device": "cpu"},
        {"problem": "function"},
        {"inputs": [{"name": "w", "shape": [1024, 1023], "distribution": "weights"}]},
        {"inputs": [{"name": "x", "shape": [4096, 4096], "distribution": "normal"}]},
    ],
)
def test_nothing_changes_where_no_weight_is_large_or_there_is_no_gpu(task):
    assert not players.has_large_weights({**TASK, **task})


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, large_tensors
from large_tensors import LargeOnes, constructed
N = 1 << 20
def places(make):
    with LargeOnes(torch.device("meta")):
        return [str(t.device) for t in make()]
def twice(large_there):
    made = lambda: torch.nn.Linear(1024, 1024)
    there = torch.device("cpu")
    return [constructed(made, 5, there, large_there=large_there) for _ in range(2)]
class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.Parameter(torch.from_numpy(torch.randn(1024, 1024).numpy()))
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
    "[bool((a.weight == b.weight).all()) for (a, _), (b, _) in [twice(True), twice(False)]]": [True, True],
    "[there for _, there in [*twice(True), *twice(False)]]": [True, True, False, False],
    "(lambda m: [m[0].p.device.type, m[1]])(constructed(Reads, 1, torch.device('meta'), large_there=True))": [
        "meta",
        False,
    ],
    "constructed(Reads, 1, None, large_there=True)[1]": False,
}


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize("what", list(CASES))
def test_what_is_large_is_made_there_and_the_rest_stays(what):
    ran = subprocess.run(
        [torch_python(), "-I", "-c", SCRIPT, str(JUDGE), what], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == CASES[what]
