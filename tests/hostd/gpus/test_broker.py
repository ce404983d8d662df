"""The broker with real processes, killed at random: order, waiting, and never two alone on a GPU."""

import contextlib
import itertools
import json
import os
import random
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.gpus import broker as broker_module
from gpu_mcp_server.hostd.gpus import broker_client
from gpu_mcp_server.hostd.gpus.broker import Broker
from gpu_mcp_server.hostd.gpus.broker_client import BrokerClient, broker_status
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from tests.hostd.brokers import ONE, THREE, TWO, Crowd, Inside, broker_pid, client, let_go, take, unserved, want_of
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import alive, eventually, processes_with


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPU_MCP_HOSTD_BROKER_IDLE_S", "60")
    gpus = tmp_path / "gpus.json"
    gpus.write_text(f'[{{"uuid": "{ONE}"}}, {{"uuid": "{TWO}"}}, {{"uuid": "{THREE}"}}]')
    monkeypatch.setenv("GPU_MCP_HOSTD_GPUS", str(gpus))
    found = GpuLocks(str(tmp_path / "locks"))
    yield found
    pid = broker_pid(found)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def crowd():
    found = Crowd()
    yield found
    found.end()


def hold(locks: GpuLocks, ready: Path, **want) -> None:
    found = take(locks, want_of(**want))
    ready.write_text("" if found is None else "held")
    signal.pause()


def note(locks: GpuLocks, file: Path, word: str, hold_s: float = 0.0, **want) -> None:
    """Take GPUs once and write down that it was our turn."""
    found = take(locks, want_of(**want))
    assert found is not None
    with file.open("a") as out:
        out.write(word + "\n")
    time.sleep(hold_s)
    let_go(found)


def holder(crowd: Crowd, locks: GpuLocks, tmp_path: Path, **want):
    ready = tmp_path / f"ready-{time.monotonic_ns()}"
    process = crowd.start(lambda: hold(locks, ready, **want))
    assert eventually(lambda: ready.exists() and ready.read_text() == "held")
    return process


def waiting(locks: GpuLocks, count: int) -> bool:
    return eventually(lambda: broker_status(locks).get("all_waiting") == count)


def test_there_is_one_broker_however_many_ask_for_it(locks, crowd, tmp_path):
    served = tmp_path / "served"
    for n in range(12):
        crowd.start(lambda n=n: note(locks, served, str(n), mode="shared"))
    for process in crowd.all:
        process.join()
    assert len(served.read_text().split()) == 12
    assert processes_with(locks.folder) == [broker_pid(locks)]


def test_they_are_served_in_the_order_of_their_coming(locks, crowd, tmp_path):
    first = holder(crowd, locks, tmp_path)
    served = tmp_path / "served"
    for n in range(5):
        crowd.start(lambda n=n: note(locks, served, str(n)))
        assert waiting(locks, n + 1)
    os.kill(first.pid, signal.SIGKILL)
    for process in crowd.all:
        process.join()
    assert served.read_text().split() == ["0", "1", "2", "3", "4"]


def test_a_user_who_comes_late_need_not_wait_for_another_s_long_queue(locks, crowd, tmp_path):
    first = holder(crowd, locks, tmp_path, user="ann")
    served = tmp_path / "served"
    for n in range(6):
        crowd.start(lambda: note(locks, served, "ann", 0.02, user="ann"))
        assert waiting(locks, n + 1)
    for n in range(2):
        crowd.start(lambda: note(locks, served, "bob", 0.02, user="bob"))
        assert waiting(locks, 7 + n)
    os.kill(first.pid, signal.SIGKILL)
    for process in crowd.all:
        process.join()
    assert served.read_text().split() == ["bob"] * 2 + ["ann"] * 6


def test_sharers_without_end_do_not_starve_who_wants_to_be_alone(locks, crowd, tmp_path):
    inside, served = Inside(tmp_path / "inside"), tmp_path / "served"

    def share() -> None:
        while True:
            found = take(locks, want_of(mode="shared"))
            assert found is not None
            with inside.on([ONE], "shared"):
                time.sleep(0.02)
            let_go(found)

    for _ in range(6):
        crowd.start(share)
    assert eventually(lambda: locks.holder(ONE) is not None)
    for _ in range(3):
        note(locks, served, "alone")
    assert served.read_text().split() == ["alone"] * 3
    assert inside.doubles() == []


def test_who_waits_is_told_where_it_stands_and_why(locks, crowd, tmp_path):
    holder(crowd, locks, tmp_path, job="t-first", user="ann")
    heard: list[str] = []
    found = take(locks, want_of(job="t-second", said=heard.append), 3.0, lambda: len(heard) >= 2)
    assert found is None
    assert heard[0].startswith("position 1: waiting because GPU-00000000-1111 is held by t-first of ann for ")


def test_the_queue_can_be_looked_at(locks, crowd, tmp_path):
    assert broker_status(locks) == {}, "there is no broker yet, and looking starts none"
    holder(crowd, locks, tmp_path, job="t-first")
    crowd.start(lambda: hold(locks, tmp_path / "second", job="t-second", count=1))
    assert waiting(locks, 1)
    now = broker_status(locks)
    assert [x["job"] for x in now["leases"]] == ["t-first"]
    assert [(x["job"], x["position"]) for x in now["waiting"]] == [("t-second", 1)]


def test_kill_9_of_a_waiter_takes_it_out_of_the_line(locks, crowd, tmp_path):
    first = holder(crowd, locks, tmp_path)
    second = crowd.start(lambda: hold(locks, tmp_path / "second"))
    assert waiting(locks, 1)
    third = crowd.start(lambda: hold(locks, tmp_path / "third"))
    assert waiting(locks, 2)
    os.kill(second.pid, signal.SIGKILL)
    assert waiting(locks, 1)
    os.kill(first.pid, signal.SIGKILL)
    assert eventually(lambda: (tmp_path / "third").exists())
    assert alive(third.pid)
    assert not (tmp_path / "second").exists()


def test_kill_9_of_the_broker_frees_nobody_s_gpu_and_the_line_forms_anew(locks, crowd, tmp_path):
    first = holder(crowd, locks, tmp_path)
    served = tmp_path / "served"
    for n in range(4):
        crowd.start(lambda n=n: note(locks, served, str(n)))
        assert waiting(locks, n + 1)
    old = broker_pid(locks)
    os.kill(old, signal.SIGKILL)
    assert eventually(lambda: broker_pid(locks) not in (None, old))
    assert waiting(locks, 4)
    assert not served.exists(), "the first one still holds its GPU"
    assert locks.holder(ONE) is not None
    os.kill(first.pid, signal.SIGKILL)
    for process in crowd.all:
        process.join()
    assert served.read_text().split() == ["0", "1", "2", "3"], "in the order of their first coming"


def test_a_broker_that_is_stopped_holds_nobody_up_for_ever(locks, monkeypatch):
    monkeypatch.setattr(broker_client, "SILENCE_S", 0.5)
    let_go(take(locks, want_of()))
    pid = broker_pid(locks)
    os.kill(pid, signal.SIGSTOP)
    try:
        found = take(locks, want_of())
        assert found is not None
        assert found[0] is None, "without the broker, by the turns"
        let_go(found)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: broker_status(locks) != {})


def test_who_holds_a_gpu_without_the_broker_is_waited_for(locks):
    held = locks.acquire([ONE], 1, "exclusive", {"job": "old"}, 0.0, lambda: False)
    heard: list[str] = []
    assert take(locks, want_of(said=heard.append), stop=lambda: bool(heard)) is None
    assert "held by old (exclusive)" in heard[0]
    os.close(held[0][1])
    found = take(locks, want_of())
    assert found is not None
    let_go(found)


def test_the_next_one_waits_until_the_last_job_s_group_is_empty(locks, tmp_path, monkeypatch):
    groups = tmp_path / "groups"
    group = groups / "job" / "cgroup.procs"
    group.parent.mkdir(parents=True)
    monkeypatch.setattr("gpu_mcp_server.hostd.gpus.lock_text.GROUPS", str(groups))
    from gpu_mcp_server.hostd.gpus.gpu_availability import GpuAvailability

    class NoNvml:
        def pids(self, uuid: str) -> list[int]:
            return []

    held = locks.acquire([ONE], 1, "exclusive", {"job": "last", "groups": [str(group)]}, 0.0, lambda: False)
    group.write_text("4711\n")
    os.close(held[0][1])
    vacancy = GpuAvailability(locks, NoNvml())
    assert "still ending" in vacancy.check(ONE, "exclusive").taken
    assert "still ending" in vacancy.check(ONE, "shared").taken
    group.write_text("")
    vacancy.forget()
    assert vacancy.check(ONE, "exclusive").taken == ""


def test_strangers_are_seen_while_they_live(locks, crowd, tmp_path):
    stranger = subprocess.Popen(["sleep", "60"])
    gpus = Path(os.environ["GPU_MCP_HOSTD_GPUS"])
    gpus.write_text(f'[{{"uuid": "{ONE}", "pids": [{stranger.pid}]}}, {{"uuid": "{TWO}"}}]')
    try:
        found = take(locks, want_of((ONE, TWO), foreign="other"))
        assert [name for name, _ in found[1]] == [TWO]
        second = take(locks, want_of((ONE, TWO), foreign="other"))
        assert [name for name, _ in second[1]] == [ONE]
        assert str(stranger.pid) in second[2][0]
        let_go(second)
        heard: list[str] = []
        assert take(locks, want_of((ONE,), foreign="wait", said=heard.append), 0.5) is None
        assert str(stranger.pid) in heard[0]
        crowd.start(lambda: hold(locks, tmp_path / "patient", foreign="wait"))
        assert waiting(locks, 1)
    finally:
        stranger.kill()
        stranger.wait()
    assert eventually(lambda: (tmp_path / "patient").exists())
    let_go(found)


def test_a_message_that_is_none_ends_its_connection_and_nothing_else(locks):
    found = take(locks, want_of())
    for bad in (b"{", b"[]", b'{"op": "nonsense"}', b'{"op": "want"}', b'{"op": "lost"}', b"\xff" * 999,
                b'{"op": "want", "names": ["a"], "count": 1e400, "mode": "exclusive"}',
                b'{"op": "want", "names": ["a"], "count": 2, "mode": "exclusive"}'):  # fmt: skip
        link = BrokerClient.find(locks)
        assert link is not None
        with socket.socket(fileno=os.dup(link.fileno())) as raw:
            raw.send(bad)
            assert select.select([raw], [], [], 10)[0]
            assert raw.recv(100) == b""
        link.close()
    assert len(broker_status(locks)["leases"]) == 1
    let_go(found)


def test_numbers_that_are_none_upset_nobody(locks):
    first = take(locks, want_of())
    strange = {"since": float("-inf"), "limit_s": float("inf"), "user": "x" * 999, "priority": "?", "foreign": "?"}
    link = BrokerClient.find(locks)
    assert link is not None
    link.send("want", names=[ONE], count=1, mode="exclusive", **strange)
    heard: list[str] = []
    assert take(locks, want_of(said=heard.append), 0.5) is None
    assert heard[0].startswith("position 2")
    pid = broker_pid(locks)
    link.close()
    let_go(first)
    let_go(take(locks, want_of()))
    assert broker_pid(locks) == pid


def test_a_broker_without_clients_ends_and_leaves_nothing(locks, monkeypatch):
    monkeypatch.setenv("GPU_MCP_HOSTD_BROKER_IDLE_S", "0.2")
    let_go(take(locks, want_of()))
    pid = broker_pid(locks)
    assert pid is None or eventually(lambda: not alive(pid))
    assert eventually(lambda: not list(Path(locks.folder).glob("*.sock")))
    assert Path(locks.folder, "broker.lock").read_text() == ""


@needs_root
def test_jobs_have_no_business_with_the_broker(locks):
    Path(locks.folder).parent.chmod(0o755)
    let_go(take(locks, want_of()))
    (path,) = Path(locks.folder).glob("*.sock")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    script = (
        f"import os, socket; d = os.open({locks.folder!r}, os.O_RDONLY); "
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect('/proc/self/fd/%d/{path.name}' % d); print(s.recv(100).decode())"
    )
    folder = Path(locks.folder)
    for parent in folder.parents:
        if parent != Path("/") and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    user = ["setpriv", "--reuid", "61007", "--regid", "61007", "--clear-groups"]
    done = subprocess.run([*user, sys.executable, "-I", "-B", "-c", script], capture_output=True, text=True)
    assert "too many clients" in done.stdout, done.stderr


def never_ready(locks: GpuLocks, uid: int, count: int) -> None:
    """Stand in line as another login, with requests that say that they are not ready and never become so."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    links: list[BrokerClient] = []
    while True:
        for link in list(links):
            with contextlib.suppress(broker_client.BrokerGone):
                link.receive(0.01)
                continue
            links.remove(link)
        while len(links) < count and (link := BrokerClient.find(locks)) is not None:
            link.send("want", ready=False, names=[ONE], count=1, mode="exclusive", user=f"name{len(links)}")
            links.append(link)
        time.sleep(0.01)


def note_after_import(locks: GpuLocks, file: Path, word: str) -> None:
    """Take a GPU once, as a job whose processes start when the broker says that it is near its turn."""
    started: list[float] = []
    want = want_of()
    want.start = lambda: started.append(time.monotonic())
    want.is_ready = lambda: bool(started) and time.monotonic() - started[0] > 0.2
    found = take(locks, want, 60.0)
    with file.open("a") as out:
        out.write(word + ("\n" if found is not None and started else " was not started or not served\n"))
    if found is not None:
        let_go(found)


@pytest.mark.parametrize("leaves", [False, True])
def test_who_comes_near_its_turn_hears_so_when_the_line_moves(locks, leaves):
    """As the one before it has its turn, or leaves the line."""
    life = locks.try_lock(broker_module.NAME)
    assert life is not None
    broker = Broker(locks, life)
    broker.queue.starts.most = 1
    ours = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    clients = [broker_module._Client(end, 0) for end, _ in ours]
    for ready, client_ in zip((True, False, False), clients, strict=True):
        broker._clients[client_.end.fileno()] = client_
        want = {"op": "want", "names": [ONE], "count": 1, "mode": "exclusive", "ready": ready}
        broker._heed(client_.end.fileno(), client_, want)
    now = time.monotonic()
    broker._serve(now)
    heard = [json.loads(end.recv(4096)) for _, end in ours]
    if not leaves:
        broker._heed(clients[1].end.fileno(), clients[1], {"op": "ready"})
    broker._drop(clients[1 if leaves else 0].end.fileno())
    broker._serve(now + 0.01)

    assert heard[0]["granted"] == [ONE] and [each["near"] for each in heard[1:]] == [True, False]
    assert leaves or json.loads(ours[1][1].recv(4096, socket.MSG_DONTWAIT))["granted"] == [ONE]
    assert json.loads(ours[2][1].recv(4096, socket.MSG_DONTWAIT))["near"]
    for end in (broker._door, *itertools.chain(*ours)):
        end.close()
    for fd in (broker._folder, life):
        os.close(fd)


@needs_root
@pytest.mark.parametrize("kills", [0, 1])
def test_another_login_s_requests_that_are_never_ready_keep_nobody_from_the_gpu(locks, crowd, tmp_path, kills):
    """They are first in line, as their login used less; also when the broker is killed meanwhile."""
    for parent in tmp_path.parents:
        if parent != Path("/") and parent != Path("/tmp"):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    done = tmp_path / "done"
    first = holder(crowd, locks, tmp_path)
    late = crowd.start(note, locks, tmp_path / "late", "late")
    waiting(locks, 1)
    crowd.start(never_ready, locks, 60123, 6)
    assert waiting(locks, 7)
    for n in range(3):
        crowd.start(note_after_import, locks, done, f"job {n}")
    assert waiting(locks, 10)
    order = [(each["uid"], each["position"]) for each in broker_status(locks)["waiting"]]
    os.kill(first.pid, signal.SIGKILL)
    late.join()
    for _ in range(kills):
        os.kill(broker_pid(locks), signal.SIGKILL)

    assert [uid for uid, _ in order[:6]] == [60123] * 6, order
    assert eventually(lambda: done.exists() and len(done.read_text().splitlines()) == 3, 60.0)
    assert sorted(done.read_text().splitlines()) == ["job 0", "job 1", "job 2"]
    assert waiting(locks, 6), "the others stand where they stood"


def test_never_two_alone_while_holders_waiters_and_brokers_are_killed_at_random(locks, crowd, tmp_path):
    inside, served = Inside(tmp_path / "inside"), tmp_path / "served"
    chance = random.Random(7)
    for n in range(24):
        crowd.start(client, locks, inside, n, served)
    deadline = time.monotonic() + 6.0
    kills = 0
    while time.monotonic() < deadline or not (kills and served.exists()):
        crowd.replace(chance.randrange(24), client, locks, inside, chance.randrange(10**6), served)
        pid = broker_pid(locks) if chance.random() < 0.1 else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        time.sleep(0.03)
    assert kills > 0
    assert inside.doubles() == []
    before = len(served.read_text().splitlines())
    assert before > 0
    assert eventually(lambda: not unserved(crowd, served, before)), "and every one of them goes on"
    crowd.end()
    assert list(inside.folder.glob("unserved-*")) == []
    found = take(locks, want_of((ONE, TWO, THREE), 3), 5.0)
    assert found is not None, "nothing is held by the dead"
    let_go(found)
    assert eventually(lambda: broker_status(locks).get("leases") == [])
