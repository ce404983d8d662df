"""Several calls at once, at most so many."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def run_bounded(jobs: int, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of all calls in their order, `jobs` of them at once, begun in that order.

    The first failure ends the others and is raised; so does a cancellation.
    """
    gate = asyncio.Semaphore(jobs)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await call()

    tasks = [asyncio.create_task(one(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
