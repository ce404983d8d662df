"""Candidates on the CPU, judged on the real path; in one module, as two workers would wait for each other's turns."""

import pytest

from gpu_mcp_server.services.evaluation import crash_stacks, judge_job
from tests.cheats.bench import deserved, named, passes

NEVER_ANSWER = ("spins_forever", "kill_parent")
"""Their time is waited out, however long it is."""


@pytest.mark.parametrize("candidate", named("cpu"), ids=lambda c: f"{c.kind}-{c.id}")
def test_a_candidate_gets_the_verdict_that_it_deserves(court, candidate, monkeypatch):
    if candidate.id in NEVER_ANSWER:
        monkeypatch.setattr(judge_job, "ROUND_TIMEOUT_S", 2.0)
        monkeypatch.setattr(crash_stacks, "HANG_S", {"c": 3.0})
    passes(deserved(court, candidate))
