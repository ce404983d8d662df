"""A run as one page of HTML that needs nothing beside it: why it stopped, the course, every step, the winning line."""

import asyncio
import difflib
import itertools
from collections.abc import Sequence
from pathlib import Path

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.evaluation import ShapeVerdict, Timing
from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory
from gpu_mcp_server.models.recipe import RunState, RunStep
from gpu_mcp_server.plots import history_plots
from gpu_mcp_server.plots.roofline_plot import heat_map
from gpu_mcp_server.recipes.headless_runs import Runs, verdicts_of
from gpu_mcp_server.recipes.reports.html_page import block, folded, page, section, shown, table, text
from gpu_mcp_server.recipes.reports.run_roofline import roofs_of
from gpu_mcp_server.recipes.run.journal import entries
from gpu_mcp_server.recipes.run.run_candidates import Judged, judged
from gpu_mcp_server.services.lab import Lab

MAX_DIFF_LINES = 2000
MAX_LINE = 400
MAX_VERDICTS = 500
MAX_MAPS = 24
MAX_HANDOFFS = 200
HANDOFF_CHARS = 20_000
DEVICE = "this run"


async def report(lab: Lab, run_id: str) -> str:
    """Return the page of a run, finished or not.

    Raises:
        NotFound: If there is no such run.
    """
    runs = Runs(lab)
    state, plan, folder = runs.state(run_id), runs.plan(run_id), runs.folder(run_id)
    candidates = await judged(lab, verdicts_of(entries(folder))[:MAX_VERDICTS])
    first = next((c for c in candidates if c.verdict.outcome == "correct"), None)
    best = next((c for c in candidates if state.best and c.verdict.attempt_id == state.best.attempt_id), None)
    ends = [end for end in (first, best) if end is not None]
    parts = [
        f"<h1>{text(state.name)}</h1><p>{text(state.run_id)}, mode {text(state.mode)}</p>",
        section("Why it stopped", f"<p>{text(state.stopped or state.state)}. {text(state.why)}</p>"),
        section("Cost", f"<p>{_cost(state)}</p>"),
        section("Best", _best(state, best)),
        section("Times at each shape", _shapes(first, best)),
        section("Course", history_plots.plot_history(_history(state, candidates)) if candidates else ""),
        section("Roofline, before and after", await _roofs(lab, state, ends)),
        section("From the first candidate to the best", _diff(candidates[0].source, best.source) if best else ""),
        section("The winning line", _line(candidates, best)),
        section("Where answers were wrong", _maps(candidates)),
        section("Steps", _steps(state.steps)),
        section("Verdicts", _verdicts(candidates) or "<p>none</p>"),
        section("Hand-offs", await asyncio.to_thread(_handoffs, folder / "handoffs")),
        section("Plan", folded("all", block(plan.model_dump_json(indent=1)))),
    ]
    return page(state.run_id, parts)


async def _roofs(lab: Lab, state: RunState, ends: Sequence[Judged]) -> str:
    if not ends or state.problem_id is None:
        return ""
    try:
        return roofs_of(await lab.store.problems.get(state.problem_id), ends)
    except NotFound:
        return ""


def _history(state: RunState, candidates: Sequence[Judged]) -> ProblemHistory:
    points: list[HistoryPoint] = []
    best: float | None = None
    for candidate in candidates:
        verdict, attempt = candidate.verdict, candidate.attempt
        outcome = "voided" if attempt and attempt.voided else verdict.outcome
        if outcome == "correct" and verdict.speedup is not None:
            best = max(best or 0.0, verdict.speedup)
        points.append(
            HistoryPoint(
                number=candidate.number, attempt_id=verdict.attempt_id or f"{candidate.number}", created_at="",
                outcome=outcome, speedup=verdict.speedup, best=best, reason=shown(verdict.reason) or None,
            )
        )  # fmt: skip
    return ProblemHistory(problem_id=state.problem_id or "", name=state.name, device=DEVICE, points=points)


def _best(state: RunState, best: Judged | None) -> str:
    if state.best is None:
        return "<p>No candidate was correct.</p>"
    speed = f"speed-up {state.best.speedup:.3g}" if state.best.speedup is not None else f"{state.best.outcome}, no time"
    said = [f"{state.best.attempt_id}: {speed}"]
    if best is not None and best.attempt is not None:
        attempt = best.attempt
        said += [attempt.note or "", f"on {attempt.device}" if attempt.device else "", attempt.voided or ""]
    return f"<p>{'<br>'.join(text(part) for part in said if part)}</p>"


def _shapes(first: Judged | None, best: Judged | None) -> str:
    """Return a row for each shape of the best: its time beside the first correct one's and the reference's."""
    if best is None or not best.shapes:
        return ""
    early = {str(shape.dims): shape for shape in first.shapes} if first else {}
    heads = ["shape", "first correct", "best", "reference", "speed-up, first", "speed-up, best", "of the roof"]
    return table(heads, [_row(shape, early.get(str(shape.dims))) for shape in best.shapes])


def _row(shape: ShapeVerdict, early: ShapeVerdict | None) -> list[str]:
    dims = ", ".join(f"{name}={size}" for name, size in shape.dims.items()) or "the only shape"
    before = _us(early.candidate) if early else "-"
    return [
        dims, before, _us(shape.candidate), _us(shape.reference), _ratio(early), _ratio(shape), shape.roof or "-",
    ]  # fmt: skip


def _us(timing: Timing | None) -> str:
    if timing is None:
        return "-"
    unit, by = ("ms", 1000.0) if timing.median_us >= 10_000 else ("us", 1.0)
    return f"{timing.median_us / by:.4g} {unit} ({timing.low_us / by:.4g}-{timing.high_us / by:.4g})"


def _ratio(shape: ShapeVerdict | None) -> str:
    if shape is None or shape.speedup is None:
        return "-"
    interval = (
        f" ({shape.speedup_low:.3g}-{shape.speedup_high:.3g})" if shape.speedup_low and shape.speedup_high else ""
    )
    return f"{shape.speedup:.3g}{interval}"


def _cost(state: RunState) -> str:
    spent = state.spent
    cost = f"{spent.cost_usd:.2f} USD as the agent reports" if spent.cost_usd is not None else "no cost was reported"
    tools = f", {spent.tool_calls} calls of tools" if spent.tool_calls is not None else ""
    return f"{spent.agent_calls} calls of the agent{tools}, {spent.wall_s:.0f} s in steps, {cost}"


def _line(candidates: Sequence[Judged], best: Judged | None) -> str:
    """Return what changed from parent to child, from the oldest ancestor within the run to the best."""
    known = {c.verdict.attempt_id: c for c in candidates if c.attempt is not None}
    chain: list[Judged] = []
    at = best
    while at is not None and at.attempt is not None and at not in chain:
        chain.insert(0, at)
        at = known.get(at.attempt.parent_id)
    parts: list[str] = []
    for parent, child in itertools.pairwise(chain):
        said = f"{parent.number} to {child.number}: {_outcome(parent)} to {_outcome(child)}"
        note = child.attempt.note if child.attempt and child.attempt.note else ""
        parts.append(folded(f"{said}. {note}"[:400], _diff(parent.source, child.source)))
    return "".join(parts)


def _outcome(candidate: Judged) -> str:
    speed = candidate.verdict.speedup
    return f"{candidate.verdict.outcome}, {speed:.3g}" if speed is not None else candidate.verdict.outcome


def _diff(first: str, best: str) -> str:
    lines = list(difflib.unified_diff(first.splitlines(), best.splitlines(), "before", "after", lineterm="", n=3))
    kept = [f'<span class="{_class(line)}">{text(line[:MAX_LINE])}</span>' for line in lines[:MAX_DIFF_LINES]]
    left = f"\n({len(lines) - MAX_DIFF_LINES} lines left out)" if len(lines) > MAX_DIFF_LINES else ""
    return f"<pre>{chr(10).join(kept)}{left}</pre>" if lines else "<p>They are the same.</p>"


def _class(line: str) -> str:
    return {"+": "add", "-": "del"}.get(line[:1], "")


def _maps(candidates: Sequence[Judged]) -> str:
    """Return a heat map for each candidate whose answer the judge compared element by element."""
    wrong = [c for c in candidates if c.where is not None]
    parts: list[str] = []
    for candidate in wrong[:MAX_MAPS]:
        where = candidate.where or {}
        shape = "x".join(str(size) for size in where.get("shape", [])) or "scalar"
        said = (
            f"{candidate.number}. output {where.get('output')} of {shape}: {where.get('wrong')} of "
            f"{where.get('looked_at')} elements looked at are wrong. {candidate.verdict.reason[:300]}"
        )
        drawn = heat_map(where.get("share", []), "rows", "the last axis")
        parts.append(f"<figure>{drawn}<figcaption>{text(said)}</figcaption></figure>")
    left = len(wrong) - MAX_MAPS
    return "".join(parts) + (f"<p>({left} more left out)</p>" if left > 0 else "")


def _steps(steps: Sequence[RunStep]) -> str:
    rows = [
        [step.step, step.outcome, f"{step.speedup:.3g}" if step.speedup else "", f"{step.seconds:.1f}"]
        for step in steps
    ]
    return table(["step", "outcome", "speed-up", "seconds"], rows)


def _verdicts(candidates: Sequence[Judged]) -> str:
    parts: list[str] = []
    for candidate in candidates:
        verdict = candidate.verdict
        head = f"{candidate.number}. {verdict.outcome} at stage {verdict.stage}"
        head += f": {verdict.reason}" if verdict.reason else ""
        parts.append(folded(head[:300], block(verdict.details)))
    return "".join(parts)


def _handoffs(folder: Path) -> str:
    """Return what roles handed to each other, as the files have it."""
    files = sorted(folder.glob("*.json"))[:MAX_HANDOFFS] if folder.is_dir() else []
    contents = [(file.stem, file.read_text(encoding="utf-8", errors="replace")[:HANDOFF_CHARS]) for file in files]
    return "".join(folded(step, block(content)) for step, content in contents)
