"""What a killed supervisor or hostd leaves in the very moment of a fork: each window held open, and closed by somebody."""
# ruff: noqa: ASYNC251  # nothing else runs on the loop of a test

import contextlib
import fcntl
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.hostd import descriptors, keeper, processes, trees, undertaker
from gpu_mcp_server.hostd.sandbox import Confinement, Sandbox
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import Laboratory, alive, eventually, names, processes_with, workspaces

NEW = ["/bin/sh", "-c", "setsid sleep 1000 & exec sleep 1000"]


def in_a_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def marker() -> Iterator[str]:
    """Return a word for the environment of processes; none of them outlives the test."""
    word = secrets.token_hex(8)
    yield word
    processes.kill(processes_with(word))


def supervisor_with_a_keeper(marker: str) -> int:
    """Return the pid of a process that has a keeper, which has a child that execs NEW."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def start() -> None:
        os.execve(NEW[0], NEW, {"MARKER": marker, "PATH": "/usr/bin:/bin"})

    def supervise() -> None:
        ours = os.getpid()
        in_a_child(lambda: keeper.keep(start, [], null, ours))
        time.sleep(1000)

    try:
        return in_a_child(supervise)
    finally:
        os.close(null)


def test_a_keeper_whose_supervisor_is_gone_before_it_listens_ends_what_it_has_started(monkeypatch, marker):
    def slowly(keep: Any) -> None:
        time.sleep(0.5)  # the supervisor is killed here, when three already run

    monkeypatch.setattr(descriptors, "close_all_but", slowly)
    supervisor = supervisor_with_a_keeper(marker)
    assert eventually(lambda: len(processes_with(marker)) == 2)
    end(supervisor)
    assert eventually(lambda: processes_with(marker) == [])


def test_a_keeper_hears_of_an_end_that_came_just_before_it_waits(monkeypatch, marker):
    waited = signal.sigwait

    def late(numbers: Any) -> Any:
        time.sleep(0.5)
        return waited(numbers)

    monkeypatch.setattr(signal, "sigwait", late)
    supervisor = supervisor_with_a_keeper(marker)
    assert eventually(lambda: len(processes_with(marker)) == 2)
    end(supervisor)
    assert eventually(lambda: processes_with(marker) == [])


@needs_root
def test_one_whose_keeper_is_killed_before_it_has_changed_its_uid_does_not_go_on(monkeypatch, marker, state):
    state.mkdir()
    state.chmod(0o777)
    dropped = Sandbox._drop

    def slowly(*arguments: Any) -> None:
        (state / "dropping").write_text(str(os.getppid()))
        time.sleep(0.3)
        dropped(*arguments)  # with the uid goes the wish to die with the parent
        time.sleep(0.3)

    forgetful = keeper.die_with

    def only_anew(parent: int, number: int = signal.SIGKILL) -> None:
        if (state / "dropping").exists():
            forgetful(parent, number)

    monkeypatch.setattr(Sandbox, "_drop", slowly)
    monkeypatch.setattr(keeper, "die_with", only_anew)
    box = Confinement(str(state), uid=61183)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    pid = Sandbox("unconfined").spawn(["sleep", "1000"], {"MARKER": marker}, box, (null, null, null))
    os.close(null)
    assert eventually((state / "dropping").exists)
    end(pid)
    time.sleep(0.8)
    assert processes_with(marker) == []


def shown(path: Path) -> str:
    """Return what a descriptor's link shows, nothing if it is closed meanwhile."""
    with contextlib.suppress(OSError):
        return str(path.readlink())
    return ""


def test_a_holder_that_opens_and_closes_other_descriptors_meanwhile_is_seen_every_time():
    """As bubblewrap's inner half does while it is set up."""
    held = descriptors.Bundle()

    def restless() -> None:
        low = os.open(os.devnull, os.O_RDONLY)
        while True:
            for fd in [os.dup(low) for _ in range(20)]:
                os.close(fd)

    def restless_with_it_last() -> None:
        os.dup2(held.fileno(), 900)
        held.close()
        restless()

    link = held.link()
    holder = in_a_child(restless_with_it_last)
    held.close()
    place = Path(f"/proc/{holder}/fd")
    try:  # once it holds only that one: while it moves it, one who has listed the others looks for it in vain
        assert eventually(lambda: [f.name for f in place.iterdir() if shown(f) == link] == ["900"])
        assert [holder in processes.holders(link) for _ in range(100)] == [True] * 100
    finally:
        end(holder)


def test_the_undertaker_goes_on_looking_while_the_lock_of_a_workspace_is_held(monkeypatch, tmp_path):
    """What a look at /proc has missed, because it was forked meanwhile by one that died, holds the lock all the same."""
    held = descriptors.Bundle()
    lock = os.open(tmp_path, trees.FLAGS)
    fcntl.flock(lock, fcntl.LOCK_EX)
    held.add([lock])
    os.close(lock)
    orphan = in_a_child(lambda: time.sleep(1000))
    link = held.link()
    held.close()
    look, misses = processes.holders, [True, True]
    monkeypatch.setattr(processes, "holders", lambda link: [] if misses and misses.pop() else look(link))
    said = undertaker.kill_all({"held": link, "level": "namespaces", "workdirs": [str(tmp_path)]})
    killed = os.waitpid(orphan, os.WNOHANG)[0] == orphan
    if not killed:
        end(orphan)
    assert (said, killed) == ("", True)
    assert not trees.is_locked(str(tmp_path))


async def test_a_keeper_that_was_stopped_holds_the_lock_and_is_told_to_end(open_lab, marker):
    lab: Laboratory = await open_lab("landlock")
    script = "echo ready; (setsid sleep 1000 &); sleep 1000"
    job = await lab.start("/bin/sh", "-c", script, until=b"ready", detached=True, env={"MARKER": marker})
    (workdir,) = workspaces(lab.state, job)
    (kept,) = children(lab.supervisor(job))
    os.kill(kept, signal.SIGSTOP)
    os.kill(lab.supervisor(job), signal.SIGKILL)
    assert eventually(lambda: not alive(lab.supervisor(job)))
    assert trees.is_locked(workdir)
    record = (await lab.wait(job)).record
    assert (record.status, record.note) == ("broken", "its supervisor was killed; the sandbox died with it")
    assert processes_with(marker) == []


async def test_what_a_supervisor_has_left_that_was_killed_after_its_record_is_cleared(any_lab: Laboratory):
    lab, killed = any_lab, False
    while not killed:  # it ends soon after its record: on a busy machine it may be gone before it can be killed
        spec = lab.spec("/bin/sh", "-c", "for i in $(seq 300); do mkdir -p d/$i; done", detached=True)
        await lab.submit(spec)
        record = lab.state / "jobs" / spec.id / "record.json"
        while not record.exists():
            time.sleep(0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(lab.supervisor(spec.id), signal.SIGKILL)
            killed = True
    assert (await lab.wait(spec.id)).record.status == "ok"
    assert eventually(lambda: workspaces(lab.state, spec.id) == [])
    assert eventually(lambda: names(lab.state / "open") == [])


def nests(state: Path) -> list[dict[str, Any]]:
    """Return what is noted of the sandboxes that wait for a job or are being made for one."""
    found: list[dict[str, Any]] = []
    for folder in (state / "nests").iterdir():
        try:
            found.append(json.loads((folder / "state").read_text()))
        except (OSError, ValueError):
            continue
    return found


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def nest_in_the_making(lab: Laboratory) -> tuple[dict[str, Any], int]:
    """Return a nest and its bubblewrap as soon as that has made its inner half, which waits for it or is on its way."""
    await lab.until_warm()
    known = {nest["pid"] for nest in nests(lab.state)}
    await lab.run("true")
    while True:
        for nest in nests(lab.state):
            if nest["pid"] in known:
                continue
            for outer in children(nest["pid"]):
                if children(outer):
                    return nest, outer


@pytest.mark.parametrize("victims", ["sandbox", "hostd", "nest", "both"])
async def test_a_nest_that_is_killed_in_the_making_leaves_nothing(boxed: Laboratory, open_lab, victims):
    lab = boxed
    await lab.warm_up()
    for _ in range(5):
        nest, outer = await nest_in_the_making(lab)
        if victims in ("hostd", "both"):
            os.kill(lab.pid, signal.SIGKILL)
        if victims in ("nest", "both"):
            with contextlib.suppress(ProcessLookupError):  # its hostd's end is its own, too, and may have been sooner
                os.kill(nest["pid"], signal.SIGKILL)
        processes.kill([outer])
        if victims == "sandbox":
            os.kill(lab.pid, signal.SIGKILL)
        if victims != "nest":
            lab = await open_lab(lab.level)
        assert eventually(lambda n=nest: processes.holders(n["held"]) == [])
        assert eventually(lambda n=nest: not alive(n["pid"]))
        assert eventually(lambda n=nest: not any(Path(w).exists() for w in n["workdirs"]))
        await lab.warm_up()
