"""Problems of a program's own calls: captured with the real torch on a processor, judged; programs that go wrong."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.models.program_speed import CaptureOptions, CaptureReport
from gpu_mcp_server.package_files import content_path
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.programs.problem_capture import kind_of
from tests.judge.harness import torch_python
from tests.laboratory import laboratory

PYTHON = torch_python() or ""
pytestmark = pytest.mark.timeout(1500)  # a busy machine; an import of torch in a sandbox may take half a minute there
needs_torch = pytest.mark.skipif(not PYTHON, reason="no Python with torch: set TEST_TORCH_PYTHON")
PROGRAMS = content_path("examples/programs")
GPT = (PROGRAMS / "gpt_step.py").read_text()
IMAGES = (PROGRAMS / "image_model.py").read_text()


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        yield lab


async def capture(lab: Lab, text: str, target: str, *arguments: str, **options: Any) -> CaptureReport:
    workspace = (await lab.store.workspaces.write(None, {"program.py": text})).workspace_id
    command = [PYTHON, "program.py", *arguments]
    return await lab.programs.capture.capture(command, target, workspace, options=CaptureOptions(**options))


NORM = """
#include <math.h>
#include <stdint.h>
int launch(const float *x, const float *gain, const float *offset, float *y, int64_t rows) {
    for (int64_t n = 0; n < 4; n++) {
        for (int64_t p = 0; p < rows * 8; p++) {
            const float *from = x + n * 32 * rows * 8 + p;
            float *to = y + n * 32 * rows * 8 + p;
            float mean = 0, spread = 0;
            for (int c = 0; c < 32; c++) mean += from[c * rows * 8];
            mean /= 32;
            for (int c = 0; c < 32; c++) spread += (from[c * rows * 8] - mean) * (from[c * rows * 8] - mean);
            float scale = 1 / sqrtf(spread / 32 + 1e-6f);
            for (int c = 0; c < 32; c++) to[c * rows * 8] = (from[c * rows * 8] - mean) * scale * gain[c] + offset[c];
        }
    }
    return 0;
}
"""
EMBEDDING = """
#include <stdint.h>
#include <string.h>
int launch(const float *weight, const int64_t *indices, float *y) {
    for (int row = 0; row < 8; row++)
        for (int at = 0; at < 4; at++) memcpy(y + (row * 4 + at) * 8, weight + indices[row * 5 + at] * 8, 32);
    return 0;
}
"""


async def judge(lab: Lab, problem_id: str, text: str) -> Evaluation:
    source = CandidateSource(text, "c", NAMES["c"])
    return await lab.evaluation.evaluator.evaluate(problem_id, source, wait_s=1200)


@needs_torch
async def test_a_module_s_calls_are_a_problem_that_weighs_them_and_is_judged_by_its_own_code(lab: Lab):
    text = IMAGES.replace("size, size", "size + 16 * (_ == 2), size")
    found = await capture(lab, text, "Sequential.*.norm", "3", "16")
    assert found.status == "ok" and found.problem and not found.replayable, found.summary()
    assert [s.calls for s in found.sets] == [6, 3]
    assert found.sets[0].inputs == ["x float32[4, 32, 8, 8]"] and found.sets[1].inputs == ["x float32[4, 32, 16, 8]"]
    problem = await lab.store.problems.get(found.problem.problem_id)
    assert problem.reference.splitlines()[2] == "from program_main import ChannelNorm as call"
    assert "class ChannelNorm(nn.Module)" in problem.files["program_main.py"]
    assert "main(*map" not in problem.files["program_main.py"], "what the script does when it runs is left out"
    assert [t.name for t in problem.inputs] == ["x", "gain", "offset"] and problem.state == ["gain", "offset"]
    verdict = await judge(lab, problem.problem_id, NORM)
    assert verdict.verdict == "correct", verdict.summary()
    assert [s.calls for s in verdict.shapes] == [6, 3]
    times = [(s.calls or 0) * s.reference.median_us for s in verdict.shapes if s.reference]
    whole = sum(times) / sum(t / (s.speedup or 0) for t, s in zip(times, verdict.shapes, strict=True))
    assert verdict.speedup == pytest.approx(whole)
    wrong = await judge(lab, problem.problem_id, NORM.replace("+ offset[c]", ""))
    assert wrong.verdict == "incorrect", "an offset that is zero in the program is not zero for the judge"


@needs_torch
async def test_indices_cannot_be_varied_so_times_are_never_confirmed(lab: Lab):
    found = await capture(lab, GPT, "aten::embedding", "1", "8", "4")
    assert found.replayable == ["indices"] and found.problem and "never confirmed" in found.summary()
    verdict = await judge(lab, found.problem.problem_id, EMBEDDING)
    assert verdict.verdict == "correct" and verdict.trust.startswith("unconfirmable: recorded inputs"), (
        verdict.summary()
    )


@needs_torch
async def test_calls_that_make_no_problem_are_explained(lab: Lab):
    never = await capture(lab, GPT, "aten::addm", "1", "8", "4")
    assert never.status == "nothing" and "never ran aten::addm; it ran aten::addmm" in never.summary()
    text = (
        "import torch\nx = torch.zeros(300_000, dtype=torch.int64)\nx.sum()\nx[:3].sum()\nraise SystemError('plums')\n"
    )
    ended = await capture(lab, text, "aten::sum")
    assert ended.status in ("ok", "refused") and [s.calls for s in ended.sets] == [1]
    assert "int64[300000] has 2400000 bytes" in ended.summary() and "plums" in ended.summary()
    writes = await capture(lab, "import torch\nx = torch.ones(3)\nx.add_(1)\n", "aten::add_")
    assert writes.status == "nothing" and "writes to its inputs" in writes.summary()


def test_targets_are_told_apart():
    kinds = [kind_of(t) for t in ("aten::mm", "aten.mm.default", "a.b:c", "__main__:f", "Net.blocks.*.fc1", "GPT")]
    assert kinds == ["operator", "operator", "function", "function", "module", "module"]
    for wrong in ("", "a b", "x::y::z", "a:b:c", "../x", "Net..fc"):
        with pytest.raises(BadRequest):
            kind_of(wrong)
