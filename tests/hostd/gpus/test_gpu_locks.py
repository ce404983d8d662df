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
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.hostd.gpus.gpu_window import GpuWindow
from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.protocol import GpuRequest
from gpu_mcp_server.hostd.sandbox import processes
from gpu_mcp_server.hostd.sandbox.descriptors import DescriptorHolder
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


def test_jobs_with_windows_share_a_lock_with_their_like_alone(locks):
    first = take(locks, mode="windowed")
    assert take(locks, mode="shared") == [] and take(locks) == []
    assert not locks.is_free(ONE, "shared") and locks.is_free(ONE, "windowed")
    assert not locks.is_beside(first[0][1], "j-1234")
    second = locks.acquire((ONE,), 1, "windowed", dict(OWNER, job="j-5678"), 0.0, never)
    assert locks.is_beside(first[0][1], "j-1234") and locks.is_beside(second[0][1], "j-5678")
    let_go(first)
    assert locks.is_beside(second[0][1], "j-5678")  # it was there
    let_go(second)
    sharer = take(locks, mode="shared")
    assert sharer and not locks.is_free(ONE, "windowed") and take(locks, mode="windowed") == []
    let_go(sharer)
    again = take(locks, mode="windowed")
    assert not locks.is_beside(again[0][1], "j-1234")
    let_go(again)


def test_a_window_has_no_other_beside_it_and_who_waits_for_one_is_not_overtaken(locks):
    one, two, late = (GpuWindow(locks, ONE) for _ in range(3))
    for each in (one, two):
        each.want("shared")
        assert each.try_enter() and not each.wanted
    one.want("alone")
    assert not one.try_enter()
    late.want("shared")
    assert not late.try_enter()  # it would keep the window from the one that waits, and others behind it likewise
    two.want("alone")
    assert one.try_enter()
    assert not two.try_enter() and not late.try_enter()
    one.close()
    entered = [each for _ in range(2) for each in (two, late) if each.wanted and each.try_enter()]
    assert entered in ([two], [late])
    for each in (two, late):
        each.close()
    one.want("alone")
    assert one.try_enter()
    one.close()


def test_who_is_killed_in_its_window_frees_it(locks):
    def sit(said):
        window = GpuWindow(locks, ONE)
        window.want("alone")
        said.send(window.try_enter())
        time.sleep(60)

    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=sit, args=(theirs,))
    process.start()
    assert ours.recv() is True
    window = GpuWindow(locks, ONE)
    window.want("shared")
    assert not window.try_enter()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert window.try_enter()
    window.close()


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
    carrier = DescriptorHolder()
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
        package = Path(__file__).parents[3] / "gpu_mcp_server"
        script = (
            f"import sys, json; sys.path.insert(0, {str(package)!r})\nfrom hostd.gpus.gpu_locks import GpuLocks\n"
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


@pytest.fixture
def left_over() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that plays process 1 of a sandbox whose supervisor and keeper were killed."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def named(process: subprocess.Popen[bytes]) -> list[int]:
    return list(processes.identity_of(process.pid) or ())


def test_a_lock_names_process_one_of_each_sandbox_until_that_is_gone(locks, left_over):
    held = locks.acquire([ONE], 1, "exclusive", {"job": "last", "sandboxes": [named(left_over)]}, 0.0, never)
    assert locks.living(ONE)
    assert not locks.left_living(ONE)
    let_go(held)
    assert locks.living(ONE)
    (again,) = take(locks)
    assert locks.left_living(ONE)
    left_over.kill()
    left_over.wait()
    assert not locks.left_living(ONE)
    assert not locks.living(ONE)
    os.close(again[1])


def test_who_shares_a_lock_adds_its_sandboxes_to_those_of_the_others(locks, left_over):
    first = take(locks, mode="shared")
    second = take(locks, mode="shared")
    ours = processes.identity_of(os.getpid())
    assert ours is not None
    locks.name(first[0][1], [ours])
    locks.name(second[0][1], [tuple(named(left_over))])
    locks.name(second[0][1], [tuple(named(left_over))])
    text = json.loads((Path(locks.folder) / f"{ONE}.lock").read_text())
    assert text["sandboxes"] == [list(ours), named(left_over)]
    third = take(locks, mode="shared")
    assert not locks.left_living(ONE), "those who share it with us are not left over"
    for held in (first, second, third):
        let_go(held)
    assert locks.living(ONE)
    alone = take(locks, mode="shared")
    assert locks.left_living(ONE), "who finds it free waits for them, sharer or not"
    let_go(alone)


def test_a_stranger_s_text_of_any_kind_names_nobody(locks):
    let_go(take(locks))
    path = Path(locks.folder) / f"{ONE}.lock"
    for text in (
        '{"sandboxes": 5}',
        '{"sandboxes": [5, "x", [], [1], [[1, 2, 3]]], "left": [1]}',
        '{"left": {"groups": 1}}',
    ):
        path.write_text(text)
        assert not locks.living(ONE)
        let_go(take(locks))
        path.write_text(json.dumps({"sandboxes": [[1 << 21, 5, 7]] * 1000}))
        let_go(take(locks, mode="shared"))
        assert path.stat().st_size < 4096


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_job_waits_for_process_one_of_a_job_that_was_killed_with_all_that_kept_it(
    open_lab, state, left_over, mode
):
    folder = state.parent / "locks"
    lab = await open_lab("namespaces", **{LOCKS: str(folder)})
    locks = GpuLocks(str(folder))
    let_go(locks.acquire(["processor"], 1, "exclusive", {"job": "last", "sandboxes": [named(left_over)]}, 0.0, never))
    spec = lab.spec("true", gpus=GpuRequest(mode="exclusive", wait_s=20))
    if mode == "shared":
        held = locks.acquire(["processor"], 1, "shared", OWNER, 0.0, never)
        assert locks.left_living("processor")
        let_go(held)
    await lab.submit(spec)
    assert (await lab.wait(spec.id, timeout_s=0.5)).record.state == "queued"
    left_over.kill()
    left_over.wait()
    assert (await lab.wait(spec.id)).record.status == "ok"
