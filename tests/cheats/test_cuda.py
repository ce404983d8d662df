"""Candidates on a GPU, judged on the real path."""

from collections.abc import Iterator

import pytest

from tests.cheats.bench import Bench, bench, deserved, named, passes

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu_court() -> Iterator[Bench]:
    with bench() as one:
        if not one.host().gpus:
            pytest.skip("no CUDA device")
        yield one


@pytest.mark.parametrize("candidate", named("cuda"), ids=lambda c: f"{c.kind}-{c.id}")
def test_a_candidate_gets_the_verdict_that_it_deserves(gpu_court, candidate):
    passes(deserved(gpu_court, candidate))
