"""Text of others, cut and made visible; a run's journal as lanes."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from gpu_mcp_server.web.dashboard.text_format import LINES, difference, display_text, format_duration, listing
from gpu_mcp_server.web.dashboard.timeline import MAX_STEPS, picture, timeline_steps


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
        (0.0614, "0.061 s"),
        (59.9, "59 s"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
        (None, ""),
    ],
)
def test_a_duration_is_said_as_people_say_it(seconds: float | None, said: str):
    assert format_duration(seconds) == said


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
        (("a-3", "correct", "1.5"),),
        None,
    )


@pytest.mark.parametrize("count", [0, 1, MAX_STEPS + 50])
def test_the_picture_of_a_run_is_xml_whatever_was_said(count: int):
    hostile = judged(1, "correctness", "<script>\x00", reason="\"'><img onerror=x>\ud800")
    tree = ET.fromstring(picture(timeline_steps([hostile] * count)))
    assert len(tree.findall("{*}rect")) == min(count, MAX_STEPS)
    assert not [e for e in tree.iter() if e.tag.endswith("script") or e.tag.endswith("img")]
