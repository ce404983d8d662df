from collections.abc import Iterator

import pytest

from tests.cheats.bench import Bench, bench


@pytest.fixture(scope="module")
def court() -> Iterator[Bench]:
    with bench() as one:
        if one.host().level not in ("full", "namespaces"):
            pytest.skip(f"jobs cannot run here: sandbox level {one.host().level}")
        yield one
