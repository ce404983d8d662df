"""The server's end of a channel: many requests at once over one byte stream."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any, cast

from gpu_mcp_server.backends.base import Backend, Channel, WriteStream
from gpu_mcp_server.errors import (
    BadRequest,
    DiskFull,
    GpuMcpError,
    HostDrained,
    HostError,
    HostUnavailable,
    NotFound,
)
from gpu_mcp_server.hostd import protocol

HELLO_S = 20.0
QUIET_S = 60.0
BEATS = 4
"""Beats in the time after which silence means that the line is dead."""
CHUNK = 256 << 10
BYE_S = 1.0
WHY_S = 10.0


class HostdClient:
    """Requests and replies over one open channel."""

    def __init__(self, backend: Backend, channel: Channel) -> None:
        self.host = backend.name
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[Any, bytes]]] = {}
        self._write = asyncio.Lock()
        self._ended: str | None = None
        self._reading = asyncio.create_task(self._read(), name=f"link {self.host}")
        self._heard_at = time.monotonic()
        self._beating: asyncio.Task[None] | None = None
        self.greeting: dict[str, Any] = {}

    @classmethod
    async def open(cls, backend: Backend, quiet_s: float = QUIET_S) -> "HostdClient":
        """Open a channel and greet.

        Args:
            backend: The way to the host.
            quiet_s: Silence after which either end takes the line for dead; words go to and fro more often than that.

        Raises:
            HostUnavailable: If hostd does not answer as one, e.g. because the login shell prints a banner.
        """
        link = cls(backend, await backend.open())
        try:
            async with asyncio.timeout(HELLO_S):
                link.greeting, _ = await link.call("hello", quiet_s=quiet_s)
        except TimeoutError:
            await link.close()
            raise HostUnavailable(f"hostd on {backend.name!r} did not answer within {HELLO_S:g} s.") from None
        except BaseException:
            await link.close()
            raise
        link._beating = asyncio.create_task(link._beat(quiet_s), name=f"beat {backend.name}")
        return link

    @property
    def is_open(self) -> bool:
        """Say whether requests can still be made."""
        return self._ended is None

    @property
    def raw_writer(self) -> WriteStream:
        """Return the stream below the frames, for who must see what the host does with half of one."""
        return self._channel.writer

    async def call(self, verb: str, attachment: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        """Make one request and return the answer and its attachment.

        Raises:
            HostUnavailable: If the channel ends before the answer; whether the request was served is not known.
            NotFound, BadRequest, DiskFull, HostError: As the host says.
        """
        if self._ended is not None:
            raise HostUnavailable(f"The channel to host {self.host!r} has ended ({self._ended}).")
        number = next(self._numbers)
        future: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with self._write:
                self._channel.writer.write(protocol.pack({"id": number, "verb": verb, **arguments}, attachment))
                await self._channel.writer.drain()
            return await future
        except OSError as error:
            await asyncio.wait([self._reading], timeout=WHY_S)  # the reading side knows why
            raise HostUnavailable(f"The channel to host {self.host!r} has ended ({self._ended or error}).") from error
        finally:
            self._waiting.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()

    async def close(self) -> None:
        """Take leave and end the channel; attached jobs end with it."""
        try:
            if self._ended is None:
                with contextlib.suppress(GpuMcpError, TimeoutError, OSError):
                    await asyncio.wait_for(self.call("bye"), BYE_S)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """End the channel without a word, as a lost line does; attached jobs have their grace."""
        self._ended = self._ended or "closed"
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self._channel.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _beat(self, quiet_s: float) -> None:
        """Say a word now and then, and end the link when nothing comes back."""
        while self._ended is None:
            await asyncio.sleep(quiet_s / BEATS)
            try:
                async with self._write:
                    sent_at = time.monotonic()
                    self._channel.writer.write(protocol.pack({"id": 0, "verb": "beat"}))
                    await self._channel.writer.drain()
                while self._ended is None and self._heard_at < sent_at:
                    await asyncio.sleep(quiet_s / BEATS)
                    if time.monotonic() > max(sent_at, self._heard_at) + quiet_s:
                        self._end(f"silent for {quiet_s:g} s")
                        await self._channel.close()
                        return
            except OSError:
                return

    def _end(self, why: str) -> None:
        """Tell everybody who waits that nothing will come."""
        self._ended = self._ended or why
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(HostUnavailable(f"The channel to host {self.host!r} ended ({why})."))

    async def _exactly(self, size: int) -> bytes:
        """Read so many bytes; each piece is a sign of life."""
        pieces: list[bytes] = []
        while size:
            pieces.append(await self._channel.reader.readexactly(min(size, CHUNK)))
            size -= len(pieces[-1])
            self._heard_at = time.monotonic()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _read(self) -> None:
        why = "closed"
        try:
            while True:
                header_size, attachment_size = protocol.frame_sizes(await self._exactly(protocol.HEADER.size))
                header = json.loads(await self._exactly(header_size))
                self._deliver(header, await self._exactly(attachment_size))
        except asyncio.IncompleteReadError as error:
            why = await self._channel.why_ended()
            if error.partial and not self._waiting:
                why += f"; last bytes {error.partial[:80]!r}"
        except (protocol.ProtocolError, ValueError) as error:
            why = f"it does not speak as hostd does: {error}"
        except OSError as error:
            why = str(error) or type(error).__name__
        finally:
            self._end(why)

    def _deliver(self, header: Any, attachment: bytes) -> None:
        if not isinstance(header, dict):
            raise protocol.ProtocolError(f"a header that is no object: {str(header)[:80]}")
        answer = cast("dict[str, Any]", header)
        future = self._waiting.get(answer.get("id", 0))
        if future is None or future.done():
            return
        if "error" in answer:
            future.set_exception(_error(self.host, answer["error"]))
        else:
            future.set_result((answer.get("ok"), attachment))


def _error(host: str, said: Mapping[str, str]) -> GpuMcpError:
    message, hint = said.get("message", "no message"), said.get("hint", "")
    match said.get("kind"):
        case "not_found":
            return NotFound("such thing on the host", message, hint=hint)
        case "bad_request" | "protocol":
            return BadRequest(message, hint=hint)
        case "drained":
            return HostDrained(f"Host {host!r} takes nothing new: {message}.")
        case "disk_full":
            return DiskFull(
                f"Host {host!r}: {message}.", hint=hint or "Free space there, or set state_dir to another disk."
            )
        case _:
            return HostError(f"Host {host!r}: {message}", hint=hint)
