"""A child process whose stdio is, or becomes, a channel."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gpu_mcp_server.backends.base import Channel

STDERR_KEPT = 4096
FRAME_LIMIT = 1 << 20
CLOSE_S = 2.0
READ_BYTES = 4096


class ChildProcess:
    """A program with its stdio on pipes, in a session of its own so that a Ctrl-C does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.tail = bytearray()
        self._listening = asyncio.create_task(_listen(process.stderr, self.tail))

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str] | None = None) -> "ChildProcess":
        """Start a program.

        Raises:
            OSError: If it cannot be started.
        """
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=Path("/"), start_new_session=True,
            limit=FRAME_LIMIT,
        )  # fmt: skip
        return cls(process)

    async def read(self) -> bytes:
        """Return some of its stdout, nothing at the end."""
        return await self.stdout.read(READ_BYTES)

    def write(self, data: bytes) -> None:
        """Write to its stdin."""
        self.stdin.write(data)

    async def status(self) -> int | None:
        """Return its exit status if it ends within a moment."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.process.wait(), CLOSE_S)
        return None

    async def close(self) -> None:
        """Close its stdin, and kill it if it does not end by itself."""
        self.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), CLOSE_S)
        except TimeoutError:
            await self.kill()
        except BaseException:
            await self.kill()  # a caller without time left ends the child, too
            raise
        await self._listening

    async def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def stderr_tail(self) -> str:
        """Return the end of its stderr."""
        return self.tail.decode("utf-8", "replace").strip()[-400:]

    async def why_ended(self) -> str:
        """Return its exit status and the end of its stderr."""
        code = await self.process.wait()
        await self._listening
        return f"exit status {code}: {self.stderr_tail() or 'no message'}"

    def channel(self, why_ended: Callable[[], Awaitable[str]] | None = None) -> Channel:
        """Return its stdio as a channel."""
        return Channel(self.stdout, self.stdin, self.close, why_ended or self.why_ended)


async def run_here(argv: Sequence[str], stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
    """Run a program on this machine to its end; return its exit status, stdout and stderr.

    Raises:
        OSError: If it cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    async with killed_unless_awaited(process):
        out, err = await process.communicate(stdin)
    return process.returncode, out, err


@asynccontextmanager
async def killed_unless_awaited(process: asyncio.subprocess.Process) -> AsyncGenerator[None]:
    """Kill a process where the block that awaits its end is left by an exception, a cancellation among them.

    Else it stays behind, and asyncio says so at some later time, within whatever runs then.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise


async def _listen(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(STDERR_KEPT):
        tail += chunk
        del tail[:-STDERR_KEPT]
