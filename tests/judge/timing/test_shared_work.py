"""Calls of a round that share work, told by rounds of fewer calls."""

import pytest
from gpu_mcp_judge import verdicts
from gpu_mcp_judge.timing import shared_work

SETS = 40
CALL_S = 250e-6


def rounds(shared_s, call_s=CALL_S, delays_s=(), later_s=0.0, empty_s=0.0):
    """Return rounds of 5 and 20 calls of which some are delayed, and how to ask about them.

    Whole ones that are played later are delayed by `later_s`; passes without a call take `empty_s`.
    """
    one = shared_work.Sharing()
    delays, whole_s = iter(delays_s), shared_s + SETS * call_s

    def shorten(calls=5):
        one.short.append(shared_work.Short(calls, SETS, shared_s + calls * call_s + next(delays, 0.0)))

    shorten()
    shorten(20)
    return one, lambda: one.doubt(whole_s, shorten, lambda: whole_s + later_s, lambda: empty_s)


def test_calls_that_take_their_time_share_nothing():
    one, doubt = rounds(0.0)

    assert doubt() == "" and len(one.short) == 2


def test_threads_that_have_to_be_woken_are_no_doubt():
    _, doubt = rounds(1e-3)

    assert doubt() == ""


def test_a_machine_that_delays_some_of_the_rounds_is_no_doubt():
    one, doubt = rounds(0.0, delays_s=[20e-3] * 4)

    assert doubt() == "" and len(one.short) == 2 + shared_work.MORE


@pytest.mark.parametrize("later_s", [2e-3, 3e-3, 20e-3])
def test_a_machine_that_became_busy_since_the_rounds_were_timed_makes_no_cheat(later_s):
    """It delays rounds of fewer calls and whole ones alike."""
    _, doubt = rounds(0.0, delays_s=[2e-3, 2e-3, *[later_s] * shared_work.MORE], later_s=later_s)

    assert doubt().startswith("no time: ")


def test_one_that_is_slow_where_whole_rounds_are_played_once_more_has_no_time():
    _, doubt = rounds(8e-3, call_s=10e-6, later_s=60e-3)

    assert doubt().startswith("no time: ")


def test_a_machine_that_delays_every_round_alike_makes_no_cheat():
    """Even a pass without a call takes long on it."""
    _, doubt = rounds(4e-3, call_s=15e-6, empty_s=3.8e-3)

    assert doubt().startswith("no time: ")


def test_one_that_is_honest_now_and_then_is_a_cheat_too():
    _, doubt = rounds(8e-3, call_s=10e-6, delays_s=[0.0, 0.0, *[-8e-3] * 4])

    with pytest.raises(verdicts.Judged, match="does not depend on the number of calls"):
        doubt()


def test_a_round_that_is_answered_at_its_first_call_is_a_cheat():
    one, doubt = rounds(8e-3, call_s=10e-6)

    with pytest.raises(verdicts.Judged, match=r"5 of 40 calls took 8\.05 of 8\.4 ms") as judged:
        doubt()
    assert judged.value.verdict == "cheat" and "before it was called" in judged.value.reason
    assert len(one.short) == 2 + shared_work.MORE


def test_a_third_of_a_round_that_is_shared_is_no_cheat_but_no_time_either():
    _, doubt = rounds(5e-3)

    assert "33 % of a round's time does not depend on the number of calls" in doubt()


def test_nothing_is_said_where_no_round_was_shorter():
    assert shared_work.Sharing().doubt(1e-3, lambda: None, lambda: 1e-3, lambda: 0.0) == ""
