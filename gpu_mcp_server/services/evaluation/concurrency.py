"""Work that is done side by side within a call."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


async def both(first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]) -> tuple[First, Second]:
    """Return what both return; where one fails, the other is ended first and not left to go on behind the call.

    Raises:
        Exception: What the first to fail raised.
    """
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        one, other = await asyncio.gather(*tasks)
        return one, other
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
