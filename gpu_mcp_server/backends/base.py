"""The contract of a backend: it opens a channel to hostd, and nothing more."""

from dataclasses import dataclass
from typing import Any, Protocol

from gpu_mcp_server.hostd import protocol


class ReadStream(Protocol):
    """One end of the channel's byte stream."""

    async def readexactly(self, n: int) -> bytes:
        """Read n bytes or raise `asyncio.IncompleteReadError` at the end."""
        ...


class WriteStream(Protocol):
    """The other end."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        ...

    async def drain(self) -> None:
        """Wait until the queue is short again."""
        ...


@dataclass
class Channel:
    """An open byte stream to a hostd that is starting or running."""

    reader: ReadStream
    writer: WriteStream
    close: Any
    """Async function that ends it; safe to call twice."""
    why_ended: Any
    """Async function that says why the stream ended: exit status and the tail of stderr."""


class Backend(Protocol):
    """A way to reach one host."""

    name: str
    kind: str

    async def open(self) -> Channel:
        """Start hostd there and return its channel.

        Raises:
            HostUnavailable: If the host cannot be reached; retry may help.
            HostKeyUnknown: If an SSH host key is new or has changed.
            ToolMissing: If Python or ssh is not there.
        """
        ...


VERSION = protocol.PROTOCOL_VERSION
