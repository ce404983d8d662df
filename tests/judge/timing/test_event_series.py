"""Times by events: what words around each call say, and what speaks against it."""

from types import SimpleNamespace

import pytest
from gpu_mcp_judge.devices import gate_words
from gpu_mcp_judge.owner import event_series
from gpu_mcp_judge.timing import gated_pass, rounds, series, time_accounting

GOAL = series.Goal(0.02, 9, 1.0, 1e9)


def played(call_us: float, between_us: float, reference_between_us: float = 12.0) -> event_series.EventSeries:
    """Return rounds of 23 calls that count, beside a reference of 50 us a call, without the players."""
    gated = SimpleNamespace(rounds=SimpleNamespace(ledger=time_accounting.Ledger()), reference=object())
    one = event_series.EventSeries(gated, GOAL, 512)
    one.series.played = [rounds.Round(23 * call_us / 1e6, 23 * 50e-6, SimpleNamespace())] * 9
    one.between_us = {"candidate": [between_us] * 9, "reference": [reference_between_us] * 9}
    return one


def test_times_by_events_have_an_interval_and_a_speed_up_and_do_not_count_a_round_s_first_call():
    result = played(25.0, 12.0).result(device_us=20.0)

    assert result["candidate"]["median_us"] == pytest.approx(25) and result["reference"]["median_us"] == 50
    assert result["speedup"] == pytest.approx(2) and result["candidate"]["calls_per_round"] == 23
    assert result["unconfirmable"] == ""


@pytest.mark.parametrize(
    ("call_us", "between_us", "device_us", "said"),
    [
        (25.0, 16.0, 20.0, ""),
        (25.0, 18.0, 20.0, "18 us pass between two calls, 12 us between the reference's"),
        (100.0, 21.0, 20.0, ""),
        (17.0, 12.0, 20.0, "a call takes 17 us by events and 20 us on the GPU alone"),
        (18.5, 12.0, 20.0, ""),
    ],
)
def test_work_outside_of_its_events_is_doubted(call_us, between_us, device_us, said):
    """Before the first word it makes the gap longer; and behind gates all that a call does takes its time."""
    doubt = played(call_us, between_us).doubt(device_us)

    assert doubt == (said + ": it may work outside of its events" if said else "")


def test_calls_end_behind_the_first_that_does_not_and_the_reply_says_why():
    player = gated_pass.GatedPlayer.__new__(gated_pass.GatedPlayer)
    player.words, player.timeout_s = gate_words.GateWords(), 1.0

    def let_run() -> None:
        for word in (gate_words.ENTERED, gate_words.END):
            player.words.open(word, 1)  # two calls of three

    reply = {"error": "call 3 raised ValueError"}
    player.player = SimpleNamespace(
        tell=lambda verb, **more: None, thaw=let_run, hear=lambda timeout_s: reply, freeze=lambda: None
    )
    taken, between, heard = player.time_each(3, 0.01)
    player.words.close()

    assert (len(taken), len(between), heard) == (2, 1, reply)
