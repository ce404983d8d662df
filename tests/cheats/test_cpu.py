"""Candidates on the CPU, judged on the real path; in one module, as two workers would wait for each other's turns."""

from contextlib import nullcontext

import pytest

from gpu_mcp_server.services.evaluation import crash_stacks, judge_job
from tests.cheats.bench import deserved, named, passes
from tests.judge.harness import edited
from tests.judge_package import shipping

NEVER_ANSWER = ("spins_forever", "kill_parent", "stopped_child")
"""Their time is waited out, however long it is."""
OPENS = edited("timing/rounds.py", ("\nOPEN_S = 60.0", "\nOPEN_S = 5.0"))
"""Files with which the judge waits less for who stopped itself and answers nothing at all."""


@pytest.mark.parametrize("candidate", named("cpu"), ids=lambda c: f"{c.kind}-{c.id}")
def test_a_candidate_gets_the_verdict_that_it_deserves(court, candidate, monkeypatch):
    if candidate.id in NEVER_ANSWER:
        monkeypatch.setattr(judge_job, "ROUND_TIMEOUT_S", 2.0)
        monkeypatch.setattr(crash_stacks, "HANG_S", {"c": 3.0})
    with shipping(OPENS) if candidate.id == "stopped_child" else nullcontext():
        passes(deserved(court, candidate))
