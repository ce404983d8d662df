"""Sandboxes that were made ahead: taken by one job, never by one that does not fit, gone with their hostd."""
# nothing else runs on the loop of a test

import asyncio
import contextlib
import os
import secrets
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.jobs.job_folder import JobFolder
from gpu_mcp_server.hostd.protocol import ProcessSpec
from gpu_mcp_server.hostd.sandbox import cgroup
from tests.hostd.laboratory import Laboratory, alive, eventually, names, processes_with


def groups() -> set[str]:
    hierarchy = cgroup.own_hierarchy()
    parents = hierarchy.parents.values() if hierarchy else []
    return {p.name for parent in parents for p in Path(parent).glob("warm-*")}


@pytest.fixture
async def warm(full: Laboratory) -> Laboratory:
    await full.warm_up()
    return full


def children_of(pid: int) -> list[int]:
    """Return a process's children; none of one that ends meanwhile, as the supervisor of a job does by itself."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def took_one(lab: Laboratory, job: str) -> bool:
    return JobFolder(str(lab.state / "jobs" / job)).read_notes()["groups"][0].startswith("warm-")


async def test_a_plain_job_takes_one_and_another_is_made(warm):
    for n in range(4):
        done = await warm.sh(f"echo {n}; cat f; echo x > out", contents={"f": b"laid"}, outputs=("*",), stdin="")
        assert (done.text, [o.path for o in done.record.outputs]) == (f"{n}\nlaid", ["out"])
        assert took_one(warm, done.record.id)
        await warm.warm_up()


async def test_each_takes_one_job_only_and_none_sees_another_s(warm):
    first = await warm.sh(
        "echo secret > /tmp/left; echo secret > /dev/shm/left; echo secret > left; sleep 1000 & echo $$"
    )
    await warm.warm_up()
    second = await warm.sh("ls /tmp /dev/shm /job; ps -e 2>/dev/null | grep -c sleep")
    assert took_one(warm, first.record.id) and took_one(warm, second.record.id)
    assert "left" not in second.text
    one, two = (JobFolder(str(warm.state / "jobs" / d.record.id)).read_notes() for d in (first, second))
    assert one["pid"] != two["pid"]
    assert one["workdirs"] != two["workdirs"]


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": {"tmp_bytes": 1 << 20}}, {"limits": {"shm_bytes": 1 << 20}}, {"limits": {"memory_bytes": 32 << 20}},
        {"network": True, "purpose": "fetch"}, {"roots": ("/etc/alternatives",)},
        {"processes": (ProcessSpec(("true",), role="a", trusted=True),)},
        {"processes": (ProcessSpec(("true",), role="a"), ProcessSpec(("true",), role="b"))},
    ],
    ids=str,
)  # fmt: skip
async def test_a_job_that_does_not_fit_starts_cold(warm, fields):
    done = await warm.run("true", **fields)
    assert done.record.status == "ok"
    assert not took_one(warm, done.record.id)


async def test_roots_that_were_asked_for_last_are_shown_in_the_next_ones(warm, tmp_path):
    (tmp_path / "file").write_text("shown")
    tmp_path.chmod(0o755)
    done = await warm.sh(f"cat {tmp_path}/file", roots=(str(tmp_path),))
    assert (done.text, took_one(warm, done.record.id)) == ("shown", False)
    await warm.until_warm()
    done = await warm.sh(f"cat {tmp_path}/file", roots=(str(tmp_path),))
    assert (done.text, took_one(warm, done.record.id)) == ("shown", True)


async def test_the_limits_of_the_job_hold_and_not_those_it_was_made_with(warm):
    shown = await warm.sh("ulimit -f; ulimit -c; ulimit -n; ulimit -t", limits={"file_bytes": 1 << 20, "cpu_s": 7})
    assert took_one(warm, shown.record.id)
    behind_the_watcher_s = "10"  # who counts in ticks must not end a process before the watcher ends the job at 7
    assert shown.text.split() == ["2048", "0", "4096", behind_the_watcher_s]


async def test_those_that_wait_end_with_their_hostd(warm):
    workdirs = names(warm.state / "work")
    waiting = children_of(warm.pid)
    ours = {g for g in groups() if any(alive(p) for p in waiting)}
    assert workdirs and waiting and ours
    os.kill(warm.pid, 9)
    assert eventually(lambda: not any(alive(p) for p in waiting))
    assert eventually(lambda: names(warm.state / "work") == [])


async def test_one_whose_sandbox_was_killed_is_replaced(warm):
    marker = str(warm.state)
    for child in [child for supervisor in children_of(warm.pid) for child in children_of(supervisor)]:
        with contextlib.suppress(ProcessLookupError):  # of a job that has just ended
            os.kill(child, 9)
    done = await warm.sh("echo works")
    assert done.record.status in ("ok", "failed", "broken")
    await warm.warm_up()
    assert (await warm.sh("echo again")).text == "again\n"
    assert processes_with("MARKER=" + marker) == []


async def test_many_jobs_at_once_use_those_that_are_there_and_the_rest_start_cold(warm):
    token = secrets.token_hex(4)
    specs = [warm.spec("/bin/sh", "-c", f"echo {token}{i}") for i in range(12)]
    await asyncio.gather(*(warm.submit(s) for s in specs))
    done = await asyncio.gather(*(warm.wait(s.id) for s in specs))
    assert [d.text for d in done] == [f"{token}{i}\n" for i in range(12)]
    assert 1 <= sum(took_one(warm, s.id) for s in specs) <= 3


async def test_a_warm_job_is_cancelled_killed_and_survives_like_any(warm, open_lab):
    job = await warm.start("/bin/sh", "-c", "echo ready; sleep 1000", until=b"ready")
    assert took_one(warm, job)
    await warm.link.call("cancel", job=job)
    assert (await warm.wait(job)).record.status == "cancelled"
    await warm.warm_up()
    script = "echo ready; sleep 0.4; echo done"
    job = await warm.start("/bin/sh", "-c", script, detached=True, until=b"ready")
    assert took_one(warm, job)
    os.kill(warm.pid, 9)
    other = await open_lab()
    assert (await other.wait(job)).text == "ready\ndone\n"


async def test_a_warm_job_s_program_that_is_not_there_is_named(warm):
    done = await warm.run("/no/such/program")
    assert took_one(warm, done.record.id)
    assert (done.record.status, done.stderr) == (
        "failed",
        b"cannot start /no/such/program: No such file or directory\n",
    )


PROGRAM = """
import os, sys
state = []
def prepare():
    state.append(os.getpid())
def main(arguments):
    print(arguments, state == [os.getpid()], sorted(os.environ)[-1], sys.stdin.read(), open("f").read(), flush=True)
    print(os.listdir("/proc/self/fd")[:3] == ["0", "1", "2"] and len(os.listdir("/proc/self/fd")) == 4)
    sys.exit(3)
"""


async def program(lab: Laboratory, source: str = PROGRAM, **fields):
    return await lab.run("", processes=(ProcessSpec(("name", "one", "2"), program=source, env={"ZED": "z"}),), **fields)


async def test_a_program_is_prepared_ahead_and_gets_its_job_as_if_it_had_just_begun(warm):
    for ahead in (False, True, True):
        done = await program(warm, contents={"f": b"laid"}, stdin="told")
        assert done.text == f"['one', '2'] {ahead} ZED told laid\nTrue\n", done.stderr
        assert took_one(warm, done.record.id) is ahead
        assert (done.record.status, done.record.leader.exit_code) == ("failed", 3)
        await until(warm, 3)


async def test_a_program_and_plain_commands_each_keep_theirs(warm):
    await program(warm, contents={"f": b""})
    await until(warm, 3)
    for _ in range(2):
        assert took_one(warm, (await warm.sh("true")).record.id)
        assert took_one(warm, (await program(warm, contents={"f": b""})).record.id)
        await until(warm, 3)


async def test_a_program_that_dies_while_it_is_prepared_is_not_made_again_and_its_jobs_start_cold(warm):
    source = "import os\ndef prepare():\n    os._exit(1)\ndef main(arguments):\n    print('cold')\n"
    for _ in range(3):
        done = await program(warm, source)
        assert (done.text, took_one(warm, done.record.id)) == ("cold\n", False)
    assert took_one(warm, (await warm.sh("true")).record.id)


async def until(lab: Laboratory, count: int) -> None:
    for _ in range(4000):
        if (await lab.link.call("hello"))[0]["warm"] >= count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"fewer than {count} wait")
