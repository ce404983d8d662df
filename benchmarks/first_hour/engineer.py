"""The first hour of an engineer without root: a clone, `make demo`, and what it says to do next.

    python benchmarks/first_hour/engineer.py USER    (as root, which becomes USER; an ordinary user leaves USER out)

Each step runs in a terminal of 80 columns, with a HOME and a checkout made for it. A row says when its first line came,
how long it took, how much it printed, how wide the widest line was, and what a person would miss there.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.first_hour.accounts import give  # noqa: E402
from benchmarks.first_hour.terminal import HEAD, Person  # noqa: E402

BIN = ".venv/bin/gpu-mcp-server"


def main(user: str | None) -> int:
    """Play the hour, and print a table."""
    home = Path(tempfile.mkdtemp(prefix="first-hour-"))
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(home / "lab")], check=True)
        if user:
            give(home, user)
        person = Person(home, user, "lab")
        print(HEAD, flush=True)
        demo = person.do("make demo", says="next:")
        following = re.findall(rf"^  ({re.escape(BIN)} .*?)(?:  #.*)?\r?$", demo.text, re.MULTILINE)
        for words in following:
            person.do(words)
        person.do(f"{BIN} run --push examples -- ls", says="softmax")
        person.do(f"{BIN} jobs", says="ls")
        print("\n```\n" + "\n".join(demo.lines()) + "```")
        print(f"steps: {len(person.steps)}, with a riddle: {person.faults()}; commands to go on: {len(following)}")
        return int(bool(person.faults()) or len(following) != 3)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
