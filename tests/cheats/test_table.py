"""The table of candidates itself."""

import re
from dataclasses import replace
from typing import Any

import pytest

from gpu_mcp_server.cli import cheat_suite
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.package_files import JUDGE, page

KNOWN = cheat_suite.catalogued_candidates()


def test_every_candidate_is_there_and_every_file_is_a_candidate():
    at = cheat_suite.folder()
    files = {p for p in at.rglob("*") if p.suffix in cheat_suite.LANGUAGES}

    assert {c.path for c in KNOWN} == files
    assert len({c.id for c in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize(("kind", "least"), [("cheat", 40), ("honest", 12)])
def test_there_are_as_many_as_promised(kind, least):
    assert sum(c.kind == kind for c in KNOWN) >= least


def test_every_cheat_names_its_rows_of_the_catalogue_and_what_it_does():
    assert all(c.does and all(1 <= row <= 49 for row in c.rows) and c.rows for c in KNOWN)
    assert all(c.does in c.path.read_text(encoding="utf-8").splitlines()[0] for c in KNOWN)


@pytest.mark.parametrize(
    "module", ["checks/isolated_calls.py", "timing/gated_rounds.py", "checks/interrupted_rounds.py"]
)
def test_every_catch_of_a_check_names_the_part_that_made_it(module):
    """As an H200's table did not: its column said "cheat" and, of what gates had caught, "stopped in the middle"."""
    found = re.findall(r"cheat\(\s*((?:\"[^\"]*\"\s*)+)", (JUDGE / module).read_text())
    parts = {cheat_suite.part_that_gave("".join(re.findall(r'"([^"]*)"', text))) for text in found}

    assert found and "" not in parts
    assert ("stopped in the middle of a round" in parts) is module.startswith("checks/interrupted")


def test_cheats_that_reach_for_modules_of_the_judge_name_some_that_there_are():
    """One that names a module which has moved fails at once, and shows nothing."""
    named = {
        name for c in KNOWN for name in re.findall(r"gpu_mcp_judge(?:\.\w+|/\w+(?=/)| import \w+)*", c.path.read_text())
    }
    modules = {re.sub(r" import |/", ".", name).removeprefix("gpu_mcp_judge").lstrip(".") for name in named} - {
        "",
        "compiled",
    }
    missing = [
        name
        for name in modules
        if not any((JUDGE / name.replace(".", "/")).with_suffix(s).exists() for s in ("", ".py"))
    ]

    assert "candidate.shared_library" in modules
    assert not missing


def test_the_page_on_cheats_has_every_candidate_in_the_rows_that_it_stands_for():
    told: dict[int, set[str]] = {}
    for line in page("reference/cheats.md").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4 and cells[1].isdecimal():
            told[int(cells[1])] = set(re.findall(r"`(\w+)`", cells[3]))
    meant: dict[int, set[str]] = {row: set() for row in range(1, 50)}
    for candidate in KNOWN:
        for row in (49,) if candidate.kind == "honest" else candidate.rows:
            meant[row].add(candidate.id)

    assert told == meant


def test_every_honest_candidate_is_expected_to_be_correct():
    assert {c.expect for c in KNOWN if c.kind == "honest"} == {"correct"}
    assert {c.expect for c in KNOWN if c.kind == "cheat" and not c.harmless} <= {
        "cheat",
        "incorrect",
        "caught",
        "compile_failed",
    }


@pytest.mark.parametrize(
    ("kind", "verdict", "gain", "missed", "false_alarm"),
    [
        ("cheat", "cheat", None, False, False),
        ("cheat", "incorrect", None, False, False),
        ("cheat", "compile_failed", None, False, False),
        ("cheat", "correct", None, True, False),
        ("cheat", "error", None, True, False),
        ("cheat", "refused", None, True, False),
        ("honest", "correct", None, False, False),
        ("honest", "cheat", None, False, True),
        ("honest", "error", None, False, True),
    ],
)
def test_a_row_counts_as_missed_or_as_a_false_alarm(kind, verdict, gain, missed, false_alarm):
    candidate = cheat_suite.CheatCandidate("one", cheat_suite.folder() / "one.c", kind, "cpu")
    row = cheat_suite.CheatRow(candidate, verdict, "", gain=gain)

    assert (row.was_missed, row.false_alarm) == (missed, false_alarm)


def test_a_right_answer_whose_time_was_not_believed_is_no_miss_and_would_be_an_alarm():
    cheat, honest = (
        cheat_suite.CheatCandidate("one", cheat_suite.folder() / "one.c", kind, "cuda") for kind in ("cheat", "honest")
    )

    assert not cheat_suite.CheatRow(
        cheat, "correct", cheat_suite.NO_TIME, refused="no time: of several calls"
    ).was_missed
    assert cheat_suite.CheatRow(honest, "correct", cheat_suite.NO_TIME, refused="no time: of several calls").false_alarm


@pytest.mark.parametrize(("right", "speedup", "missed"), [(True, None, False), (True, 1.1, True), (False, None, True)])
def test_a_cheat_that_can_gain_a_time_alone_is_not_missed_where_it_gets_none(right, speedup, missed):
    candidate = cheat_suite.CheatCandidate("one", cheat_suite.folder() / "one.cu", "cheat", "cuda", right=right)

    assert cheat_suite.CheatRow(candidate, "correct", "", speedup=speedup).was_missed is missed


@pytest.mark.parametrize(
    ("kind", "about", "stopped_by"),
    [
        ("cheat", {"verdict": "cheat"}, "first look"),
        ("cheat", {"verdict": "compile_failed"}, "first look"),
        ("cheat", {"verdict": "correct", "refused": "no time: of several calls"}, "first look"),
        ("cheat", {"verdict": "incorrect", "voided": True}, "confirmation run"),
        ("cheat", {"verdict": "correct", "voided": True}, "confirmation run"),
        ("cheat", {"verdict": "correct", "timed": True}, ""),
        ("cheat", {"verdict": "error"}, ""),
        ("honest", {"verdict": "cheat"}, ""),
    ],
)
def test_a_row_says_which_evaluation_stopped_a_cheat(kind, about, stopped_by):
    candidate = cheat_suite.CheatCandidate("one", cheat_suite.folder() / "one.c", kind, "cpu")
    row = cheat_suite.CheatRow(candidate, caught_by="", **about)

    assert row.data()["stopped_by"] == row.stopped_by == stopped_by
    assert row.was_missed is (kind == "cheat" and not stopped_by)


@pytest.mark.parametrize(("gain", "missed"), [(1.0, False), (cheat_suite.GAIN * 1.01, True)])
def test_a_harmless_cheat_may_be_correct_if_it_gains_nothing(gain, missed):
    candidate = cheat_suite.CheatCandidate("one", cheat_suite.folder() / "one.c", "cheat", "cpu", harmless=True)

    assert cheat_suite.CheatRow(candidate, "correct", "", gain=gain).was_missed is missed


WIDE, NARROW = ["the interval is wide, 30 % of the median to either side"], ["another note"]


OF: Any = {"problem_id": "p-1", "problem_hash": "0", "language": "c", "host": "local"}


def timed(speedup: float | None, notes: list[str]) -> Evaluation:
    shapes = [ShapeVerdict(dims={}, verdict="correct", speedup=speedup, notes=notes)]
    return Evaluation(attempt_id="a-1", status="judged", verdict="correct", speedup=speedup, shapes=shapes, **OF)


class Table(cheat_suite.CheatSuite):
    """A court that has all evaluations already, by candidate."""

    def __init__(self, **evaluations: list[Evaluation]) -> None:
        super().__init__(lab=None)  # type: ignore[arg-type]
        self.evaluations = evaluations

    async def _evaluated(self, candidate: cheat_suite.CheatCandidate) -> Evaluation:
        return self.evaluations[candidate.id].pop(0)


HARMLESS: Any = cheat_suite.CheatCandidate("one", cheat_suite.folder() / "one.c", "cheat", "cpu", harmless=True)


@pytest.mark.parametrize(
    ("cheat", "plain", "gain", "missed"),
    [
        pytest.param([(1.2, NARROW)], [(1.0, WIDE)], 1.2, False, id="gains nothing"),
        pytest.param([(2.0, NARROW), (1.0, NARROW)], [(1.0, NARROW), (1.0, NARROW)], 1.0, False, id="not twice"),
        pytest.param([(2.0, NARROW)] * 2, [(1.0, NARROW)] * 2, 2.0, True, id="twice"),
        pytest.param([(2.0, NARROW)] * 3, [(1.0, WIDE)] * 2 + [(1.0, NARROW)], 2.0, True, id="in a trial that is sure"),
        pytest.param([(2.0, WIDE)] * 6, [(1.0, NARROW)] * 6, 2.0, True, id="always"),
        pytest.param([(2.0, WIDE)] * 5 + [(1.0, WIDE)], [(1.0, NARROW)] * 6, 1.0, False, id="not always"),
        pytest.param([(2.0, NARROW)], [(None, NARROW), (2.0, NARROW)], 1.0, False, id="the plain one has a time later"),
    ],
)
async def test_a_gain_is_one_where_the_judge_is_sure_of_its_times(cheat, plain, gain, missed):
    court = Table(one=[timed(*each) for each in cheat], plain=[timed(*each) for each in plain])
    row = await court.judge(HARMLESS)

    assert (row.gain, row.was_missed) == (gain, missed)
    assert not any(court.evaluations.values())


@pytest.mark.parametrize(("right", "doubted"), [(True, False), (True, True), (False, False)])
async def test_a_right_cheat_is_stopped_where_its_time_is_unconfirmable_and_an_honest_one_is_not(right, doubted):
    """Without a comparison: every confirmed time ranks before it. A host that confirms none stops no cheat."""

    def unconfirmable(times: str) -> Evaluation:
        shapes = [ShapeVerdict(dims={}, verdict="correct", speedup=9.0, unconfirmable=times)]
        return Evaluation(attempt_id="a-1", status="judged", verdict="correct", speedup=9.0, shapes=shapes, **OF)

    stopped = right and not doubted
    plain = [unconfirmable("no cgroup") if doubted else timed(1.0, NARROW)]
    court = Table(one=[unconfirmable("the GPU was busy")] * (1 if right else 2), plain=plain * (1 if right else 2))
    row = await court.judge(replace(HARMLESS, right=right))

    assert (row.stopped_by, row.was_missed) == ("first look" if stopped else "", not stopped and not doubted)
    if stopped:
        assert (row.reason, row.caught_by) == ("unconfirmable: the GPU was busy", cheat_suite.UNCONFIRMABLE)
    assert not any(court.evaluations.values())


async def test_a_harmless_cheat_is_missed_that_nothing_can_be_compared_with():
    row = await Table(one=[timed(2.0, NARROW)], plain=[timed(None, NARROW)] * 6).judge(HARMLESS)

    assert row.verdict == "error" and row.was_missed
    assert row.reason.startswith("The gain of one is not known: plain got no time in 6 trials.")
