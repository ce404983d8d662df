"""torch.compile of a problem's reference as the second baseline, on the CPU by a Python that has torch."""

import asyncio
from typing import Any

import pytest

from gpu_mcp_server.models.evaluation import (
    Baseline,
    ClockTimes,
    Evaluation,
    ShapeVerdict,
    Timing,
    TimingOptions,
    Verdict,
)
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.baselines import (
    KEY,
    LATER,
    PURPOSE,
    UNKNOWN,
    compiled_source,
    speedups_of_one_basis,
    with_baseline,
)
from gpu_mcp_server.services.evaluation.judge_results import ON_PROCESSOR, kept_intervals, without_baseline
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.judge.harness import torch_python
from tests.laboratory import laboratory

TIME = Timing(median_us=10, low_us=9, high_us=11, rounds=7, calls_per_round=1)
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


@pytest.mark.timeout(400)
@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
async def test_torch_compile_is_measured_behind_the_answer_and_stands_in_the_next_reading():
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": torch_python()}}) as lab:
        priorities = noted_priorities(lab)
        baselines, evaluator = lab.evaluation.baselines, lab.evaluation.evaluator
        problem = await lab.evaluation.registry.import_file(ProblemSource("wave.py", MODEL))
        source = CandidateSource(MODEL.replace("class Model(", "class ModelNew("), "python", "model.py")
        found = await evaluator.evaluate(problem.problem_id, source, timing=TimingOptions(half_width=0.3))
        assert found.verdict == "correct", found.reason
        if found.speedup is None:
            pytest.skip("the machine is too busy: no time was given")
        assert found.compiled_speedup is None and found.baseline == LATER
        (running,) = baselines._running.values()
        assert "being measured" in (await told(lab, found.attempt_id))

        while not priorities:
            await asyncio.sleep(0.01)
        baselines.give_way("elsewhere")
        assert not running.task.cancelling(), "another host is no reason"
        baselines.give_way("local")
        with pytest.raises(asyncio.CancelledError):
            await running.task
        assert UNKNOWN in (await told(lab, found.attempt_id)) and not baselines._running

        asked = TimingOptions(half_width=0.3, baseline="compiled")
        again = await evaluator.evaluate(problem.problem_id, source, timing=asked, reuse=True)
        assert again.kept and again.attempt_id == found.attempt_id, "nothing is judged again for a baseline"
        if "too fast to time" in (again.baseline or ""):
            pytest.skip("the machine is too busy: no time was given")
        assert again.baseline and again.baseline.startswith("torch.compile, measured once"), again.baseline
        shape = again.shapes[0]
        assert shape.compiled and shape.compiled_speedup  # the mean over one shape is a power of e, so nearly the same
        assert again.compiled_speedup == pytest.approx(shape.compiled_speedup, rel=1e-12)
        assert (await told(lab, found.attempt_id)).startswith("speed-up against it")
        info = (await lab.evaluation.registry.problems(problem.problem_id)).problems[0]
        assert "torch.compile: speed-up against it" in (info.best or "")
        assert list(dict.fromkeys(priorities)) == ["background", "interactive"], "a call waited for the second"


def noted_priorities(lab: Lab) -> list[str]:
    """Return a list to which each baseline's job that is submitted adds its priority."""
    found: list[str] = []
    calling = lab.hosts.call

    async def call(name: str, verb: str, *attachment: bytes, **arguments: Any) -> Any:
        if verb == "submit" and arguments["spec"]["purpose"] == PURPOSE:
            found.append(arguments["spec"]["gpus"]["priority"])
        return await calling(name, verb, *attachment, **arguments)

    lab.hosts.call = call
    return found


async def told(lab: Lab, attempt_id: str) -> str:
    """Return what a reading of an attempt says of torch.compile."""
    attempt = await lab.evaluation.baselines.attempt_with_compiled(await lab.store.experience.get(attempt_id))
    assert attempt.evidence and KEY not in attempt.evidence
    return str(attempt.evidence["torch_compile"])


def timed(baseline: str, verdict: Verdict = "correct") -> Evaluation:
    shapes = [
        ShapeVerdict(dims={"n": n}, verdict="correct", candidate=TIME, speedup=6, speedup_low=5, speedup_high=7)
        for n in (1, 2)
    ]
    return Evaluation(
        status="judged", verdict=verdict, attempt_id="a", problem_id="p", problem_hash="h", language="python",
        host="local", speedup=6, shapes=shapes, tier="performance", evidence={"baseline": baseline},
    )  # fmt: skip


def test_a_numpy_reference_is_no_baseline_for_a_gpu():
    bare = without_baseline(timed(ON_PROCESSOR))

    assert (bare.speedup, bare.time_us, bare.speedup_range()) == (None, pytest.approx(10), None)
    assert "no GPU baseline" in bare.summary() and "give a torch reference" in bare.summary()
    assert "speed-up" not in bare.summary() and "time of a call: 10.0 µs" in bare.summary()
    other = timed("reference on the same GPU")
    assert without_baseline(other) is other
    gated = timed(ON_PROCESSOR).model_copy(update={"speedup": None})  # gates time the candidate alone
    assert without_baseline(gated).time_us == pytest.approx(10)
    shapes = [gated.shapes[0], gated.shapes[1].model_copy(update={"candidate": None})]
    assert without_baseline(gated.model_copy(update={"shapes": shapes})).time_us is None


def test_an_attempt_keeps_the_intervals_of_what_its_row_says_and_none_that_was_not_measured():
    assert kept_intervals(timed("reference on the same GPU")) == {
        "speedup_range": [pytest.approx(5), pytest.approx(7)], "median_range_us": [TIME.low_us, TIME.high_us],
        "timed_at": "n=2",
    }  # fmt: skip
    mean = kept_intervals(without_baseline(timed(ON_PROCESSOR)))
    assert mean == {"time_range_us": [pytest.approx(TIME.low_us), pytest.approx(TIME.high_us)]}, "of all shapes"
    assert kept_intervals(timed("x").model_copy(update={"shapes": []})) == {}


async def test_where_there_is_no_baseline_the_shortest_time_ranks(own_lab: Lab):
    experience = own_lab.store.experience
    x = TensorSpec(name="x", dtype="float32", shape=["n"])
    problem = await own_lab.evaluation.registry.register(
        name="same", inputs=[x], outputs=[x.model_copy(update={"name": "y"})], shapes=[{"n": 64}], rtol=1e-5,
        atol=1e-6, reference="import numpy as np\ndef reference(x):\n    return 2 * x + 1\n",
    )  # fmt: skip
    for median_us, evidence in ((30.0, {"ranked_by": "time"}), (10.0, {"ranked_by": "time"}), (1.0, {})):
        attempt = await experience.start("evaluate", problem_id=problem.problem_id, device="a GPU")
        await experience.finish(attempt, status="judged", verdict="correct", median_us=median_us, evidence=evidence)
    best = await experience.list("best", problem_id=problem.problem_id)

    assert [(attempt.median_us, attempt.rank) for attempt in best.attempts] == [(10.0, 1), (30.0, 2), (1.0, None)]
    assert "10.0 µs on a GPU" in (
        (await own_lab.evaluation.registry.problems(problem.problem_id)).problems[0].best or ""
    )
    history = await experience.history(problem.problem_id)
    assert "with 1 us" not in history.summary()


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
    evaluation = timed("reference on the same GPU")
    known = ShapeVerdict(dims={"n": 1}, verdict="correct", candidate=TIME, speedup=3)

    one = with_baseline(evaluation, Baseline(shapes=[known]))
    assert (one.compiled_speedup, one.shapes[0].compiled_speedup, one.shapes[1].compiled_speedup) == (None, 2, None)
    both = with_baseline(evaluation, Baseline(shapes=[known, known.model_copy(update={"dims": {"n": 2}})]))
    assert both.compiled_speedup == pytest.approx(2) and "against torch.compile: 2" in both.summary()
    none = with_baseline(evaluation, Baseline(why_not="it raised"))
    assert none.baseline == "no torch.compile baseline: it raised" and none.compiled_speedup is None


def test_times_on_the_gpu_alone_are_not_compared_with_those_of_a_loop():
    """torch.compile's calls may wait for the GPU, so that they are timed in a loop while the candidate's are not."""
    timing = Timing(median_us=10, low_us=9, high_us=11, rounds=7, calls_per_round=40)
    loop = ClockTimes(candidate=timing, reference=timing, speedup=2.0, speedup_low=1.9, speedup_high=2.1)
    compiled = ShapeVerdict(dims={"n": 1}, verdict="correct", candidate=timing, speedup=4.0)
    alone = compiled.model_copy(update={"basis": "device", "speedup": 6.0, "in_loop": loop})

    assert speedups_of_one_basis(alone, compiled) == (2.0, 4.0)
    assert speedups_of_one_basis(alone, alone) == (6.0, 6.0)
    assert speedups_of_one_basis(alone.model_copy(update={"in_loop": None}), compiled) == (None, None)
