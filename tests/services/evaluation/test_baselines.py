"""torch.compile of a problem's reference as the second baseline, on the CPU by a Python that has torch."""

import pytest

from gpu_mcp_server.models.evaluation import Baseline, Evaluation, ShapeVerdict, Timing, TimingOptions
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.baselines import compiled_source, with_baseline
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.judge.harness import torch_python
from tests.laboratory import laboratory

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(wide))

    def forward(self, x):
        return torch.tanh(x * self.scale) * 2 + torch.sin(x)

def get_inputs():
    return [torch.randn(1024, 4096)]

def get_init_inputs():
    return [4096]
"""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
async def test_torch_compile_is_measured_once_by_the_same_judge_and_stands_beside_eager():
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": torch_python()}}) as lab:
        problem = await lab.evaluation.registry.import_file(ProblemSource("wave.py", MODEL))
        source = CandidateSource(MODEL.replace("class Model(", "class ModelNew("), "python", "model.py")
        timing = TimingOptions(half_width=0.3)
        found = await lab.evaluation.evaluator.evaluate(problem.problem_id, source, timing=timing)

        assert found.verdict == "correct", found.reason
        if found.speedup is None or "too short to time" in (found.baseline or ""):
            pytest.skip("the machine is too busy: no time was given")
        assert found.baseline and found.baseline.startswith("torch.compile, measured once"), found.baseline
        shape = found.shapes[0]
        assert shape.compiled and shape.compiled_speedup and shape.speedup
        assert found.compiled_speedup == pytest.approx(shape.compiled_speedup)
        jobs = await lab.commands.recent()
        bare = found.model_copy(update={"baseline": None, "compiled_speedup": None})
        probe = await lab.jobs.runner.probe("local")
        whole = await lab.store.problems.get(problem.problem_id)
        again = await lab.evaluation.baselines.add_baseline(bare, whole, probe, "cpu", wait_s=0)
        assert again.compiled_speedup == found.compiled_speedup
        assert len(await lab.commands.recent()) == len(jobs)


def test_a_function_is_compiled_as_it_stands_and_a_model_with_its_weights_names():
    tensor = TensorSpec(name="x", dtype="float32", shape=["n"])
    problem = Problem(
        problem_id="p-1", content_hash="1", name="p", framework="torch", entry="twice", inputs=[tensor],
        outputs=[tensor], shapes=[{"n": 2}], rtol=0, atol=0, reference="def twice(x):\n    return 2 * x\n",
    )  # fmt: skip

    compile(compiled_source(problem), "candidate.py", "exec")
    assert "_torch.compile(twice, dynamic=False)" in compiled_source(problem)
    module = problem.model_copy(update={"kind": "module", "reference": MODEL})
    assert "class ModelNew(Model):" in compiled_source(module)


def test_without_a_time_at_every_shape_there_is_no_overall_speedup_and_a_failure_is_said():
    time = Timing(median_us=10, low_us=9, high_us=11, rounds=7, calls_per_round=1)
    shapes = [
        ShapeVerdict(dims={"n": n}, verdict="correct", candidate=time, speedup=6, speedup_low=5, speedup_high=7)
        for n in (1, 2)
    ]
    evaluation = Evaluation(
        status="judged", verdict="correct", attempt_id="a", problem_id="p", problem_hash="h", language="python",
        host="local", speedup=6, shapes=shapes,
    )  # fmt: skip
    known = ShapeVerdict(dims={"n": 1}, verdict="correct", candidate=time, speedup=3)

    one = with_baseline(evaluation, Baseline(shapes=[known]))
    assert (one.compiled_speedup, one.shapes[0].compiled_speedup, one.shapes[1].compiled_speedup) == (None, 2, None)
    both = with_baseline(evaluation, Baseline(shapes=[known, known.model_copy(update={"dims": {"n": 2}})]))
    assert both.compiled_speedup == pytest.approx(2) and "against torch.compile: 2" in both.summary()
    none = with_baseline(evaluation, Baseline(why_not="it raised"))
    assert none.baseline == "none of torch.compile: it raised" and none.compiled_speedup is None
