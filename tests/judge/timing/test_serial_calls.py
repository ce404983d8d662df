"""Calls that run beside each other, told by calls that are asked for one by one."""

import pytest
from gpu_mcp_judge import verdicts
from gpu_mcp_judge.timing import serial_calls

CALL_S = 100e-6
NOTHING_S = 80e-6


def single(call_s, launch_s=4e-6, nothing_s=NOTHING_S, quickest_s=None):
    quickest_s = call_s if quickest_s is None else quickest_s
    return serial_calls.Single(NOTHING_S + call_s, launch_s, nothing_s, NOTHING_S, NOTHING_S + quickest_s)


def doubt(share_s, *more, call_s=CALL_S + 5e-6, **told):
    """Ask about a round's calls of `share_s`; `more` are seconds of those asked for again."""
    singles = [single(call_s, **told)]
    again = iter(more)
    return serial_calls.doubt(singles, share_s, lambda: single(next(again), **told)), singles


def test_calls_that_follow_each_other_need_by_themselves_what_they_need_in_a_round():
    said, singles = doubt(CALL_S)

    assert said == "" and len(singles) == 1


def test_launching_is_done_beside_the_gpus_work_in_a_round_and_before_it_by_itself():
    """As of a model whose Python takes as long as its kernels."""
    said, _ = doubt(CALL_S, call_s=2 * CALL_S, launch_s=CALL_S)

    assert said == ""


def test_a_machine_that_delays_some_is_no_doubt():
    said, singles = doubt(CALL_S, 3 * CALL_S, CALL_S, call_s=2 * CALL_S)

    assert said == "" and len(singles) == 3


def test_calls_side_by_side_are_a_cheat():
    with pytest.raises(verdicts.Judged, match=r"for 101 us, in a round it takes 12\.5 us") as judged:
        doubt(CALL_S / 8, *[CALL_S + 6e-6] * serial_calls.AGAIN)
    assert judged.value.verdict == "cheat" and "join every stream" in judged.value.reason


@pytest.mark.parametrize("told", [{"launch_s": 1e9}, {"nothing_s": 1e9}])
def test_what_a_candidate_says_of_itself_gains_no_time_and_makes_no_cheat(told):
    """It may be true: memory that is given back at each wait is had anew at each call that is asked for by itself."""
    said, _ = doubt(CALL_S / 32, *[3 * CALL_S] * serial_calls.AGAIN, call_s=3 * CALL_S, **told)

    assert said.startswith("no time: calls overlap on the GPU")


def test_one_quick_call_makes_no_cheat_of_a_candidate_whose_calls_are_delayed():
    """On a busy machine, where the middle call of each try came late."""
    said, _ = doubt(CALL_S / 8, *[CALL_S] * serial_calls.AGAIN, call_s=CALL_S, quickest_s=CALL_S / 4)

    assert said.startswith("no time: calls overlap on the GPU")


def test_two_side_by_side_have_no_time():
    said, _ = doubt(CALL_S / 1.6, *[CALL_S] * serial_calls.AGAIN)

    assert said.startswith("no time: calls overlap on the GPU")
