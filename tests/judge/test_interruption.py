"""What an interrupted round costs: the reference answers the calls that are looked at, once, and no others."""

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.judge.harness import JUDGE

sys.path.insert(0, str(JUDGE))

import fill
import interruption
import rounds

sys.path.remove(str(JUDGE))

SETS = 9


@pytest.fixture
def played(monkeypatch):
    """Return a function that plays interruptions and returns what the reference answered and what was called then."""

    def play(*, stops: bool, count: int) -> list[tuple[int, str, int]]:
        found: list[Any] = []
        ledger = SimpleNamespace(part=lambda name: contextlib.nullcontext())
        candidate = SimpleNamespace(freeze=lambda: None, quiet=lambda: None)
        stub = SimpleNamespace(ledger=ledger, candidate=candidate, expect=lambda buffers, calls: found.append(calls))
        buffers = SimpleNamespace(sets=SETS, poison=lambda: None, publish=lambda: None)
        for name in ("_in_the_middle", "_fewer_calls"):
            monkeypatch.setattr(
                interruption.Interruption, name, lambda self, of, some, name=name: found.extend([name, some])
            )
        one = interruption.Interruption(stub, fill.Well("07" * 32), stops)
        for _ in range(count):
            one.play(buffers)
        return [tuple(found[at : at + 3]) for at in range(0, len(found), 3)]

    return play


def test_where_calls_are_left_out_the_reference_leaves_them_out(played):
    every = played(stops=False, count=12)

    assert {how for _, how, _ in every} == {"_fewer_calls"}
    assert all(answered == called for answered, _, called in every)
    assert len({called for *_, called in every}) > 3 and max(called for *_, called in every) < SETS


def test_where_a_call_is_stopped_in_its_middle_all_are_answered(played):
    every = played(stops=True, count=12)

    assert {how for _, how, _ in every} == {"_in_the_middle", "_fewer_calls"}
    assert all(answered == (SETS if how == "_in_the_middle" else called) for answered, how, called in every)


def test_calls_whose_time_does_not_matter_are_made_once():
    told: list[dict[str, Any]] = []
    player = SimpleNamespace(
        tell=lambda do, **fields: told.append(fields), thaw=lambda: None, hear=lambda timeout_s: {}
    )
    buffers = SimpleNamespace(sets=SETS, stop=lambda player: True)

    rounds.timed_pass(player, buffers, 1.0, passes=64)
    rounds.timed_pass(player, buffers, 1.0, calls=4)
    assert told == [{"calls": SETS, "passes": 64}, {"calls": 4}]
