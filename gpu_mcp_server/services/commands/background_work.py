"""Work that takes longer than a caller waits: it goes on, and who asks the same again joins it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpu_mcp_server.services.commands.command_runner import Progress

T = TypeVar("T")


@dataclass
class _Work(Generic[T]):
    task: "asyncio.Task[T]" = field(init=False)
    listener: Progress | None = None
    last: str = ""

    async def tell(self, text: str) -> None:
        """Pass a word on to whoever waits now."""
        self.last = text
        if self.listener is not None:
            await self.listener(text)


@dataclass(frozen=True)
class StillRunning:
    """Work that goes on without its caller."""

    last: str
    """What it said last."""


class BackgroundWork(Generic[T]):
    """Works by key, each at most once at a time."""

    def __init__(self) -> None:
        self._works: dict[str, _Work[T]] = {}

    async def start_or_join(
        self, key: str, work: Callable[[Progress], Awaitable[T]], *, wait_s: float, progress: Progress | None
    ) -> T | StillRunning:
        """Start a work, or join it, and return what came of it, or how far it is after `wait_s` seconds.

        A result is handed out once; who asks after that starts anew. A caller who cancels ends the work.

        Raises:
            Exception: What the work raised.
        """
        one = self._works.get(key)
        if one is None:
            one = self._works[key] = _Work()
            one.task = asyncio.ensure_future(_run(work, one))
        one.listener = progress
        try:
            done, _ = await asyncio.wait({one.task}, timeout=wait_s)
        except asyncio.CancelledError:
            await self._end(key)
            raise
        finally:
            one.listener = None
        if not done:
            return StillRunning(one.last)
        self._works.pop(key, None)
        return one.task.result()

    async def close(self) -> None:
        """End all that goes on."""
        for key in list(self._works):
            await self._end(key)

    async def _end(self, key: str) -> None:
        one = self._works.pop(key, None)
        if one is None:
            return
        one.task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await one.task


async def _run(work: Callable[[Progress], Awaitable[T]], one: _Work[T]) -> T:
    return await work(one.tell)
