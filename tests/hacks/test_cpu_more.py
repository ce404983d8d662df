"""Candidates on the CPU, judged on the real path: the other half of the table."""

import pytest

from tests.hacks.bench import named, passes


@pytest.mark.parametrize("candidate", named("cpu", 1, 2), ids=lambda c: f"{c.kind}-{c.id}")
def test_a_candidate_gets_the_verdict_that_it_deserves(court, candidate):
    passes(court.judge(candidate))
