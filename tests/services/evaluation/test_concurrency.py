"""Work side by side: nothing of it outlives the call."""

import asyncio

import pytest

from gpu_mcp_server.services.evaluation.concurrency import gather_or_cancel


class Work:
    """Says whether it went on to its end or was ended."""

    state = "not begun"

    async def go(self) -> int:
        self.state = "begun"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.state = "ended"
            raise
        return 1


async def fails() -> str:
    await asyncio.sleep(0)
    raise ValueError("no")


async def quick(value: str) -> str:
    return value


async def test_both_return_what_they_return():
    assert await gather_or_cancel(quick("a"), quick("b")) == ("a", "b")


@pytest.mark.parametrize("turned", [False, True])
async def test_where_one_fails_the_other_is_ended_before_the_failure_is_told(turned: bool):
    work = Work()
    with pytest.raises(ValueError, match="no"):
        await (gather_or_cancel(fails(), work.go()) if turned else gather_or_cancel(work.go(), fails()))
    assert work.state == "ended"


async def test_a_call_that_is_cancelled_ends_both():
    one, other = Work(), Work()
    call = asyncio.create_task(gather_or_cancel(one.go(), other.go()))
    while other.state != "begun":
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (one.state, other.state) == ("ended", "ended")
