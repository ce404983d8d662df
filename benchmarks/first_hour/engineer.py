"""The first hour of an engineer without root: a clone, `make demo`, and what it says to do next.

    python benchmarks/first_hour/engineer.py USER    (as root, which becomes USER; an ordinary user leaves USER out)

Each step runs in a terminal of 80 columns, with a HOME and a checkout made for it. A row says when its first line came,
how long it took, how many lines there were and how wide the widest was.
"""

import fcntl
import os
import pty
import pwd
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH = 80
STEP_S = 540
BIN = ".venv/bin/gpu-mcp-server"


@dataclass(frozen=True)
class Seen:
    """What a step showed."""

    words: str
    code: int
    first_s: float
    whole_s: float
    text: str

    def row(self) -> str:
        lines = [line.rsplit("\r", 1)[-1].replace("\x1b[K", "") for line in self.text.replace("\r\n", "\n").split("\n")]
        widest = max(map(len, lines))
        return (
            f"| `{self.words}` | {self.code} | {self.first_s:.1f} | {self.whole_s:.1f} | {len(lines) - 1} | {widest} |"
        )


def play(words: str, home: Path, user: str | None) -> Seen:
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
    environment = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "xterm", "LANG": "C.UTF-8"}
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    start = time.monotonic()
    process = subprocess.Popen(
        [*become, "sh", "-c", words],
        cwd=home / "lab",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    first, text = None, b""
    while time.monotonic() - start < STEP_S:
        try:
            more = os.read(master, 65536)
        except OSError:  # Linux says EIO when the other side is closed
            break
        first = first or time.monotonic() - start
        text += more
    process.kill()
    whole_s = time.monotonic() - start
    return Seen(words, process.wait(), first or whole_s, whole_s, text.decode("utf-8", "replace"))


def main(user: str | None) -> int:
    home = Path(tempfile.mkdtemp(prefix="first-hour-"))
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(home / "lab")], check=True)
        if user:
            about = pwd.getpwnam(user)
            for path in [home, *home.rglob("*")]:
                os.chown(path, about.pw_uid, about.pw_gid, follow_symlinks=False)
        steps = [play("make demo", home, user)]
        print("| step | exit | first line s | whole s | lines | widest |\n| --- | --- | --- | --- | --- | --- |")
        print(steps[0].row(), flush=True)
        following = re.findall(rf"^  ({re.escape(BIN)} .*?)(?:  #.*)?\r?$", steps[0].text, re.MULTILINE)
        for words in [*following, f"{BIN} run --push examples -- ls", f"{BIN} jobs"]:
            steps.append(play(words, home, user))
            print(steps[-1].row(), flush=True)
        print("\n```\n" + steps[0].text.replace("\r\n", "\n").rpartition("\r")[2] + "```")
        bad = [s.words for s in steps if s.code and "doctor" not in s.words]
        print(f"failed: {', '.join(bad) or 'none'}; commands that the demonstration ends with: {len(following)}")
        return int(bool(bad) or len(following) != 3)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
