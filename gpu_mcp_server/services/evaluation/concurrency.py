"""Work done side by side within a call: two coroutines, or compilers and what is judged, each in their own places."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


async def gather_or_cancel(
    first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]
) -> tuple[First, Second]:
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


class DeadlinePassed(Exception):
    """No place was to be had before the caller's time was over."""


class Slots:
    """Compile slots and judging slots of one call."""

    def __init__(self, candidates: int, *, compile_slots: int, judge_slots: int, quiet: bool, deadline: float) -> None:
        """Make the places.

        Args:
            candidates: Each of them is a task that passes `compiling` once, or ends without.
            compile_slots: Compilers at a time.
            judge_slots: Candidates that are judged at a time.
            quiet: Judge only when nothing is compiled any more, because both would share the cores.
            deadline: On the event loop's clock.
        """
        self._compile, self._judge = asyncio.Semaphore(compile_slots), asyncio.Semaphore(judge_slots)
        self._candidates, self._quiet, self._deadline = candidates, quiet, deadline
        self._past: set[asyncio.Task[Any]] = set()
        """Tasks that need no compiler any more."""
        self._compiled = asyncio.Event()

    def left_s(self) -> float:
        """Return seconds until the deadline, 0 after it."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def compiling(self) -> AsyncGenerator[None]:
        """Hold a compile slot.

        Raises:
            DeadlinePassed: If there was none before the deadline.
        """
        try:
            await self._taken(self._compile)
            try:
                yield
            finally:
                self._compile.release()
        finally:
            task = asyncio.current_task()
            if task is not None:
                self.note_compiled(task)

    def note_compiled(self, task: asyncio.Task[Any]) -> None:
        """Note that a task needs no compiler any more, as one that has ended."""
        self._past.add(task)
        if len(self._past) >= self._candidates:
            self._compiled.set()

    @asynccontextmanager
    async def judging(self) -> AsyncGenerator[None]:
        """Hold a place to be judged.

        Raises:
            DeadlinePassed: If there was none before the deadline.
        """
        if self._quiet:
            try:
                await asyncio.wait_for(self._compiled.wait(), self.left_s())
            except TimeoutError:
                raise DeadlinePassed from None
        await self._taken(self._judge)
        try:
            yield
        finally:
            self._judge.release()

    async def _taken(self, places: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(self.left_s()):
                await places.acquire()
        except TimeoutError:
            raise DeadlinePassed from None
