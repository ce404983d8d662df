"""Messages of a slow command at a terminal, and its silence elsewhere."""

import fcntl
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.cli import output

ROOT = Path(__file__).parents[1]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def silent_host() -> Iterator[int]:
    """The port of a machine that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Start:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPU_MCP_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TERM": "xterm",
    }  # fmt: skip

    def call(*words: str, stderr: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "gpu_mcp_server", *words]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )

    return call


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 80 columns: ours and the program's."""
    ends = pty.openpty()
    fcntl.ioctl(ends[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield ends
    for end in ends:
        os.close(end)


def test_a_host_that_is_slow_is_named_while_it_is_waited_for(start: Start, terminal: tuple[int, int], silent_host: int):
    process = start("hosts", "add", "box", f"ada@127.0.0.1:{silent_host}", stderr=terminal[1])
    try:
        said = os.read(terminal[0], 4096).decode()  # the test's limit ends it if nothing comes
    finally:
        process.kill()
        process.communicate()

    assert said.replace("\r\n", "\n").startswith("looking for GPUs, compilers and the judge's Python on")
    assert "box (ada@127.0.0.1)" in " ".join(said.split())
    assert max(map(len, said.replace("\r", "").split("\n"))) <= 80


def test_a_command_that_ends_soon_says_nothing(start: Start, terminal: tuple[int, int]):
    process = start("config", "validate", stderr=terminal[1])
    process.communicate()
    os.set_blocking(terminal[0], False)

    with pytest.raises(BlockingIOError):
        os.read(terminal[0], 1)


class Recorder:
    """Stands for stderr, a terminal or none."""

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "arguments", "armed"),
    [(True, [], True), (False, [], False), (True, ["--json"], False)],
)
def test_only_a_person_at_a_terminal_is_told(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, arguments: list[str], armed: bool
):
    monkeypatch.setattr(sys, "stderr", Recorder(terminal))
    monkeypatch.setattr(sys, "argv", ["gpu-mcp-server", "status", *arguments])

    output.announce("looking around")
    try:
        assert bool(output._announced) is armed  # pyright: ignore[reportPrivateUsage]
        output.announce("looking elsewhere")
        assert len(output._announced) == int(armed)  # pyright: ignore[reportPrivateUsage]
    finally:
        output.withdraw()
    assert not output._announced  # pyright: ignore[reportPrivateUsage]
