"""Time from a hostile job's limit to its record, at each level, as root and as an ordinary user.

`python benchmarks/hosts/ends.py [--repeats 3] [--only WORD] [--out FILE]`, as root. A time begins when the limit
strikes (`wall_s` after the start, or when a job says that it comes to another limit), and ends when the caller hears
that the record is there.
"""

import argparse
import asyncio
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gpu_mcp_server.backends.hostd_client import HostdClient  # noqa: E402
from gpu_mcp_server.backends.local import LocalBackend  # noqa: E402
from tests.hostd.laboratory import Laboratory, wrapped  # noqa: E402

UID = 61500
AS_USER = f"setpriv --reuid {UID} --regid {UID} --clear-groups"
LEVELS = ("full", "namespaces", "landlock")
ALLOWED_S = 2.0
PATIENCE_S = 120.0
MIB = 1 << 20


@dataclass(frozen=True)
class Hostile:
    """A job that makes its end as hard as it can."""

    name: str
    script: str
    """Python; `ready()` says that it is as it wants to be."""
    status: str = "timeout"
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs: tuple[str, ...] = ()
    strikes: str = "wall"
    """What of its limits: wall, or another, of which it says `ready` when it is about to strike."""


COMMON = """
import os, signal, sys, threading, time
def ready(): os.write(1, b"ready %.6f\\n" % time.time())
def pause(): signal.pause()
def fork(work):
    if os.fork() == 0:
        try: work()
        finally: os._exit(0)
"""
DEAF = """
for number in range(1, 32):
    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)
ready()
while True: time.sleep(9)
"""
DAEMONS = """
ready()
for _ in range(8):
    if os.fork() == 0: os.setsid()
while True: time.sleep(9)
"""
BOMB = """
ready()
while True:
    try:
        if os.fork() == 0: signal.signal(15, signal.SIG_IGN)
    except OSError: pass
"""
CHAIN = """
ready()
if os.fork(): pause()
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
"""
MANY = """
for _ in range(4000): fork(pause)
ready()
pause()
"""
STOPPED = """
for _ in range(50): fork(lambda: os.kill(os.getpid(), 19))
ready()
os.kill(os.getpid(), 19)
"""
HUGE = """
held = b"x" * (6 << 30)
ready()
pause()
"""
FILES = """
for folder in range(100):
    os.mkdir(str(folder))
    for file in range(1000): os.mknod("%d/%d" % (folder, file))
ready()
pause()
"""
WRITER = """
ready()
def write(fd):
    while True: os.write(fd, b"x" * 65536)
fork(lambda: write(2))
write(1)
"""
WRITERS = """
ready()
def write():
    while True: os.write(2, b"x" * 65536)
for _ in range(100): fork(write)
pause()
"""
SYNCED = """
ready()
fd = os.open("f", os.O_CREAT | os.O_WRONLY)
while True:
    os.pwrite(fd, b"x" * (4 << 20), 0)
    os.fsync(fd)
"""
HOG = """
held = []
while True:
    held.append(b"x" * (16 << 20))
    if len(held) == 30: ready()
"""
HOGS = """
start, end = os.pipe()
def take():
    held = b"x" * (16 << 20)
    os.write(end, b".")
    while True: time.sleep(9)
for number in range(40):
    fork(take)
    os.read(start, 1)
    if number == 28: ready()
pause()
"""
SPINNER = """
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while time.process_time() < 2: pass
ready()
while True: pass
"""
SPINNERS = """
def spin():
    while True: pass
for _ in range(64): threading.Thread(target=spin).start()
"""
MEMORY = {"memory_bytes": 512 * MIB, "wall_s": 30.0}
ROOM = {"disk_files": 200_000, "wall_s": 20.0}
JOBS = (
    Hostile("ignores signals", DEAF),
    Hostile("has 256 daemons", DAEMONS, limits={"processes": 400}),
    Hostile("forks up to 512 processes for ever", BOMB, status="any", limits={"processes": 512}),
    Hostile("forks and ends for ever", CHAIN),
    Hostile("holds 4,000 processes", MANY, limits={"processes": 4096, "wall_s": 12.0, "memory_bytes": 8 << 30}),
    Hostile("stops itself and its children", STOPPED),
    Hostile("holds 6 GiB", HUGE, limits={"memory_bytes": 8 << 30, "wall_s": 14.0}),
    Hostile("has 100,000 files", FILES, limits=ROOM),
    Hostile("has 100,000 files, wants all", FILES, limits=ROOM, outputs=("*",)),
    Hostile("writes for ever", WRITER),
    Hostile("writes from 100 processes", WRITERS),
    Hostile("writes a file for ever, synced", SYNCED),
    Hostile("memory: one process", HOG, status="oom", limits=MEMORY, strikes="memory"),
    Hostile("memory: 40 processes", HOGS, status="oom", limits=MEMORY, strikes="memory"),
    Hostile("CPU: ignores its signal", SPINNER, limits={"cpu_s": 2, "wall_s": 30.0}, strikes="CPU"),
    Hostile("CPU: 64 threads", SPINNERS, limits={"cpu_s": 2, "wall_s": 30.0}, strikes="CPU"),
)


async def opened(folder: Path, level: str, user: str) -> Laboratory:
    """Start hostd at a level."""
    state = folder / f"{user}-{level}" / "state"
    state.parent.mkdir(mode=0o755)
    env = {"GPU_MCP_HOSTD_LEVEL": level, "HOME": "/nonexistent"}
    if user == "root":
        return await Laboratory.open(state, level, env)
    state.mkdir(mode=0o700)
    os.chown(state, UID, UID)
    python = wrapped(state, env, AS_USER, "/usr/bin/python3")
    return Laboratory(await HostdClient.open(LocalBackend(python=str(python), state_dir=str(state))), state)


async def late_s(lab: Laboratory, job: Hostile) -> tuple[float, str]:
    """Return how late its record was, and how it ended."""
    limits = {"wall_s": 3.0, "processes": 128, "memory_bytes": 1 << 30, "disk_bytes": 8 << 30, **job.limits}
    argv = ("{python}", "-I", "-S", "-u", "-c", COMMON + job.script)
    spec = lab.spec(*argv, limits=limits, outputs=job.outputs)
    await lab.submit(spec)
    done = await lab.wait(spec.id, timeout_s=PATIENCE_S)
    seen = time.time()
    record = done.record
    assert record.started_at is not None, record
    words = done.stdout.split()
    ready_at = float(words[1]) if len(words) > 1 and words[0] == b"ready" else None
    if job.strikes != "wall":
        struck = ready_at or record.started_at + (limits.get("cpu_s") or 0)  # one thread at a time has Python's lock
    else:
        struck = record.started_at + limits["wall_s"]
        if record.status == "timeout" and (ready_at is None or ready_at > struck):
            return seen - struck, "timeout before it was ready"
    if record.state != "finished":
        return seen - struck, f"not ended after {PATIENCE_S:g} s"
    if record.status != "timeout" and job.strikes == "wall":  # another limit ended it; when that struck, nobody knows
        return max(0.0, seen - struck), f"{record.status}: {record.note[:60]}"
    return seen - struck, str(record.status)


async def measured(args: argparse.Namespace) -> list[str]:
    """Return the rows of the table."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    columns: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ends-") as text:
        folder = Path(text)
        os.chmod(folder, 0o755)  # noqa: PTH101
        for user in ("root", "user"):
            for level in LEVELS:
                lab = await opened(folder, level, user)
                column = f"{user}, {lab.level}"
                if column not in columns:
                    columns.append(column)
                    for job in JOBS:
                        if args.only in job.name:
                            for _ in range(args.repeats):
                                found[job.name, column].append(await late_s(lab, job))
                            print(column, job.name, found[job.name, column], flush=True)
                await lab.close()
    rows = ["| job | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for job in JOBS:
        cells = [_cell(job, found[job.name, column]) for column in columns]
        rows.append(f"| {job.name} | " + " | ".join(cells) + " |")
    return rows


def _cell(job: Hostile, times: list[tuple[float, str]]) -> str:
    if not times:
        return ""
    worst = max(seconds for seconds, _ in times)
    other = sorted({said for _, said in times if job.status not in ("any", said)})
    said = f"{min(seconds for seconds, _ in times):.2f} to {worst:.2f}" if len(times) > 1 else f"{worst:.2f}"
    return (f"**{said}**" if worst > ALLOWED_S else said) + (f" ({'; '.join(other)})" if other else "")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="jobs whose names have this")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        raise SystemExit("This needs root and setpriv, to become an ordinary user as well.")
    rows = asyncio.run(measured(args))
    about = f"{datetime.now(UTC):%Y-%m-%d}, Linux {platform.release()}, {os.cpu_count()} cores, {args.repeats} runs"
    text = "\n".join([f"Seconds from the limit to the record; {about}.", "", *rows]) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
