"""The pool's broker: what a lease costs, what kill -9 costs, who waits how long, and a minute of random kills.

The GPUs exist only as locks; clients are processes that take part as a job's supervisor does, and check by a lock of
another kind that a GPU is theirs. `python benchmarks/hosts/pool.py [--seconds 60] [--clients 130] [--out FILE]`
"""

import argparse
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gpu_mcp_server.hostd.gpus.broker_client import broker_status  # noqa: E402
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks  # noqa: E402
from tests.hostd.brokers import ONE, THREE, TWO, Crowd, Inside, broker_pid, client, let_go, take, unserved, want_of  # noqa: E402

SHARED_S = 0.1
SHARERS = 8


def eventually(check: Callable[[], bool]) -> None:
    while not check():
        time.sleep(0.002)


def acquire_s(locks: GpuLocks, count: int) -> dict[str, list[float]]:
    """Return seconds from the wish to the locks: by the lock alone, and by a broker that runs already."""
    found: dict[str, list[float]] = {"lock": [], "broker": []}
    for _ in range(count):
        began = time.perf_counter()
        held = locks.acquire([ONE], 1, "exclusive", {"job": "bench"}, 0.0, lambda: False)
        found["lock"].append(time.perf_counter() - began)
        os.close(held[0][1])
    began = time.perf_counter()
    let_go(take(locks, want_of()))
    found["first, the broker starts"] = [time.perf_counter() - began]
    for _ in range(count):
        eventually(lambda: locks.is_free(ONE, "exclusive"))
        began = time.perf_counter()
        mine = take(locks, want_of())
        found["broker"].append(time.perf_counter() - began)
        let_go(mine)
    return found


def hold(locks: GpuLocks, said: int) -> None:
    assert take(locks, want_of()) is not None
    os.write(said, b"%.9f\n" % time.monotonic())
    signal.pause()


def kill_to_grant_s(locks: GpuLocks, count: int) -> list[float]:
    """Return seconds from kill -9 of the holder to the next one's having the lock."""
    crowd, found = Crowd(), []
    read, write = os.pipe()
    first = crowd.start(hold, locks, write)
    os.read(read, 100)
    for _ in range(count):
        second = crowd.start(hold, locks, write)
        eventually(lambda: broker_status(locks).get("all_waiting") == 1)
        killed = time.monotonic()
        os.kill(first.pid, signal.SIGKILL)
        found.append(float(os.read(read, 100)) - killed)
        first.join()
        first = second
    crowd.end()
    return found


def share(locks: GpuLocks, lasted: Path) -> None:
    while True:
        found = take(locks, want_of(mode="shared"))
        began = time.perf_counter()
        time.sleep(SHARED_S)
        let_go(found)
        with lasted.open("a") as out:
            out.write(f"{time.perf_counter() - began:.6f}\n")


def alone_s(locks: GpuLocks, folder: Path, count: int) -> tuple[list[float], list[float]]:
    """Return how long one waits who wants a GPU alone, on which sharers follow each other, and how long these took."""
    crowd, found = Crowd(), []
    chance = random.Random(3)
    for _ in range(SHARERS):
        crowd.start(share, locks, folder / "lasted")
        time.sleep(SHARED_S / SHARERS)
    for _ in range(count):
        time.sleep(chance.uniform(SHARED_S, 2 * SHARED_S))
        began = time.perf_counter()
        mine = take(locks, want_of(user="alone"))
        found.append(time.perf_counter() - began)
        let_go(mine)
    crowd.end()
    return found, [float(line) for line in (folder / "lasted").read_text().split()]


def chaos(locks: GpuLocks, folder: Path, clients: int, seconds: float) -> dict[str, object]:
    """Kill clients and brokers at random; say what the clients saw."""
    inside, served = Inside(folder / "inside"), folder / "served"
    chance, crowd = random.Random(17), Crowd()
    for n in range(clients):
        crowd.start(client, locks, inside, n, served)
    deadline = time.monotonic() + seconds
    killed = brokers = 0
    while time.monotonic() < deadline:
        crowd.replace(chance.randrange(clients), client, locks, inside, chance.randrange(10**6), served)
        killed += 1
        if chance.random() < 0.01:
            pid = broker_pid(locks)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                brokers += 1
        time.sleep(0.02)
    lines_of = served.read_text().splitlines
    before = len(lines_of())
    drained = time.monotonic() + 90.0
    # Nobody is killed any more: each of those who wait now must be served.
    while unserved(crowd, served, before) and time.monotonic() < drained:
        time.sleep(0.1)
    never = len(unserved(crowd, served, before))
    lines = [line.split() for line in served.read_text().splitlines()]
    crowd.end()
    gave_up = list(inside.folder.glob("unserved-*"))
    eventually(lambda: locks.is_free(ONE, "exclusive"))
    found = take(locks, want_of((ONE, TWO, THREE), 3), 5.0)
    left = found is None
    if found is not None:
        let_go(found)
    eventually(lambda: broker_status(locks).get("leases") == [] and broker_status(locks).get("all_waiting") == 0)
    waits = sorted(float(w) for _, _, w, _ in lines)
    return {
        "served": len(lines),
        "clients killed": killed,
        "brokers killed": brokers,
        "waiters that were never served": never,
        "two alone, or alone beside sharers": len(inside.doubles()),
        "gave up waiting": len(gave_up),
        "still held by the dead": left,
        "wait median s": statistics.median(waits),
        "wait longest s": waits[-1],
    }


def row(what: str, samples: list[float], goal: str) -> str:
    ms = sorted(1e3 * s for s in samples)
    p99 = ms[min(len(ms) - 1, round(0.99 * (len(ms) - 1)))]
    return f"| {what} | {statistics.median(ms):.3f} | {p99:.3f} | {ms[-1]:.3f} | {len(ms)} | {goal} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=130)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-pool-") as name:
        folder = Path(name)
        (folder / "gpus.json").write_text("[]")
        os.environ["GPU_MCP_HOSTD_GPUS"] = str(folder / "gpus.json")
        locks = GpuLocks(str(folder / "locks"))
        try:
            acquired = acquire_s(locks, 20 * options.repeats)
            killed = kill_to_grant_s(locks, options.repeats)
            waited, lasted = alone_s(locks, folder, options.repeats)
            seen = chaos(locks, folder, options.clients, options.seconds)
        finally:
            pid = broker_pid(locks)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )
    text = "\n".join(
        [
            "# The pool's broker",
            "",
            f"Command: `{' '.join(['python', 'benchmarks/hosts/pool.py', *sys.argv[1:]])}`. {machine}, "
            f"load {load:.1f} before the start (shared machine), {datetime.now(UTC):%Y-%m-%d}.",
            "",
            "| step | median ms | p99 ms | max ms | n | goal |",
            "| --- | --- | --- | --- | --- | --- |",
            row("lease by the lock alone (no broker runs)", acquired["lock"], "yardstick"),
            row("lease through the broker, connection included", acquired["broker"], "<= 1 ms"),
            row("first lease through a broker, which starts", acquired["first, the broker starts"], ""),
            row("kill -9 of the holder to the next one's lock", killed, "<= 50 ms"),
            row(f"a share, of {SHARERS} sharers without end, with its release", lasted, "yardstick"),
            row("alone against these", waited, "<= one share"),
            "",
            f"{options.clients} clients on 3 GPUs (exclusive of 1 or 2, shared; 0 to 20 ms each), "
            f"under random kills of clients and brokers for {options.seconds:.0f} s:",
            "",
            "| count | |",
            "| --- | --- |",
            *[f"| {key} | {f'{value:.3f}' if isinstance(value, float) else value} |" for key, value in seen.items()],
            "",
            "## What it shows",
            "",
        ]
    )
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
