"""Rounds with a gate behind each call; the rest of them is tried over the fake driver."""

import time
from types import SimpleNamespace

import pytest
from gpu_mcp_judge.checks import isolated_calls
from gpu_mcp_judge.timing import gated_pass, time_accounting


def test_what_the_owner_compares_between_two_gates_is_no_time_of_the_candidate_s():
    ledger, one = time_accounting.Ledger(), isolated_calls.IsolatedCalls.__new__(isolated_calls.IsolatedCalls)
    one.rounds = SimpleNamespace(ledger=ledger)
    with ledger.part("candidate"):
        one._look(SimpleNamespace(check_first=lambda calls: time.sleep(0.02)), 1, None)

    assert ledger.seconds["check"] >= 0.02


@pytest.mark.parametrize(
    ("calls", "later_us", "doubted"),
    [
        pytest.param(9, 45, False, id="as of an honest kernel on an H200"),
        pytest.param(9, 65, True, id="more than an honest kernel"),
        pytest.param(24, 85, True, id="many calls"),
        pytest.param(1, 29, False, id="a slow kernel"),
        pytest.param(1, 35, True, id="work of one call behind its word"),
    ],
)
def test_work_behind_the_last_word_makes_the_time_unconfirmable(calls, later_us, doubted):
    one = isolated_calls.IsolatedCalls.__new__(isolated_calls.IsolatedCalls)
    one.calls, one.why, one.later_s = calls, "", [later_us / 1e6] * 3

    said = one.doubt(device_s=12e-6)
    assert said.startswith("the GPU answered") is doubted
    assert not doubted or f"behind {calls} call{'s' * (calls > 1)} with a gate behind each" in said


def test_calls_that_do_not_return_behind_their_gates_are_launched_again_half_as_many():
    launched: list[tuple[int, bool]] = []

    def launch(buffers, calls, *, each):
        launched.append((calls, each))
        raise gated_pass.Blocked

    one = isolated_calls.IsolatedCalls.__new__(isolated_calls.IsolatedCalls)
    one.gated, one.why, one.later_s = SimpleNamespace(launch=launch, is_slow=lambda: False), "", []
    one.play(SimpleNamespace(sets=191))

    assert launched == [(calls, True) for calls in (24, 12, 6, 3, 1, 1)]
    assert one.doubt(device_s=12e-6).startswith("calls with a gate behind each wait for the device")
