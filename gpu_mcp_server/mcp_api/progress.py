"""Progress of a running tool: what it says, and a heartbeat when it says nothing."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar

import anyio

logger = logging.getLogger(__name__)

QUEUE = "queue: "
"""Begins a place in the queue, behind the candidate's name where several wait."""
QUEUE_S = 5.0
"""Least time between two places in the queue: expected waits and holders change each second."""
_COUNTED = re.compile(r", about \d+ s|\bfor \d+ s\b")
"""Parts of a place in the queue that only count seconds."""
HEARTBEAT_S = 10.0
"""Longest silence of a running tool.

Source:
    Claude Code drops a silent HTTP call after 5 minutes and shows nothing meanwhile; people stop waiting sooner.
"""


class Progress:
    """Says to the client how far a tool is; await it with a short message."""

    def __init__(
        self, report: Callable[[float, str], Awaitable[None]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start counting.

        Args:
            report: Sends seconds since the start, ever increasing, and a message.
            clock: Seconds, monotonic.
        """
        self._report = report
        self._clock = clock
        self._started = clock()
        self._last = 0.0
        self._message = ""
        self._places: dict[str, tuple[str, float]] = {}
        """The place in line that each waiting call reported last, and when."""

    async def __call__(self, message: str) -> None:
        """Report `message`; a place in the queue where it is another, and not more often than every QUEUE_S."""
        self._message = message
        who, queue, place = message.partition(QUEUE)
        if queue:
            place, now = _COUNTED.sub("", place), self._clock()
            known, at = self._places.get(who, ("", -QUEUE_S))
            if place == known or now - at < QUEUE_S:
                return
            self._places[who] = place, now
        await self._send(message)

    async def beat(self) -> None:
        """Report that the tool is still running, with its last message."""
        said = f": {self._message}" if self._message else ""
        await self._send(f"still running{said}, {self._clock() - self._started:.0f} s")

    @asynccontextmanager
    async def beating(self, interval_s: float) -> AsyncGenerator[None]:
        """Beat every `interval_s` seconds until the block ends."""
        heart = asyncio.create_task(self._beat_forever(interval_s), name="heartbeat")
        try:
            yield
        finally:
            heart.cancel()
            with suppress(asyncio.CancelledError):
                await heart

    async def _beat_forever(self, interval_s: float) -> None:
        try:
            while True:
                await asyncio.sleep(interval_s)
                await self.beat()
        except Exception:
            logger.debug("no more progress can be sent", exc_info=True)

    async def _send(self, message: str) -> None:
        self._last = max(self._clock() - self._started, self._last + 1e-3)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client went away meanwhile
            await self._report(round(self._last, 3), message)


CURRENT_PROGRESS: ContextVar[Progress] = ContextVar("progress")
"""Of the tool that is called."""
