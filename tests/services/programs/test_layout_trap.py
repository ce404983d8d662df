"""From a command to a measured copy, end to end: a kernel that is right and fast, and slows the program that it is in."""

from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.models.program_speed import VerifyOptions
from gpu_mcp_server.package_files import content_path
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory
from tests.services.programs.test_problem_capture import PYTHON, capture, judge, needs_torch

EXAMPLE = (content_path("examples/programs") / "layout_trap.py").read_text()
TRAP = EXAMPLE.replace("torch.manual_seed(0)", "torch.manual_seed(0)\n    torch.set_num_threads(1)")
"""One thread: several wait for each other where others work on the cores."""
ARGUMENTS = ("4", "512", "512")
KERNEL = (content_path("benchmarks/programs") / "gate.c").read_text()


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        yield lab


@needs_torch
@pytest.mark.timeout(1800)
async def test_a_right_kernel_that_changes_a_layout_is_found_to_slow_the_whole(lab: Lab):
    found = await capture(lab, TRAP, "__main__:gate", *ARGUMENTS)
    assert found.problem and found.sets[0].inputs == ["x float32[8, 512, 512] strides [512, 4096, 1]"], found.summary()
    verdict = await judge(lab, found.problem.problem_id, KERNEL)
    assert verdict.verdict == "correct", verdict.summary()
    workspace = (await lab.store.workspaces.write(None, {"program.py": TRAP})).workspace_id
    applied = await lab.programs.overlays.apply(verdict.attempt_id, workspace)
    options = VerifyOptions(pairs=6, wait_s=240)
    command = [PYTHON, "program.py", *ARGUMENTS]
    whole = await lab.programs.verifier.verify(command, applied.workspace_id, options=options)
    while whole.status == "running":
        assert whole.job_id
        row = await lab.jobs.table.get(whole.job_id)
        done = await lab.jobs.runner.wait(whole.job_id, row.host)
        assert done is not None
        whole = await lab.programs.verifier.finish(done, row)
    # twice as long on an idle machine; on a busy one the interval may be wide, but the kernel is no gain
    assert whole.status in ("slower", "same") and (whole.speedup or 9) < 1, whole.summary()
    assert [kernel.calls for kernel in whole.kernels] == [4]
    assert whole.compared.startswith("stdout: ")  # the same bytes, or equal numbers
