"""Calls of a round that share work, told by rounds of fewer calls."""

import pytest
from gpu_mcp_judge import sharing, verdicts

SETS = 40
CALL_S = 250e-6


def rounds(shared_s, call_s=CALL_S, delays_s=()):
    """Return rounds of 5 and 20 calls, what plays more, and the time of a whole one; some are delayed."""
    one = sharing.Sharing()
    delays = iter(delays_s)

    def shorten(calls=5):
        one.short.append(sharing.Short(calls, SETS, shared_s + calls * call_s + next(delays, 0.0)))

    shorten()
    shorten(20)
    return one, shorten, shared_s + SETS * call_s


def test_calls_that_take_their_time_share_nothing():
    one, shorten, whole_s = rounds(0.0)

    assert one.doubt(whole_s, shorten) == "" and len(one.short) == 2


def test_threads_that_have_to_be_woken_are_no_doubt():
    one, shorten, whole_s = rounds(1e-3)

    assert one.doubt(whole_s, shorten) == ""


def test_a_machine_that_delays_some_of_the_rounds_is_no_doubt():
    one, shorten, whole_s = rounds(0.0, delays_s=[20e-3] * 4)

    assert one.doubt(whole_s, shorten) == "" and len(one.short) == 2 + sharing.MORE


def test_one_that_is_honest_now_and_then_is_a_cheat_too():
    one, shorten, whole_s = rounds(8e-3, call_s=10e-6, delays_s=[0.0, 0.0, *[-8e-3] * 4])

    with pytest.raises(verdicts.Judged, match="however few of its calls are made"):
        one.doubt(whole_s, shorten)


def test_a_round_that_is_answered_at_its_first_call_is_a_cheat():
    one, shorten, whole_s = rounds(8e-3, call_s=10e-6)

    with pytest.raises(verdicts.Judged, match=r"5 of 40 took 8\.05 of 8\.4 ms") as judged:
        one.doubt(whole_s, shorten)
    assert judged.value.verdict == "cheat" and "before it was called" in judged.value.reason
    assert len(one.short) == 2 + sharing.MORE


def test_a_third_of_a_round_that_is_shared_is_no_cheat_but_no_time_either():
    one, shorten, whole_s = rounds(5e-3)

    assert "33 % of a round's time is spent however few of its calls are made" in one.doubt(whole_s, shorten)


def test_nothing_is_said_where_no_round_was_shorter():
    assert sharing.Sharing().doubt(1e-3, lambda: None) == ""
