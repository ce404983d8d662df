"""HIP candidates: compiled for real; without an AMD device nothing is judged, and the result says so."""

import shutil

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from tests.laboratory import PROBLEM, laboratory

HIP = """
#include <cstdint>
#include <hip/hip_runtime.h>

__global__ void wave(const float *x, float *y, int64_t n) {
    int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) y[i] = 2 * tanhf(x[i]) + 1;
}

extern "C" int launch(const float *x, float *y, int64_t n, hipStream_t stream) {
    wave<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
    return hipGetLastError();
}
"""


@pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc is not installed (make system)")
async def test_a_hip_candidate_is_compiled_and_told_that_there_is_no_device():
    async with laboratory() as lab:
        given = {key: value for key, value in PROBLEM.items() if key not in ("inputs", "outputs")}
        tensors = {side: [TensorSpec.model_validate(spec) for spec in PROBLEM[side]] for side in ("inputs", "outputs")}
        problem = await lab.evaluation.registry.register(**given, **tensors)
        found = await lab.evaluation.evaluator.evaluate(problem.problem_id, CandidateSource(HIP, "hip", "wave.hip"))

        assert (found.status, found.reason, found.verdict) == ("refused", "no AMD device on host 'local'", None)
        assert found.note and found.note.startswith("it compiles for gfx90a and was not judged")
        assert (
            "compile_kernel" in found.note
            and not found.attempt_id
            and "attempt " not in found.summary().partition("note")[0]
        )
        assert not (await lab.store.experience.list("recent", problem_id=problem.problem_id)).attempts
        broken = await lab.evaluation.evaluator.evaluate(
            problem.problem_id, CandidateSource(HIP.replace("y[i] =", "z[i] ="), "hip", "wave.hip")
        )
        assert broken.status == "compile_failed" and "'z'" in broken.reason, broken.reason
        with pytest.raises(BadRequest, match="AMD device"):
            await lab.evaluation.evaluator.evaluate(
                problem.problem_id, CandidateSource(HIP, "hip", "wave.hip"), device="cuda"
            )
