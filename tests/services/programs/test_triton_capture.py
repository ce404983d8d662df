"""A program's own Triton kernel, by Triton's interpreter: its launches a problem, and another kernel in its place."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory
from tests.services.programs.overlay_runs import overlay_environment, run_program
from tests.services.programs.test_problem_capture import PYTHON, capture, needs_torch

pytestmark = pytest.mark.timeout(1500)
PROGRAM = """
import os

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton
import triton.language as tl


@triton.jit
def halved(v):
    return v * 0.5


@triton.jit
def scale_add(x, bias, total, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    v = halved(tl.load(x + at, mask=keep)) + tl.load(bias + at, mask=keep)
    tl.store(total + at, tl.load(total + at, mask=keep) + v, mask=keep)
    tl.store(y + at, v, mask=keep)


@triton.autotune([triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def halves(x, y, n, TYPE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, (tl.load(x + at, mask=at < n) * 0.5).to(TYPE), mask=at < n)


def main():
    torch.manual_seed(0)
    total = torch.zeros(100)
    for _ in range(3):
        x, bias, y = torch.randn(100), torch.ones(100) + torch.rand(100), torch.empty(100)
        y = {"": y, "x": x, "offset": torch.empty(101)[1:]}[os.environ.get("PLACE", "")]
        scale_add[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, bias, total, y, 100, BLOCK=64)
    halves[(2,)](x, torch.empty(100, dtype=torch.float16), 100, tl.float16, BLOCK=64)
    print("sums", float(total.sum()), float(y.sum()))


if __name__ == "__main__":
    main()
"""
KERNEL = """
#include <stdint.h>
int launch(const float *x, const float *bias, const float *before, float *total, float *y) {
    if ((uintptr_t)y % 16) return 7;
    for (int i = 0; i < 100; i++) y[i] = bias[i];
    for (int i = 0; i < 100; i++) {
        y[i] += x[i] * 0.5f;
        total[i] = before[i] + y[i];
    }
    return 0;
}
"""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        yield lab


@needs_torch
async def test_launches_of_a_triton_kernel_are_a_problem_and_another_kernel_answers_them(lab: Lab):
    found = await capture(lab, PROGRAM, "__main__:scale_add[grid]")
    assert found.problem, found.summary()
    # y is written in full, so its old values are no input; total is read and written
    assert [(one.calls, one.inputs) for one in found.sets] == [
        (3, ["x float32[100]", "bias float32[100]", "total float32[100]"])
    ]
    assert "1 argument of the kernel is read and written" in found.summary()
    assert found.problem.launcher_c.count("float*") == 5, found.problem.launcher_c
    verdicts = [
        await lab.evaluation.evaluator.evaluate(
            found.problem.problem_id, CandidateSource(text, "c", "kernel.c"),
            timing=TimingOptions(tier="correctness"), wait_s=1200,
        )
        for text in (KERNEL, KERNEL.replace("0.5f", "0.6f"))
    ]  # fmt: skip
    assert [one.verdict for one in verdicts] == ["correct", "incorrect"], verdicts[0].summary()
    workspace = (await lab.store.workspaces.write(None, {"program.py": PROGRAM})).workspace_id
    applied = await lab.programs.overlays.apply(verdicts[0].attempt_id, workspace)
    async with lab.store.workspaces.laid_out(applied.workspace_id) as folder:
        plain, overlay = await asyncio.to_thread(run_program, folder), overlay_environment(folder)
        with_it = await asyncio.to_thread(run_program, folder, **overlay)
        told = [json.loads(path.read_text()) for path in folder.glob("counts.*")]
        # the kernel writes y before it has read all of x, and was judged with both apart, and y at a multiple of 256
        places = [
            [await asyncio.to_thread(run_program, folder, PLACE=at, **more) for more in (overlay, {})]
            for at in ("x", "offset")
        ]
    assert told == [[{"calls": 3, "passed_on": 0}]]
    for texts in ((with_it, plain), *places):
        ours, theirs = ([float(word) for word in text.split()[1:]] for text in texts)
        assert ours == pytest.approx(theirs, rel=1e-5)


@needs_torch
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("__main__:tuned[grid]", "the kernel is autotuned: capture the Python function that launches it"),
        ("__main__:main[grid]", "it is no Triton kernel"),
        ("__main__:scale_add", "it is a Triton kernel: __main__:scale_add[grid] names its launches"),
        ("__main__:halved[grid]", "defines no halved at its top level, or never calls it"),
    ],
)
async def test_kernels_whose_launches_make_no_problem_are_explained(lab: Lab, target: str, said: str):
    found = await capture(lab, PROGRAM, target)
    assert found.problem is None and said in found.summary()


@needs_torch
async def test_types_of_triton_are_arguments_and_kernels_of_modules_are_found(lab: Lab):
    typed = await capture(lab, PROGRAM, "__main__:halves[grid]")
    assert typed.problem and typed.sets[0].inputs == ["x float32[100]"], typed.summary()
    files = {"program.py": "import kernels\n\nkernels.main()\n", "kernels.py": PROGRAM}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    tuned = await lab.programs.capture.capture([PYTHON, "program.py"], "kernels:tuned[grid]", workspace)
    assert "the kernel is autotuned: capture the Python function that launches it" in tuned.summary()
