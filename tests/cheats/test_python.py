"""Python candidates on the CPU, judged on the real path by a Python that has torch."""

from collections.abc import Iterator

import pytest

from gpu_mcp_server.cli import cheat_suite
from gpu_mcp_server.settings.server_settings import LocalHost
from tests.cheats.bench import Bench, bench, deserved, passes
from tests.judge.harness import torch_python

pytestmark = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")


@pytest.fixture(scope="module")
def court() -> Iterator[Bench]:
    with bench(hosts={"local": LocalHost(kind="local", judge_python=torch_python())}) as one:
        if one.host().level not in ("full", "namespaces"):
            pytest.skip(f"jobs cannot run here: sandbox level {one.host().level}")
        yield one


@pytest.mark.parametrize(
    "candidate", [c for c in cheat_suite.catalogued_candidates() if c.needs], ids=lambda c: f"{c.kind}-{c.id}"
)
def test_a_candidate_gets_the_verdict_that_it_deserves(court, candidate):
    passes(deserved(court, candidate))
