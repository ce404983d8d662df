"""Calls that are kept apart by copies on the stream that they are given."""

import ctypes
import sys

import pytest

from tests.judge.harness import JUDGE, loops

sys.path.insert(0, str(JUDGE))

import calls
import separation
import separators
from verdicts import Judged

sys.path.remove(str(JUDGE))

US = 1e-6


def asked(answers: list[float]):
    """Return what plays another round, and the list of those that are left."""
    return lambda: answers.pop(0) * US


def said(call_us: list[float], share_us: float, more: list[float]) -> str:
    return separation.doubt([each * US for each in call_us], share_us * US, 1.5 * US, asked(more))


@pytest.mark.parametrize(("call_us", "share_us"), [([12.0, 14.0], 9.0), ([116.0, 115.0], 110.0), ([6.0, 60.0], 4.0)])
def test_calls_that_take_little_more_with_copies_between_them_are_believed(call_us, share_us):
    assert said(call_us, share_us, []) == ""


def test_a_machine_that_was_busy_in_the_first_rounds_delays_nobodys_time():
    assert said([90.0, 80.0], 9.0, [70.0, 14.0]) == ""


def test_calls_that_take_their_time_only_when_they_are_kept_apart_have_none():
    text = said([112.0, 111.0], 62.0, [112.0, 111.0, 113.0])

    assert text.startswith("no time: calls run beside each other: with something between them")
    assert "takes 111 us, in a round 62 us" in text


def test_many_at_a_time_are_a_cheat():
    with pytest.raises(Judged) as told:
        said([112.0, 111.0], 10.0, [112.0, 111.0, 113.0])
    assert told.value.verdict == "cheat" and told.value.reason.startswith("calls run beside each other")


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
def test_each_call_is_followed_by_a_copy_of_its_answer(monkeypatch, compiled):
    monkeypatch.setattr(calls, "LOOP", str(loops("calls.c") if compiled else JUDGE / "none.so"))
    answers, copies = (ctypes.c_int64 * 12)(), (ctypes.c_int64 * 6)()
    order = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    def launch(at, value):
        order.append(value)
        ctypes.c_int64.from_address(at).value = value
        return 0

    def copy(to, at, size, stream):
        order.append("copy")
        assert stream is None
        ctypes.memmove(to, at, size)
        return 0

    start = ctypes.addressof(answers)
    rows = [[start + 16 * number, 100 + number] for number in range(6)]
    behind = separators.Separators(separators.Copy(copy), ctypes.addressof(copies), start, 16, 8)
    made = calls.Calls(calls.loop_or_why(), launch, rows)

    assert (made.loop is not None) == compiled
    assert made.make(6, 0, behind) == {}
    assert list(copies) == [100, 101, 102, 103, 104, 105]
    assert order == [each for value in copies for each in (value, "copy")]
    assert made.make(6) == {} and len(order) == 18
