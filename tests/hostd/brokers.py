"""Clients of a real broker, each a process that can be killed, on GPUs that exist only as locks."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_mcp_server.hostd.gpus.broker_client import BrokerGone, GrantRequest, wait_for_grant
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks

ONE, TWO, THREE = "GPU-00000000-1111", "GPU-22222222-3333", "GPU-44444444-5555"
FORK = multiprocessing.get_context("fork")


def want_of(names=(ONE,), count=1, mode="exclusive", said: Callable[[str], None] = lambda words: None, **more: Any):
    fields = {"names": list(names), "count": count, "mode": mode, **more}
    return GrantRequest(fields, {"job": more.get("job", "t-test"), "pid": os.getpid(), "groups": []}, said)


def take(locks: GpuLocks, want: GrantRequest, wait_s: float = 20.0, stop: Callable[[], bool] = lambda: False):
    """Wait in line; return connection, locks and notes, or None. Without a broker the turns decide."""
    try:
        return wait_for_grant(locks, want, time.monotonic() + wait_s, stop)
    except BrokerGone:
        fields = want.fields
        held = locks.acquire(fields["names"], fields["count"], fields["mode"], want.owner, wait_s, stop)
        return (None, held, []) if held else None


def let_go(found) -> None:
    link, held, _ = found
    for _, fd in held:
        os.close(fd)
    if link is not None:
        link.close()


def broker_pid(locks: GpuLocks) -> int | None:
    """Return the pid of the broker, by what it wrote beside its lock."""
    with contextlib.suppress(OSError, ValueError):
        if locks.is_taken("broker"):
            return int(json.loads(Path(locks.folder, "broker.lock").read_text())["pid"])
    return None


class Inside:
    """Locks that jobs check themselves: POSIX locks, of another kind than those under test, one per GPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def on(self, names, mode):
        with contextlib.ExitStack() as stack:
            for name in names:
                file = stack.enter_context((self.folder / name).open("a+b"))
                try:
                    fcntl.lockf(file, (fcntl.LOCK_EX if mode == "exclusive" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                except OSError:
                    (self.folder / f"double-{os.getpid()}-{time.monotonic_ns()}").write_text(f"{mode} {name}")
            yield

    def doubles(self) -> list[str]:
        return [path.read_text() for path in self.folder.glob("double-*")]


def client(locks: GpuLocks, inside: Inside, seed: int, served: Path, names=(ONE, TWO, THREE)) -> None:
    """Take GPUs again and again; a line in `served` for each time."""
    chance = random.Random(seed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        mode = chance.choice(("exclusive", "exclusive", "shared"))
        count = chance.choice((1, 1, 2)) if mode == "exclusive" else 1
        began = time.monotonic()
        found = take(locks, want_of(names, count, mode, user=f"user{seed % 5}"), 60.0)
        if found is None:
            (inside.folder / f"unserved-{os.getpid()}").write_text(f"{mode} {count}")
            return
        with inside.on([name for name, _ in found[1]], mode):
            time.sleep(chance.uniform(0.0, 0.02))
        let_go(found)
        with served.open("a") as out:
            out.write(f"{mode} {count} {time.monotonic() - began:.4f} {os.getpid()}\n")


def unserved(crowd: "Crowd", served: Path, since: int) -> set[int]:
    """Return the clients of which there is no line in `served` after so many."""
    pids = {int(line.split()[3]) for line in served.read_text().splitlines()[since:] if len(line.split()) == 4}
    return {process.pid for process in crowd.all} - pids


class Crowd:
    """Processes that are ended with the test."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def start(self, target: Callable[..., None], *arguments: Any) -> Any:
        process = FORK.Process(target=target, args=arguments)
        process.start()
        self.all.append(process)
        return process

    def replace(self, at: int, target: Callable[..., None], *arguments: Any) -> None:
        """Kill one and start another in its place."""
        os.kill(self.all[at].pid, signal.SIGKILL)
        self.all[at].join()
        self.all[at] = FORK.Process(target=target, args=arguments)
        self.all[at].start()

    def end(self) -> None:
        for process in self.all:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()
        self.all.clear()
