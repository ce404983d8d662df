"""A line to a server that is long, or breaks: a proxy of TCP on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Line:
    """A line that a test delays or cuts, and the requests seen on it.

    Attributes:
        delay_s: From one end to the other; a round trip takes twice that.
        cut_s: Seconds after which a connection is cut, as some proxies do.
        cut_bytes: Bytes from the client after which the line breaks once.
        down: Whether nobody gets through.
        sent_bytes: From clients to the server.
        requests: That clients began.
        listens: Of those, the ones that hear what changes.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.delay_s = 0.0
        self.cut_s: float | None = None
        self.cut_bytes: int | None = None
        self.down = False
        self.sent_bytes = self.requests = self.listens = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Break all connections."""
        for writer in list(self._open):
            writer.transport.abort()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """Break all connections and wait for their end."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, forth)
        self._open.update(ends)
        try:
            async with asyncio.timeout(self.cut_s):
                await asyncio.gather(self._carry(reader, forth, counted=True), self._carry(back, writer))
        except (OSError, TimeoutError):
            pass
        finally:
            self._open.difference_update(ends)
            for end in ends:
                end.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        flying: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def land() -> None:
            while True:
                at, data = await flying.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                writer.write(data)
                await writer.drain()
                if not data:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    return

        landing = asyncio.create_task(land())
        try:
            while not landing.done():
                data = await reader.read(1 << 16)
                if counted:
                    self.sent_bytes += len(data)
                    self.requests += data.count(b" HTTP/1.1\r\n")
                    self.listens += data.count(b"subscriptions/listen\r\n")
                    if self.cut_bytes is not None and self.sent_bytes > self.cut_bytes:
                        self.cut_bytes = None
                        self.cut()
                flying.put_nowait((loop.time() + self.delay_s, data))
                if not data:
                    break
            await landing
        finally:
            landing.cancel()


@asynccontextmanager
async def line_to(url: str) -> "AsyncGenerator[Line]":
    """Lay a line to a server for the block."""
    line = Line(int(url.rpartition(":")[2]))
    server = await asyncio.start_server(line.accept, "127.0.0.1", 0)
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        await line.close()
