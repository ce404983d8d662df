"""A line with delay: a proxy on loopback that hands every byte on after half a round trip."""

import asyncio
import contextlib
import time
from typing import Self

CHUNK = 1 << 16


class SlowLine:
    """Listens on a port of its own and forwards to another; the delay is one way, each way."""

    def __init__(self, port: int, round_trip_s: float) -> None:
        self._to, self._delay_s = port, round_trip_s / 2
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def hand_on() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    writer.close()
                    return
                writer.write(data)

        handing = asyncio.create_task(hand_on())
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                queue.put_nowait((time.monotonic() + self._delay_s, data))
        queue.put_nowait((time.monotonic() + self._delay_s, b""))
        await handing
