"""The picture of a run, the same in the report and on the dashboard, and what to do next with one that stands still."""

import re
import shutil
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from gpu_mcp_server.models.recipe import StopReason, Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.headless_runs import Runs, state_of
from gpu_mcp_server.recipes.reports.run_picture import run_picture
from gpu_mcp_server.recipes.reports.run_report import report
from gpu_mcp_server.recipes.reports.run_timeline import timeline_steps
from gpu_mcp_server.recipes.run.journal import FILE
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.web.dashboard.runs import run_page
from tests.recipes.conftest import Begun

PLAN = RunPlan.model_validate({"name": "one", "problem": "p-1", "agent": {"command": ["true"]}})


def done(step: str, kind: str, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"event": "done", "step": step, "kind": kind, "seconds": seconds, "outcome": "ok", **more}


def verdict(stage: str, outcome: str = "correct", **more: Any) -> dict[str, Any]:
    return Verdict.model_validate({"stage": stage, "outcome": outcome, **more}).model_dump(mode="json")


JOURNAL = [
    {"event": "done", "step": "problem", "problem_id": "p-7"},
    done("specification-001", "specification", cost_usd=0.5),
    done("test-plan-001", "plan"),
    done("code-001", "code", cost_usd=0.25),
    done("judge-001", "judge", verdict=verdict("performance", speedup=2.0, speedup_range=(1.0, 4.0))),
    done("profile-001", "profile", profile={"attempt_id": "a-1", "level": "quick", "bound": "memory (80 %)", "advice": "load wider"}),
    done("reflect-001", "reflect"),
    done("judge-002", "judge", verdict=verdict("performance", speedup=1.5)),
    done("tune-001", "tune", verdicts=[verdict("performance", speedup=9.0, coarse=True)]),
    done("tune-002", "tune", verdicts=[verdict("performance", speedup=3.0, speedup_range=(2.5, 3.5))]),
]  # fmt: skip


def test_lanes_the_best_with_its_intervals_the_bound_and_the_cost_share_one_axis():
    steps = timeline_steps(JOURNAL)
    assert [step.lane for step in steps] == [
        "Analyst", "Tester", "Coder", "Tester", "Profiler", "Reflector", "Tester", "Tuner", "Tuner",
    ]  # fmt: skip
    assert [step.best for step in steps if step.best] == [(2.0, 1.0, 4.0), (1.5, None, None), (3.0, 2.5, 3.5)]
    tree = ET.fromstring(run_picture(steps))
    words = [element.text or "" for element in tree.iter() if element.tag.endswith("text")]
    assert {"Analyst", "Reflector", "Profiler", "Tuner", "memory (80 %)", "bound", "cost"} <= set(words)
    assert "0.75 USD, call 4" in words and "9 s in steps" in words
    titles = [element.text or "" for element in tree.iter() if element.tag.endswith("title")]
    assert "judge-001: speed-up 2, 95 % 1 to 4" in titles and "judge-002: speed-up 1.5, no interval" in titles
    (best,) = [element.attrib["d"] for element in tree.iter() if element.attrib.get("class") == "best"]
    assert best.count("V") == 1, "the second judged was slower, the coarse one does not count"
    assert len([e for e in tree.iter() if e.attrib.get("class") == "range"]) == 2
    first = next(e for e in tree.iter() if e.tag.endswith("circle"))
    assert float(first.attrib["cx"]) == pytest.approx(70 + 4 / 9 * (1180 - 70 - 14 - 3), abs=0.1)


def test_a_run_without_candidates_has_lanes_alone():
    tree = ET.fromstring(run_picture(timeline_steps([done("specification-001", "specification")])))
    words = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert "bound" not in words and "Tuner" not in words and "best" not in str(words) and "call 1" in words


def said(stopped: StopReason, *steps: dict[str, Any], **plan: Any) -> str:
    end = {"event": "done", "step": "end", "stopped": stopped, "why": "", "best": None}
    values = {**PLAN.model_dump(exclude_defaults=True), **plan}
    return state_of("r-1", RunPlan.model_validate(values), [JOURNAL[0], *steps, end]).next_step


def test_the_next_step_names_the_command_or_the_key():
    wrong = done("judge-001", "judge", verdict=verdict("correctness", "incorrect", reason="y[3] is\n 4, not 5"))
    assert said("iterations", wrong) == (
        "give hints.correctness against what failed last (y[3] is 4, not 5), or raise iterations.correctness"
    )
    assert said("iterations", wrong, JOURNAL[4]).startswith("correct and below the target, and not profiled")
    assert said("iterations", *JOURNAL[1:7]).startswith(
        "correct and below the target, bound by memory (80 %): load wider;"
    )
    assert "sweep its parameters with [tune]" in said("iterations", JOURNAL[4])
    assert "[tune]" not in said("iterations", JOURNAL[4], tune={"TILE": [1]})
    assert "history p-7 --export-branch" in said("target") and "recipes/r-1/best.txt" in said("target")
    assert "[budget]" in said("budget") and "nccl verify" in said("target", mode="nccl")
    open_run = [JOURNAL[0], {"event": "begun", "step": "code-001", "kind": "code"}]
    assert state_of("r-1", PLAN, open_run).next_step.endswith("recipe resume r-1`; it goes on with code-001")
    reasons: list[StopReason] = [
        "rounds",
        "specification",
        "agent",
        "refused",
        "degenerate",
        "compiled",
        "cached",
        "tuned",
        "unmeasured",
    ]
    assert all(said(reason) and "\n" not in said(reason) for reason in reasons)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
async def test_the_report_and_the_dashboard_show_the_same_picture_of_a_run_also_while_it_stands(lab: Lab, begun: Begun):
    run_id = await begun("learns")
    state = await Runs(lab).go(run_id)
    path = lab.settings.data_dir / "recipes" / run_id / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in (len(lines), next(n for n, line in enumerate(lines) if b'"begun","step":"code-003"' in line) + 1):
        path.write_bytes(b"".join(lines[:cut]))
        shown, page = await run_page(lab, run_id), await report(lab, run_id)
        assert shown.picture in page and f"Next: {shown.state.next_step[:20]}" in re.sub("&#x27;", "'", page)
        assert shown.state.next_step in shown.state.summary()
    assert "it goes on with code-003" in shown.state.next_step
    assert (await Runs(lab).go(run_id)).best == state.best
