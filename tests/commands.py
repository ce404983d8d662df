"""The command line: each command in a process of its own, forked from one that has imported what commands need.

To import it takes more than a second of a core; most commands take a tenth.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMPORTED = (
    "gpu_mcp_server.cli.app",
    "gpu_mcp_server.mcp_api.server",
    "gpu_mcp_server.services.lab",
    "gpu_mcp_toolsets",
)
NOWHERE = Path(os.devnull)
Done = subprocess.CompletedProcess[str]


class Started:
    """A command that runs, as far as `subprocess.Popen` is asked about one."""

    def __init__(self, forks: "Commands", pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._forks, self._handle = forks, os.pidfd_open(pid)
        self._turn = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, if it ended."""
        with self._turn:  # two threads may wait for one end, of which the kernel tells once
            if self.returncode is None:
                self.returncode = self._forks.ask(poll=self.pid)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code."""
        while (code := self.poll()) is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def __del__(self) -> None:
        os.close(self._handle)


class Commands:
    """Starts commands and runs them to their end, several at once if asked by several threads."""

    def __init__(self) -> None:
        self._turn, self._forks = threading.Lock(), started()

    def run(
        self, *arguments: str, env: Mapping[str, str], cwd: Path, stdin: str = "", timeout: float | None = None
    ) -> Done:
        """Run a command as `subprocess.run` does."""
        with tempfile.TemporaryDirectory() as name:
            said = Path(name, "in"), Path(name, "out"), Path(name, "err")
            said[0].write_text(stdin)
            try:
                code = self._begin(arguments, env, cwd, said).wait(timeout)
            except BaseException:  # the test's time is over: the command ends with it, and the next one is forked anew
                self.close()
                self._forks = started()
                raise
            return Done(arguments, code, said[1].read_text(), said[2].read_text())

    def start(
        self, *arguments: str, env: Mapping[str, str], cwd: Path, out: Path = NOWHERE, err: Path = NOWHERE
    ) -> Started:
        """Start a command that reads nothing and appends what it says to files."""
        return self._begin(arguments, env, cwd, (NOWHERE, out, err))

    def _begin(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, said: Sequence[Path]) -> Started:
        paths = [str(path) for path in said]
        return Started(self, self.ask(arguments=arguments, env=dict(env), cwd=str(cwd), paths=paths))

    def ask(self, **order: Any) -> Any:
        """Send an order and return the answer."""
        assert self._forks.stdin and self._forks.stdout
        with self._turn:
            self._forks.stdin.write(json.dumps(order) + "\n")
            self._forks.stdin.flush()
            return json.loads(self._forks.stdout.readline())

    def close(self) -> None:
        """End, and with it what it runs."""
        os.killpg(self._forks.pid, signal.SIGKILL)
        self._forks.communicate()


@functools.cache
def shared_commands() -> Commands:
    """Return the runner of all tests of this process, which ends with it."""
    commands = Commands()
    atexit.register(commands.close)
    return commands


def started() -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", "from tests.commands import fork_commands; fork_commands()"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=ROOT, text=True, start_new_session=True)


def fork_commands() -> None:
    """Fork a process for each line of stdin, and tell its exit code."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("tests.brief_rounds").set_rounds(brief=True)
    gc.freeze()  # or each process searches all of it for garbage as it ends
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif not (answer := os.fork()):
            become(**order)
            return
        print(json.dumps(answer), flush=True)  # noqa: T201


def become(arguments: list[str], env: dict[str, str], cwd: str, paths: list[str]) -> None:
    """Be the process of one command, to its end."""
    from gpu_mcp_server.cli import main

    for number, path in enumerate(paths):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["gpu-mcp-server", *arguments]
    main()
