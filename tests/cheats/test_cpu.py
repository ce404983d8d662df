"""Candidates on the CPU, judged on the real path; in one module, as two workers would wait for each other's turns."""

import pytest

from tests.cheats.bench import deserved, named, passes


@pytest.mark.parametrize("candidate", named("cpu"), ids=lambda c: f"{c.kind}-{c.id}")
def test_a_candidate_gets_the_verdict_that_it_deserves(court, candidate):
    passes(deserved(court, candidate))
