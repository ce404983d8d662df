"""A run as one page: whatever a candidate wrote, nothing of it is markup, and the page asks for nothing."""

import re
import shutil
from html.parser import HTMLParser

import pytest

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import ShapeVerdict, Timing
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.reports.run_report import report, verdict_section
from gpu_mcp_server.recipes.reports.run_roofline import roofs_of
from gpu_mcp_server.recipes.run.run_candidates import Judged
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.problem_table import Problems
from tests.recipes.conftest import Begun

HTML = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "br",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "main",
    "section",
    "div",
    "b",
}
TAGS = HTML | {"pre", "span", "details", "summary", "figure", "figcaption", "ul", "li"}
SVG = {"g", "svg", "rect", "line", "text", "circle", "polyline", "path", "title"}


class Tags(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
async def test_hostile_sources_and_words_are_text_and_wrong_answers_are_a_picture(lab: Lab, begun: Begun):
    run_id = await begun("hostile", iterations={"correctness": 2})
    state = await Runs(lab).go(run_id)
    page = await report(lab, run_id)

    assert state.stopped == "target" and state.problem_id is not None, state.summary()
    found = Tags(page)
    assert found.seen <= TAGS | SVG, found.seen - TAGS - SVG
    assert not {name for name in found.attributes if name.startswith("on")} | (
        {"src", "href", "style"} & found.attributes
    )
    assert "default-src &#x27;none&#x27;" in page and "\u202e" not in page and "\\u202e" in page
    assert "&lt;script&gt;alert(1)" in page
    assert "elements looked at are wrong" in page and "100.0% wrong" in page
    assert "1 to 2: incorrect to correct" in page and "no peak figures of" in page
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:3] == ["Result", "Times at each shape", "Best so far"], "the result opens the page"
    assert {"Lineage of the best", "Wrong elements", "Steps", "Hand-offs"} <= set(headings)
    assert page.index("best speed-up against the reference") < page.index("<h2>") and ">target</span>" in page
    assert "--accent: light-dark(" in page, "it looks like the dashboard"
    times = re.findall(r'<td class="nowrap">([\d.]+ [num\u00b5]?s)</td>', page)
    best = await lab.store.experience.get(str(state.best and state.best.attempt_id))
    assert page.count(f"source {best.source_artifact_id}") == 2, "in the result and among the verdicts"
    assert times and all(len(each.split()[0].replace(".", "").lstrip("0")) <= 3 for each in times), times


def timed(us: float) -> ShapeVerdict:
    timing = Timing(median_us=us, low_us=us, high_us=us, rounds=9, calls_per_round=9)
    return ShapeVerdict(dims={"n": 1_000_000}, verdict="correct", candidate=timing, roof="50 % of the memory roof")


def end(us: float, device: str, rooflines: tuple[dict[str, object], ...] = ()) -> Judged:
    attempt = Attempt(attempt_id=f"a-{us}", kind="evaluate", created_at="", status="judged", device=device)
    verdict = Verdict(attempt_id=attempt.attempt_id, stage="performance", outcome="correct", speedup=1.0)
    return Judged(1, verdict, attempt, (timed(us),), rooflines=rooflines)


def problem(flops: str | None) -> Problem:
    one = TensorSpec(name="x", dtype="float32", shape=["n"])
    return Problems.make_problem(
        "scale", "", "numpy", "reference", [one], [one.model_copy(update={"name": "y"})], [{"n": 1_000_000}], 1e-5,
        1e-6, "def reference(x):\n    return x\n", flops=flops,
    )  # fmt: skip


def test_a_verdict_has_interval_shape_trust_and_the_source_s_id():
    attempt = Attempt.model_validate({
        "attempt_id": "a-1", "kind": "evaluate", "created_at": "now", "status": "judged", "verdict": "correct",
        "speedup": 2.0, "speedup_range": (1.9, 2.1), "shape": "n=8", "trust": "confirmed", "source_artifact_id": "b-1",
    })  # fmt: skip
    early = Verdict(
        attempt_id="a-1", stage="target", outcome="correct", speedup=2.0, speedup_range=(1.9, 2.1), trust="provisional"
    )
    page = verdict_section([Judged(1, early, attempt), Judged(2, early)])
    first = "1. correct, speed-up 2 (1.9-2.1) at stage target; time at n=8, confirmed, source b-1"
    assert first in page and "2. correct, speed-up 2 (1.9-2.1) at stage target; provisional" in page


def test_the_roofline_has_the_first_and_the_best_under_the_roofs_of_the_device():
    before, after = end(10.0, "NVIDIA H200"), end(4.0, "NVIDIA H200")
    page = roofs_of(problem("2*n"), [before, after])
    assert page.count("<circle") == 2 and "4815 GB/s" in page and "knowledge" not in page
    assert "after, n=1000000: 2000 GB/s, 0.5 TFLOP/s; 50 % of the memory roof" in page, "8 MB in 4 us"
    words = roofs_of(problem(None), [before, after])
    assert "declares no flops" in words and "before, n=1000000: 800 GB/s" in words and "<svg" not in words
    assert "no peak figures of &lt;b&gt;" in roofs_of(problem("2*n"), [end(4.0, "<b>")])


def test_what_a_profiler_counted_goes_before_what_is_declared():
    level = {"level": "dram", "intensity_flop_b": 0.25, "peak_bandwidth_gb_s": 4800.0}
    profile = {
        "kernel": "<scale>",
        "pipe": "fp32",
        "tflop_s": 0.4,
        "peak_tflop_s": 60.0,
        "peak_source": "ncu",
        "levels": [level],
    }
    page = roofs_of(problem("2*n"), [end(10.0, "NVIDIA H200"), end(4.0, "NVIDIA H200", (profile,))])
    assert page.count("<circle") == 1 and "counted by the profiler" in page and "<scale>" not in page
