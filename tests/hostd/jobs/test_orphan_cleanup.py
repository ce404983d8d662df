"""Orphans of a supervisor or hostd killed in the moment of a fork: each window held open, and closed by somebody."""
# ruff: noqa: ASYNC251  # nothing else runs on the loop of a test

import contextlib
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.hostd.files import file_trees
from gpu_mcp_server.hostd.jobs import orphan_cleanup
from gpu_mcp_server.hostd.jobs.job_folder import JobFolder
from gpu_mcp_server.hostd.sandbox import descriptors, keeper, processes
from gpu_mcp_server.hostd.sandbox.confinement import MARK, Sandbox, SandboxSpec
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
        in_a_child(lambda: keeper.run_under_keeper(start, [], os.open(os.devnull, os.O_WRONLY), null, ours))
        time.sleep(1000)

    try:
        return in_a_child(supervise)
    finally:
        os.close(null)


def test_a_keeper_whose_supervisor_is_gone_before_it_listens_ends_what_it_has_started(monkeypatch, marker):
    def slowly(keep: Any) -> None:
        time.sleep(0.5)  # the supervisor is killed here, when three already run

    monkeypatch.setattr(descriptors, "close_except", slowly)
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
    dropped = keeper._drop

    def slowly(*arguments: Any) -> None:
        (state / "dropping").write_text(str(os.getpid()))
        time.sleep(0.3)
        dropped(*arguments)  # with the uid goes the wish to die with the parent
        time.sleep(0.3)

    forgetful = keeper.set_pdeathsig

    def only_anew(parent: int, number: int = signal.SIGKILL) -> None:
        if (state / "dropping").exists():
            forgetful(parent, number)

    monkeypatch.setattr(keeper, "_drop", slowly)
    monkeypatch.setattr(keeper, "set_pdeathsig", only_anew)
    box = SandboxSpec(str(state), uid=61183)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    pid = Sandbox("unconfined").spawn(["sleep", "1000"], {"MARKER": marker}, box, (null, null, null))
    os.close(null)
    assert eventually(lambda: (state / "dropping").exists() and (state / "dropping").read_text())
    end(pid)
    assert eventually(lambda: not alive(int((state / "dropping").read_text())))
    assert processes_with(marker) == []


def test_process_one_is_found_by_its_mark_when_all_that_knew_it_is_gone(tmp_path):
    about = {MARK: tmp_path.name, "PATH": "/usr/bin:/bin"}
    orphan = in_a_child(lambda: os.execve("/bin/sleep", ["sleep", "1000"], about))
    try:
        assert eventually(lambda: processes.processes_of_workspace(str(tmp_path), MARK) == [orphan])
        assert processes.processes_of_workspace(str(tmp_path) + "0", MARK) == []
    finally:
        end(orphan)


def test_a_pid_that_another_process_has_by_now_is_not_killed(tmp_path):
    now = processes.identity_of(os.getpid())
    assert now is not None
    assert processes.still_alive([list(now)]) == [now]
    earlier = [now[0], now[1] - 1, now[2]]
    elsewhere = [now[0], now[1], now[2] + 1]
    assert processes.still_alive([earlier, elsewhere, [1 << 22, 1, now[2]], [], None, "x", ["1", 2, 3]]) == []
    assert orphan_cleanup.kill_leftovers({"sandboxes": [earlier, elsewhere], "workdirs": [str(tmp_path)]}) == ""


def test_the_undertaker_goes_on_looking_while_the_lock_of_a_workspace_is_held(monkeypatch, tmp_path):
    """A process that a look has missed holds the lock all the same."""
    held = descriptors.DescriptorHolder()
    lock = os.open(tmp_path, file_trees.FLAGS)
    fcntl.flock(lock, fcntl.LOCK_EX)
    held.add([lock])
    os.close(lock)
    orphan = in_a_child(lambda: time.sleep(1000))
    held.close()
    keepers = [list(processes.identity_of(orphan) or ())]
    look, misses = processes.still_alive, [True, True]
    monkeypatch.setattr(processes, "still_alive", lambda known: [] if misses and misses.pop() else look(known))
    said = orphan_cleanup.kill_leftovers({"keepers": keepers, "workdirs": [str(tmp_path)]})
    killed = os.waitpid(orphan, os.WNOHANG)[0] == orphan
    if not killed:
        end(orphan)
    assert (said, killed) == ("", True)
    assert not file_trees.is_locked(str(tmp_path))


async def test_a_keeper_that_was_stopped_holds_the_lock_and_is_told_to_end(open_lab, marker):
    lab: Laboratory = await open_lab("landlock")
    script = "echo ready; (setsid sleep 1000 &); sleep 1000"
    job = await lab.start("/bin/sh", "-c", script, until=b"ready", detached=True, env={"MARKER": marker})
    (workdir,) = workspaces(lab.state, job)
    (kept,) = children(lab.supervisor(job))
    os.kill(kept, signal.SIGSTOP)
    os.kill(lab.pid, signal.SIGSTOP)  # or it would see to the job before we have looked
    os.kill(lab.supervisor(job), signal.SIGKILL)
    assert eventually(lambda: state_of(lab.supervisor(job)) == "Z")
    assert file_trees.is_locked(workdir)
    os.kill(lab.pid, signal.SIGCONT)
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


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def nests(state: Path) -> list[dict[str, Any]]:
    """Return what is noted of the sandboxes that wait for a job or are being made for one."""
    found = [JobFolder(str(folder)).read_notes() for folder in (state / "nests").iterdir()]
    return [about for about in found if about]


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def nest_in_the_making(lab: Laboratory) -> tuple[dict[str, Any], int, int]:
    """Return a nest, its keeper and its bubblewrap, which has just made its inner half; that one waits or is on its way."""
    await lab.until_warm()
    known = {nest["pid"] for nest in nests(lab.state)}
    await lab.run("true")
    while True:
        for nest in nests(lab.state):
            if nest["pid"] in known:
                continue
            for kept in children(nest["pid"]):
                for outer in children(kept):
                    if children(outer):
                        return nest, kept, outer


@pytest.mark.parametrize("victims", ["sandbox", "keeper", "hostd", "nest", "both", "all"])
async def test_a_nest_that_is_killed_in_the_making_leaves_nothing(boxed: Laboratory, open_lab, victims):
    lab = boxed
    await lab.warm_up()
    for _ in range(5):
        nest, kept, outer = await nest_in_the_making(lab)
        if victims in ("hostd", "both", "all"):
            os.kill(lab.pid, signal.SIGKILL)
        if victims in ("nest", "both", "all"):
            with contextlib.suppress(ProcessLookupError):  # its hostd's end is its own, too, and may have been sooner
                os.kill(nest["pid"], signal.SIGKILL)
        processes.kill({"keeper": [kept], "all": [kept, outer]}.get(victims, [outer]))
        if victims in ("sandbox", "keeper"):
            os.kill(lab.pid, signal.SIGKILL)
        if victims != "nest":
            lab = await open_lab(lab.level)
        assert eventually(lambda n=nest: not any(processes.processes_of_workspace(w, MARK) for w in n["workdirs"]))
        assert eventually(lambda n=nest: not alive(n["pid"]))
        assert eventually(lambda n=nest: not any(Path(w).exists() for w in n["workdirs"]))
        await lab.warm_up()
