"""This machine: hostd as a child process."""

import asyncio
import os
import sys
from pathlib import Path

from gpu_mcp_server.backends.base import Channel
from gpu_mcp_server.backends.bundle import HOSTD, nvml_module
from gpu_mcp_server.errors import HostUnavailable

STDERR_KEPT = 4096
FRAME_LIMIT = 1 << 20
CLOSE_S = 2.0


class LocalBackend:
    """Starts hostd from this package, in a session of its own so that a Ctrl-C does not reach it."""

    kind = "local"

    def __init__(self, name: str = "local", *, python: str | None = None, state_dir: str | None = None) -> None:
        self.name = name
        self._python = python or sys.executable
        self._state = state_dir or ""

    async def open(self) -> Channel:
        """Start hostd.

        Raises:
            HostUnavailable: If this is not Linux, or the interpreter does not start.
        """
        if sys.platform != "linux":
            raise HostUnavailable(
                "Jobs run only on Linux hosts.",
                hint="Add one with `gpu-mcp-server hosts add NAME user@host`.",
                retryable=False,
            )
        nvml = nvml_module()
        paths = f"sys.path.insert(0, {str(HOSTD.parent)!r}); sys.path.append({str(nvml.parent) if nvml else ''!r})"
        code = f"import sys; {paths}; from hostd.__main__ import main; sys.exit(main())"
        keep = (
            "PATH",
            "HOME",
            "CUDA_HOME",
            "LD_LIBRARY_PATH",
            "XDG_STATE_HOME",
            "XDG_RUNTIME_DIR",
            "DBUS_SESSION_BUS_ADDRESS",
        )
        env = {k: v for k, v in os.environ.items() if k in keep}
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                "-I",
                "-c",
                code,
                "serve",
                self._state,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=env,
                cwd=Path("/"),
                start_new_session=True,
                limit=FRAME_LIMIT,
            )
        except OSError as error:
            raise HostUnavailable(f"hostd does not start: {error}.", retryable=False) from error
        return _channel(process)


def _channel(process: asyncio.subprocess.Process) -> Channel:
    assert process.stdin and process.stdout and process.stderr
    tail = bytearray()
    listening = asyncio.create_task(_listen(process.stderr, tail))

    async def close() -> None:
        assert process.stdin
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), CLOSE_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        await listening

    async def why_ended() -> str:
        code = await process.wait()
        await listening
        return f"exit status {code}: {tail.decode('utf-8', 'replace').strip()[-400:] or 'no message'}"

    return Channel(process.stdout, process.stdin, close, why_ended)


async def _listen(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(STDERR_KEPT):
        tail += chunk
        del tail[:-STDERR_KEPT]
