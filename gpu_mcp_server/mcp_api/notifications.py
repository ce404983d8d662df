"""Notifications to clients that subscribed, of what any server on the same store has changed."""

import asyncio
import contextvars
import logging
from collections.abc import Callable

from mcp.server.subscriptions import ResourceUpdated, ServerEvent, ToolsListChanged

from gpu_mcp_server.mcp_api.lab_lifetime import LabHolder

POLL_S = 1.0
"""Between two looks into the store, while somebody has subscribed."""

logger = logging.getLogger(__name__)


class Notifications:
    """The SDK's bus of events, by way of the store."""

    def __init__(self, app: LabHolder, *, poll_s: float = POLL_S) -> None:
        self._app, self._poll_s = app, poll_s
        self._listeners: dict[object, Callable[[ServerEvent], None]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def publish(self, event: ServerEvent) -> None:
        """Tell every server on the store; prompts and the list of resources do not change while a server runs."""
        events = (await self._app.lab()).store.events
        if isinstance(event, ResourceUpdated):
            await events.publish("resource", event.uri)
        elif isinstance(event, ToolsListChanged):
            await events.publish("tools")

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Call a listener for each event from now on; returns what ends that."""
        token = object()
        self._listeners[token] = listener
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="notices", context=contextvars.Context())

        def unsubscribe() -> None:
            self._listeners.pop(token, None)
            if not self._listeners and self._reader is not None:
                self._reader.cancel()
                self._reader = None

        return unsubscribe

    async def _read(self) -> None:
        lab = await self._app.wait_until_open()
        seq = await lab.store.events.last()
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                news = await lab.store.events.since(seq)
            except Exception:
                logger.exception("the store cannot be asked what has changed")
                continue
            for event in news:
                seq = event.seq
                self._tell(ResourceUpdated(uri=event.uri) if event.uri is not None else ToolsListChanged())

    def _tell(self, event: ServerEvent) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(event)
            except Exception:
                logger.exception("a subscriber failed")
