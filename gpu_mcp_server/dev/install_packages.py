"""Run pip or venv and say how far it is: `python install_packages.py WHAT ARGUMENTS...`, before anything is installed.

It has the standard library alone. On a terminal one line changes; elsewhere there is a line every few seconds.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

TERMINAL_S = 0.2
LOG_S = 5.0
BAR = 20
KEPT_LINES = 30
"""Of what pip said, for when it fails."""
_FOUND = re.compile(r"^(?:Collecting|Obtaining) ([^\s<>=!~;\[(]+)")
_FETCHED = re.compile(r"^\s+(?:Downloading|Using cached) (\S+)")


class PipProgress:
    """Reads pip's output, and says how many packages it found, fetched and installed."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.found: set[str] = set()
        self.fetched: set[str] = set()
        self.to_install = 0
        self.said: list[str] = []
        self._before = installed_packages()
        self._start = time.monotonic()

    def read(self, line: str) -> None:
        """Take one line of pip's output."""
        self.said = [*self.said[1 - KEPT_LINES :], line]
        if found := _FOUND.match(line):
            self.found.add(found[1])
        elif fetched := _FETCHED.match(line):
            self.fetched.add(fetched[1])
        elif line.startswith("Installing collected packages:"):
            self.to_install = line.count(",") + 1

    def text(self) -> str:
        """Return where it stands, on one line."""
        seconds = time.monotonic() - self._start
        if not self.found:
            return f"{self.what}: {seconds:.0f} s"
        if not self.to_install:
            return f"{self.what}: {len(self.found)} packages found, {len(self.fetched)} fetched, {seconds:.0f} s"
        done = min(len(installed_packages() - self._before), self.to_install)
        filled = BAR * done // self.to_install
        bar = "#" * filled + "." * (BAR - filled)
        return f"{self.what}: [{bar}] {done} of {self.to_install} packages installed, {seconds:.0f} s"


def installed_packages() -> set[str]:
    """Return the names of what is installed beside this interpreter."""
    return {path.name for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info")}


def main(what: str, arguments: list[str]) -> int:
    """Run pip, or venv where that is the first argument; its own words are printed only if it fails."""
    program = [] if arguments[0] == "venv" else ["pip", "--disable-pip-version-check"]
    command = [sys.executable, "-u", "-m", *program, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603
    progress = PipProgress(what)
    ended = threading.Event()

    def read_all() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                progress.read(line.rstrip("\n"))
        ended.set()

    reader = threading.Thread(target=read_all, daemon=True)
    reader.start()
    terminal = sys.stdout.isatty()
    sys.stdout.write(f"{what} ...\n" if not terminal else "")
    while not ended.wait(TERMINAL_S if terminal else LOG_S):
        show(progress.text(), terminal=terminal)
    reader.join()
    code = process.wait()
    if code == 0:
        show(progress.text(), terminal=terminal, last=True)
        return 0
    sys.stdout.write("\n".join([f"{what}: {command[3]} failed with exit code {code}", *progress.said, ""]))
    return code


def show(text: str, *, terminal: bool, last: bool = False) -> None:
    """Print a line, over the one before on a terminal."""
    width = shutil.get_terminal_size().columns - 1
    sys.stdout.write(f"\r\x1b[K{text[:width]}" + ("\n" if last else "") if terminal else f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
