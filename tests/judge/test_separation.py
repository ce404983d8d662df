"""Calls that are kept apart by copies on the stream that they are given."""

import ctypes
import sys

import pytest

from tests.judge.harness import JUDGE, loops

sys.path.insert(0, str(JUDGE))

import calls
import separation
import separators

sys.path.remove(str(JUDGE))

US = 1e-6


def said(apart_us: list[float], share_us: float, more: list[tuple[float, float]]) -> str:
    left = list(more)

    def again() -> separation.Pair:
        return separation.Pair(*(each * US for each in left.pop(0)))

    text = separation.doubt([each * US for each in apart_us], share_us * US, 1.5 * US, again)
    assert not left
    return text


@pytest.mark.parametrize(("apart_us", "share_us"), [([12.0, 14.0], 9.0), ([116.0, 115.0], 110.0), ([6.0, 60.0], 4.0)])
def test_calls_that_take_little_more_with_copies_between_them_are_believed(apart_us, share_us):
    assert said(apart_us, share_us, []) == ""


def test_a_machine_that_was_busy_in_the_first_rounds_delays_nobodys_time():
    assert said([90.0, 80.0], 9.0, [(70.0, 9.0), (14.0, 9.0)]) == ""


def test_a_machine_that_has_become_slower_since_is_slower_without_copies_too():
    assert said([22.0, 23.0], 9.0, [(22.0, 18.0)]) == ""


def test_calls_that_take_their_time_only_when_they_are_kept_apart_have_none():
    text = said([112.0, 111.0], 62.0, [(112.0, 61.0), (111.0, 62.0), (113.0, 62.5)])

    assert text.startswith("no time: calls run beside each other: with a copy between them")
    assert "takes 111 us, in a round 62.5 us; work on a stream of your own must wait for the given one" in text


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
def test_each_call_is_followed_by_a_copy_of_its_answer(monkeypatch, compiled):
    monkeypatch.setattr(calls, "LOOP", str(loops("calls.c") if compiled else JUDGE / "none.so"))
    answers, copies = (ctypes.c_int64 * 12)(), (ctypes.c_int32 * 6)()
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
        return 4 if len(order) == 2 else 0

    start = ctypes.addressof(answers)
    values = [0x0807060504030201 + 0x1000000000000 * number for number in range(6)]
    rows = [[start + 16 * number, value] for number, value in enumerate(values)]
    numbers = {"stride": 16, "bytes": 4, "offset": 3, "step": 2, "span": 5, "count": 5, "code": 0}
    behind = separators.Separators(separators.Copy(copy), ctypes.addressof(copies), start, *numbers.values())
    made = calls.Calls(calls.loop_or_why(), launch, rows)

    assert (made.loop is not None) == compiled
    assert made.make(6, 0, behind) == {}
    shifts = [3, 0, 2, 4, 1]
    assert list(copies) == [values[i] >> 8 * shift & 0xFFFFFFFF for i, shift in enumerate(shifts)] + [0]
    assert order == [each for value in values for each in (value, "copy")][:-1]
    assert behind.code == 4
    assert made.make(6) == {} and len(order) == 17
