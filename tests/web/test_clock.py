"""A server whose clock is set while it serves: jobs, tokens and limits hold."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from tests.laboratory import called
from tests.web.site import PING, Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


@pytest.mark.parametrize("hours", [36, -36])
async def test_a_job_begun_before_the_clock_is_set_ends_as_it_would_have(site: Served, hours: int):
    async with site.client(await site.token("ada", quotas={"concurrent_jobs": 1})) as client:
        began = time.monotonic()
        job = await called(client, "run_command", command=["sleep", "1"], detach=True)
        with time_machine.travel(datetime.now(UTC) + timedelta(hours=hours), tick=True):
            done = await called(client, "job_status", job_id=job["job_id"], wait_s=30)
            after = await called(client, "run_command", command=["true"])
        again = await called(client, "run_command", command=["true"])

    assert (done["status"], after["status"], again["status"]) == ("ok", "ok", "ok")
    assert 0.9 < done["wall_s"] < time.monotonic() - began


async def test_a_token_counts_by_the_clock_and_a_limit_on_requests_does_not(site: Served):
    short = await site.token("bob", expires_s=3600)
    slow = await site.token("eve", quotas={"requests_per_minute": 1})
    first = await site.ask("POST", "/mcp", slow, json=PING)
    with time_machine.travel(datetime.now(UTC) + timedelta(hours=2), tick=True):
        expired = await site.ask("POST", "/mcp", short, json=PING)
        hurried = await site.ask("POST", "/mcp", slow, json=PING)
    with time_machine.travel(datetime.now(UTC) - timedelta(hours=2), tick=True):
        valid = await site.ask("POST", "/mcp", short, json=PING)

    assert (expired.status_code, hurried.status_code) == (401, 429)
    assert not {first.status_code, valid.status_code} & {401, 429}
