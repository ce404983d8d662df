"""Text of others, cut and made visible; a run's journal as lanes."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from gpu_mcp_server.recipes.reports.run_picture import run_picture
from gpu_mcp_server.recipes.reports.run_timeline import MAX_STEPS, timeline_steps
from gpu_mcp_server.services.status.listings import ListRequest
from gpu_mcp_server.time_format import format_duration, format_elapsed
from gpu_mcp_server.web.dashboard.list_pages import ListView
from gpu_mcp_server.web.dashboard.text_format import (
    LINES,
    difference,
    display_text,
    listing,
    log_listing,
    paired_difference,
)
from gpu_mcp_server.web.dashboard.whiskers import range_of, scale_of


def test_what_steers_is_made_visible_and_what_is_long_says_how_much_is_missing():
    assert display_text("a\u202eb\x1b[31mc\x00") == "a\\u202eb\\x1b[31mc\\x00"
    assert display_text("x" * 500, 10) == "x" * 10 + " [… 490 more characters]"
    assert display_text(None) == ""
    found = listing("line\n" * (LINES + 7))
    assert (len(found.lines), found.left_out) == (LINES, f"7 of {LINES + 7} lines left out")


def test_a_difference_has_only_what_changed_and_refuses_what_takes_too_long():
    found = difference("a\nb\nc\n", "a\nB\nc\n")
    assert [(line.kind, line.text) for line in found.lines] == [
        ("at", "@@ -1,3 +1,3 @@"), ("", "a"), ("del", "b"), ("add", "B"), ("", "c"),
    ]  # fmt: skip
    assert difference("same", "same").lines == []
    assert [line.text for line in difference("", "--- x\n+++ y").lines][1:] == ["--- x", "+++ y"], "no header of a file"
    assert "not compared" in difference("x\n" * (LINES + 1), "").left_out
    assert "not compared" in difference("", "y" * 200_001).left_out


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.0614, "61.4 ms"),
        (8.2, "8.20 s"),
        (59.9, "59.9 s"),
        (59.97, "1 min"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
        (None, ""),
    ],
)
def test_a_duration_is_said_as_people_say_it(seconds: float | None, said: str):
    assert format_duration(seconds) == said


def test_a_clock_that_goes_on_has_whole_seconds():
    assert [format_elapsed(each) for each in (0, 0.4, 8.6, 61, 90061, None)] == [
        "0 s", "0 s", "9 s", "1 min 1 s", "1 d 1 h", ""
    ]  # fmt: skip


def test_a_log_keeps_its_end_and_says_how_much_is_before():
    found = log_listing("".join(f"line {n}\n" for n in range(LINES + 7)))
    assert (found.lines[0].number, found.lines[-1].text) == ("8", f"line {LINES + 6}")
    assert found.left_out == f"7 earlier of {LINES + 7} lines left out"
    assert log_listing("a\u202e\n").lines[0].text == "a\\u202e"


def test_two_sources_stand_line_beside_line_around_what_changed():
    found = paired_difference("a\nb\nc\n", "a\nB\nB2\nc\n")
    assert [(p.left.number, p.left.text, p.left.kind, p.right.number, p.right.text) for p in found.pairs] == [
        ("", "lines 1 and 1", "at", "", ""), ("1", "a", "", "1", "a"), ("2", "b", "del", "2", "B"),
        ("", "", "", "3", "B2"), ("3", "c", "", "4", "c"),
    ]  # fmt: skip
    assert not paired_difference("same", "same").pairs
    assert "not compared" in paired_difference("x\n" * (LINES + 1), "").left_out
    assert paired_difference("\u202e", "").pairs[1].left.text == "\\u202e"
    far = paired_difference("\n".join(map(str, range(100))), "\n".join(map(str, [*range(50), "new", *range(50, 100)])))
    assert len(far.pairs) == 8 and far.pairs[0].left.text == "lines 48 and 48"


@pytest.mark.parametrize("values", [(1.0,), (0.93, 1.2), (3.13, 3.22), (1e-9, 2e9), (9.5, 99.0)])
def test_the_scale_of_whiskers_brackets_all_values(values: tuple[float, ...]):
    scale = scale_of([*values, None, 0.0, float("inf")])
    assert scale is not None and scale.low <= min(values) <= max(values) <= scale.high
    assert 0 <= scale.place(min(values)) <= scale.place(max(values)) <= 120
    assert scale.place(5e-324) == 5, "at its end"
    assert scale_of([None, 0.0, -1.0, 5e-324, 1e300]) is None


@pytest.mark.parametrize("said", [None, [], [1.0], [1.0, "2"], [0.0, 1.0], "1,2", [1.0, 2.0, 3.0]])
def test_an_interval_that_is_none_is_unknown(said: Any):
    assert range_of({"speedup_range": said}, "speedup_range") is None
    assert range_of({"speedup_range": [1, 2.5]}, "speedup_range") == (1.0, 2.5)


def test_addresses_of_a_list_keep_what_was_asked_for_and_escape_it():
    view = ListView("jobs", ListRequest(words='a&"<b>', chosen={"user": "ada"}, sort="host", skip=100), {}, 180)
    assert view.address(sort="state") == "/jobs?q=a%26%22%3Cb%3E&user=ada&sort=state", "from the first page again"
    assert view.address() == "/jobs?q=a%26%22%3Cb%3E&user=ada&sort=host&page=2"
    assert (view.page, view.has_more) == (2, True)
    assert ListView("jobs", ListRequest(sort="no such order"), {}).sort == "newest"


def judged(number: int, stage: str, outcome: str, **more: Any) -> dict[str, Any]:
    verdict = {"stage": stage, "outcome": outcome, "attempt_id": f"a-{number}", **more}
    return {
        "event": "done",
        "step": f"judge-{number:03}",
        "kind": "judge",
        "seconds": 2.0,
        "outcome": outcome,
        "verdict": verdict,
    }


def test_each_step_lies_in_its_role_and_failures_go_back_to_who_can_mend_them():
    found = timeline_steps(
        [
            {
                "event": "done",
                "step": "specification-001",
                "kind": "specification",
                "seconds": 1.0,
                "outcome": "failed",
                "why": "no JSON",
            },
            {"event": "done", "step": "code-001", "kind": "code", "seconds": 3.0, "outcome": "ok"},
            judged(1, "compile", "compile_failed", reason="x is undefined"),
            judged(2, "correctness", "incorrect"),
            judged(3, "performance", "correct", speedup=1.5),
            judged(4, "target", "correct", speedup=3.0),
            {"event": "begun", "step": "code-005", "kind": "code"},
        ]
    )
    assert [(w.lane, w.shade, w.back_to) for w in found] == [
        ("Analyst", "bad", "Analyst"), ("Coder", "good", ""), ("Builder", "bad", "Coder"), ("Tester", "bad", "Coder"),
        ("Tester", "good", "Coder"), ("Tester", "good", ""), ("Coder", "busy", ""),
    ]  # fmt: skip
    assert [w.starts_s for w in found] == [0, 1, 4, 6, 8, 10, 12]
    assert (found[2].said, found[4].attempts, found[-1].seconds) == (
        "x is undefined",
        (("a-3", "correct", "\u00d71.5"),),
        None,
    )


@pytest.mark.parametrize("count", [0, 1, MAX_STEPS + 50])
def test_the_picture_of_a_run_is_xml_whatever_was_said(count: int):
    hostile = judged(1, "correctness", "<script>\x00", reason="\"'><img onerror=x>\ud800")
    tree = ET.fromstring(run_picture(timeline_steps([hostile] * count)))
    assert len(tree.findall("{*}rect")) == min(count, MAX_STEPS)
    assert not [e for e in tree.iter() if e.tag.endswith("script") or e.tag.endswith("img")]
