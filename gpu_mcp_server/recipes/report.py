"""A run as one page of HTML that needs nothing beside it: why it stopped, the course, every step, the winning lines."""

import difflib
from collections.abc import Sequence
from html import escape

from gpu_mcp_server import pictures
from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory
from gpu_mcp_server.models.recipe import RunState, RunStep, Verdict
from gpu_mcp_server.recipes.journal import entries
from gpu_mcp_server.recipes.runs import Runs, verdicts_of
from gpu_mcp_server.services.lab import Lab

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% }
th, td { border: 1px solid #d0d7de; padding: .3rem .5rem; text-align: left }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; font-size: 13px } svg { max-width: 100%; height: auto }
.add { background: #dafbe1 } .del { background: #ffebe9 } details { margin: .3rem 0 }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } pre { background: #161b22 }
 svg { background: #fff } .add { background: #12361f } .del { background: #4a1418 } }
"""
MAX_DIFF_LINES = 2000


async def report(lab: Lab, run_id: str) -> str:
    """Return the page of a run, finished or not.

    Raises:
        NotFound: If there is no such run.
    """
    runs = Runs(lab)
    state, plan, folder = runs.state(run_id), runs.plan(run_id), runs.folder(run_id)
    journal = entries(folder)
    verdicts = verdicts_of(journal)
    course = pictures.course(_history(state, verdicts)) if verdicts else ""
    first, best = await _source(lab, verdicts[:1]), await _source(lab, [state.best] if state.best else [])
    parts = [
        f"<h1>{escape(state.name)}</h1><p>{escape(state.run_id)}, mode {escape(state.mode)}</p>",
        f"<h2>Why it stopped</h2><p>{escape(state.stopped or state.state)}. {escape(state.why)}</p>",
        f"<h2>Cost</h2><p>{_cost(state)}</p>",
        f"<h2>Best</h2>{await _best(lab, state)}",
        f"<h2>Course</h2>{course}" if course else "",
        f"<h2>From the first candidate to the best</h2>{_diff(first, best)}" if first and best else "",
        f"<h2>Steps</h2>{_steps(state.steps)}",
        f"<h2>Verdicts</h2>{_verdicts(verdicts)}",
        f"<h2>Plan</h2><details><summary>all</summary><pre>{escape(plan.model_dump_json(indent=1))}</pre></details>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(state.run_id)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _history(state: RunState, verdicts: Sequence[Verdict]) -> ProblemHistory:
    points: list[HistoryPoint] = []
    best: float | None = None
    for number, verdict in enumerate(verdicts, 1):
        if verdict.outcome == "correct" and verdict.speedup is not None:
            best = max(best or 0.0, verdict.speedup)
        points.append(
            HistoryPoint(
                number=number, attempt_id=verdict.attempt_id or f"{number}", created_at="", outcome=verdict.outcome,
                speedup=verdict.speedup, best=best, reason=verdict.reason or None,
            )
        )  # fmt: skip
    return ProblemHistory(problem_id=state.problem_id or "", name=state.name, device="this run", points=points)


async def _source(lab: Lab, verdicts: Sequence[Verdict]) -> str:
    for verdict in verdicts:
        if verdict.attempt_id is not None:
            attempt = await lab.experience.get(verdict.attempt_id)
            if attempt.source_artifact_id is not None:
                return (await lab.artifacts.read(attempt.source_artifact_id)).decode("utf-8", "replace")
    return ""


async def _best(lab: Lab, state: RunState) -> str:
    if state.best is None or state.best.attempt_id is None:
        return "<p>No candidate was correct.</p>"
    attempt = await lab.experience.get(state.best.attempt_id)
    speed = f"speed-up {state.best.speedup:.3g}" if state.best.speedup is not None else "correct, not timed"
    said = [f"{attempt.attempt_id}: {speed}", attempt.note or "", f"on {attempt.device}", attempt.voided or ""]
    shapes = f"<pre>{escape(state.best.details)}</pre>" if state.best.details else ""
    return f"<p>{'<br>'.join(escape(text) for text in said if text)}</p>{shapes}"


def _cost(state: RunState) -> str:
    spent = state.spent
    cost = f"{spent.cost_usd:.2f} USD as the agent reports" if spent.cost_usd is not None else "no cost was reported"
    return f"{spent.agent_calls} calls of the agent, {spent.wall_s:.0f} s in steps, {cost}"


def _diff(first: str, best: str) -> str:
    lines = list(difflib.unified_diff(first.splitlines(), best.splitlines(), "first", "best", lineterm="", n=3))
    shown = [f'<span class="{_class(line)}">{escape(line)}</span>' for line in lines[:MAX_DIFF_LINES]]
    left = f"\n({len(lines) - MAX_DIFF_LINES} lines left out)" if len(lines) > MAX_DIFF_LINES else ""
    return f"<pre>{chr(10).join(shown)}{left}</pre>" if lines else "<p>They are the same.</p>"


def _class(line: str) -> str:
    return {"+": "add", "-": "del"}.get(line[:1], "")


def _steps(steps: Sequence[RunStep]) -> str:
    rows = [
        [step.step, step.outcome, f"{step.speedup:.3g}" if step.speedup else "", f"{step.seconds:.1f}"]
        for step in steps
    ]
    return _table(["step", "outcome", "speed-up", "seconds"], rows)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    parts: list[str] = []
    for number, verdict in enumerate(verdicts, 1):
        head = f"{number}. {verdict.outcome} at stage {verdict.stage}" + (
            f": {verdict.reason}" if verdict.reason else ""
        )
        parts.append(f"<details><summary>{escape(head[:300])}</summary><pre>{escape(verdict.details)}</pre></details>")
    return "".join(parts) or "<p>none</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
