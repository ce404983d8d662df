"""Locate an illegal access of a candidate: run it again under compute-sanitizer, or say which check finds the line."""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.models.memory_check import MemoryCheck
from gpu_mcp_server.models.run_target import RunTarget

BROKE = re.compile(
    r"ILLEGAL_ADDRESS|IllegalAddress|illegal memory access|MISALIGNED_ADDRESS|MisalignedAddress|misaligned address"
    r"|LAUNCH_FAILED|LaunchFailure|unspecified launch failure"
)
"""How the driver, the runtime and torch say it. Source: driver_types.h and cuda.h, CUDA 13.0."""
SUSPECTS = (
    (re.compile(r"wrote outside its outputs|crashed with SIG(?:SEGV|BUS|ABRT)"), "memcheck"),
    (re.compile(r"as with a race|; one more, with other inputs, was right"), "racecheck"),
)
"""Reasons of which a line is to blame, and the check that names it."""
HIDDEN = re.compile(r"at ((?:\w+=\d+,? ?)+)\(hidden shape\b")
LEAST_S = 15.0
"""For a checker to start, and torch before it."""
LIMIT_S = 60.0


class MemoryCheckerProtocol(Protocol):
    """Service that runs a program under a checker."""

    def check(self, what: RunTarget) -> Awaitable[MemoryCheck]:
        """Run it and say what was found."""
        ...


class CrashDiagnosis:
    """Explains verdicts on kernels that broke."""

    def __init__(self, checker: MemoryCheckerProtocol) -> None:
        self._checker = checker

    async def explain_crash(
        self, evaluation: Evaluation, *, left_s: float, tell: Callable[[str], Awaitable[None]]
    ) -> Evaluation:
        """Return an evaluation with the kernel and line of its illegal access, as far as a second run shows it.

        The verdict is the judge's and stays. The second run has data of its own and is no part of the judgement; what
        it says stands in the evidence under `memcheck`.
        """
        if evaluation.verdict != "incorrect" or not BROKE.search(evaluation.reason):
            return with_check_advised(evaluation)
        facts = LANGUAGES.get(evaluation.language or "")
        if facts is None or not facts.called_alone:
            return with_memcheck(
                evaluation, "not run: a candidate of this kind is not called alone; check_memory takes a program"
            )
        if left_s < LEAST_S:
            return with_memcheck(evaluation, "not run: no time was left; check_memory does it for this attempt_id")
        await tell("an illegal access: once more under compute-sanitizer, for the line")
        what = RunTarget(
            attempt_id=evaluation.attempt_id,
            shape=shape_of(evaluation),
            host=evaluation.host,
            timeout_s=min(LIMIT_S, left_s),
            wait_s=min(240.0, left_s),
        )
        try:
            return with_memcheck(evaluation, summarize_check(await self._checker.check(what)))
        except GpuMcpError as error:
            return with_memcheck(evaluation, f"not run: {error}")


def with_check_advised(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation with the call of check_memory that names the line of a fault of memory or of threads."""
    tool = next((tool for words, tool in SUSPECTS if words.search(evaluation.reason)), "")
    if not tool or evaluation.language not in ("c", "cpp", "cuda"):  # other languages have no checker that names lines
        return evaluation
    shape = shape_of(evaluation)
    target = {"attempt_id": evaluation.attempt_id, **({"shape": shape} if shape else {})}
    call = json.dumps({"target": target, "tool": tool})
    said = f"check_memory {call} names the line, if the fault shows again"
    return evaluation.model_copy(update={"advice": [*evaluation.advice, said]})


def shape_of(evaluation: Evaluation) -> dict[str, int] | None:
    """Return the shape at which a candidate broke: the hidden one of its reason, or the last judged."""
    hidden = HIDDEN.search(evaluation.reason)
    if hidden:
        pairs = (pair.partition("=") for pair in hidden[1].replace(" ", "").strip(",").split(","))
        return {name: int(size) for name, _, size in pairs}
    last = evaluation.shapes[-1].dims if evaluation.shapes else {}
    return {name: int(size) for name, size in last.items()} or None


def summarize_check(check: MemoryCheck) -> str:
    """Return what a checker found in a few words."""
    if check.findings:
        first = " ".join(check.findings[0].line_text().split())
        return first[:600] + (f" (and {len(check.findings) - 1} more)" if len(check.findings) > 1 else "")
    if check.status == "clean":
        return "found nothing in a run of its own, with other data"
    return f"{check.status}: {check.note or 'it found nothing'}"[:600]


def with_memcheck(evaluation: Evaluation, text: str) -> Evaluation:
    """Return an evaluation with a checker's words."""
    note = "; ".join(filter(None, [evaluation.note, f"compute-sanitizer: {text}"]))
    return evaluation.model_copy(update={"evidence": {**evaluation.evidence, "memcheck": text}, "note": note})
