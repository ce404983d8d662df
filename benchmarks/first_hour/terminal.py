"""A person at a terminal of 80 columns: what a command shows, how soon, how wide, and whether it says what to do."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

WIDTH = 80
STEP_S = 540
SHOWN = 100
"""Characters of a command in the table."""
HEAD = (
    "| step | exit | first line s | whole s | characters | lines | widest | riddle |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)

_SECRET = re.compile(r"gpumcp_\w+_[\w-]+")
_WHOLE = re.compile(r"\S*|`[^`]*`\S*")


@dataclass(frozen=True)
class Seen:
    """Output of a step; `riddle` is what a person misses there, "" when nothing."""

    words: str
    code: int
    first_s: float
    whole_s: float
    text: str
    riddle: str = ""

    def lines(self) -> list[str]:
        """Return the lines as a person sees them at the end."""
        return [line.rsplit("\r", 1)[-1].replace("\x1b[K", "") for line in self.text.replace("\r\n", "\n").split("\n")]

    def widest(self) -> int:
        """Return the columns of the widest line; a word or a command that is copied whole counts as none."""
        return max(0 if _WHOLE.fullmatch(line.strip()) else len(line) for line in self.lines())

    def row(self) -> str:
        """Return a line of the table."""
        shown = _SECRET.sub("gpumcp_…", self.words)
        shown = (shown if len(shown) <= SHOWN else shown[:SHOWN] + "…").replace("|", r"\|")
        cells = [
            f"`{shown}`",
            self.code,
            f"{self.first_s:.1f}",
            f"{self.whole_s:.1f}",
            len(self.text),
        ]
        cells += [len(self.lines()) - 1, self.widest(), self.riddle or "-"]
        return f"| {' | '.join(map(str, cells))} |"


@dataclass
class Person:
    """Somebody with a home, as a user of this machine or as ourselves."""

    home: Path
    user: str | None = None
    folder: str = ""
    """Where commands start, below the home."""
    path: str = "/usr/local/bin:/usr/bin:/bin"
    steps: list[Seen] = field(default_factory=list[Seen])

    def do(self, words: str, *, code: int = 0, says: str = "", stdin: str = "") -> Seen:
        """Run a command, print its row, and keep it.

        Args:
            words: As typed at a shell.
            code: The exit code that it should have.
            says: What a person must read there to know what to do next, as a regular expression over one line of all.
            stdin: What is piped in.
        """
        seen = self._play(words, stdin)
        flat = " ".join(" ".join(seen.lines()).split())
        faults = [f"exit {seen.code}, not {code}"] if seen.code != code else []
        faults += [f"does not say {says!r}"] if says and not re.search(says, flat) else []
        faults += [f"{seen.widest()} columns"] if seen.widest() > WIDTH else []
        seen = Seen(
            words.replace(str(self.home), "~"), seen.code, seen.first_s, seen.whole_s, seen.text, "; ".join(faults)
        )
        self.steps.append(seen)
        print(seen.row(), flush=True)
        if faults:
            print("\n```\n" + seen.text.replace("\r\n", "\n")[-2000:] + "\n```\n", flush=True)
        return seen

    def become(self) -> list[str]:
        """Return the command that becomes this user."""
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"] if self.user else []

    def faults(self) -> int:
        """Return how many steps hold a riddle."""
        return sum(bool(seen.riddle) for seen in self.steps)

    def _play(self, words: str, stdin: str) -> Seen:
        environment = {"HOME": str(self.home), "PATH": self.path, "TERM": "xterm", "LANG": "C.UTF-8"}
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
        start = time.monotonic()
        process = subprocess.Popen(
            [*self.become(), "sh", "-c", words],
            cwd=self.home / self.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        assert process.stdin
        process.stdin.write(stdin.encode())
        process.stdin.close()
        first, text = None, b""
        while time.monotonic() - start < STEP_S:
            try:
                more = os.read(master, 65536)
            except OSError:  # Linux says EIO when the other side is closed
                break
            first = first or time.monotonic() - start
            text += more
        os.close(master)
        process.kill() if time.monotonic() - start >= STEP_S else None
        whole_s = time.monotonic() - start
        return Seen(words, process.wait(), first or whole_s, whole_s, text.decode("utf-8", "replace"))


def install_command(home: Path, root: Path, python: str) -> str:
    """Put a checkout's `gpu-mcp-server` and its Python into a home, as if installed; return the PATH with them."""
    folder = home / "bin"
    folder.mkdir()
    for name, words in (("gpu-mcp-server", f"{python} -m gpu_mcp_server"), ("python", python)):
        script = folder / name
        script.write_text(f'#!/bin/sh\nPYTHONPATH={root}:{root}/toolsets exec {words} "$@"\n')
        script.chmod(0o755)
    return f"{folder}:/usr/local/bin:/usr/bin:/bin"
