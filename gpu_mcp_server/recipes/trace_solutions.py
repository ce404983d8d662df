"""Solutions of flashinfer-trace and SOL-ExecBench: their JSON as a candidate, and verdicts as the traces of that form.

Source: https://github.com/flashinfer-ai/flashinfer-bench, flashinfer_bench/data/trace.py and solution.py (at 40e6ca78).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.candidate_source import CandidateSource

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


def read_solution(text: str) -> Solution:
    """Return a solution's JSON as a candidate; nothing of it is run.

    Several Python files become one, which imports the others from texts in it. Several units of C++ and CUDA become
    one that includes them.

    Raises:
        BadRequest: If it is none.
    """
    try:
        solution: Any = json.loads(text)
        spec, sources = solution["spec"], solution["sources"]
        files = {str(each["path"]): str(each["content"]) for each in sources}
        path, _, function = str(spec["entry_point"]).partition("::")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(
            f"This is no solution: {str(error)[:100]}.", hint="It has spec.entry_point and sources of path and content."
        ) from error
    if path not in files or not function.isidentifier():
        raise BadRequest(
            f"The entry point {path[:80]}::{function[:40]} is not among the sources.",
            hint="Write it as FILE::FUNCTION.",
        )
    name = str(solution.get("name") or "solution")
    if path.endswith(".py"):
        told = {"function": function, "destination_passing_style": bool(spec.get("destination_passing_style", True))}
        return Solution(name, CandidateSource(python_text(files, path, told), "python", "solution.py"), "launch")
    options = cast("Mapping[str, list[Any]]", spec.get("compile_options") or {})
    flags = [str(each) for kind in ("cflags", "cuda_cflags", "ld_flags") for each in options.get(kind) or []]
    units = sorted((each for each in files if each.endswith(UNITS)), key=lambda each: (each == path, each))
    if not units:
        raise BadRequest(
            f"{path!r} is in a language that the judge cannot run.", hint=f"Use a file in .py, {', '.join(UNITS)}."
        )
    cuda = any(each.endswith(".cu") for each in units)
    whole = "".join(f'#include "{each}"\n' for each in units) if len(files) > 1 else files[units[0]]
    beside = files if len(files) > 1 else {}
    source = CandidateSource(whole, "cuda" if cuda else "cpp", "solution.cu" if cuda else "solution.cpp", beside=beside)
    return Solution(name, source, function, tuple(dict.fromkeys(flags)))


def python_text(files: Mapping[str, str], path: str, told: Mapping[str, Any]) -> str:
    """Return one Python file that is the one at `path`, with its siblings importable, and says how it is called."""
    others = {name: text for name, text in files.items() if name != path and name.endswith(".py")}
    head = ""
    if others:
        modules = {_module_name(name): text for name, text in others.items()}
        head = _SIBLINGS.replace("@MODULES@", repr(modules))
    futures, body = _without_futures(files[path])
    return f"{futures}{head}{body}\n\nSOLUTION = {dict(told)!r}\n"


def _module_name(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


def _without_futures(text: str) -> tuple[str, str]:
    """Return imports from the future, which must stand first, and the rest."""
    lines = text.splitlines()
    futures = [line for line in lines if line.startswith("from __future__ import")]
    return "".join(f"{line}\n" for line in futures), "\n".join(line for line in lines if line not in futures)


_SIBLINGS = """
def _install_siblings(texts):
    import importlib.machinery, linecache, sys
    class Siblings:
        def find_spec(self, name, path=None, target=None):
            package = any(each.startswith(name + ".") for each in texts)
            return importlib.machinery.ModuleSpec(name, self, is_package=package) if name in texts or package else None
        def create_module(self, spec):
            return None
        def exec_module(self, module):
            text, file = texts.get(module.__name__, ""), module.__name__ + ".py"
            linecache.cache[file] = (len(text), None, text.splitlines(True), file)
            exec(compile(text, file, "exec"), module.__dict__)
    sys.meta_path.insert(0, Siblings())
_install_siblings(@MODULES@)
"""


def traces_of(
    problem: Problem, workloads: Sequence[Mapping[str, Any]], solution: str, evaluation: Evaluation
) -> Iterator[dict[str, Any]]:
    """Yield a trace for each workload that a verdict speaks of: those judged, or all where nothing compiled.

    Args:
        problem: Imported from the definition.
        workloads: As its file has them.
        solution: Name of the candidate.
        evaluation: Of the candidate at the problem.
    """
    by_case = {shape.dims.get("case"): shape for shape in evaluation.shapes}
    for number, case in enumerate(problem.cases, 1):
        workload = next((each for each in workloads if _is_case(each, case)), None)
        shape = by_case.get(number)
        nowhere = not evaluation.shapes and evaluation.verdict != "correct"
        if workload is None or (shape is None and not nowhere):
            continue
        yield {
            "definition": problem.name,
            "workload": dict(workload),
            "solution": solution,
            "evaluation": _evaluation(evaluation, shape),
        }


def _is_case(workload: Mapping[str, Any], case: Mapping[str, Any]) -> bool:
    axes = cast("Mapping[str, Any]", workload.get("axes") or {})
    inputs = cast("Mapping[str, Any]", workload.get("inputs") or {})
    kept = cast("Mapping[str, Mapping[str, Any]]", case["inputs"])
    same_axes = all(case["axes"].get(name) == size for name, size in axes.items())
    return same_axes and all(
        kept.get(name, {}).get(key) == each.get(key) for name, each in inputs.items() for key in ("type", "value")
    )


def _evaluation(evaluation: Evaluation, shape: ShapeVerdict | None) -> dict[str, Any]:
    status = trace_status(evaluation, shape)
    libs = {
        name: str(evaluation.evidence[name]) for name in ("torch", "numpy", "triton") if name in evaluation.evidence
    }
    found: dict[str, Any] = {
        "status": status,
        "environment": {"hardware": evaluation.device or evaluation.host, "libs": libs},
        "timestamp": datetime.now(UTC).isoformat(),
        "log": (shape.reason if shape is not None and shape.reason else evaluation.reason)[:4000],
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        found["correctness"] = {
            "max_relative_error": _plain_error(shape.max_rel_error if shape else None),
            "max_absolute_error": _plain_error(shape.max_abs_error if shape else None),
        }
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


def _plain_error(error: float | None) -> float | str:
    """Return an error as their JSON has it: text if it is not finite."""
    if error is None or math.isfinite(error):
        return error or 0.0
    return "NaN" if math.isnan(error) else "Infinity"


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
