"""Solutions of flashinfer-trace and SOL-ExecBench: their JSON as a candidate, and verdicts as the traces of that form.

Source: https://github.com/flashinfer-ai/flashinfer-bench, flashinfer_bench/data/trace.py and solution.py (at 40e6ca78).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.builds.python_siblings import joined_python
from gpu_mcp_server.services.problems.formats import trace
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.workspaces.local_files import checked_path

UNITS = (".cu", ".cpp", ".cc", ".cxx")
STATUSES = (
    ("TIMEOUT", re.compile(r"within \d+ s(?: \(compilation counts\))? and was killed")),
    ("INCORRECT_SHAPE", re.compile(r"output \w+ has shape \[")),
    ("INCORRECT_DTYPE", re.compile(r"output \w+ is torch\.\w+, expected")),
    ("INCORRECT_NUMERICAL", re.compile(r"elements are wrong|is wrong for its inputs|wrong with the same inputs")),
)
"""Status by a reason's text; the first match counts. Other failures are RUNTIME_ERROR."""


@dataclass(frozen=True)
class Solution:
    """A packed solution as the judge takes one."""

    name: str
    source: CandidateSource
    entry: str
    """Name of the function that the judge calls."""
    flags: tuple[str, ...] = ()


class SolutionFile(BaseModel):
    """A source file of a packed solution."""

    path: str
    content: str


class SolutionFlags(BaseModel):
    """Flags of a packed solution's compiler and linker; `None` and absent mean none."""

    cflags: list[str] | None = None
    cuda_cflags: list[str] | None = None
    ld_flags: list[str] | None = None

    def in_order(self) -> tuple[str, ...]:
        """Return each flag once."""
        return tuple(dict.fromkeys([*(self.cflags or ()), *(self.cuda_cflags or ()), *(self.ld_flags or ())]))


class SolutionSpec(BaseModel):
    """Build options and entry point of a packed solution."""

    entry_point: str
    """FILE::FUNCTION."""
    destination_passing_style: bool = True
    compile_options: SolutionFlags | None = None


class PackedSolution(BaseModel):
    """A solution's JSON, as far as it is read; both suites have more fields."""

    name: str = "solution"
    spec: SolutionSpec
    sources: list[SolutionFile]


def read_solution(text: str) -> Solution:
    """Return a solution's JSON as a candidate; nothing of it is run.

    Several Python files become one, which imports the others from texts in it. Several units of C++ and CUDA become
    one that includes them.

    Raises:
        BadRequest: If it is none; `PathRefused` where a source's path is absolute or holds `..`.
    """
    try:
        packed = PackedSolution.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(
            f"This is no solution: {f'{where[:100]}: ' if where else ''}{first['msg'][:200]}.",
            hint="It has spec.entry_point, sources of path and content, and compile_options of lists of flags.",
        ) from error
    files = {checked_path(each.path): each.content for each in packed.sources}
    if len(files) < len(packed.sources):
        raise BadRequest("Two sources of the solution have one path.", hint="Rename one of them.")
    path, _, function = packed.spec.entry_point.removeprefix("./").partition("::")
    if path not in files or not function.isidentifier():
        raise BadRequest(
            f"The entry point {path[:80]}::{function[:40]} is not among the sources.",
            hint="Write it as FILE::FUNCTION.",
        )
    name = packed.name or "solution"
    if path.endswith(".py"):
        told = {"function": function, "destination_passing_style": packed.spec.destination_passing_style}
        return Solution(name, CandidateSource(python_text(files, path, told), "python", "solution.py"), "launch")
    units = sorted((each for each in files if each.endswith(UNITS)), key=lambda each: (each == path, each))
    if not units:
        raise BadRequest(
            f"{path!r} is in a language that the judge cannot run.", hint=f"Use a file in .py, {', '.join(UNITS)}."
        )
    cuda = any(each.endswith(".cu") for each in units)
    whole = "".join(f'#include "{each}"\n' for each in units) if len(files) > 1 else files[units[0]]
    beside = files if len(files) > 1 else {}
    source = CandidateSource(whole, "cuda" if cuda else "cpp", "solution.cu" if cuda else "solution.cpp", beside=beside)
    return Solution(name, source, function, (packed.spec.compile_options or SolutionFlags()).in_order())


def python_text(files: Mapping[str, str], path: str, told: Mapping[str, Any]) -> str:
    """Return one Python file that is the one at `path`, with its siblings importable, and says how it is called."""
    return f"{joined_python(files, path)}\n\nSOLUTION = {dict(told)!r}\n"


def traces_of(
    problem: Problem,
    definition: ProblemSource,
    workloads: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    solution: str,
    evaluation: Evaluation,
) -> Iterator[dict[str, Any]]:
    """Yield a trace for each workload that a verdict speaks of: those judged, or all where nothing compiled.

    Args:
        problem: Imported from the definition.
        definition: Its file, which has its name: two definitions may be one problem.
        workloads: As its file has them, each with its case; several may be the same case.
        solution: Name of the candidate.
        evaluation: Of the candidate at the problem.
    """
    by_case = {shape.dims.get("case"): shape for shape in evaluation.shapes}
    nowhere = not evaluation.shapes and evaluation.verdict != "correct"
    for workload, case in workloads:
        number = next((i for i, each in enumerate(problem.cases, 1) if each == case), None)
        shape = by_case.get(number)
        if number is None or (shape is None and not nowhere):
            continue
        yield {
            "definition": trace.name_of(definition),
            "workload": json.loads(json.dumps(workload), parse_constant=str),  # JSON has no NaN, and no Infinity
            "solution": solution,
            "evaluation": _evaluation(evaluation, shape, sol=definition.name in trace.MAIN_FILES),
        }


def _evaluation(evaluation: Evaluation, shape: ShapeVerdict | None, *, sol: bool) -> dict[str, Any]:
    """Return a verdict at a workload in SOL-ExecBench's words, or in those of a data set of flashinfer-trace.

    REWARD_HACK, has_nan and has_inf are SOL-ExecBench's alone; flashinfer-bench refuses a file with a status that it
    does not know.
    """
    status = trace_status(evaluation, shape)
    log = shape.reason if shape is not None and shape.reason else evaluation.reason
    if status == "REWARD_HACK" and not sol:
        status, log = "RUNTIME_ERROR", f"REWARD_HACK: {log}"
    libs = {
        name: str(evaluation.evidence[name]) for name in ("torch", "numpy", "triton") if name in evaluation.evidence
    }
    found: dict[str, Any] = {
        "status": status,
        "environment": {"hardware": evaluation.device or evaluation.host, "libs": libs},
        "timestamp": datetime.now(UTC).isoformat(),
        "log": log[:4000],
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        errors = {
            "max_relative_error": (shape and shape.max_rel_error) or 0.0,
            "max_absolute_error": (shape and shape.max_abs_error) or 0.0,
        }
        found["correctness"] = _plain_errors(errors, sol=sol)
    if status == "PASSED":
        times = [
            each.median_us / 1000 if each else 0.0 for each in ((shape.candidate, shape.reference) if shape else ())
        ]
        latency, reference = times or (0.0, 0.0)
        speed = shape.speedup if shape else None
        found["performance"] = {
            "latency_ms": latency, "reference_latency_ms": reference, "speedup_factor": speed or 0.0
        }  # fmt: skip
    return found


def _plain_errors(errors: Mapping[str, float], *, sol: bool) -> dict[str, float | str | bool]:
    """Return errors as JSON has them: one that is not finite is text in a data set, and a flag in SOL-ExecBench."""
    texts = {
        name: "NaN" if math.isnan(value) else "Infinity" for name, value in errors.items() if not math.isfinite(value)
    }
    if not sol or not texts:
        return {**errors, **texts}
    return {**dict.fromkeys(errors, 0.0), "has_nan": "NaN" in texts.values(), "has_inf": "Infinity" in texts.values()}


def trace_status(evaluation: Evaluation, shape: ShapeVerdict | None) -> str:
    """Return a verdict at a workload by their names; a cheat is REWARD_HACK, which SOL-ExecBench has besides."""
    if evaluation.status == "compile_failed":
        return "COMPILE_ERROR"
    verdict = shape.verdict if shape is not None else evaluation.verdict
    if verdict == "correct":
        return "PASSED"
    if verdict == "cheat":
        return "REWARD_HACK"
    reason = (shape.reason if shape is not None else "") or evaluation.reason
    return next((name for name, pattern in STATUSES if pattern.search(reason)), "RUNTIME_ERROR")
