"""A run as one page of HTML that needs nothing beside it: the result, times, the course, the best's lineage, steps."""

import asyncio
import difflib
import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.evaluation import ShapeVerdict, Timing
from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory, rank_of, with_best
from gpu_mcp_server.models.recipe import NO_BASELINE, RunState, RunStep, TunedPoint
from gpu_mcp_server.plots import history_plots
from gpu_mcp_server.plots.roofline_plot import heat_map
from gpu_mcp_server.recipes.headless_runs import Runs, verdicts_of
from gpu_mcp_server.recipes.modes.project_mode import FOLDER
from gpu_mcp_server.recipes.reports.html_page import (
    block,
    figures,
    folded,
    heading,
    page,
    picture,
    section,
    shown,
    table,
    text,
)
from gpu_mcp_server.recipes.reports.run_picture import run_picture
from gpu_mcp_server.recipes.reports.run_roofline import roofs_of
from gpu_mcp_server.recipes.reports.run_timeline import MAX_STEPS, timeline_steps
from gpu_mcp_server.recipes.run.journal import entries
from gpu_mcp_server.recipes.run.run_candidates import Judged, judged
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.time_format import format_time, format_time_range

MAX_DIFF_LINES = 2000
MAX_LINE = 400
MAX_VERDICTS = 500
MAX_MAPS = 24
MAX_FILES = 200
MAX_POINTS = 200
FILE_CHARS = 20_000
DEVICE = "this run"


async def report(lab: Lab, run_id: str) -> str:
    """Return the page of a run, finished or not.

    Raises:
        NotFound: If there is no such run.
    """
    runs = Runs(lab)
    state, plan, folder = runs.state(run_id), runs.plan(run_id), runs.folder(run_id)
    journal = entries(folder)
    candidates = await judged(lab, verdicts_of(journal)[:MAX_VERDICTS])
    first = next((c for c in candidates if c.verdict.outcome == "correct"), None)
    best = next((c for c in candidates if state.best and c.verdict.attempt_id == state.best.attempt_id), None)
    ends = [end for end in (first, best) if end is not None]
    timed = [c for c in candidates if plan.mode != "project"]
    parts = [
        heading(state.name, state.stopped or state.state, _shade(state), f"{state.run_id}, mode {state.mode}"),
        figures(_figures(state, best)),
        _notice(state),
        section("Result", "" if plan.mode == "project" else _best(state, best)),
        section("Times at each shape", _shapes(first, best)),
        section("Best so far", picture(history_plots.plot_history(_history(state, timed))) if timed else ""),
        section("Course", run_picture(timeline_steps(journal)[-MAX_STEPS:], plan.target.speedup)),
        section("Roofline, before and after", await _roofs(lab, state, ends)),
        section("From the first candidate to the best", _diff(candidates[0].source, best.source) if best else ""),
        section("Lineage of the best", _line(candidates, best)),
        section("Tuning", tuning_table(state.tuned)),
        section("Wrong elements", _maps(candidates)),
        section("Steps", _steps(state.steps)),
        section("Verdicts", verdict_section(candidates) or "<p>none</p>"),
        section("Files", await asyncio.to_thread(_files, folder / FOLDER, "**/*")),
        section("Hand-offs", await asyncio.to_thread(_files, folder / "handoffs", "*.json")),
        section("Plan", folded("all", block(plan.model_dump_json(indent=1)))),
    ]
    return page(state.run_id, parts)


def _notice(state: RunState) -> str:
    said = [state.why, f"Next: {state.next_step}" if state.next_step else ""]
    told = "<br>".join(text(each) for each in said if each)
    return f'<div class="notice">{told}</div>' if told else ""


def _shade(state: RunState) -> str:
    return "good" if state.stopped == "target" else "busy" if state.stopped is None else "warn"


def _figures(state: RunState, best: Judged | None) -> list[tuple[str, str]]:
    """Return the result first, then what it took."""
    if state.best is None:
        result = "none correct"
    else:
        result = f"\u00d7{state.best.speedup:.3g}" if state.best.speedup is not None else state.best.outcome
    ends = speedup_range(best.shapes) if best else None
    between = f", 95 % interval {ends[0]:.3g}\u2013{ends[1]:.3g}" if ends else ""
    spent = state.spent
    label = f"best speed-up against the reference{between}"
    if state.best is not None and state.best.speedup is None and state.best.time_range_us and state.best.median_us:
        low_us, high_us = state.best.time_range_us
        result = format_time(state.best.median_us / 1e6)
        label = f"best time of a call, 95 % interval {format_time_range(low_us / 1e6, high_us / 1e6)}: {NO_BASELINE}"
    if state.mode == "project":
        result, label = ("green" if state.stopped == "target" else "not green"), "build and tests"
    found = [(result, label), (f"{len(state.steps)}", "steps")]
    found += [(f"{spent.agent_calls}", "calls of the agent"), (_seconds(spent.wall_s), "in steps")]
    found += [(f"{spent.tool_calls}", "calls of tools")] if spent.tool_calls is not None else []
    cost = f"{spent.cost_usd:.2f} USD" if spent.cost_usd is not None else "unknown"
    return [*found, (cost, "cost as the agent reports")]


def _seconds(seconds: float) -> str:
    return format_time(seconds) if seconds < 59.95 else f"{seconds / 60:,.1f} min"


def speedup_range(shapes: Sequence[ShapeVerdict]) -> tuple[float, float] | None:
    """Return the geometric means of the shapes' low and high ends; None where a shape has none."""
    lows = [shape.speedup_low for shape in shapes if shape.speedup_low]
    highs = [shape.speedup_high for shape in shapes if shape.speedup_high]
    if not shapes or not len(lows) == len(highs) == len(shapes):
        return None
    return geometric_mean(lows), geometric_mean(highs)


async def _roofs(lab: Lab, state: RunState, ends: Sequence[Judged]) -> str:
    if not ends or state.problem_id is None:
        return ""
    try:
        return roofs_of(await lab.store.problems.get(state.problem_id), ends)
    except NotFound:
        return ""


def _history(state: RunState, candidates: Sequence[Judged]) -> ProblemHistory:
    points: list[HistoryPoint] = []
    best: HistoryPoint | None = None
    for candidate in candidates:
        verdict, attempt = candidate.verdict, candidate.attempt
        outcome = "voided" if attempt and attempt.voided else verdict.outcome
        by_time = bool(verdict.time_range_us and verdict.median_us)
        low, high = speedup_range(candidate.shapes) or (None, None)
        point = HistoryPoint(
            number=candidate.number, attempt_id=verdict.attempt_id or f"{candidate.number}", created_at="",
            outcome=outcome, speedup=verdict.speedup, speedup_low=low, speedup_high=high,
            reason=shown(verdict.reason) or None, median_us=verdict.median_us, by_time=by_time,
            time_range_us=verdict.time_range_us, trust=trust_of_candidate(candidate) or None,
            shape=attempt and attempt.shape, source_artifact_id=attempt and attempt.source_artifact_id,
        )  # fmt: skip
        if outcome == "correct" and (verdict.speedup is not None or by_time) and not verdict.coarse:
            best = min(best or point, point, key=rank_of)
        points.append(with_best(point, best))
    return ProblemHistory(problem_id=state.problem_id or "", name=state.name, device=DEVICE, points=points)


def _best(state: RunState, best: Judged | None) -> str:
    if state.best is None:
        return "<p>No candidate was correct.</p>"
    said = [f"{state.best.attempt_id}: {state.best.outcome}, {state.best.speed_text()}"]
    said += [f"trust: {state.best.trust}"] if state.best.trust else []
    if best is not None and best.attempt is not None:
        attempt = best.attempt
        said += [f"source {attempt.source_artifact_id}"] if attempt.source_artifact_id else []
        said += [attempt.note or "", f"on {attempt.device}" if attempt.device else "", attempt.voided or ""]
    return f"<p>{'<br>'.join(text(part) for part in said if part)}</p>"


def _shapes(first: Judged | None, best: Judged | None) -> str:
    """Return a row for each shape of the best: its time beside the first correct one's and the reference's."""
    if best is None or not best.shapes:
        return ""
    early = {str(shape.dims): shape for shape in first.shapes} if first else {}
    interval = "95 % interval"
    heads = [
        "shape", "first correct", interval, "best", interval, "reference", interval, "speed-up, first", interval,
        "speed-up, best", interval, "of the roof",
    ]  # fmt: skip
    return table(heads, [_row(shape, early.get(str(shape.dims))) for shape in best.shapes])


def _row(shape: ShapeVerdict, early: ShapeVerdict | None) -> list[str]:
    dims = ", ".join(f"{name}={size}" for name, size in shape.dims.items()) or "the only shape"
    before = early.candidate if early else None
    pairs = (_time(before), _time(shape.candidate), _time(shape.reference), _ratio(early), _ratio(shape))
    return [dims, *(cell for pair in pairs for cell in pair), shape.roof or "unknown"]


def _time(timing: Timing | None) -> tuple[str, str]:
    """Return a time and its interval."""
    if timing is None:
        return "none", ""
    return format_time(timing.median_us / 1e6), format_time_range(timing.low_us / 1e6, timing.high_us / 1e6)


def _ratio(shape: ShapeVerdict | None) -> tuple[str, str]:
    """Return a speed-up and its interval."""
    if shape is None or shape.speedup is None:
        return "none", ""
    known = shape.speedup_low and shape.speedup_high
    interval = f"{shape.speedup_low:.3g}\u2013{shape.speedup_high:.3g}" if known else "unknown"
    return f"\u00d7{shape.speedup:.3g}", interval


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
    verdict = candidate.verdict
    return f"{verdict.outcome}, {verdict.speed_text()}" if verdict.speedup or verdict.median_us else verdict.outcome


def _origin(candidate: Judged) -> str:
    """Return at which shape the time of a call was taken, how far it is trusted, and the source's id."""
    attempt = candidate.attempt
    told = [f"time at {attempt.shape}" if attempt and attempt.shape else "", trust_of_candidate(candidate)]
    told += [f"source {attempt.source_artifact_id}" if attempt and attempt.source_artifact_id else ""]
    return ", ".join(filter(None, told))


def trust_of_candidate(candidate: Judged) -> str:
    """Return the trust of a candidate's time; the record knows of a confirmation run that came later."""
    return (candidate.attempt and candidate.attempt.trust) or candidate.verdict.trust


def _diff(first: str, best: str) -> str:
    lines = list(difflib.unified_diff(first.splitlines(), best.splitlines(), "before", "after", lineterm="", n=3))
    kept = [f'<span class="l {_class(line)}">{text(line[:MAX_LINE])}</span>' for line in lines[:MAX_DIFF_LINES]]
    left = f"<p>{len(lines) - MAX_DIFF_LINES} lines left out</p>" if len(lines) > MAX_DIFF_LINES else ""
    return f'<pre class="code">{"".join(kept)}</pre>{left}' if lines else "<p>They are the same.</p>"


def _class(line: str) -> str:
    return {"+": "add", "-": "del", "@": "at"}.get(line[:1], "")


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
        parts.append(f"<figure>{picture(drawn)}<figcaption>{text(said)}</figcaption></figure>")
    left = len(wrong) - MAX_MAPS
    return "".join(parts) + (f"<p>({left} more left out)</p>" if left > 0 else "")


def tuning_table(points: Sequence[TunedPoint]) -> str:
    """Return the points of a sweep, the fastest first."""
    if not points:
        return ""
    rows = [
        [
            *(str(value) for value in point.parameters.values()), point.outcome, *_speed_of(point), point.time_text(),
            f"dominated by {point.dominated_by}" if point.dominated_by else point.reason[:MAX_LINE],
        ]
        for point in points[:MAX_POINTS]
    ]  # fmt: skip
    left = f"<p>{len(points) - MAX_POINTS} more left out</p>" if len(points) > MAX_POINTS else ""
    return table([*points[0].parameters, "outcome", "speed-up", "95 % interval", "time of a call", ""], rows) + left


def _speed_of(point: TunedPoint) -> tuple[str, str]:
    ends = point.speedup_range
    return (
        f"\u00d7{point.speedup:.3g}" if point.speedup is not None else "none",
        f"{ends[0]:.3g}\u2013{ends[1]:.3g}" if ends else "unknown",
    )


def _steps(steps: Sequence[RunStep]) -> str:
    rows = [
        [
            step.step, step.outcome, f"{step.speedup:.3g}" if step.speedup else "",
            format_time(step.median_us / 1e6) if step.median_us else "", _seconds(step.seconds),
        ]
        for step in steps
    ]  # fmt: skip
    return table(["step", "outcome", "speed-up", "time of a call", "run time"], rows)


def verdict_section(candidates: Sequence[Judged]) -> str:
    """Return each candidate's verdict, with its details folded."""
    parts: list[str] = []
    for candidate in candidates:
        verdict = candidate.verdict
        head = f"{candidate.number}. {_outcome(candidate)} at stage {verdict.stage}"
        head += f"; {_origin(candidate)}" if _origin(candidate) else ""
        head += f": {verdict.reason}" if verdict.reason else ""
        parts.append(folded(head[:300], block(verdict.details)))
    return "".join(parts)


def _files(folder: Path, pattern: str) -> str:
    """Return files as they are: what roles handed to each other, or a project."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())[:MAX_FILES] if folder.is_dir() else []
    contents = [
        (file.relative_to(folder).as_posix(), file.read_text(encoding="utf-8", errors="replace")[:FILE_CHARS])
        for file in files
    ]
    return "".join(folded(name.removesuffix(".json"), block(content)) for name, content in contents)
