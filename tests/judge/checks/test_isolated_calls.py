"""Rounds with a gate behind each call; the rest of them is tried over the fake driver."""

import time
from types import SimpleNamespace

from gpu_mcp_judge.checks import isolated_calls
from gpu_mcp_judge.timing import time_accounting


def test_what_the_owner_compares_between_two_gates_is_no_time_of_the_candidate_s():
    ledger, one = time_accounting.Ledger(), isolated_calls.IsolatedCalls.__new__(isolated_calls.IsolatedCalls)
    one.rounds = SimpleNamespace(ledger=ledger)
    seen = isolated_calls.Between(1, None, [])
    with ledger.part("candidate"):
        one._look(SimpleNamespace(check_first=lambda calls: time.sleep(0.02)), seen)

    assert seen.seen and ledger.seconds["check"] >= 0.02
