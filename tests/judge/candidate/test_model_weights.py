"""Weights of a ModelNew: its own, made after the common seed, beside those of a KernelBench problem."""

from pathlib import Path

import pytest

from tests.judge.harness import judge, torch_python

pytestmark = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, wide, scale):
        super().__init__()
        self.first = nn.Linear(wide, wide)
        self.second = nn.Linear(wide, wide)
        self.norm = nn.BatchNorm1d(wide)
        self.register_buffer("table", torch.rand(wide))
        self.drop = nn.Dropout(0.5)
        self.scale = scale
        self.eval()
    def forward(self, x):
        return self.drop(self.norm(self.first(x) + self.second(x)) + self.table) * self.scale

def get_inputs():
    return [torch.randn(32, 16)]

def get_init_inputs():
    return [16, 3.0]
"""
STATE = {
    "first.weight": [16, 16], "first.bias": [16], "second.weight": [16, 16], "second.bias": [16],
    "norm.weight": [16], "norm.bias": [16], "norm.running_mean": [16], "norm.running_var": [16],
    "norm.num_batches_tracked": [], "table": [16],
}  # fmt: skip
NEW = PROBLEM.split("def get_inputs")[0].replace("class Model(", "class ModelNew(")


def specs(state: dict[str, list[int]]) -> list[dict[str, object]]:
    kinds = {"norm.num_batches_tracked": "int64"}
    return [
        {"name": f"w{i}", "dtype": kinds.get(name, "float32"), "shape": shape, "distribution": "weights"}
        for i, (name, shape) in enumerate(state.items())
    ]


@pytest.fixture
def verdict_on(tmp_path: Path):
    def sit(source: str, problem: str = PROBLEM, state: dict[str, list[int]] = STATE, **task):
        path = tmp_path / "candidate.py"
        # The harness lays one file for a candidate: it imports the problem's from the text that stands in front.
        path.write_text(f"open('problem.py', 'w').write({problem!r})\n{source}")
        x = {"name": "x", "dtype": "float32", "shape": [32, 16], "distribution": "normal"}
        about = {
            "problem": "module", "framework": "torch", "entry": "Model", "candidate": "model", "constants": {},
            "inputs": [x, *specs(state)], "outputs": [{"name": "y", "dtype": "float32", "shape": [32, 16]}],
            "shapes": [{}], "fixed_shapes": True, "state": list(state), "rtol": 1e-4, "atol": 1e-4,
            "tier": "correctness", "prepare_s": 100,
        }  # fmt: skip
        outcome = judge(tmp_path, problem, path, python=torch_python(), **{**about, **task})
        assert outcome.exit_code == 0, outcome.stderr
        return outcome.verdict

    return sit


RENAMED = NEW.replace("self.first", "self.a").replace("self.second", "self.b").replace("self.table", "self.t")
RENAMED = RENAMED.replace('register_buffer("table"', 'register_buffer("t"')
SCALED = NEW.replace("self.eval()", "self.eval(); self.norm.weight.mul_(scale); self.norm.bias.mul_(scale)").replace(
    "+ self.table) * self.scale", "+ self.table * self.scale)"
)
FUSED = NEW.replace(
    "self.eval()", "self.eval(); self.both = nn.Linear(wide, wide); "
    "self.both.weight = nn.Parameter(self.first.weight + self.second.weight); "
    "self.both.bias = nn.Parameter(self.first.bias + self.second.bias); del self.first, self.second"
).replace("self.first(x) + self.second(x)", "self.both(x)")  # fmt: skip
EXCHANGED = NEW.replace("self.first = nn", "self.third = nn").replace("self.second = nn", "self.first = nn")
EXCHANGED = EXCHANGED.replace("self.third = nn", "self.second = nn")
"""The same layers under each other's names: their sum is the same."""
OTHER_ORDER = NEW.replace('        self.register_buffer("table", torch.rand(wide))\n', "").replace(
    "        self.first = nn", '        self.register_buffer("table", torch.rand(wide))\n        self.first = nn'
)
TRAINED = NEW.replace("self.eval()", "self.eval(); self.norm.train()")
DROPPING = NEW.replace("self.eval()", "self.eval(); self.drop.train()")
PLAIN = """
import torch
class ModelNew:
    def __init__(self, wide, scale):
        a, b = torch.nn.Linear(wide, wide), torch.nn.Linear(wide, wide)
        self.weight, self.bias, self.table, self.scale = a.weight + b.weight, a.bias + b.bias, torch.rand(wide), scale
    def forward(self, x):
        y = (x @ self.weight.T + self.bias) / (1 + 1e-5) ** 0.5
        return (y + self.table) * self.scale
    __call__ = forward
"""


@pytest.mark.parametrize(
    ("source", "noted"),
    [
        pytest.param(NEW, "weights: 10 alike by the common seed", id="the same"),
        pytest.param(RENAMED, "5 alike by the common seed, 5 alike under another name", id="renamed"),
        pytest.param(SCALED, "9 alike by the common seed, 1 other than the problem's (norm.weight)", id="scaled"),
        pytest.param(FUSED, "4 without a counterpart (first.weight, first.bias, second.weight", id="fused"),
        pytest.param(EXCHANGED, "alike by the common seed", id="exchanged names"),
        pytest.param(PLAIN, "10 without a counterpart", id="no module at all"),
    ],
)
def test_what_a_model_makes_of_its_weights_is_its_own(verdict_on, source: str, noted: str):
    found = verdict_on(source)

    assert found["verdict"] == "correct", found["reason"]
    assert noted in str(found["shapes"][0]["notes"])
    assert "differ from" not in found["reason"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param(OTHER_ORDER, "ModelNew's weights first.weight, first.bias", id="another order"),
        pytest.param(NEW.replace("torch.rand(wide)", "torch.zeros(wide)"), "ModelNew's weight table", id="a buffer"),
        pytest.param(NEW.replace("nn.Linear(wide, wide)\n        self.norm",
            "nn.Linear(wide, wide, bias=False)\n        self.norm"), "no counterpart of the problem's second.bias by", id="no bias"),
        pytest.param(NEW.replace("self.eval()", "self.eval(); self.norm.running_var.fill_(4)"),
            "weight norm.running_var differs", id="running statistics"),
    ],
)  # fmt: skip
def test_a_wrong_answer_says_which_weights_are_not_the_problems(verdict_on, source: str, why: str):
    found = verdict_on(source)

    assert found["verdict"] == "incorrect"
    assert why in found["reason"], found["reason"]
    assert "make the problem's weights in its order" in found["reason"]


@pytest.mark.parametrize("source", [pytest.param(TRAINED, id="norm"), pytest.param(DROPPING, id="dropout")])
def test_a_model_in_training_mode_is_wrong_where_the_problem_is_not_and_nothing_is_said_of_weights(verdict_on, source):
    found = verdict_on(source)

    assert found["verdict"] == "incorrect"
    assert "after the common seed" not in found["reason"] and "counterpart" not in found["reason"]


TRAINING = PROBLEM.replace("self.eval()", "self.drop.p = 0")
"""Of which each batch is normalized by its own statistics."""
NOT_TRAINING = (
    "no running_mean of ModelNew changed, as in eval mode: right only if it takes each batch's own statistics itself"
)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        pytest.param(NEW, True, id="eval mode"),
        pytest.param(NEW.replace("self.eval()", "self.drop.p = 0").replace(
            "self.norm(", "torch.nn.functional.batch_norm(").replace("self.second(x)) +",
            "self.second(x), self.norm.running_mean, self.norm.running_var) +"), True, id="running statistics by hand"),
        pytest.param(NEW.replace("self.eval()", "self.drop.p = 0").replace("* self.scale", "+ self.scale"), False, id="another mistake"),
    ],
)  # fmt: skip
def test_who_normalizes_as_in_eval_mode_where_the_problem_does_not_is_told_so(verdict_on, source: str, told: bool):
    found = verdict_on(source, TRAINING)

    assert found["verdict"] == "incorrect"
    assert (NOT_TRAINING in found["reason"]) == told, found["reason"]


@pytest.mark.parametrize("fixed", ["self.norm.train(False)", "self.norm.momentum = 0.0"])
def test_nothing_is_said_of_statistics_that_the_problem_keeps_as_they_are(verdict_on, fixed: str):
    found = verdict_on(
        NEW.replace("* self.scale", "+ self.scale"), PROBLEM.replace("self.eval()", "self.drop.p = 0; " + fixed)
    )

    assert found["verdict"] == "incorrect" and "running_mean" not in found["reason"]


def test_statistics_that_stay_are_right_where_the_problem_is_in_eval_mode(verdict_on):
    found = verdict_on(NEW.replace("* self.scale", "+ self.scale"))

    assert found["verdict"] == "incorrect" and "running_mean" not in found["reason"]


def test_a_norm_in_training_mode_needs_no_statistics_of_the_problem(verdict_on):
    problem = PROBLEM.replace("self.eval()", "self.drop.eval()")
    text = NEW.replace("self.eval()", "self.drop.eval(); self.norm.running_mean.fill_(7)")

    found = verdict_on(text, problem)

    assert found["verdict"] == "correct", found["reason"]
    assert "1 other than the problem's (norm.running_mean)" in str(found["shapes"][0]["notes"])


def test_a_problem_may_wish_that_its_weights_are_copied(verdict_on):
    found = verdict_on(OTHER_ORDER, copy_state=True)

    assert found["verdict"] == "correct", found["reason"]
    assert "5 taken over from the problem" in str(found["shapes"][0]["notes"])


PLAIN_TENSORS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.randn(16, 16)
        self.b = self.a + 1e-4 * torch.randn(16, 16)
        self.codes = torch.ones(1).to(torch.float8_e4m3fn)
    def forward(self, x):
        x = 1e4 / 56 * self.codes.view(torch.uint8).sum() * x
        return x @ self.a - x @ self.b

def get_inputs():
    return [torch.randn(32, 16)]

def get_init_inputs():
    return []
"""
"""The difference of two large products: what is left errs by a thousandth, and a product of two types raises.

Of 1.0 in eight bits the byte is 56.
"""


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("x.flip(1) @ self.a.flip(0) - x.flip(1) @ self.b.flip(0)", "correct"),
        ("x @ self.a - x @ (self.b - 1e-6)", "incorrect"),
    ],
)
def test_tensors_that_are_no_parameters_are_widened_too(verdict_on, answer, verdict):
    new = PLAIN_TENSORS.split("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    found = verdict_on(new.replace("x @ self.a - x @ self.b", answer), PLAIN_TENSORS, {})

    assert found["verdict"] == verdict, found["reason"]
    assert "no double precision oracle" not in str(found)
