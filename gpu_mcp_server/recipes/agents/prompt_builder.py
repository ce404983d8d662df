"""Prompts of headless runs: recipe, problem, what was tried, hints, and the form of the answer."""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program import ProgramProblem
from gpu_mcp_server.models.recipe import Candidate, Hint, Specification, Stage, TestPlan, Verdict
from gpu_mcp_server.models.run_plan import HintKind, Preparer, RunPlan
from gpu_mcp_server.recipes.agents.recipe_loader import recipe
from gpu_mcp_server.runtime.result_limits import cut_text
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.problems.reference_source import parse_reference
from gpu_mcp_server.services.workspaces.local_files import read_local

FILE_CHARS = 20_000
"""Of one file of reference code or documentation."""
FILES_CHARS = 60_000
REFERENCE_CHARS = 8_000
REASON_CHARS = 160
FAILURE_CHARS = 1_000
"""Of one failure that the reflector is shown."""
HEADLESS = (
    "You are called by a program, once for each step. It compiles, judges, measures and looks up; you have no tools "
    "here, so where the procedure below names a tool, its answer stands in this text or comes with the next call."
)
ROUTES: dict[Stage, str] = {
    "compile": "Fix these compile errors, and change nothing else:",
    "correctness": "It compiles and is not correct. Find the cause before you change parameters:",
    "performance": "It is correct. Make it faster than the best so far; keep it correct:",
    "code": "There was no candidate to judge:",
}


@dataclass(frozen=True)
class Turn:
    """A candidate and what became of it."""

    number: int
    candidate: Candidate | None
    verdict: Verdict


@dataclass(frozen=True)
class Findings:
    """Findings of the run itself between two candidates, as text for the next prompt."""

    looked_up: str = ""
    """What the documentation says of an error that came twice."""
    profile: str = ""
    """What bounds the last candidate, with one advice."""
    memory: str = ""
    """What earlier attempts at this problem and its kin teach."""
    hint: str = ""
    """Of the reflector."""


def files_of(names: Sequence[str]) -> str:
    """Return files as fenced text, each and all cut to their limits.

    Raises:
        NotFound, PathRefused, LimitExceeded: If one cannot be read.
    """
    parts: list[str] = []
    left = FILES_CHARS
    for name in names:
        text = read_local(Path(name), 1 << 20).decode("utf-8", "replace")
        text = cut_text(text, min(FILE_CHARS, left))
        left = max(left - len(text), 0)
        parts.append(f"{Path(name).name}:\n\n```\n{text}\n```")
    return "\n\n".join(parts)


def about(problem: Problem, plan: RunPlan) -> str:
    """Return the problem as a candidate's author must know it."""
    info = Problems.info(problem)
    launchers = {"cuda": info.launcher_cuda, "python": info.launcher_python}
    launcher = launchers.get(LANGUAGES[plan.language].launcher, info.launcher_c)
    said = [f"Problem {info.name} ({info.problem_id}). {info.description}".strip()]
    if problem.program is not None:
        said += _about_program(problem.program, plan)
    else:
        said += [
            f"Language: {plan.language}. It defines: {launcher}",
            f"Shapes: {json.dumps(list(map(dict, info.shapes)))}; sizes that you are not told of are tried too.",
            f"Tolerance: rtol {info.rtol:g}, atol {info.atol:g}. " + "; ".join(info.conditions),
            f"Reference:\n\n```python\n{cut_text(problem.reference, REFERENCE_CHARS)}\n```",
            *_imported_files(problem),
        ]
    said += [f"Its launcher is called {plan.entry}."] if plan.entry != "launch" else []
    said += [f"Flags of the compiler: {' '.join(plan.flags)}"] if plan.flags else []
    said += [f"Wanted: {plan.request}"] if plan.request else []
    wanted = plan.target.model_dump(exclude_none=True)
    if wanted:
        said += [f"Target: {', '.join(f'{k} {v:g}' for k, v in wanted.items())}, by the worse end of the 95 % interval"]
    said += (
        [f"The seed's own test prints {plan.pass_string!r}; the verdict counts, not that."] if plan.pass_string else []
    )
    return "\n\n".join(said)


def _imported_files(problem: Problem) -> list[str]:
    """Return the files beside a reference that it imports by name: the code of a captured program."""
    if not problem.files:
        return []
    imports = [node for node in ast.walk(parse_reference(problem.reference)) if isinstance(node, ast.ImportFrom)]
    named = dict.fromkeys((node.module or "").replace(".", "/") for node in imports)
    paths = [path for name in named for path in (f"{name}.py", f"{name}/__init__.py") if path in problem.files]
    return [f"{path}:\n\n```python\n{cut_text(problem.files[path], FILE_CHARS)}\n```" for path in paths]


def _about_program(program: ProgramProblem, plan: RunPlan) -> list[str]:
    """Return a project as an author of one of its files must know it."""
    file = program.replaces or ""
    text = (program.files[file].text if file in program.files else None) or ""
    judged = f"It is run as: {' '.join(program.run)}; what it writes is compared, not what it says of itself."
    others = ", ".join(path for path in sorted(program.files)[:40] if path != file) or "none"
    return [
        f"You write {file or 'one file'} anew, whole. The project's other files stay: {others}.",
        f"It is built by: {' '.join(program.build) or 'nothing'}.",
        "There is no device for it here: it is compiled, and nobody runs it." if plan.tier == "compile" else judged,
        f"{file} now:\n\n```{plan.language}\n{cut_text(text, FILE_CHARS)}\n```",
    ]


def answer_form(kind: type[Model], language: str) -> str:
    """Return how the answer is to be given."""
    schema = json.dumps(kind.model_json_schema(), separators=(",", ":"))
    also = f"; or end it with one fenced block (```{language}) that is the whole file" if kind is Candidate else ""
    return (
        "Answer: write JSON of this schema to handoff.json in your folder, or end your answer with it in a ```json "
        f"block{also}.\n\n{schema}"
    )


def role_prompt(
    plan: RunPlan,
    problem: Problem,
    role: Preparer,
    kind: type[Model],
    specification: Specification | None,
    refused: str,
) -> str:
    """Return the prompt of a role that is asked before the first candidate."""
    parts = [HEADLESS, recipe(role).body.strip(), "The problem is registered already.", about(problem, plan)]
    parts += [given_files(plan)] if specification is None else [_specified(specification)]
    parts += [f"Your last answer could not be used: {refused}"] if refused else []
    return _joined([*parts, answer_form(kind, plan.language)])


def reflection_prompt(
    plan: RunPlan, about: str, stage: Stage, failures: Sequence[Verdict], earlier: Sequence[str]
) -> str:
    """Return the prompt of the reflector: the failures of one stage, and the hints that are given already."""
    parts = [HEADLESS, recipe("reflector").body.strip(), about, f"The last {len(failures)} failures, stage {stage}:"]
    for verdict in failures:
        named = verdict.attempt_id or "not judged"
        said = "\n".join(filter(None, [verdict.reason, verdict.details]))
        parts.append(f"{named}: {verdict.outcome}\n{cut_text(said, FAILURE_CHARS)}")
    parts += ["Hints that are given already:\n" + "\n".join(f"- {hint}" for hint in earlier)] if earlier else []
    return _joined([*parts, answer_form(Hint, plan.language)])


def _specified(specification: Specification) -> str:
    return f"Specification:\n\n{specification.model_dump_json(exclude_defaults=True)}"


def code_prompt(
    plan: RunPlan,
    problem: Problem,
    specification: Specification | None,
    turns: Sequence[Turn],
    best: tuple[Verdict, str] | None,
    found: Findings,
    tests: TestPlan | None = None,
) -> str:
    """Return the prompt for the next candidate."""
    last = turns[-1] if turns else None
    parts = [HEADLESS, recipe(plan.procedure).body.strip(), about(problem, plan)]
    if specification is not None:
        parts.append(_specified(specification))
    if tests is not None:
        cases = tests.model_dump_json(exclude_defaults=True)
        parts.append(f"Test plan, which the judge's secret trials may go beyond:\n\n{cases}")
    if last is None:
        parts += [given_files(plan), *hints(plan, "compile", "correctness", "performance"), found.memory]
        parts += [_best_of(best, plan, "The best of earlier runs, confirmed on this device")] if best else []
    else:
        parts += _routed(last, plan, best)
        stage: HintKind | None = {"compile": "compile", "correctness": "correctness", "performance": "performance"}.get(
            last.verdict.stage
        )  # type: ignore[assignment]  # the stages that have hints are kinds of hints
        parts += hints(plan, stage) if stage else []
    parts += findings_text(found, plan)
    if len(turns) > 1 or (last and last.verdict.stage == "correctness"):
        parts.append(history(turns, plan.history))
    parts += diversity(plan, len(turns))
    return _joined([*parts, f"This is candidate {len(turns) + 1}.", answer_form(Candidate, plan.language)])


def findings_text(found: Findings, plan: RunPlan) -> list[str]:
    """Return what the run found out after the last candidate, with the hints that go with it."""
    parts = [found.profile] if found.profile else []
    if found.looked_up:
        parts += [
            f"The same error came twice. The documentation says:\n\n{found.looked_up}", *hints(plan, "research"),
        ]  # fmt: skip
    parts += [f"Hint of the reflector: {found.hint}"] if found.hint else []
    return parts


def offspring_prompt(
    plan: RunPlan,
    problem: Problem,
    ancestors: Sequence[tuple[Candidate, Verdict]],
    turns: Sequence[Turn],
    number: int,
    marked: bool,
    found: Findings,
) -> str:
    """Return the prompt for a child: ancestors in ascending latency with their analysis, then what was tried."""
    parts = [HEADLESS, recipe(plan.procedure).body.strip(), about(problem, plan)]
    parts += [given_files(plan)] if not turns else []
    parts += findings_text(found, plan)
    for rank, (candidate, verdict) in enumerate(ancestors, 1):
        speed = verdict.speed_text() if verdict.speedup or verdict.median_us else verdict.outcome
        said = "\n".join(filter(None, [candidate.idea, candidate.analysis, verdict.reason, verdict.details]))
        parts.append(f"Ancestor {rank} ({speed}):\n\n{said}\n\n```{plan.language}\n{candidate.source}\n```")
    if ancestors:
        parts.append("They stand in ascending latency. Combine what made them fast, or do what none of them does.")
    if marked:
        parts.append("Only lines between EVOLVE-BLOCK-START and EVOLVE-BLOCK-END may change; keep all others.")
    parts += [history(turns, plan.history)] if turns else []
    parts += [*hints(plan, "compile", "correctness", "performance"), *diversity(plan, number)]
    return _joined([*parts, f"This is candidate {number + 1}.", answer_form(Candidate, plan.language)])


def given_files(plan: RunPlan) -> str:
    """Return reference code and documentation of the plan."""
    named = {"Reference code": plan.reference_code, "Documentation": plan.documents}
    return "\n\n".join(f"{what}:\n\n{files_of(names)}" for what, names in named.items() if names)


def hints(plan: RunPlan, *kinds: HintKind) -> list[str]:
    """Return the hints of some kinds."""
    return [f"Hint ({kind}): {text}" for kind in kinds for text in plan.hints.get(kind, [])]


def diversity(plan: RunPlan, number: int) -> list[str]:
    """Return the one hint of diversity whose turn it is."""
    known = plan.hints.get("diversity", [])
    return [f"Hint (diversity): {known[number % len(known)]}"] if known else []


def history(turns: Sequence[Turn], limit: int) -> str:
    """Return what the last candidates were, with their parameters."""
    shown = [*turns][max(len(turns) - limit, 0) :]
    rows = [
        f"- {turn.number}: {_parameters(turn)}{turn.verdict.outcome}"
        + (f", {turn.verdict.speed_text()}" if turn.verdict.speedup or turn.verdict.median_us else "")
        + (f"; {turn.verdict.reason[:REASON_CHARS]}" if turn.verdict.reason else "")
        for turn in shown
    ]
    left = f" ({len(turns) - len(shown)} earlier left out)" if len(shown) < len(turns) else ""
    return "\n".join([f"Candidates so far{left}:", *rows]) if rows else ""


def _parameters(turn: Turn) -> str:
    if turn.candidate is None:
        return ""
    said = ", ".join(f"{name}={value}" for name, value in turn.candidate.parameters.items())
    return " ".join(filter(None, [turn.candidate.idea[:REASON_CHARS], f"({said})" if said else ""])) + ": "


def _routed(last: Turn, plan: RunPlan, best: tuple[Verdict, str] | None) -> list[str]:
    verdict = last.verdict
    said = "\n\n".join(filter(None, [verdict.reason, verdict.details]))
    untimed = verdict.stage == "performance" and not (verdict.speedup or verdict.median_us)
    route = "It is correct, and could not be timed:" if untimed else ROUTES.get(verdict.stage, "Go on:")
    parts = [f"{route}\n\n{said}"]
    if verdict.stage == "performance" and best is not None:
        return [*parts, _best_of(best, plan, "The best so far")]
    if last.candidate is not None:
        parts.append(f"Your last candidate:\n\n```{plan.language}\n{last.candidate.source}\n```")
    return parts


def _best_of(best: tuple[Verdict, str], plan: RunPlan, title: str) -> str:
    return f"{title} ({best[0].speed_text()}):\n\n```{plan.language}\n{best[1]}\n```"


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
