"""KernelBench's files, judged on the CPU by a Python that has torch."""

from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.errors import BadRequest, ProblemRefused
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import ImportOverrides
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.detect import read_problem
from tests.judge.harness import torch_python
from tests.laboratory import laboratory

needs_torch = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")

UNTIMED = TimingOptions(tier="correctness")
LINEAR = """
import torch
import torch.nn as nn

class Model(nn.Module):
    \"\"\"A linear layer, scaled.\"\"\"
    def __init__(self, wide, narrow):
        super().__init__()
        self.gemm = nn.Linear(wide, narrow)
    def forward(self, x, scale):
        return self.gemm(x) * scale

def get_inputs():
    return [torch.rand(16, 32), 2.5]

def get_init_inputs():
    return [32, 8]
"""
DEEP = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(60)])
    def forward(self, x, mask):
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x)) * mask
        return x, x > 0

def get_inputs():
    return [torch.randn(16, 8), torch.rand(16, 8) > 0.5]

def get_init_inputs():
    return []
"""
BY_ADDRESS = """
import ctypes
import torch

def copied(x):
    y = torch.empty_like(x)
    ctypes.memmove(y.data_ptr(), x.data_ptr(), x.numel() * 4)
    return y

HOW

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(run(x))

def get_inputs():
    return [torch.randn(16, 32)]

def get_init_inputs():
    return []
"""
AS_IT_IS = "run = copied"
OF_ITS_MEMORY = """
def run(x):
    y = torch.empty_like(x)
    ctypes.memmove(y.untyped_storage().data_ptr(), x.untyped_storage().data_ptr(), x.numel() * 4)
    return y
"""
AS_OPERATOR = """
library = torch.library.Library("by_address", "FRAGMENT")
if not hasattr(torch.ops.by_address, "copied"):
    library.define("copied(Tensor x) -> Tensor")
    library.impl("copied", copied, "CompositeExplicitAutograd")
run = torch.ops.by_address.copied
"""
IN_A_BACKWARD_PASS = """
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, gradient):
        return copied(2 * gradient)

def run(x):
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return x * torch.autograd.grad(Doubled.apply(leaf).sum(), leaf)[0]
"""
MASKED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, mask, picks):
        return (x * mask)[picks]

def get_inputs():
    return [torch.randn(16, 32), (torch.rand(16, 32) > 0.5).float(), torch.randint(0, 16, (8,))]

def get_init_inputs():
    return []
"""
OWN_MEAN = """
import torch
class Model(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.gemm = torch.nn.Linear(wide, 16)
    def forward(self, x):
        top = self.gemm(x).amax(dim=1, keepdim=True)
        return top - top.mean(dim=1, keepdim=True)
def get_inputs():
    return [torch.rand(32, 24)]
def get_init_inputs():
    return [24]
"""
RELU = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.rand(64, 64)]
def get_init_inputs():
    return []
"""


WHOLE = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b, few, more):
        return a.int() * b.int() * few + more.int()
def get_inputs():
    of = {"size": (64,)}
    return [torch.randint(0, 100, dtype=torch.int8, **of), torch.randint(0, 100, **of).to(torch.uint8),
            torch.randint(0, 100, **of), torch.zeros(64, dtype=torch.int8)]
def get_init_inputs():
    return []
"""

DEPENDENT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, order, diagonal, doubled, whole, flags, twice, half, other):
        return x[order] + diagonal.sum() * whole + doubled.sum() + twice * other * flags
def get_inputs():
    x, diagonal, doubled, twice = torch.rand(64), torch.rand(8, 8), torch.randn(8), torch.randn(64)
    diagonal.diagonal().fill_(9.0)
    torch.mul(doubled, 2, out=doubled)
    flags = torch.randint(0, 100, (64,)).to(torch.bool)
    return [x, x.argsort(), diagonal, doubled, torch.randn(64).to(torch.int32), flags, twice, twice.half(),
            torch.rand(x.shape).float()]
def get_init_inputs():
    return []
"""


MIXED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, turns, table, gain, left, right):
        pairs = torch.view_as_complex(x.reshape(6, 4, 2).contiguous())
        y = torch.view_as_real(pairs * turns).flatten(1) * gain
        y = y + table.float().sum() / 1000 + left.sum() - right[0]
        return y, y.mean()
def get_inputs():
    memory = torch.randn(20)
    return [torch.randn(8, 6).t(), torch.polar(torch.ones(6, 4), torch.rand(6, 4) * 6),
            torch.randint(-300, 300, (7,), dtype=torch.int16), torch.randn(()), memory[:12], memory[8:]]
def get_init_inputs():
    return []
"""


SPARSE = """
import torch
class Model(torch.nn.Module):
    def forward(self, starts, columns, values, x):
        rows = torch.repeat_interleave(torch.arange(40), (starts[1:] - starts[:-1]).long())
        return torch.zeros(40).index_add(0, rows, values * x[columns.long()])
def get_inputs():
    rows = torch.sort(torch.randint(0, 40, (300,))).values
    starts = torch.searchsorted(rows, torch.arange(41)).to(torch.int32)
    return [starts, torch.randint(0, 30, (300,), dtype=torch.int32), torch.rand(300), torch.rand(30)]
def get_init_inputs():
    return []
"""
"""A product of a sparse matrix by its rows, which zeros in place of its inputs are not."""


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": torch_python()}}) as lab:
        yield lab


def as_new(text: str) -> CandidateSource:
    return CandidateSource(text.replace("class Model(", "class ModelNew("), "python", "model.py")


@needs_torch
async def test_inputs_weights_and_constants_are_found_out_and_a_copy_of_the_model_is_correct(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("linear.py", LINEAR))
    problem = await lab.store.problems.get(info.problem_id)

    assert [(t.name, t.shape, t.distribution) for t in problem.inputs] == [
        ("x", [16, 32], "uniform"),
        ("gemm_weight", [8, 32], "weights"),
        ("gemm_bias", [8], "weights"),
    ]
    assert (problem.constants, problem.state) == ({"1": 2.5}, ["gemm.weight", "gemm.bias"])
    assert (problem.rtol, problem.atol, problem.outputs[0].shape) == (1e-4, 1e-4, [16, 8])
    verdict = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(LINEAR), timing=UNTIMED)
    assert verdict.verdict == "correct", verdict.reason
    assert "2 alike by the common seed" in str(verdict.shapes[0].notes)


@needs_torch
async def test_inputs_that_depend_on_each_other_are_made_to_find_out_the_outputs(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("sparse.py", SPARSE))

    assert info.tensors.endswith("-> y float32 [40]")
    verdict = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(SPARSE), timing=UNTIMED)
    assert verdict.verdict == "correct", verdict.reason
    wrong = as_new(SPARSE.replace("values * x[columns.long()]", "values.roll(1) * x[columns.long()]"))
    assert (await lab.evaluation.evaluator.evaluate(info.problem_id, wrong, timing=UNTIMED)).verdict == "incorrect"


@needs_torch
async def test_a_file_that_seeds_and_draws_itself_gives_a_copy_of_its_model_the_same_arguments(lab: Lab):
    text = RELU.replace("import torch\n", "import torch\ntorch.manual_seed(0)\nfirst = torch.rand(3)\n", 1)
    text = text.replace("    def forward(self, x):\n        return torch.relu(x)", "    def __init__(self, w):\n"
        "        super().__init__()\n        self.w = w\n    def forward(self, x):\n        return x * self.w")  # fmt: skip
    text = text.replace("return []", "return [torch.randn(64)]")
    info = await lab.evaluation.registry.import_file(ProblemSource("seeded.py", text))
    verdict = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(text), timing=UNTIMED)

    assert verdict.verdict == "correct", verdict.reason


@needs_torch
async def test_bytes_of_a_problem_are_its_own_as_the_judge_would_draw_them_over_all_values(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("whole.py", WHOLE))
    drawn = [(t.dtype, t.distribution) for t in (await lab.store.problems.get(info.problem_id)).inputs]

    assert drawn == [("int8", "made"), ("uint8", "made"), ("int64", "integers"), ("int8", "zeros")]


@needs_torch
async def test_inputs_that_hang_together_or_were_written_to_are_the_problems_own(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("dependent.py", DEPENDENT))
    inputs = (await lab.store.problems.get(info.problem_id)).inputs

    assert [t.distribution for t in inputs] == ["made"] * 8 + ["uniform"]


@needs_torch
async def test_weights_are_taken_over_only_where_the_problem_wishes_it(lab: Lab):
    """A state that no seed can make again, as a trained one, needs the wish."""
    wish = ImportOverrides(copy_state=True)
    kept = await lab.evaluation.registry.import_file(ProblemSource("linear.py", LINEAR))
    info = await lab.evaluation.registry.import_file(ProblemSource("linear.py", LINEAR, wish=wish))
    other = LINEAR.replace("self.gemm = nn", "torch.rand(7); self.gemm = nn")
    wrong = await lab.evaluation.evaluator.evaluate(kept.problem_id, as_new(other), timing=UNTIMED)
    verdict = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(other), timing=UNTIMED)

    assert "a ModelNew is given the problem's weights" in info.conditions
    assert verdict.verdict == "correct", verdict.reason
    assert "2 taken over from the problem (gemm.weight, gemm.bias)" in str(verdict.shapes[0].notes)
    assert wrong.verdict == "incorrect"
    said = "ModelNew's weights gemm.weight, gemm.bias differ from the problem's after the common seed"
    assert said in wrong.reason, wrong.reason


@needs_torch
async def test_a_model_of_many_weights_and_with_bools_is_judged_with_the_weights_of_the_problem(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("deep.py", DEEP))
    problem = await lab.store.problems.get(info.problem_id)
    assert len(problem.state) == 120 and [t.dtype for t in problem.outputs] == ["float32", "bool"]
    assert (problem.inputs[1].dtype, problem.inputs[1].distribution) == ("bool", "made")
    assert len(info.launcher_c) < 500 and len(info.summary()) < 8000

    verdict = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(DEEP), timing=UNTIMED)
    assert verdict.verdict == "correct", verdict.reason
    assert "120 alike by the common seed" in str(verdict.shapes[0].notes)
    inverted = await lab.evaluation.evaluator.evaluate(
        info.problem_id, as_new(DEEP.replace("x > 0", "x >= 1e9")), timing=TimingOptions(tier="smoke")
    )
    assert inverted.verdict == "incorrect" and "y1" in inverted.reason, inverted.reason


@needs_torch
async def test_a_launcher_gets_the_weights_as_inputs(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("linear.py", LINEAR))
    right = """
#include <stdint.h>
int launch(const float *x, const float *w, const float *b, float *y) {
    for (int i = 0; i < 16; i++) for (int j = 0; j < 8; j++) {
        float sum = b[j];
        for (int k = 0; k < 32; k++) sum += x[i * 32 + k] * w[j * 32 + k];
        y[i * 8 + j] = sum * 2.5f;
    }
    return 0;
}
"""
    verdict = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(right, "c", "linear.c"), timing=UNTIMED
    )

    assert verdict.verdict == "correct", verdict.reason


IN_PLACE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, w):
        x.mul_(2.0)
        return x.add_(w).sin()
def get_inputs():
    return [torch.randn(32, 64), torch.randn(32, 64)]
def get_init_inputs():
    return []
"""


@needs_torch
async def test_a_problem_may_work_in_place_and_a_candidate_may_not(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("in_place.py", IN_PLACE))
    body = "x.mul_(2.0)\n        return x.add_(w).sin()"
    right = as_new(IN_PLACE.replace(body, "return torch.sin(x * 2.0 + w)"))
    correct = await lab.evaluation.evaluator.evaluate(info.problem_id, right, timing=UNTIMED)
    same = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(IN_PLACE), timing=UNTIMED)
    kept = await lab.store.experience.get(same.attempt_id)

    assert any("works on copies" in note for note in info.notes)
    assert correct.verdict == "correct", correct.reason
    assert same.verdict == "incorrect"
    said = "writes to input x (2048 of 2048 elements changed in a call): inputs are read-only, so work on a copy; "
    assert same.reason.startswith(said)
    assert "forward at model.py:5" in same.stack[1], same.stack
    assert kept.reason == same.reason


@needs_torch
async def test_what_only_the_problem_can_make_is_made_by_it_anew_for_each_round(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("masked.py", MASKED))
    right = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(MASKED), timing=UNTIMED)
    stale = MASKED.replace(
        "return (x * mask)[picks]", "self.m = getattr(self, 'm', mask.clone()); return (x * self.m)[picks]"
    )
    wrong = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(stale), timing=UNTIMED)

    assert any(n.startswith("made by the problem's own code") and n.endswith("mask, picks") for n in info.notes)
    assert (right.verdict, wrong.verdict) == ("correct", "incorrect"), (right.reason, wrong.reason)


@needs_torch
@pytest.mark.parametrize("how", [AS_IT_IS, OF_ITS_MEMORY, AS_OPERATOR, IN_A_BACKWARD_PASS])
async def test_a_model_that_works_by_addresses_is_described_by_a_real_call(lab: Lab, how: str):
    source = BY_ADDRESS.replace("HOW", how)
    info = await lab.evaluation.registry.import_file(ProblemSource("by_address.py", source))
    same = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(source), timing=UNTIMED)

    assert "shapes of the outputs come from a real call" in info.notes
    assert same.verdict == "correct", same.reason


@needs_torch
async def test_what_a_wrong_model_printed_stands_beside_its_verdict(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("masked.py", MASKED))
    wrong = MASKED.replace("return (x * mask)", "print('mask of', *mask.shape); return (x + mask)")
    evaluation = await lab.evaluation.evaluator.evaluate(info.problem_id, as_new(wrong), timing=UNTIMED)

    assert evaluation.verdict == "incorrect" and evaluation.printed.startswith("mask of 16 32")


@needs_torch
async def test_a_problem_that_a_copy_passes_is_refused_unless_its_inputs_are_drawn_otherwise(lab: Lab):
    with pytest.raises(ProblemRefused, match="copy of x passes") as refused:
        await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU))
    assert "with a wish: distribution normal; or accept_degenerate" in str(refused.value.hint)
    with pytest.raises(ProblemRefused, match="zeros passes"):
        await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU, wish=ImportOverrides(atol=2.0)))
    info = await lab.evaluation.registry.import_file(
        ProblemSource("relu.py", RELU, wish=ImportOverrides(distribution="normal"))
    )

    assert (await lab.store.problems.get(info.problem_id)).inputs[0].distribution == "normal"


@needs_torch
async def test_a_problem_with_a_constant_answer_is_refused_without_vain_advice_and_accepted_as_degenerate(lab: Lab):
    with pytest.raises(ProblemRefused, match="zeros passes as y: each of its elements is 0") as refused:
        await lab.evaluation.registry.import_file(ProblemSource("own_mean.py", OWN_MEAN))
    assert refused.value.degenerate and "atol" not in refused.value.hint and "distribution" not in refused.value.hint
    assert "accept_degenerate" in refused.value.hint

    wish = ImportOverrides(accept_degenerate=True)
    info = await lab.evaluation.registry.import_file(ProblemSource("own_mean.py", OWN_MEAN, wish=wish))
    assert "degenerate problem: the answer is constant" in info.summary()
    same = OWN_MEAN.replace("class Model(", "class ModelNew(")
    evaluation = await lab.evaluation.evaluator.evaluate(
        info.problem_id, CandidateSource(same, "python", "m.py"), device="cpu", timing=UNTIMED
    )
    first = evaluation.summary().partition("\n")[0]
    assert first.startswith("verdict: correct") and "(degenerate problem: the answer is constant)" in first


@needs_torch
async def test_a_sound_problem_is_the_same_whatever_would_have_been_accepted(lab: Lab):
    wish = ImportOverrides(accept_degenerate=True)
    plain = await lab.evaluation.registry.import_file(ProblemSource("linear.py", LINEAR))
    accepted = await lab.evaluation.registry.import_file(ProblemSource("linear.py", LINEAR, wish=wish))
    assert accepted.problem_id == plain.problem_id


@needs_torch
@pytest.mark.parametrize(
    ("wish", "rtol", "atol"),
    [
        (ImportOverrides(), 1e-4, 1e-4),
        (ImportOverrides(tolerance="by type"), 1e-4, 1e-4),
        (ImportOverrides(tolerance="first release"), 1e-2, 1e-2),
        (ImportOverrides(tolerance="first release", atol=1e-3), 1e-2, 1e-3),
    ],
)
async def test_kernelbench_tolerances_are_those_of_the_version_that_is_wished_for(
    lab: Lab, wish: ImportOverrides, rtol: float, atol: float
):
    info = await lab.evaluation.registry.import_file(ProblemSource("linear.py", LINEAR, wish=wish))

    assert (info.rtol, info.atol) == (rtol, atol)


@needs_torch
@pytest.mark.timeout(600)
async def test_complex_short_scalar_shared_and_strided_tensors_are_those_of_the_file(lab: Lab):
    info = await lab.evaluation.registry.import_file(ProblemSource("mixed.py", MIXED))
    seen = ("x float32 [6, 8] strides (1, 6)", "turns complex64 [6, 4]", "table int16 [7]", "gain float32 []")
    assert all(each in info.tensors for each in (*seen, "in left's memory")), info.tensors
    for change, (verdict, words) in {
        ("model", "model"): ("correct", ""),
        ("pairs * turns", "pairs * turns.conj()"): ("incorrect", "elements are wrong"),
        ("right[0]", "right[1]"): ("incorrect", "elements are wrong"),
        ("return y, y.mean()", "return {0: y, 1: y.mean()}"): ("incorrect", "returned one dict, the problem has 2"),
    }.items():
        found = await lab.evaluation.evaluator.evaluate(
            info.problem_id,
            as_new(MIXED.replace(*change)),
            device="cpu",
            timing=TimingOptions(tier="smoke"),
            wait_s=550.0,
        )
        assert found.verdict == verdict and words in found.reason, (change, found.reason)


@needs_torch
async def test_a_large_problem_is_described_without_its_data_and_refused_where_it_does_not_fit(lab: Lab):
    with pytest.raises(ProblemRefused, match=r"too large: its tensors take 12\.9 GB, the limit on cpu is 1\.1 GB"):
        await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU.replace("64, 64", "4096, 393216")))


@needs_torch
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("torch.relu(x)", "torch.fft.fft(x)"),
            "y is complex64, which the judge does not compare: return torch.view_as_real",
        ),
        (("torch.relu(x)", "x.nope()"), "no attribute 'nope'"),
        (("[torch.rand(64, 64)]", "{'x': torch.rand(64, 64)}"), "get_inputs returned a dict: return a list of what"),
        (("[torch.rand(64, 64)]", "torch.rand(64, 64)"), "get_inputs returned a Tensor: return a list of what forward"),
        (("torch.rand(64, 64)", "open('/nothing')"), "No such file"),
        (
            ("torch.rand(64, 64)", "torch.rand(64, 64, dtype=torch.complex128)"),
            "x is complex128, which the judge does not know: pass torch.view_as_real of it",
        ),
        (
            ("torch.rand(64, 64)", "torch.rand(0, 64)"),
            "returns: EmptyTensor: x has no element, and nothing of an empty",
        ),
        (("torch.rand(64, 64)", "torch.rand(64, 64), float('inf')"), "an input is the constant inf; write it into"),
        (("torch.rand(64, 64)", "torch.rand(64, 64), '\\ud800'"), "an input is a text that is no UTF-8"),
        (("torch.rand(64, 64)", "[torch.rand(64)]"), "an input is a list; .* forward each tensor by itself"),
        (("return torch.relu(x)", "x.relu_()"), "also what it writes in place"),
    ],
)
async def test_a_file_that_cannot_be_judged_is_refused_with_the_reason(lab: Lab, change: tuple[str, str], words: str):
    with pytest.raises(ProblemRefused, match=words):
        await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU.replace(*change)))


async def test_a_file_without_get_init_inputs_is_no_problem():
    with pytest.raises(
        BadRequest, match=r"does not define get_init_inputs.*get_init_inputs\(\) with that of its constructor"
    ):
        await read_problem(ProblemSource("relu.py", RELU.replace("get_init_inputs", "other")))
