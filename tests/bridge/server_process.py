"""A server over HTTP as a process of its own, which can be killed and started again at the same address."""

import asyncio
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx2

from tests.commands import Started, shared_commands


class ServerProcess:
    """A server as a process of its own, at one address whatever happens to it."""

    def __init__(self, folder: Path, inside: Sequence[str] = ()) -> None:
        self.folder, self._inside = folder, inside
        """What starts it elsewhere, such as in a network of its own."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "GPU_MCP_DATA_DIR": str(folder / "data"),
            "GPU_MCP_INDEX_DOCUMENTATION": "false", "GPU_MCP_MIN_LEVEL": "unconfined", "GPU_MCP_ACCEPT_UNCONFINED": "true",
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | Started | None = None

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpu_mcp_server", *words]

    def start(self) -> None:
        serve = "serve", "--http", f"127.0.0.1:{self.port}"
        if not self._inside:
            log = self.folder / "log"
            self.process = shared_commands().start(*serve, env=self.environment, cwd=self.folder, out=log, err=log)
            return
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._inside, *self.command(*serve)],
                env=self.environment, cwd=self.folder, stderr=log, stdout=log,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    async def answers(self) -> None:
        """Wait until it does."""
        async with httpx2.AsyncClient() as http:
            while True:
                try:
                    await http.get(f"http://127.0.0.1:{self.port}/healthz")
                    return
                except httpx2.HTTPError:
                    await asyncio.sleep(0.1)

    def token(self) -> str:
        words = "token", "create", "ada", "--scope", "run"
        done = shared_commands().run(*words, env=self.environment, cwd=self.folder)
        done.check_returncode()
        return next(word for word in done.stdout.split() if word.startswith("gpumcp_"))

    def runs_of(self, mark: str) -> int:
        """Return how many jobs with a mark in their command ran to their end."""
        with sqlite3.connect(f"file:{self.folder}/data/lab.db?mode=ro", uri=True) as db:
            rows = db.execute(
                "SELECT record ->> 'status' FROM jobs WHERE purpose = 'run' AND instr(context, ?)", (mark,)
            ).fetchall()
        return sum(status == "ok" for (status,) in rows)
