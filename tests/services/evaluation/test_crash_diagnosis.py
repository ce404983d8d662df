"""Runs under compute-sanitizer behind a verdict: for which one, at which shape, and how findings are told."""

import json
from typing import Any

import pytest

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.models.memory_check import MemoryCheck, MemoryFinding
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.services.evaluation.crash_diagnosis import CrashDiagnosis

ILLEGAL = "the launcher returned 700 in call 1 of round 1 (cudaErrorIllegalAddress, illegal address)"
FINDING = MemoryFinding(
    kind="invalid access", message="write of 4 bytes", kernel="softmax", file="candidate.cu", line=7
)


def broken(reason: str = ILLEGAL, **more: Any) -> Evaluation:
    last = ShapeVerdict(dims={"n": 1000}, verdict="incorrect", reason=reason)
    given = {"language": "cuda", "shapes": [last], "verdict": "incorrect", **more}
    return Evaluation(
        status="judged", reason=reason, attempt_id="a-1", problem_id="p", problem_hash="h", host="box", **given
    )


class Checks:
    """Stands for the checker, which needs a GPU."""

    def __init__(self, answer: MemoryCheck | None = None) -> None:
        self.answer, self.asked = answer, list[RunTarget]()

    async def check(self, what: RunTarget) -> MemoryCheck:
        self.asked.append(what)
        if self.answer is None:
            raise ToolMissing("compute-sanitizer", "box")
        return self.answer


async def explained(evaluation: Evaluation, checks: Checks, left_s: float = 100) -> Evaluation:
    async def tell(_: str) -> None:
        return

    return await CrashDiagnosis(checks).explain_crash(evaluation, left_s=left_s, tell=tell)


@pytest.mark.parametrize(
    ("reason", "shape"),
    [
        (ILLEGAL, {"n": 1000}),
        ("right at the declared shapes, wrong at rows=3,cols=17 (hidden shape): CUDA_ERROR_ILLEGAL_ADDRESS", None),
    ],
)
async def test_an_illegal_access_is_located_by_a_second_run_and_the_verdict_stays(reason: str, shape: Any):
    found = MemoryCheck(status="findings", tool="memcheck", host="box", findings=[FINDING, FINDING])
    checks = Checks(found)
    evaluation = await explained(broken(reason), checks)

    assert checks.asked[0].shape == (shape or {"rows": 3, "cols": 17}) and checks.asked[0].attempt_id == "a-1"
    assert (evaluation.verdict, evaluation.reason) == ("incorrect", reason)
    assert evaluation.evidence["memcheck"] == "candidate.cu:7: write of 4 bytes in softmax (and 1 more)"
    assert "candidate.cu:7" in evaluation.summary()


@pytest.mark.parametrize(
    ("evaluation", "left_s", "words"),
    [
        (broken("output y is wrong"), 100, None),
        (broken(verdict="cheat"), 100, None),
        (broken(), 3, "no time was left"),
        (broken(language="program"), 100, "is not called alone"),
    ],
)
async def test_nothing_is_run_where_nothing_would_be_learnt(evaluation: Evaluation, left_s: float, words: str | None):
    checks = Checks()
    found = await explained(evaluation, checks, left_s)

    assert not checks.asked
    assert (words in found.evidence["memcheck"]) if words else found == evaluation


async def test_a_model_is_called_under_the_checker_too():
    checks = Checks(MemoryCheck(status="findings", tool="memcheck", host="box", findings=[FINDING]))
    evaluation = await explained(
        broken("call 1 raised AcceleratorError: CUDA error: an illegal memory access", language="python"), checks
    )

    assert len(checks.asked) == 1 and "candidate.cu:7" in evaluation.evidence["memcheck"]


async def test_a_host_without_the_tool_leaves_the_verdict_as_it_is_and_says_why():
    assert "not run: compute-sanitizer is not" in (await explained(broken(), Checks())).evidence["memcheck"]


@pytest.mark.parametrize(
    ("reason", "tool", "shape"),
    [
        ("n=1000: wrote outside its outputs: 4 bytes behind output y in call 1", "memcheck", {"n": 1000}),
        ("wrong at n=65623 (hidden shape, larger than declared): crashed with SIGSEGV", "memcheck", {"n": 65623}),
        (
            "right at first and wrong with the same inputs again, as with a race or unset memory, at n=1000",
            "racecheck",
            {"n": 1000},
        ),
        ("3 of 8 elements are wrong (call 2 of 9; one more, with other inputs, was right)", "racecheck", {"n": 1000}),
    ],
)
async def test_a_fault_of_memory_or_threads_comes_with_the_check_that_names_its_line(
    reason: str, tool: str, shape: dict[str, int]
):
    found = await explained(broken(f"({reason})", language="c"), Checks())
    call = json.dumps({"target": {"attempt_id": "a-1", "shape": shape}, "tool": tool})

    assert f"advice: check_memory {call} names the line" in found.summary()
    for language in ("python", "triton"):
        assert not (await explained(broken(reason, language=language), Checks())).advice
