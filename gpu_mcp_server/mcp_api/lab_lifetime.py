"""The laboratory for as long as a server lives: opened by the first call that needs it, closed with the server."""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

from gpu_mcp_server.mcp_api.progress import HEARTBEAT_S

if TYPE_CHECKING:  # services bring asyncssh and the store; `tools/list` must not wait for them
    from gpu_mcp_server.services.lab import Lab

OpenLab = Callable[[], "AbstractAsyncContextManager[Lab]"]

CLOSING_S = 5.0
"""Longest wait for the laboratory to close; clients kill a server that lingers."""

logger = logging.getLogger(__name__)


class LabHolder:
    """Holder of the laboratory for as long as the server lives, opened by the first call that needs it."""

    def __init__(self, open_lab: OpenLab, *, local_files: bool = True, heartbeat_s: float = HEARTBEAT_S) -> None:
        """Keep how to open the laboratory.

        Args:
            open_lab: Makes the context manager of the laboratory.
            local_files: Whether tools may read files of this machine: only when the caller is on it.
            heartbeat_s: Longest silence of a running tool.
        """
        self.local_files = local_files
        self.heartbeat_s = heartbeat_s
        self._open_lab = open_lab
        self._closing = asyncio.Event()
        self._used: asyncio.Event = asyncio.Event()
        self._opened: asyncio.Future[Lab] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def lab(self) -> "Lab":
        """Return the laboratory; a failure to open it is raised, and the next call tries again."""
        if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
            self._opened = asyncio.get_running_loop().create_future()
            # What the laboratory does by itself it does for nobody: not for whoever happened to call first.
            self._keeper = asyncio.create_task(self._keep(self._opened), name="lab", context=contextvars.Context())
        return await asyncio.shield(self._opened)

    async def wait_until_open(self) -> "Lab":
        """Wait until somebody has needed the laboratory, and return it."""
        await self._used.wait()
        return await self.lab()

    async def _keep(self, opened: "asyncio.Future[Lab]") -> None:
        # One task opens and closes: cancel scopes inside must not wander between the tasks of requests.
        try:
            async with self._open_lab() as lab:
                opened.set_result(lab)
                self._used.set()
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                logger.exception("the laboratory did not close cleanly")
            else:
                opened.set_exception(error)
                opened.exception()  # the callers raise it; nobody left is no reason for a warning

    async def close(self) -> None:
        """Close the laboratory, if it was opened; a host that does not let go is left to itself."""
        self._closing.set()
        if self._keeper is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._keeper, CLOSING_S)
