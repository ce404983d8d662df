"""The whole path on a real GPU: leases, compile, run, verdicts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory

pytestmark = pytest.mark.gpu
EXAMPLES = Path("examples/softmax")
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}
SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 2048, "cols": 2049}]


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        if not (await lab.hosts.probe("local")).gpus:
            pytest.skip("no CUDA device")
        yield lab


async def registered(lab: Lab) -> str:
    judge = (await lab.hosts.probe("local")).judge
    framework = "torch" if judge and judge.torch else "numpy"
    reference = EXAMPLES / ("reference_torch.py" if framework == "torch" else "reference.py")
    info = await lab.evaluation.registry.register(
        name="softmax", reference=reference.read_text(encoding="utf-8"), framework=framework, entry="softmax", shapes=SHAPES,
        inputs=[TensorSpec(name="x", **TENSOR)], outputs=[TensorSpec(name="y", **TENSOR)], rtol=1e-4, atol=1e-6,
    )  # fmt: skip
    return info.problem_id


def candidate(name: str) -> CandidateSource:
    return CandidateSource((EXAMPLES / name).read_text(encoding="utf-8"), "cuda", name)


async def test_candidates_get_their_verdicts_on_the_gpu_with_resources_and_evidence(lab: Lab):
    problem_id = await registered(lab)
    wanted = {
        "vectorized": "correct",
        "wrong_tail": "incorrect",
        "cached_answer": "cheat",
        "late_answer": "cheat",
        "no_answer": "cheat",
    }
    for name, verdict in wanted.items():
        found = await lab.evaluation.evaluator.evaluate(problem_id, candidate(f"{name}.cu"))
        assert found.verdict == verdict, f"{name}: {found.reason}"
        assert name == "no_answer" or found.resources[0].registers_per_thread > 0
    best = await lab.store.experience.list("best", problem_id=problem_id)
    assert [a.verdict for a in best.attempts] == ["correct"]
    evidence = json.loads(
        await lab.store.artifacts.read(
            (await lab.store.experience.get(best.attempts[0].attempt_id)).evidence["verdict_artifact"]
        )
    )["evidence"]  # type: ignore[index]
    assert evidence["memory"] and evidence["seed_commitment"]


async def test_a_candidate_that_writes_its_inputs_is_stopped_and_the_next_one_is_judged(lab: Lab):
    problem_id = await registered(lab)
    text = """#include <stdint.h>
__global__ void spoil(float *x) { x[threadIdx.x] = 0.f; }
extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
    spoil<<<1, 32, 0, stream>>>((float *)x);
    return cudaStreamSynchronize(stream);
}"""
    found = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(text, "cuda", "spoil.cu"))
    assert found.verdict in ("incorrect", "cheat"), found.reason
    again = await lab.evaluation.evaluator.evaluate(problem_id, candidate("vectorized.cu"))
    assert again.verdict == "correct", again.reason


async def test_a_speed_up_counts_what_the_reference_took_before(lab: Lab):
    judge = (await lab.hosts.probe("local")).judge
    if not (judge and judge.torch):
        pytest.skip("a NumPy reference computes on the processor")
    problem_id, text = await registered(lab), candidate("vectorized.cu").text
    honest = [
        await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(f"{text}// {number}", "cuda", "v.cu"))
        for number in range(5)
    ]
    assert [shape.reference_before_us for each in honest for shape in each.shapes] == [None] * 10
    assert [each.trust for each in honest].count("provisional") >= 3, [each.trust for each in honest]

    await lab.store.db.execute("UPDATE reference_times SET median_us = median_us / 2")
    found = await lab.evaluation.evaluator.evaluate(problem_id, CandidateSource(f"{text}// slow", "cuda", "v.cu"))
    for shape in found.shapes:
        assert shape.reference and shape.candidate and shape.reference_before_us
        assert shape.speedup == pytest.approx(shape.reference_before_us / shape.candidate.median_us)
        assert any("earlier evaluations" in note for note in shape.notes)


async def test_a_job_sees_the_gpus_that_it_leased_and_no_others(lab: Lab):
    count = len((await lab.hosts.probe("local")).gpus)
    one = await lab.commands.run(["nvidia-smi", "-L"], gpus=1)
    assert one.status == "ok" and one.stdout.count("GPU ") == 1, one.summary()
    none = await lab.commands.run(["nvidia-smi", "-L"])
    assert none.status == "failed" or "GPU " not in none.stdout
    if count > 1:
        both = await lab.commands.run(["nvidia-smi", "-L"], gpus=2)
        assert both.stdout.count("GPU ") == 2


async def test_an_exclusive_job_is_shown_as_holder_and_the_next_waits_for_it(lab: Lab):
    count = len((await lab.hosts.probe("local")).gpus)
    first = await lab.commands.run(["sleep", "600"], gpus=count, wait_s=0.0, timeout_s=700)
    while not all(g.locked_by for g in (await lab.status.gpus.status()).hosts[0].gpus):
        await asyncio.sleep(0)
    assert first.job_id in ((await lab.status.gpus.status()).hosts[0].gpus[0].locked_by or "")
    second = asyncio.create_task(lab.commands.run(["nvidia-smi", "-L"], gpus=1))
    await asyncio.sleep(0)
    await lab.commands.cancel(first.job_id)
    assert (await second).status == "ok"
    assert not (await lab.status.gpus.status()).hosts[0].gpus[0].locked_by


async def test_cuda_compiles_for_the_gpu_that_is_there_unless_told_otherwise(lab: Lab):
    result = await lab.builds.compiler.compile(candidate("naive.cu"))
    there = (await lab.status.gpus.status()).hosts[0].gpus[0].arch
    assert result.arch == (f"{there}a" if there.startswith(("sm_9", "sm_1")) else there)  # all that this device can do
