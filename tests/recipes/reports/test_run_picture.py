"""The picture of a run, the same in the report and on the dashboard, and what to do next with one that stands still."""

import itertools
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
    done("judge-001", "judge", verdict=verdict("performance", attempt_id="a-1", speedup=2.0, speedup_range=(1.9, 4.0))),
    done("profile-001", "profile", profile={"attempt_id": "a-1", "level": "quick", "bound": "memory (80 %)", "advice": "load wider"}),
    done("reflect-001", "reflect"),
    done("judge-002", "judge", verdict=verdict("performance", attempt_id="a-2", speedup=2.5, speedup_range=(1.0, 4.5))),
    done("judge-003", "judge", verdict=verdict("performance", attempt_id="a-3", speedup=8.0)),
    done("tune-001", "tune", verdicts=[verdict("performance", speedup=9.0, coarse=True)]),
    done("tune-002", "tune", verdicts=[verdict("performance", attempt_id="a-4", speedup=3.5, speedup_range=(3.0, 4.0))]),
    done("confirm-a-3", "confirm", verdict=verdict("correctness", "voided", attempt_id="a-3")),
    done("confirm-a-4", "confirm", verdict=verdict("performance", attempt_id="a-4", speedup=3.0, speedup_range=(2.5, 3.5), trust="confirmed")),
]  # fmt: skip


def elements(picture: str, tag: str, of_class: str = "") -> list[ET.Element]:
    found = [element for element in ET.fromstring(picture).iter() if element.tag.endswith(f"}}{tag}")]
    return [element for element in found if not of_class or of_class in element.attrib.get("class", "").split()]


def test_lanes_the_best_with_its_intervals_the_bound_and_the_cost_share_one_axis():
    steps = timeline_steps(JOURNAL)
    assert [step.lane for step in steps] == [
        "Analyst", "Tester", "Coder", "Tester", "Profiler", "Reflector", "Tester", "Tester", "Tuner", "Tuner", "Tester",
        "Tester",
    ]  # fmt: skip
    assert [step.best.speedup for step in steps if step.best] == [2.0, 2.5, 3.0], "a-3 is void, a-4 as confirmed"
    assert [step.step for step in steps if step.back_to and step.step.startswith("confirm")] == ["confirm-a-3"]
    picture = run_picture(steps, target=4.0)
    words = [element.text or "" for element in elements(picture, "text")]
    assert {"Analyst", "Reflector", "Profiler", "Tuner", "memory (80 %)", "bound", "cost"} <= set(words)
    assert {"0.75 USD, 4 calls", "12 s in steps", "target \u00d74", "fine", "handed back"} <= set(words)
    titles = [element.text or "" for element in elements(picture, "title")]
    assert "judge-001: speed-up 2, 95 % 1.9 to 4" in titles and "code-001: 0.75 USD, call 3" in titles
    assert "tune-002: speed-up 3, 95 % 2.5 to 3.5, confirmed" in titles
    (best,) = elements(picture, "path", "best")
    assert best.attrib["d"].count("V") == 1, "a-2 is faster by its median, not by the low end of its interval"
    assert [len(elements(picture, *kind)) for kind in (("path", "range"), ("circle", "hollow"), ("circle", "good"))] == [3, 2, 1]  # fmt: skip
    first, last = elements(picture, "circle", "hollow")[0], elements(picture, "circle", "good")[0]
    whole = 1000 - 84 - 16 - 3
    assert float(first.attrib["cx"]) == pytest.approx(84 + 4 / 12 * whole, abs=0.1)
    assert float(last.attrib["cx"]) == pytest.approx(84 + 10 / 12 * whole, abs=0.1)


def test_the_line_goes_on_by_trust_and_the_low_end_not_by_what_seems_fastest():
    def judged(number: int, speedup: float, low: float, trust: str) -> dict[str, Any]:
        ends = (low, 2 * speedup - low)
        one = verdict("performance", attempt_id=f"a-{number}", speedup=speedup, speedup_range=ends, trust=trust)
        return done(f"judge-{number:03}", "judge", verdict=one)

    sure = [judged(1, 2.0, 1.9, "confirmed"), judged(2, 1.5, 1.4, "confirmed"), judged(3, 3.0, 2.9, "confirmed")]
    picture = run_picture(timeline_steps(sure))
    (line,) = elements(picture, "path", "best")
    assert line.attrib["d"].count("V") == 1, "the second is slower, the third is the best"
    seems = [
        judged(4, 9.0, 8.0, "provisional"),
        judged(5, 99.0, 90.0, "unconfirmable: busy"),
        judged(6, 8.0, 1.0, "confirmed"),
    ]
    (longer,) = elements(run_picture(timeline_steps([*sure, *seems])), "path", "best")
    assert longer.attrib["d"].count("V") == 1


def test_what_does_not_fit_is_left_to_titles_and_a_far_target_does_not_flatten_the_course():
    profiles = [
        done(f"profile-{n:03}", "profile", profile={"attempt_id": "a-1", "level": "quick", "bound": bound})
        for n, bound in enumerate(["memory (80 %)", "memory (70 %)", "latency (25 %)"] * 30)
    ]
    picture = run_picture(timeline_steps([*JOURNAL, *profiles]), target=1e6)
    words = [element.text or "" for element in elements(picture, "text")]
    assert "target \u00d71e+06" in words and not elements(picture, "line", "target")
    assert {"\u00d71", "\u00d72"} <= set(words) and len([word for word in words if word.startswith("\u00d7")]) <= 6
    assert (len(elements(picture, "rect", "bound")), words.count("memory"), words.count("latency")) == (91, 1, 0)
    ends = [(float(e.attrib["x"]), float(e.attrib["width"])) for e in elements(picture, "rect", "bound")]
    assert all(x + width == pytest.approx(after, abs=0.2) for (x, width), (after, _) in itertools.pairwise(ends))
    assert ends[-1][0] + ends[-1][1] == pytest.approx(984, abs=0.2)


def test_a_run_without_candidates_has_lanes_alone():
    begun = [done("specification-001", "specification"), {"event": "begun", "step": "code-001", "kind": "code"}]
    picture = run_picture(timeline_steps(begun), target=2.0)
    words = [element.text for element in elements(picture, "text")]
    assert (
        not {"bound", "Tuner", "handed back"} & set(words) and "best" not in str(words) and "target" not in str(words)
    )
    assert "cost unknown, 1 call" in words
    (running,) = [bar for bar in elements(picture, "rect", "busy") if float(bar.attrib["height"]) > 10]
    assert float(running.attrib["width"]) > 20


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
