"""Problems of a program's own calls: captured with the real torch on a processor, judged; programs that go wrong."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, ProblemRefused
from gpu_mcp_server.judge.numerics.stats import weighted_speedup
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict, Timing, TimingOptions, overall_speedup
from gpu_mcp_server.models.program_speed import CaptureOptions, CaptureReport
from gpu_mcp_server.package_files import JUDGE, content_path
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.evaluation.judge_results import with_replay_doubt
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.programs.problem_capture import SAME_INPUTS, UNSTEADY, kind_of, refusal_notes
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


async def judge(lab: Lab, problem_id: str, text: str) -> Evaluation:
    source = CandidateSource(text, "c", NAMES["c"])
    return await lab.evaluation.evaluator.evaluate(
        problem_id, source, timing=TimingOptions(tier="correctness"), wait_s=1200
    )


@needs_torch
async def test_a_module_s_calls_are_a_problem_that_is_judged_by_the_program_s_own_code(lab: Lab):
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
    assert [case["recorded"]["calls"] for case in problem.cases] == [6, 3]
    verdict = await judge(lab, problem.problem_id, NORM)
    assert verdict.verdict == "correct", verdict.summary()
    wrong = await judge(lab, problem.problem_id, NORM.replace("+ offset[c]", ""))
    assert wrong.verdict == "incorrect", "an offset that is zero in the program is not zero for the judge"


@needs_torch
async def test_a_script_is_read_only_where_what_is_captured_is_defined_in_it(lab: Lab):
    part = "import torch\n\n\nclass Half(torch.nn.Module):\n    def forward(self, x):\n        return x / 2\n"
    script = (
        "import torch, part\ndevice = 'cpu'\n\n\ndef moved(x):\n    return 2 * x.to(device) + 1\n\n\n"
        "if device:\n    device = 'cpu'\nmodel = torch.nn.Sequential(part.Half())\nmodel(moved(torch.ones(2, 3)))\n"
    )
    workspace = (await lab.store.workspaces.write(None, {"program.py": script, "part.py": part})).workspace_id
    command = [PYTHON, "program.py"]
    found = await lab.programs.capture.capture(command, "Sequential.*", workspace)
    assert found.problem, found.summary()
    assert set((await lab.store.problems.get(found.problem.problem_id)).files) > {"part.py"}
    refused = await lab.programs.capture.capture(command, "__main__:moved", workspace)
    assert "Line 9 of the script changes device" in refused.summary()


@needs_torch
async def test_indices_cannot_be_varied_so_times_are_never_confirmed(lab: Lab):
    found = await capture(lab, GPT, "aten::embedding", "1", "8", "4")
    assert found.replayable == ["indices"] and found.problem and "never confirmed" in found.summary()
    problem = await lab.store.problems.get(found.problem.problem_id)
    shape = ShapeVerdict(dims={"case": 1}, verdict="correct", speedup=2.0)
    assert with_replay_doubt(problem, [shape])[0].unconfirmable.startswith("recorded inputs that cannot be varied (ind")
    varied = problem.model_copy(update={"adapter": {**problem.adapter, "replayable": []}})
    assert not with_replay_doubt(varied, [shape])[0].unconfirmable


def test_the_whole_speed_up_is_that_of_the_time_of_all_recorded_calls():
    def timed(calls: int | None, reference_us: float, low: float) -> ShapeVerdict:
        time = Timing(median_us=reference_us, low_us=reference_us, high_us=reference_us, rounds=9, calls_per_round=1)
        return ShapeVerdict(dims={}, verdict="correct", calls=calls, reference=time, speedup_low=low)

    shapes = [timed(9, 100.0, 3.0), timed(1, 100.0, 0.5)]
    assert overall_speedup(shapes, [3.0, 0.5]) == pytest.approx(1000 / (900 / 3 + 100 / 0.5))
    assert weighted_speedup([3.0, 0.5], [900.0, 100.0]) == pytest.approx(2.0)
    plain = [timed(None, 100.0, 3.0), timed(None, 100.0, 0.5)]
    assert overall_speedup(plain, [4.0, 1.0]) == pytest.approx(2.0), "their geometric mean, where no call was recorded"


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
    graphs = await capture(lab, IN_A_GRAPH, "aten::sum")
    assert "calls recorded into CUDA graphs: 1;" in graphs.summary() and "never ran" not in graphs.summary()
    assert "every call of aten::sum went into a CUDA graph: run the program without" in graphs.summary()
    a_class = await capture(lab, IMAGES, "__main__:ChannelNorm", "1", "16")
    assert a_class.status == "nothing" and "it is a class: name its modules by their path" in a_class.summary()
    a_method = await capture(lab, IMAGES, "__main__:ChannelNorm.forward", "1", "16")
    assert "a method takes its object: name the module by its path" in a_method.summary()
    before = await capture(lab, "import torch\nraise SystemError('plums')\ndef f(x):\n    return x\n", "__main__:f")
    assert before.status == "failed" and "defines no f" not in before.summary() and "plums" in before.summary()
    endless = "import torch\nwhile True:\n    torch.ones(3).sum()\n"
    cut = await capture(lab, endless, "aten::sum", record_s=0.5)
    assert cut.sets[0].calls > 1 and "ended 0.5 s after the first call" in cut.summary()


IN_A_GRAPH = """
import torch

x = torch.ones(3)
torch.cuda.is_available = torch.cuda.is_current_stream_capturing = lambda: True
x.sum()
torch.cuda.is_available = torch.cuda.is_current_stream_capturing = lambda: False
"""
"""As it is for the recorder where a stream is being captured."""
FORKS = """
import os, sys, urllib.request
import torch
from torch.utils.data import DataLoader


@torch.compile
def doubled(x):
    return torch.mm(x, x)


class Products(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return torch.mm(torch.ones(4, 4), torch.ones(4, 4))


assert sum(batch.sum().item() for batch in DataLoader(Products(), num_workers=2)) == 4 * 64
if os.fork() == 0:
    doubled(torch.ones(2, 2))
    sys.exit(0)
os.wait()
doubled(torch.ones(3, 3))
urllib.request.urlopen("http://example.org")
"""


DECORATED = """
import torch


@torch.compile(dynamic=False)
def gate(x):
    return torch.tanh(x) * 2 + x


gate(torch.linspace(-1, 1, 640).reshape(10, 64))
"""


@needs_torch
async def test_a_program_that_forks_compiles_and_wants_the_network_loses_nothing(lab: Lab):
    found = await capture(lab, FORKS, "aten::mm")
    assert [(s.calls, s.inputs) for s in found.sets] == [(1, ["self float32[3, 3]", "mat2 float32[3, 3]"])]
    said = found.summary()
    function = await capture(lab, DECORATED, "__main__:gate")
    assert function.problem, function.summary()
    assert "calls in 3 child processes" in said and "torch.compile was off in this run" in said
    assert "wanted the network, and a job has none: put the files" in said


def test_a_name_that_the_reference_lacks_is_explained():
    notes = refusal_notes(ProblemRefused("Traceback … NameError: name 'SIZES' is not defined", hint=""))
    assert len(notes) == 2 and notes[1].startswith("SIZES may be a value that the script computes when it runs")


def test_targets_are_told_apart():
    named = ("aten::mm", "aten.mm.default", "a.b:c", "__main__:f", "Net.blocks.*.fc1", "GPT", "a.b:c[grid]")
    kinds = [kind_of(t) for t in named]
    assert kinds == ["operator", "operator", "function", "function", "module", "module", "launch"]
    for wrong in ("", "a b", "x::y::z", "a:b:c", "../x", "Net..fc", "a.b:c[0]"):
        with pytest.raises(BadRequest):
            kind_of(wrong)


def test_a_refusal_says_its_advice_once_and_what_random_numbers_need():
    plain = refusal_notes(BadRequest("It is broken.", hint="Mend it."))
    assert plain == ["no problem: It is broken. Mend it."]
    registration = (JUDGE / "owner" / "registration.py").read_text()
    assert UNSTEADY in registration and SAME_INPUTS in registration, "the judge's words"
    unsteady = refusal_notes(ProblemRefused(f"at case=1: the reference {UNSTEADY} in y"))
    assert len(unsteady) == 2 and "without dropout" in unsteady[1]
    wish = ProblemRefused("Refused: copy of x passes as y", hint="Register it again with: a wish", degenerate=True)
    assert refusal_notes(wish) == [
        "no problem: Refused: copy of x passes as y. Capture a larger part of the program around it."
    ]
    tokens = ProblemRefused(f"Refused: {SAME_INPUTS}", hint="Register it again with: a wish", degenerate=True)
    assert refusal_notes(tokens)[0].endswith(f"{SAME_INPUTS}. Capture a part of it that takes floats.")
