"""Calls that are kept apart by copies on the stream that they are given."""

import ctypes

import pytest
from gpu_mcp_judge.candidate import call_loop, stream_copies
from gpu_mcp_judge.checks import stream_order_rounds

from tests.judge.harness import loops
from tests.judge_package import JUDGE

US = 1e-6


def found(
    apart_us: list[float], share_us: float, more: list[tuple[float, float]] = (), **given
) -> stream_order_rounds.Found:
    left = list(more)

    def again() -> stream_order_rounds.Pair:
        return stream_order_rounds.Pair(*(each * US for each in left.pop(0)))

    noted_s = given.get("noted_s", stream_order_rounds.NOTED_S)
    result = stream_order_rounds.found([each * US for each in apart_us], share_us * US, 1.5 * US, noted_s, again)
    assert not left
    return result


@pytest.mark.parametrize(
    ("apart_us", "share_us"), [([12.0, 14.0], 9.0), ([116.0, 115.0], 110.0), ([6.0, 7.0, 60.0], 4.0)]
)
def test_calls_that_take_little_more_with_copies_between_them_are_believed(apart_us, share_us):
    assert found(apart_us, share_us).doubt == ""


def test_a_machine_that_was_busy_in_the_first_rounds_delays_nobodys_time():
    pairs = [(70.0, 9.0), (14.0, 9.0), (12.0, 9.0), (60.0, 9.0), (13.0, 9.0)]

    assert found([90.0, 80.0, 12.0], 9.0, pairs) == ("", 0.0)


def test_one_quick_round_with_copies_does_not_speak_for_all():
    pairs = [(112.0, 62.0), (112.0, 61.0), (62.0, 62.0), (111.0, 62.5)]

    assert found([112.0, 62.0, 111.0, 112.0], 62.0, pairs).doubt.startswith("no time: calls overlap on the GPU")


@pytest.mark.parametrize(
    ("apart_us", "share_us", "pairs"),
    [
        ([22.0, 23.0], 9.0, [(22.0, 18.0), (23.0, 17.0), (22.0, 18.0)]),
        ([112.0, 111.0], 62.0, [(112.0, 110.0), (112.0, 61.0), (111.0, 110.0), (112.0, 109.0)]),
    ],
    ids=["a machine", "who takes its time only where it is compared"],
)
def test_times_that_do_not_come_again_without_copies_are_none(apart_us, share_us, pairs):
    text = found(apart_us, share_us, pairs).doubt

    assert text.startswith("no time: a call takes 1") and "became slower; judge it again" in text


def test_who_is_honest_now_and_then_gains_nothing_by_it():
    pairs = [(112.0, 62.0), (110.0, 109.0), (112.0, 62.0), (111.0, 110.0), (112.0, 61.0)]

    assert found([112.0, 111.0], 62.0, pairs).doubt.startswith("no time: calls overlap on the GPU")


@pytest.mark.parametrize(
    ("apart_us", "share_us", "exposed_us"),
    [
        ([11.5, 12.0], 9.4, 0.0),
        ([22.3, 22.6], 20.2, 0.0),
        ([12.4, 12.0, 30.0], 5.0, 7.9),
        ([22.1, 24.8], 13.0, 18.95),
        ([6.0], 9.0, 0.0),
    ],
    ids=["one stream", "a longer call", "beside the next call", "two streams that are joined", "faster apart"],
)
def test_what_a_call_takes_with_something_behind_it_is_told_where_it_is_more(apart_us, share_us, exposed_us):
    assert found(apart_us, share_us).exposed_s == pytest.approx(exposed_us * US)


def test_what_python_needs_for_a_copy_is_not_held_against_a_candidate_of_python():
    assert found([18.0, 18.5], 10.0).exposed_s == pytest.approx(13.75 * US)
    assert found([18.0, 18.5], 10.0, noted_s=stream_order_rounds.NOTED_PYTHON_S).exposed_s == 0


def test_calls_that_take_their_time_only_when_they_are_kept_apart_have_none():
    text = found([112.0, 111.0], 62.0, [(112.0, 61.0), (111.0, 62.0), (113.0, 62.5)]).doubt

    assert text.startswith("no time: calls overlap on the GPU: with a copy between them")
    assert "takes 112 us, in a round 62 us; a stream of your own must wait for the given stream" in text


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
def test_each_call_is_followed_by_a_copy_of_its_answer(monkeypatch, compiled):
    monkeypatch.setattr(call_loop, "LOOP", str(loops("calls.c") if compiled else JUDGE / "none.so"))
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
    numbers = {"outputs": 2, "first": 1, "stride": 16, "slot": 4, "offset": 3, "step": 2, "count": 5, "code": 0}
    of_each = ((ctypes.c_int64 * 2)(*each) for each in ([start + 1, start], [2, 4], [4, 5]))
    behind = stream_copies.Separators(stream_copies.Copy(copy), ctypes.addressof(copies), *of_each, *numbers.values())
    made = call_loop.Calls(call_loop.loop_or_why(), launch, rows)

    assert (made.loop is not None) == compiled
    assert made.make(6, 0, behind) == {}
    shifts, sizes = [3, 1 + 1, 2, 1 + 1, 1], [4, 2, 4, 2, 4]
    taken = [
        value >> 8 * shift & (1 << 8 * size) - 1 for value, shift, size in zip(values, shifts, sizes, strict=False)
    ]
    assert list(copies) == [*taken, 0]
    assert order == [each for value in values for each in (value, "copy")][:-1]
    assert behind.code == 4
    assert made.make(6) == {} and len(order) == 17
