"""Times by events: what words around each call say, and what speaks against it."""

from types import SimpleNamespace

import pytest
from gpu_mcp_judge.devices import gate_words
from gpu_mcp_judge.owner import event_series
from gpu_mcp_judge.timing import gate_doubts, gated_pass, gated_rounds, rounds, series, time_accounting

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


@pytest.mark.parametrize(("probe_s", "rounds_busy"), [(50e-6, 0), (2.4e-3, 3)])
def test_what_a_candidate_left_running_beside_the_reference_is_found_round_by_round(probe_s: float, rounds_busy: int):
    played_by: list[str] = []

    def player(role: str) -> SimpleNamespace:
        return SimpleNamespace(time_each=lambda calls, limit_s: (played_by.append(role), [1e-5] * calls, [], {})[1:])

    nothing, ledger = (lambda *given: None), time_accounting.Ledger()
    gated = gated_rounds.GatedRounds.__new__(gated_rounds.GatedRounds)
    gated.rounds = SimpleNamespace(
        ledger=ledger, draw=nothing, lay=nothing, solve=lambda buffers, calls: 1.0, judge=nothing, calls_checked=0
    )
    gated.device = SimpleNamespace(probe_s=lambda: (played_by.append("probe"), probe_s)[1])
    gated.busy, gated.launched, gated.call_s = {}, 7, 1e-5
    gated.candidate, gated.reference = player("candidate"), player("reference")
    buffers = SimpleNamespace(check_first=nothing)
    one = event_series.EventSeries(gated, GOAL, 24)
    for number in range(3):
        one._play(buffers, number)

    once = [each for number, each in enumerate(played_by) if each != "probe" or played_by[number - 1] != "probe"]
    assert once == ["probe", "reference", "probe", "candidate"] * 3
    assert len(gated.busy.get(gate_doubts.BESIDE, ())) == rounds_busy and gated.is_reference_slowed() == bool(
        rounds_busy
    )


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
