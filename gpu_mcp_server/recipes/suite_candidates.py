"""A suite's tasks as they lie in a folder, and the answers that there are to them, judged without an agent.

Scores stand as the suites define them. Sources: fast_p, KernelBench (arXiv:2502.10517, section 3.3); the SOL score,
SOL-ExecBench's sol_score.py: 1 / (1 + (t - t_sol) / (t_b - t_sol)).
"""

import asyncio
import glob
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any, cast

import structlog

from gpu_mcp_server.errors import BadRequest, GpuMcpError, NotFound
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict, TimingOptions
from gpu_mcp_server.models.problem import ImportOverrides, Problem
from gpu_mcp_server.models.suite import CandidateReport, CandidateRow, Proportion
from gpu_mcp_server.recipes.run.confirmation_step import settle_confirmation
from gpu_mcp_server.recipes.run.run_context import Tell
from gpu_mcp_server.recipes.suites import FAST
from gpu_mcp_server.recipes.trace_solutions import Solution, read_solution, traces_of
from gpu_mcp_server.services.builds.candidate_source import LANGUAGE_BY_SUFFIX, MAX_TEXTS_BYTES, source_of
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats import kernelbench, trace
from gpu_mcp_server.services.problems.formats.base import AS_IT_IS, MAX_FILE_BYTES, ProblemSource
from gpu_mcp_server.services.problems.formats.detect import known_formats, source_at
from gpu_mcp_server.services.problems.kernelbench_problems import NEEDED, defines
from gpu_mcp_server.services.workspaces.local_files import read_local

_log = structlog.get_logger()
STEMS = ("submission", "solution", "candidate", "custom_kernel")
"""Names of a candidate's file inside its task's folder."""
MOST_TASKS = 2000


def suite_tasks(root: Path) -> dict[str, Path]:
    """Return the tasks below a folder by their paths in it.

    Tasks are folders with a format's main file, KernelBench's files, and definitions of flashinfer-trace's data set.
    Where there are none of these, each file with a Model and its inputs is one: MultiKernelBench has no numbers.

    Raises:
        NotFound: If there is none.
    """
    names = {name for each in known_formats() for name in each.MAIN_FILES}
    found: dict[str, Path] = {}
    paths = sorted(root.rglob("*"))
    for path in paths:
        if path.name in names and len(found) < MOST_TASKS and _is_task(path):
            found.setdefault(path.parent.relative_to(root).as_posix(), path)
    folders = {path.parent for path in found.values()}
    for numbered in (True, False):
        for path in paths if numbered or not found else ():
            if len(found) < MOST_TASKS and folders.isdisjoint(path.parents) and _is_single_file(path, numbered):
                found[path.relative_to(root).with_suffix("").as_posix()] = path
    if not found:
        raise NotFound(
            "task",
            str(root),
            hint=f"A task has one of {', '.join(sorted(names))}. NUMBER_NAME.py and definitions/*/*.json are tasks.",
        )
    return found


def _is_single_file(path: Path, numbered: bool) -> bool:
    """Say whether a file is a whole task: NUMBER_NAME.py of KernelBench, or a definition below `definitions/`."""
    python = path.suffix == ".py" and (path.name[0].isdigit() or not numbered)
    if not python and not (path.suffix == ".json" and "definitions" in path.parts[:-1]):
        return False
    try:
        text = read_local(path, MAX_FILE_BYTES).decode()
    except (GpuMcpError, OSError, UnicodeDecodeError):
        return False
    if not python:
        return trace.recognizes(ProblemSource(path.name, text))
    return set(NEEDED) <= defines(text) and (numbered or "ModelNew" not in text)


def _is_task(path: Path) -> bool:
    """Say whether a file of a common name is a task's: a definition with workloads, a configuration with commands."""
    try:
        if path.name == "definition.json":
            beside = any((path.parent / name).is_file() for name in ("workload.jsonl", "workloads.jsonl"))
            return beside and path.is_file()
        if path.name == "config.yaml":
            return b"correctness_command" in read_local(path, MAX_FILE_BYTES)
        return path.is_file()
    except (GpuMcpError, OSError):  # no file, too large, or not to be read
        return False


def candidates_of(task: str, folder: Path) -> list[Path]:
    """Return a task's candidates: FOLDER/TASK.SUFFIX, and submission, solution or candidate in FOLDER/TASK."""
    near = folder / task
    beside = sorted(near.parent.glob(f"{glob.escape(near.name)}.*")) if task != "." and near.parent.is_dir() else []
    inside = sorted(path for path in near.iterdir() if path.stem.startswith(STEMS)) if near.is_dir() else []
    known = {*LANGUAGE_BY_SUFFIX, ".py", ".json"}
    return [path for path in [*beside, *inside] if path.is_file() and path.suffix in known]


def solutions_by_definition(folder: Path) -> dict[str, list[Path]]:
    """Return the packed solutions below a folder by the definition that each names, wherever they lie."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            said = json.loads(read_local(path, MAX_TEXTS_BYTES))
        except (GpuMcpError, OSError, ValueError, RecursionError):
            continue
        if isinstance(said, dict) and "sources" in said:
            found.setdefault(str(cast("dict[str, Any]", said).get("definition")), []).append(path)
    return found


async def solution_at(lab: Lab, path: Path) -> Solution:
    """Return a candidate's file, or a packed solution, as the judge takes it.

    Raises:
        BadRequest, NotFound, LimitExceeded: If it is none.
    """
    if path.suffix == ".json":
        data = await asyncio.to_thread(read_local, path, MAX_TEXTS_BYTES)
        return read_solution(data.decode("utf-8", "replace"))
    source = await source_of(lab.store.workspaces, path=str(path), allow_local=True)
    return Solution(path.stem, source, "launch")


@dataclass(frozen=True)
class JudgeWish:
    """Options for judging candidates of a suite."""

    timing: TimingOptions
    host: str | None = None
    overrides: ImportOverrides = AS_IT_IS


class SuiteCandidates:
    """Judges them one after the other; what was judged before is answered from the store."""

    def __init__(self, lab: Lab, wish: JudgeWish, tell: Tell) -> None:
        self._lab, self._wish, self._tell = lab, wish, tell
        self._rows: list[CandidateRow] = []
        self._refused: dict[str, str] = {}
        self._missing: list[str] = []
        self.traces: list[dict[str, Any]] = []

    async def judge_all(self, suite: str, tasks: Mapping[str, Path], folder: Path) -> CandidateReport:
        """Judge each candidate of each task; a task that is no problem here is said, and the others go on."""
        packed = await asyncio.to_thread(solutions_by_definition, folder)
        for number, (name, path) in enumerate(tasks.items(), 1):
            try:
                title = name.rpartition("/")[2] if path.suffix == ".json" else ""
                files = list(dict.fromkeys([*candidates_of(name, folder), *packed.get(title, [])]))
                if not files:
                    self._missing.append(name)
                    continue
                await self._tell(f"{name}: {number} of {len(tasks)}, {len(files)} candidates")
                definition = await source_at(path)
                problem = await self._imported(definition)
                is_definition = problem.adapter.get("kind") == "trace"
                workloads = await trace.cases_by_workload(definition) if is_definition else []
                for file in files:
                    if found := await self._judge(name, problem, file):
                        self.traces += traces_of(problem, definition, workloads, *found)
            except Exception as error:
                self._refused[name] = _reason_of(error)
        return self.report(suite, len(tasks))

    async def _imported(self, source: ProblemSource) -> Problem:
        overrides = self._wish.overrides
        if "basis" not in overrides.model_fields_set:
            overrides = overrides.model_copy(update={"basis": kernelbench.suite_basis(source)})
        wished = replace(source, wish=overrides)
        info = await self._lab.evaluation.registry.import_file(wished, host=self._wish.host)
        return await self._lab.store.problems.get(info.problem_id)

    async def _judge(self, task: str, problem: Problem, file: Path) -> tuple[str, Evaluation] | None:
        """Note a candidate's row; return its name and verdict, `None` if it was not judged."""
        began = time.monotonic()
        row = CandidateRow(task=task, candidate=file.name, verdict="refused", degenerate=bool(problem.degenerate))
        try:
            solution = await solution_at(self._lab, file)
            found, voided = await self._confirmed(problem, solution)
            judged = None if voided else (solution.name, found)
            row = row.model_copy(update=fields_of_verdict(found, voided))
        except Exception as error:
            judged = None
            row = row.model_copy(update={"reason": _reason_of(error)})
        self._rows.append(row.model_copy(update={"wall_s": round(time.monotonic() - began, 1)}))
        await self._tell(f"{task} {file.name}: {row.verdict} {row.reason[:200]}")
        return judged

    async def _confirmed(self, problem: Problem, solution: Solution) -> tuple[Evaluation, str]:
        """Return the verdict after the confirmation run that a provisional time owes, and why that voided it."""

        async def evaluate() -> Evaluation:
            return await self._lab.evaluation.evaluator.evaluate(
                problem.problem_id, solution.source, host=self._wish.host, flags=solution.flags, entry=solution.entry,
                timing=self._wish.timing, wait_s=3600.0, reuse=True,
            )  # fmt: skip

        found = await evaluate()
        if found.trust != "provisional":
            return found, ""
        state, said = await settle_confirmation(self._lab, found.attempt_id, self._tell)
        if state == "void":
            return found, said
        return (await evaluate() if state == "done" else found), ""  # the kept verdict has the figures of that run

    def report(self, suite: str, tasks: int) -> CandidateReport:
        """Return the report with scores of all judged candidates."""
        return CandidateReport(
            suite=suite, tasks=tasks, refused=self._refused, missing=self._missing, rows=self._rows,
            traces=len(self.traces), **scores_of(self._rows),
        )  # fmt: skip


def scores_of(rows: Sequence[CandidateRow]) -> dict[str, Any]:
    """Return a report's scores by field; where nothing was timed, of fast_p only the share of correct candidates.

    Confirmed times count alone.
    """
    judged = [row for row in rows if row.verdict != "refused" and not row.degenerate]
    right = [row for row in judged if row.verdict == "correct"]
    sure = [row for row in right if row.trust == "confirmed"]
    speeds = [row.speedup for row in sure if row.speedup]
    faster = {p: right if p == 0 else [speed for speed in speeds if speed > p] for p in FAST}
    timed = any(row.speedup for row in right) or not right
    fast = {
        f"fast_{p}": Proportion.from_counts(len(found), len(judged)) for p, found in faster.items() if p == 0 or timed
    }
    known = any(row.sol_score is not None for row in sure)
    counted = [row for row in judged if row.verdict != "correct" or row.trust == "confirmed"]
    scores = [row.sol_score for row in counted if row.sol_score is not None] if known else []
    return {
        "fast": fast,
        "geometric_mean": geometric_mean(speeds) if speeds else None,
        "sol_score": mean(scores) if scores else None,
    }


def _reason_of(error: Exception) -> str:
    """Return what a row says of an error: one file, however wrong, never ends the others' run."""
    if isinstance(error, GpuMcpError):
        return str(error)[:500]
    _log.error("file of a suite failed", exc_info=error)
    return f"The server failed at it: {type(error).__name__}: {str(error)[:400]}."


def fields_of_verdict(found: Evaluation, voided: str = "") -> dict[str, Any]:
    """Return the fields of a candidate's row that its verdict decides, or the run that voided it."""
    if voided:
        return {"verdict": "voided", "reason": voided[:500], "sol_score": 0.0, "attempt_id": found.attempt_id}
    scores = list(_sol_scores(found.shapes))
    whole = found.verdict == "correct" and len(scores) == len(found.shapes) and scores
    return {
        "verdict": found.verdict or found.status,
        "reason": found.reason,
        "speedup": found.speedup,
        "speedup_range": found.speedup_range(),
        "trust": found.trust,
        "sol_score": mean(scores) if whole else None if found.verdict == "correct" else 0.0,
        "attempt_id": found.attempt_id or None,
    }


def _sol_scores(shapes: Sequence[ShapeVerdict]) -> Iterator[float]:
    """Yield the score of each shape whose least time is known; the baseline is torch.compile where that is known."""
    for shape in shapes:
        if shape.candidate and shape.reference and shape.floor_us is not None:
            baseline = shape.compiled or shape.reference
            yield sol_score(shape.candidate.median_us, baseline.median_us, shape.floor_us)


def sol_score(time_us: float, baseline_us: float, least_us: float) -> float:
    """Return SOL-ExecBench's score: 1 at the least possible time, 0.5 at the baseline's."""
    if baseline_us <= least_us:
        return 1.0 if time_us <= least_us else 0.0
    return 1 / (1 + max(0.0, time_us - least_us) / (baseline_us - least_us))


def write_traces(traces: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write traces, one a line.

    Raises:
        BadRequest: If the file cannot be written.
    """
    try:
        path.write_text("".join(json.dumps(each, allow_nan=False) + "\n" for each in traces), encoding="utf-8")
    except OSError as error:
        raise BadRequest(
            f"{path} cannot be written: {error.strerror}.", hint="Name a file in a writable folder."
        ) from error
