"""Tasks whose answer is right by a property, not by comparison: eigenvectors, whose signs are anybody's."""

from pathlib import Path

import pytest

from gpu_mcp_server.errors import ProblemRefused
from gpu_mcp_server.services.lab import Lab
from tests.services.problems.formats.test_suite_formats import gpumode_task, imported, judged, lab
from tests.services.problems.test_kernelbench_problems import needs_torch

__all__ = ["lab"]
pytestmark = pytest.mark.timeout(600)
TASK = """
name: eigenvectors
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "reference.py", "source": "reference.py"}
lang: py
tests:
  - {"n": 5, "kind": "fixed", "seed": 1}
  - {"n": 6, "kind": "drawn", "seed": 1}
benchmarks:
  - {"n": 12, "kind": "drawn", "seed": 2}
  - {"n": 7, "kind": "large", "seed": 2}
"""
REFERENCE = """
import torch

def generate_input(n: int, kind: str, seed: int):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    a = torch.randn(3, n, n, device="cuda", generator=gen)
    a = a + a.transpose(1, 2)
    return {"matrices": torch.eye(n).repeat(3, 1, 1) * torch.arange(1.0, n + 1) if kind == "fixed" else a}

def ref_kernel(data):
    return tuple(torch.linalg.eigh(data["matrices"]))

def check_implementation(data, output):
    values, vectors = output
    a = data["matrices"].double()
    off = (a @ vectors.double() - vectors.double() * values.double().unsqueeze(1)).abs().amax()
    unit = (vectors.double().transpose(1, 2) @ vectors.double() - torch.eye(a.shape[-1])).abs().amax()
    rising = bool((values.diff(dim=1) >= 0).all())
    return bool(off < 1e-4 and unit < 1e-4 and rising), f"residual {off:.2g}, not orthogonal by {unit:.2g}"
"""
FLIPPED = """
import torch
def custom_kernel(data):
    values, vectors = torch.linalg.eigh(data["matrices"])
    return values, -vectors
"""


@needs_torch
async def test_an_answer_is_right_by_the_tasks_own_check(lab: Lab, tmp_path: Path):
    info = await imported(lab, gpumode_task(tmp_path, TASK, REFERENCE))

    assert [(shape["case"], shape["n"]) for shape in info.shapes] == [(1, 6), (2, 12), (3, 7)]
    assert any("a case is left out" in note and "same for every seed" in note for note in info.notes)
    assert {"zeros", "ones", "the answer to another seed", "the answer rounded to bfloat16"} <= set(
        info.trivial_answers_tried or ()
    )
    assert "right is what the problem's own check takes" in info.conditions
    flipped = await judged(lab, info.problem_id, FLIPPED)
    assert flipped.verdict == "correct", flipped.reason
    for change in ("values, vectors.half().float()", "values.flip(1), vectors.flip(2)"):
        wrong = await judged(lab, info.problem_id, FLIPPED.replace("values, -vectors", change))
        assert wrong.verdict == "incorrect" and "own check refuses the answer: residual" in (wrong.reason or "")


@needs_torch
@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("off < 1e-4 and ", "zeros passes: the problem's own check accepts it"),
        (" and unit < 1e-4", "zeros passes: the problem's own check accepts it"),
        ("off < 1e-4 and", "the problem's own check refuses its reference: residual"),
    ],
)
async def test_a_check_that_takes_an_answer_without_work_is_none(lab: Lab, tmp_path: Path, check: str, says: str):
    kept = "off < 0 and" if "refuses" in says else "off >= 0 and " if check.startswith("off") else ""
    weak = REFERENCE.replace(check, kept)
    if check.startswith("off") and "zeros" in says:
        weak = weak.replace(" and unit < 1e-4", "")
    with pytest.raises(ProblemRefused, match=says):
        await imported(lab, gpumode_task(tmp_path, TASK, weak))


@needs_torch
async def test_what_a_loose_check_takes_is_said(lab: Lab, tmp_path: Path):
    loose = REFERENCE.replace("off < 1e-4 and unit < 1e-4", "off < 0.5 and unit < 0.5")
    info = await imported(lab, gpumode_task(tmp_path, TASK, loose))
    assert "the problem's own check accepts the reference's answer rounded to bfloat16" in info.notes, info.notes
    assert not any("one element in 1000" in note for note in info.notes)


FORKS = {
    "os.fork": """
    import os
    pid = os.fork()
    if pid == 0:
        torch.randn(512, 512) @ torch.randn(512, 512)
        os._exit(0)
    os.waitpid(pid, 0)
""",
    "multiprocessing": """
    import multiprocessing
    process = multiprocessing.get_context("fork").Process(target=torch.zeros, args=(3,))
    process.start()
    process.join()
""",
}


@needs_torch
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", FORKS)
async def test_a_check_that_forks_is_refused_at_once_and_told_why(lab: Lab, tmp_path: Path, way: str):
    """The copy would wait for torch's threads, and the check for the copy, until the job's limit of five minutes."""
    forking = REFERENCE.replace("    values, vectors = output\n", "    values, vectors = output\n" + FORKS[way])
    with pytest.raises(ProblemRefused, match=r"own check failed: (?s:.*)os\.fork\(\) in the check, as multiprocessing"):
        await imported(lab, gpumode_task(tmp_path, TASK, forking))


@needs_torch
async def test_a_check_may_start_a_program(lab: Lab, tmp_path: Path):
    starting = "    import subprocess\n    subprocess.run(['true'], check=True)\n"
    program = REFERENCE.replace("    values, vectors = output\n", "    values, vectors = output\n" + starting)
    assert (await imported(lab, gpumode_task(tmp_path, TASK, program))).shapes
