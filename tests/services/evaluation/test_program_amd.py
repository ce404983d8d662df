"""Program problems on AMD's GPUs: judged from outside as processes, each with the job's GPU and no other."""

import shutil
from dataclasses import replace

import pytest

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.models.evaluation import Evaluation, Tier, TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.amd_laboratory import NAME, amd_laboratory, can_pretend
from tests.judge.program_harness import PROGRAM
from tests.laboratory import laboratory
from tests.services.problems.formats.test_program_formats import TOML

pytestmark = [
    pytest.mark.anyio,
    *can_pretend,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]
NEEDS_ITS_GPU = PROGRAM.replace("<math.h>", "<math.h>\n#include <unistd.h>", 1).replace(
    "int n =",
    'const char *seen = getenv("ROCR_VISIBLE_DEVICES");'
    ' if (!seen || access("/dev/kfd", F_OK) || access("/dev/dri/renderD246", F_OK)) return 9;'
    ' if (!access("/dev/dri/renderD247", F_OK) || getenv("CUDA_VISIBLE_DEVICES")) return 10; int n =',
    1,
)


async def registered(lab: Lab, folder) -> str:
    (folder / "program.toml").write_text(TOML + 'device = "hip"\n')
    (folder / "app.c").write_text(NEEDS_ITS_GPU)
    source = ProblemSource("program.toml", (folder / "program.toml").read_text())
    return (await lab.evaluation.registry.import_file(replace(source, folder=folder))).problem_id


async def judged(lab: Lab, problem_id: str, text: str, tier: Tier = "performance") -> Evaluation:
    source = CandidateSource(text, "program", "app.c")
    return await lab.evaluation.evaluator.evaluate(problem_id, source, timing=TimingOptions(tier=tier))


async def test_a_program_is_judged_and_timed_on_an_amd_gpu(tmp_path):
    async with amd_laboratory() as lab:
        problem_id = await registered(lab, tmp_path)
        good = await judged(lab, problem_id, NEEDS_ITS_GPU + "// anew\n")
        assert (good.verdict, good.tier) == ("correct", "performance"), good.summary()
        assert good.speedup and good.shapes[0].candidate
        attempt = await lab.store.experience.get(good.attempt_id)
        assert (attempt.device, attempt.target) == (NAME, "hip")
        wrong = await judged(lab, problem_id, NEEDS_ITS_GPU.replace("sinf(", "cosf("), "correctness")
        assert wrong.verdict == "incorrect", wrong.summary()


async def test_a_host_without_an_amd_gpu_says_so(tmp_path):
    async with laboratory() as lab:
        with pytest.raises(ToolMissing, match="An AMD device is not installed on host 'local'"):
            await registered(lab, tmp_path)
