"""The reference timed once more when the candidate has been ended: what is counted, and when it is believed."""

from types import SimpleNamespace
from typing import Any

import pytest
from gpu_mcp_judge import verdicts
from gpu_mcp_judge.owner import owner_process, reference_recheck
from gpu_mcp_judge.timing import time_accounting

from tests.judge.harness import believing

US = 1e-6
NEW = 900.0
"""What the first round takes, whose buffers are new."""


class Reference:
    """A shape of calls that take the reference so many microseconds each, a round of ten after another."""

    def __init__(self, *takes_us: float, passes: int = 1) -> None:
        self.takes_us, self.closed, self.opened_for = list(takes_us), 0, ()
        self.reference, self.present, self.passes = "the reference", ("the reference", "the candidate"), 0
        self.shape: Any = SimpleNamespace(rounds=self, series=SimpleNamespace(passes=passes), sets=10)
        self.result: dict[str, Any] = {"speedup": 2.0, "speedup_low": 1.9, "notes": [], "samples": {}}
        self.result |= {"candidate": {"median_us": 50.0}, "reference": {"median_us": 100.0, "low_us": 95.0}}

    def open(self, sets: int) -> Any:
        self.opened_for = self.present
        return SimpleNamespace(poison=lambda: None)

    def expect(self, buffers: Any) -> float:
        return (self.takes_us.pop(0) if len(self.takes_us) > 1 else self.takes_us[0]) * 10 * US

    def close(self, buffers: Any) -> None:
        self.closed += 1

    def look(self) -> dict[str, Any]:
        reference_recheck.Alone(self.shape, self.result).look()
        return self.result


def test_a_reference_that_is_as_fast_as_it_was_changes_nothing():
    played = Reference(NEW, 99.0, 101.0, 100.0, passes=3)
    found = played.look()

    assert found["samples"]["reference_alone_us"] == pytest.approx([99.0, 101.0, 100.0])
    assert (found["speedup_low"], found["notes"]) == (1.9, [])
    assert (played.opened_for, played.closed, played.passes) == (("the reference",), 1, 3)


def test_one_that_is_faster_without_the_candidate_lowers_the_low_end_of_the_speed_up():
    found = Reference(NEW, 60.0).look()

    assert len(found["samples"]["reference_alone_us"]) == reference_recheck.ROUNDS + reference_recheck.MORE_ROUNDS
    assert (found["speedup"], found["speedup_low"]) == (2.0, pytest.approx(1.2))
    assert "takes 60 us without the candidate, 100 us with it running" in found["notes"][0]


def test_one_that_is_faster_for_a_moment_is_timed_longer_and_changes_nothing():
    found = Reference(NEW, 60.0, 60.0, 60.0, 100.0).look()

    assert len(found["samples"]["reference_alone_us"]) == reference_recheck.ROUNDS + reference_recheck.MORE_ROUNDS
    assert (found["speedup_low"], found["notes"]) == (1.9, [])


@pytest.mark.parametrize(("takes_us", "noted"), [(95.0 / 1.16, True), (95.0 / 1.14, False)])
def test_faster_is_clearly_below_the_interval_that_it_had(takes_us, noted):
    assert bool(Reference(NEW, takes_us).look()["notes"]) == noted


def test_a_slow_one_is_timed_once(monkeypatch):
    clock = iter([0.0, *[reference_recheck.MOST_S + 1] * 9])
    monkeypatch.setattr(reference_recheck, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = Reference(100.0, 1.0).look()

    assert found["samples"]["reference_alone_us"] == pytest.approx([100.0])


def test_what_has_no_time_is_not_looked_at():
    played = Reference(NEW, 60.0)
    played.result["speedup"] = None

    assert "reference_alone_us" not in played.look()["samples"]
    assert not played.closed


def test_on_a_processor_the_reference_is_timed_without_the_candidate(court):
    found = court("naive.c", shapes=[{"rows": 64, "cols": 4096}], owner_files=believing()).verdict

    assert found["verdict"] == "correct", found["reason"]
    assert len(found["shapes"][0]["samples"]["reference_alone_us"]) >= 1


def owner_of(*shapes: dict[str, Any], look: Any, monkeypatch: Any) -> Any:
    """Return an owner that has judged some shapes on a processor, and what it does to the candidate."""
    monkeypatch.setattr(reference_recheck, "SETTLED_S", 0.0)
    monkeypatch.setattr(reference_recheck, "Alone", look)
    one = object.__new__(owner_process.Owner)
    one.judged, one.shapes, one.ledger = [object() for _ in shapes], list(shapes), time_accounting.Ledger()
    return one


class Candidate:
    """Ends when it is told to."""

    def __init__(self, *, ends: bool = True) -> None:
        self.ends, self.asked = ends, 0

    def end(self) -> bool:
        self.asked += 1
        return self.ends


def fails(shape: Any, result: Any) -> Any:
    raise verdicts.ReferenceFailed("the reference raised")


@pytest.mark.parametrize(
    ("candidate", "look", "why"),
    [(Candidate(ends=False), None, "the candidate did not end"), (Candidate(), fails, "the reference raised")],
)
def test_a_verdict_stands_where_the_reference_cannot_be_timed_alone(monkeypatch, candidate, look, why):
    shape: dict[str, Any] = {"verdict": "correct", "notes": []}
    judging = owner_of(shape, look=look, monkeypatch=monkeypatch)
    judging._look_alone(SimpleNamespace(stops_calls=True), candidate)

    assert shape == {"verdict": "correct", "notes": [f"the reference was not timed without the candidate: {why}"]}


@pytest.mark.parametrize(("stops_calls", "verdicts_", "ended"), [(True, "cc", 1), (True, "ci", 0), (False, "cc", 0)])
def test_the_candidate_is_ended_for_it_on_a_processor_if_it_is_correct(monkeypatch, stops_calls, verdicts_, ended):
    shapes = [{"verdict": {"c": "correct", "i": "incorrect"}[one], "notes": []} for one in verdicts_]
    seen: list[Any] = []
    look = lambda shape, result: SimpleNamespace(look=lambda: seen.append(result))  # noqa: E731
    candidate = Candidate()
    owner_of(*shapes, look=look, monkeypatch=monkeypatch)._look_alone(
        SimpleNamespace(stops_calls=stops_calls), candidate
    )

    assert (candidate.asked, seen) == (ended, shapes * ended)
