"""The command line: each command in a process of its own, forked from one that has imported what commands need.

To import it takes more than a second of a core; most commands take a tenth.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORTED = (
    "gpu_mcp_server.cli.app",
    "gpu_mcp_server.mcp_api.server",
    "gpu_mcp_server.services.lab",
    "gpu_mcp_toolsets",
)
Done = subprocess.CompletedProcess[str]


class Commands:
    """Runs commands to their end, one after the other."""

    def __init__(self) -> None:
        self._forks = started()

    def run(self, *arguments: str, env: Mapping[str, str], cwd: Path, stdin: str = "") -> Done:
        """Run a command as `subprocess.run` does."""
        assert self._forks.stdin and self._forks.stdout
        with tempfile.TemporaryDirectory() as name:
            said = Path(name, "in"), Path(name, "out"), Path(name, "err")
            said[0].write_text(stdin)
            order = {"arguments": arguments, "env": dict(env), "cwd": str(cwd), "paths": [str(path) for path in said]}
            try:
                self._forks.stdin.write(json.dumps(order) + "\n")
                self._forks.stdin.flush()
                code = int(self._forks.stdout.readline())
            except BaseException:  # the test's time is over: the command ends with it, and the next one is forked anew
                self.close()
                self._forks = started()
                raise
            return Done(arguments, code, said[1].read_text(), said[2].read_text())

    def close(self) -> None:
        """End, and with it what it runs."""
        os.killpg(self._forks.pid, signal.SIGKILL)
        self._forks.communicate()


def started() -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", "from tests.commands import fork_commands; fork_commands()"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=ROOT, text=True, start_new_session=True)


def fork_commands() -> None:
    """Fork a process for each line of stdin, and tell its exit code."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # or each process searches all of it for garbage as it ends
    for line in sys.stdin:
        if not (child := os.fork()):
            become(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


def become(arguments: list[str], env: dict[str, str], cwd: str, paths: list[str]) -> None:
    """Be the process of one command, to its end."""
    from gpu_mcp_server.cli import main

    for number, path in enumerate(paths):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["gpu-mcp-server", *arguments]
    main()
