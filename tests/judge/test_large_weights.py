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
    monkeypatch.setattr(players, "link_to", lambda role: None)
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
from large_tensors import LargeOnes, drawn_there
N = 1 << 20
def places(make):
    with LargeOnes(torch.device("meta")):
        return [str(t.device) for t in make()]
class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.Parameter(torch.from_numpy(torch.randn(1024, 1024).numpy()))
class Keeps(torch.nn.Linear):
    def __init__(self, kept):
        super().__init__(1024, 1024)
        self.table = kept()
def linear():
    torch.manual_seed(5)
    return torch.nn.Linear(1024, 1024)
meta, cpu = torch.device("meta"), torch.device("cpu")
def borne(*made):
    return [drawn_there(make, meta) is not None for make in made]
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
    "borne(linear, Reads, lambda: torch.nn.LSTM(1024, 1024), lambda: torch.nn.Sequential(linear()))": [
        True,
        False,
        True,
        True,
    ],
    "borne(*(lambda kept=kept: Keeps(kept) for kept in (lambda: torch.zeros(N), lambda: [torch.zeros(N)], "
    "lambda: {'a': (torch.zeros(N),)}, lambda: torch.zeros(N - 1))))": [False, False, False, True],
    "bool((drawn_there(linear, cpu).weight == drawn_there(linear, cpu).weight).all())": True,
}


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize("what", list(CASES))
def test_what_is_large_is_made_there_and_the_rest_stays(what):
    ran = subprocess.run(
        [torch_python(), "-I", "-c", SCRIPT, str(JUDGE), what], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == CASES[what]


ANEW = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
import torch, reference
reference.SOURCE = sys.argv[2]
one = reference.Reference(None)
one.task = {"problem": "module", "inputs": [{}], "state": []}
one.arrays = types.SimpleNamespace(device=torch.device("meta"))
reply = one.load({"torch_seed": 3, "large_there": True}, [])
print(json.dumps([reply, one.module.module.TRIES, one.entry == one.module.call, str(one.module.model.p.device)]))
"""
COUNTS = """
import torch
TRIES = []
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        TRIES.append(len(TRIES))
        self.p = torch.nn.Parameter(torch.randn(1024, 1024))
        READS
def get_inputs():
    return []
def get_init_inputs():
    return []
"""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(("reads", "there"), [("self.p.numel()", True), ("self.p.detach().numpy()", False)])
def test_a_model_that_does_not_bear_it_is_loaded_anew(tmp_path, reads, there):
    file = tmp_path / "reference.py"
    file.write_text(COUNTS.replace("READS", reads))
    ran = subprocess.run(
        [torch_python(), "-I", "-c", ANEW, str(JUDGE), str(file)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [{"large_there": there}, [0], True, "meta"]
