"""Locks of GPUs that do not exist: who has one, who waits, and what kill -9 frees."""

import json
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.descriptors import Bundle
from gpu_mcp_server.hostd.locks import GpuLocks
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import eventually

ONE, TWO = "GPU-00000000-1111", "GPU-22222222-3333"
OWNER = {"job": "j-1234", "pid": 7}
SPAWN = multiprocessing.get_context("fork")


@pytest.fixture
def locks(tmp_path: Path) -> GpuLocks:
    return GpuLocks(str(tmp_path / "locks"))


def never() -> bool:
    return False


def take(locks, uuids=(ONE,), count=1, mode="exclusive", wait_s=0.0, stop=never):
    return locks.acquire(uuids, count, mode, OWNER, wait_s, stop)


def let_go(held) -> None:
    for _, fd in held:
        os.close(fd)


def test_who_is_alone_keeps_everybody_out_and_sharers_only_who_wants_to_be_alone(locks):
    alone = take(locks)
    assert [uuid for uuid, _ in alone] == [ONE]
    assert take(locks) == []
    assert take(locks, mode="shared") == []
    assert locks.holder(ONE) == "j-1234 (exclusive)"
    let_go(alone)
    assert locks.holder(ONE) is None
    some = [take(locks, mode="shared") for _ in range(3)]
    assert all(some)
    assert locks.holder(ONE) == "j-1234 (shared)"
    assert take(locks) == []
    for held in some:
        let_go(held)
    let_go(take(locks))


def test_several_are_taken_all_or_none(locks):
    first = take(locks, (ONE,))
    assert take(locks, (ONE, TWO), 2) == []
    second = take(locks, (ONE, TWO), 1)
    assert [uuid for uuid, _ in second] == [TWO]
    let_go(first)
    let_go(second)
    both = take(locks, (TWO, ONE), 2)
    assert sorted(uuid for uuid, _ in both) == [ONE, TWO]
    let_go(both)


def test_waiting_ends_when_it_is_told_to(locks):
    held = take(locks)
    asked = []
    assert take(locks, wait_s=60, stop=lambda: asked.append(1) is None and len(asked) > 3) == []
    let_go(held)


def test_the_holder_s_text_is_a_stranger_s_and_shown_as_such(locks):
    held = take(locks)
    Path(locks.folder, f"{ONE}.lock").write_text('{"job": "x\\u001b[2Jy' + "z" * 999 + '", "mode": 1}')
    assert (locks.holder(ONE) or "").startswith("x?[2Jyzz")
    assert len(locks.holder(ONE) or "") <= 120
    Path(locks.folder, f"{ONE}.lock").write_text("[]")
    assert locks.holder(ONE) == "another process"
    let_go(held)


def hold(folder: str, mode: str, ready: str) -> None:
    held = take(GpuLocks(folder), mode=mode, wait_s=20)
    Path(ready).write_text(str(len(held)))
    signal.pause()


def test_kill_9_of_the_holder_lets_the_next_one_in(locks, tmp_path):
    ready = tmp_path / "ready"
    process = SPAWN.Process(target=hold, args=(locks.folder, "exclusive", str(ready)))
    process.start()
    assert eventually(lambda: ready.exists() and ready.read_text() == "1")
    assert take(locks) == []
    os.kill(process.pid, 9)
    held = take(locks, wait_s=5)
    assert held
    let_go(held)
    process.join()


def test_locks_that_travel_in_a_socket_are_held_as_long_as_it_is(locks):
    held = take(locks, (ONE, TWO), 2)
    carrier = Bundle()
    carrier.add([fd for _, fd in held])
    other = os.dup(carrier.fileno())
    let_go(held)
    carrier.close()
    assert take(locks, (ONE, TWO)) == []
    os.close(other)
    again = take(locks, (ONE, TWO), 2)
    assert again
    let_go(again)


def share_without_end(folder: str, over: str) -> None:
    locks = GpuLocks(folder)
    while not Path(over).exists():
        held = take(locks, mode="shared", wait_s=5)
        time.sleep(0.02)
        let_go(held)


def test_sharers_without_end_do_not_starve_who_wants_to_be_alone(locks, tmp_path):
    over = tmp_path / "over"
    crowd = [SPAWN.Process(target=share_without_end, args=(locks.folder, str(over))) for _ in range(6)]
    for process in crowd:
        process.start()
    try:
        assert eventually(lambda: locks.holder(ONE) is not None)
        for _ in range(3):
            held = take(locks, wait_s=10)
            assert held
            let_go(held)
    finally:
        over.touch()
        for process in crowd:
            process.join()


def client(folder: str, seed: int, inside: str) -> None:
    """Take locks at random and leave a trace of each hold; a trace of another inside ours is a double grant."""
    chance, locks = random.Random(seed), GpuLocks(folder)
    while True:
        mode = chance.choice(("exclusive", "shared"))
        held = take(locks, (ONE, TWO), chance.choice((1, 1, 2)), mode, 1.0)
        for uuid, _ in held:
            with Path(inside, uuid).open("a+b") as file:
                # A lock of its own kind (POSIX, freed by death as well) shows whether the grant was ours alone.
                import fcntl

                try:
                    fcntl.lockf(file, (fcntl.LOCK_EX if mode == "exclusive" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                except OSError:
                    Path(inside, f"double-{os.getpid()}").write_text(mode)
                time.sleep(chance.uniform(0, 0.004))
        let_go(held)


def test_no_two_ever_hold_a_gpu_alone_while_clients_are_killed_at_random(locks, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    chance = random.Random(11)
    crowd = [SPAWN.Process(target=client, args=(locks.folder, n, str(inside))) for n in range(40)]
    for process in crowd:
        process.start()
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        at = chance.randrange(40)
        os.kill(crowd[at].pid, 9)
        crowd[at].join()
        crowd[at] = SPAWN.Process(target=client, args=(locks.folder, chance.randrange(10**6), str(inside)))
        crowd[at].start()
        time.sleep(0.02)
    for process in crowd:
        os.kill(process.pid, 9)
        process.join()
    assert list(inside.glob("double-*")) == []
    both = take(locks, (ONE, TWO), 2, wait_s=1)
    assert len(both) == 2, "nothing is held by the dead"
    let_go(both)


@needs_root
def test_users_share_the_locks_of_a_host(locks, tmp_path):
    folder = Path("/tmp") / f"gpu-mcp-locks-{os.getpid()}"
    shared = GpuLocks(str(folder))
    held = take(shared)
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
        package = Path(__file__).parents[2] / "gpu_mcp_server"
        script = (
            f"import sys, json; sys.path.insert(0, {str(package)!r})\nfrom hostd.locks import GpuLocks\n"
            f"locks = GpuLocks({str(folder)!r})\n"
            f"def take(u): return len(locks.acquire([u], 1, 'exclusive', {{'job': 'other'}}, 0, lambda: False))\n"
            f"print(json.dumps([locks.holder({ONE!r}), take({ONE!r}), take({TWO!r})]))"
        )
        user = ["setpriv", "--reuid", "61500", "--regid", "61500", "--clear-groups"]
        done = subprocess.run([*user, sys.executable, "-I", "-B", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == ["j-1234 (exclusive)", 0, 1]
        mine = take(shared, (TWO,))
        assert mine, "a file that another user made is a lock for us too"
        let_go(mine)
    finally:
        let_go(held)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
