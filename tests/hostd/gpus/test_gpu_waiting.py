"""Jobs in sandboxes that wait for GPUs which a file says there are: hostd, broker, locks and reservations together."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpu_mcp_server.errors import HostDrained
from gpu_mcp_server.hostd.gpus.broker_client import broker_status
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.hostd.gpus.gpu_queue import MAX_SHARERS
from gpu_mcp_server.hostd.gpus.head_start import count_cores
from gpu_mcp_server.hostd.protocol import GpuRequest, ProcessSpec
from tests.hostd.brokers import broker_pid
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import Laboratory, alive, eventually

pytestmark = pytest.mark.anyio
ALONE = GpuRequest(1, "exclusive", wait_s=20.0)


class Pool:
    """A hostd with GPUs of its own, and their locks."""

    def __init__(self, lab: Laboratory, folder: Path) -> None:
        self.lab, self.gpus, self.locks = lab, folder / "gpus.json", GpuLocks(str(folder / "locks"))

    async def start(self, gpus: GpuRequest = ALONE, script: str = "sleep 60") -> str:
        return await self.lab.start("/bin/sh", "-c", "echo on; " + script, until=b"on", gpus=gpus)

    async def queue(self, gpus: GpuRequest = ALONE, script: str = "true", **more) -> str:
        """Submit a job that must wait; return its id once the broker has it in line and it has heard so."""
        before = broker_status(self.locks).get("all_waiting", 0)
        spec = self.lab.spec("/bin/sh", "-c", script, gpus=gpus, **more)
        await self.lab.submit(spec)
        assert eventually(lambda: broker_status(self.locks).get("all_waiting") == before + 1)
        while (seen := await self.lab.record(spec.id)).state == "queued" and not seen.note:
            await asyncio.sleep(0.005)
        return spec.id

    async def reserve(self, count: int = 1, keep_s: float = 30.0, idle_s: float = 30.0, **more) -> str:
        want = GpuRequest(count, "exclusive", keep_s=keep_s, idle_s=idle_s, wait_s=20.0)
        process = ProcessSpec(argv=("reservation",))
        spec = self.lab.spec(purpose="reserve", processes=(process,), gpus=want, detached=True, **more)
        await self.lab.submit(spec)
        for _ in range(2000):
            if any(r["lease_id"] == spec.id for r in await self.reservations()):
                return spec.id
            await asyncio.sleep(0.005)
        raise AssertionError(await self.lab.record(spec.id))

    async def reservations(self) -> list[dict]:
        return (await self.lab.link.call("pool"))[0]["reservations"]


def listed(*gpus: dict) -> str:
    return json.dumps([{"uuid": f"GPU-{n}", **gpu} for n, gpu in enumerate(gpus)])


@pytest.fixture
async def pool(open_lab, state: Path):
    found = await opened(open_lab, state, {}, {})
    yield found
    if alive(found.lab.pid):
        for standing in await found.reservations():
            await found.lab.link.call("cancel", job=standing["lease_id"])
            await found.lab.wait(standing["lease_id"])
    end_broker(found)


@pytest.fixture
def stranger():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


async def opened(open_lab, state: Path, *gpus: dict, **more: str) -> Pool:
    folder = state.parent
    (folder / "gpus.json").write_text(listed(*gpus))
    env = {**more, "GPU_MCP_HOSTD_GPUS": str(folder / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(folder / "locks")}
    return Pool(await open_lab("full", **env), folder)


def end_broker(pool: Pool) -> None:
    pid = broker_pid(pool.locks)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


async def test_a_free_gpu_is_had_without_a_broker(pool):
    done = await pool.lab.run("true", gpus=ALONE)
    assert (done.record.status, done.record.gpus, done.record.note) == ("ok", ("GPU-0",), "")
    assert broker_pid(pool.locks) is None


async def test_who_waits_says_so_in_its_record_and_its_waiter_hears_it(pool):
    first = [await pool.start(), await pool.start()]
    third = await pool.queue()
    answer, _ = await pool.lab.link.call("wait", job=third, timeout_s=20.0, note_seen="")
    assert answer["record"]["state"] == "queued"
    assert answer["record"]["note"].startswith("position 1")
    assert "waiting because GPU-0 is held by" in answer["record"]["note"]
    await pool.lab.link.call("cancel", job=first[1])
    done = await pool.lab.wait(third)
    assert (done.record.status, done.record.gpus, done.record.note) == ("ok", ("GPU-1",), "")


async def test_kill_9_of_a_supervisor_lets_the_next_job_in(pool):
    first = [await pool.start(), await pool.start()]
    third = await pool.queue()
    os.kill(pool.lab.supervisor(first[0]), signal.SIGKILL)
    done = await pool.lab.wait(third)
    assert (done.record.status, done.record.gpus) == ("ok", ("GPU-0",))


async def test_a_job_that_waits_can_be_cancelled(pool):
    await pool.start(GpuRequest(2, "exclusive"))
    waiting = await pool.queue()
    await pool.lab.link.call("cancel", job=waiting)
    done = await pool.lab.wait(waiting)
    assert done.record.status == "cancelled"
    assert eventually(lambda: broker_status(pool.locks)["all_waiting"] == 0)


OWNER = """
import ctypes, json, os, socket, sys, time
print(time.monotonic(), flush=True)
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
link = socket.socket(fileno=int(os.environ["LINK_SUPERVISOR"]))
for what in ("turn", "ready"):
    link.send(json.dumps({"do": what, "role": ""}).encode())
print(json.loads(link.recv(4096)), time.monotonic(), os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""


async def test_processes_start_while_their_job_is_next_in_line_and_have_their_turn_after_that(open_lab, state: Path):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SPARE_CORES="1")
    holder = await pool.start()
    mark = f"own{os.getpid()}-{time.monotonic_ns() % 10**6}"[:15]
    roles = (
        ProcessSpec(argv=("{python}", "-I", "-c", OWNER, mark), role="owner", trusted=True, workspace="owner"),
        ProcessSpec(argv=("sleep", "60"), role="candidate", workspace="candidate"),
    )
    spec = pool.lab.spec(processes=roles, gpus=ALONE._replace(ahead=True))
    await pool.lab.submit(spec)
    assert eventually(lambda: mark in read_of_all("comm"))
    assert (await pool.lab.record(spec.id)).state == "queued"
    freed = time.monotonic()
    await pool.lab.link.call("cancel", job=holder)
    done = await pool.lab.wait(spec.id)
    began, answer = done.text.splitlines()
    assert (done.record.status, done.record.gpus) == ("ok", ("GPU-0",)), done
    assert float(began) < freed < float(answer.split()[2])
    assert "'turn': True" in answer
    end_broker(pool)


IMPORTER = """
import ctypes, json, os, signal, socket, sys
link = socket.socket(fileno=int(os.environ["LINK_SUPERVISOR"]))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
link.send(json.dumps({"do": "turn", "role": ""}).encode())
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
if sys.argv[1] == "dies":
    sys.exit(3)
signal.sigwait([signal.SIGUSR1])
link.send(json.dumps({"do": "ready", "role": ""}).encode())
print(json.loads(link.recv(4096)), flush=True)
"""


def importer(mark: str) -> tuple[ProcessSpec, ...]:
    """Return an owner of that name, which imports until it gets a signal."""
    return (ProcessSpec(argv=("{python}", "-I", "-c", IMPORTER, mark), role="owner", trusted=True),)


def pid_of(mark: str) -> int:
    """Return the process of that name, 0 before there is one."""
    found = (int(p.parent.name) for p in Path("/proc").glob("[0-9]*/comm") if read_quietly(p) == mark)
    return next(found, 0)


async def test_a_job_that_imports_holds_no_gpu_and_keeps_its_place(open_lab, state: Path):
    """One that came later has the GPU and ends meanwhile; one that comes then is behind."""
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SPARE_CORES="1")
    mark = f"imp{os.getpid()}-{time.monotonic_ns() % 10**6}"[:15]
    first = pool.lab.spec(processes=importer(mark), gpus=ALONE._replace(ahead=True))
    await pool.lab.submit(first)
    while not (stood := await pool.lab.record(first.id)).note or not pid_of(mark):
        await asyncio.sleep(0.005)
    passed = await pool.lab.run("true", gpus=ALONE)
    then = await pool.start()
    last = await pool.queue()
    os.kill(pid_of(mark), signal.SIGUSR1)
    while "own processes" in (await pool.lab.record(first.id)).note:
        await asyncio.sleep(0.005)
    await pool.lab.link.call("cancel", job=then)
    done, behind = [await pool.lab.wait(job) for job in (first.id, last)]
    end_broker(pool)

    assert "its own processes are not ready" in stood.note
    assert (passed.record.status, passed.record.gpus) == ("ok", ("GPU-0",)), passed.record
    assert (done.record.status, done.text) == ("ok", "{'turn': True}\n"), done
    assert passed.record.ended_at < done.record.started_at < behind.record.started_at


async def test_the_time_in_which_its_own_processes_start_is_no_wait_for_others(open_lab, state: Path):
    """The GPU is free, the job says that it will not wait, and its imports take longer than that."""
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SPARE_CORES="1")
    mark = f"now{os.getpid()}-{time.monotonic_ns() % 10**6}"[:15]
    spec = pool.lab.spec(processes=importer(mark), gpus=ALONE._replace(wait_s=0.5, ahead=True))
    await pool.lab.submit(spec)
    while "own processes" not in (await pool.lab.record(spec.id)).note:
        await asyncio.sleep(0.005)
    queued_at = time.monotonic()
    while time.monotonic() < queued_at + 2.0:
        assert (await pool.lab.record(spec.id)).state == "queued"
        await asyncio.sleep(0.05)
    os.kill(pid_of(mark), signal.SIGUSR1)
    done = await pool.lab.wait(spec.id)
    end_broker(pool)
    assert (done.record.status, done.text) == ("ok", "{'turn': True}\n"), done


async def test_a_refusal_says_how_long_its_own_processes_started(open_lab, state: Path):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SPARE_CORES="1")
    holder = await pool.start()
    mark = f"ref{os.getpid()}-{time.monotonic_ns() % 10**6}"[:15]
    spec = pool.lab.spec(processes=importer(mark), gpus=ALONE._replace(wait_s=2.0, ahead=True))
    await pool.lab.submit(spec)
    while not pid_of(mark):
        await asyncio.sleep(0.005)
    started_at = time.monotonic()
    while time.monotonic() < started_at + 1.5:
        await asyncio.sleep(0.05)
    os.kill(pid_of(mark), signal.SIGUSR1)
    done = await pool.lab.wait(spec.id)
    await pool.lab.link.call("cancel", job=holder)
    end_broker(pool)
    assert done.record.status == "no_gpu"
    said = re.match(
        r"its turn did not come within 2 s \(without the (\d+) s in which its own processes started\); "
        rf"held now: GPU-0 by {holder} \(exclusive\); last position 1",
        done.record.note,
    )
    assert said and int(said[1]) >= 1, done.record.note
    assert done.record.ended_at - done.record.submitted_at >= 2.0 + 1.0


async def test_a_job_whose_owner_ends_ahead_of_its_turn_ends_in_it(open_lab, state: Path):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SPARE_CORES="1")
    done = await pool.lab.run(processes=importer("dies"), gpus=ALONE._replace(ahead=True))
    end_broker(pool)
    assert (done.record.status, done.record.processes[0].exit_code) == ("failed", 3), done


async def test_a_job_that_was_started_in_line_can_be_cancelled_there(open_lab, state: Path):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SPARE_CORES="1")
    await pool.start()
    roles = (ProcessSpec(argv=("sleep", "86399"), role="owner", trusted=True),)
    spec = pool.lab.spec(processes=roles, gpus=ALONE._replace(ahead=True))
    await pool.lab.submit(spec)
    there = eventually(lambda: "sleep\x0086399\x00" in read_of_all("cmdline"))
    await pool.lab.link.call("cancel", job=spec.id)
    done = await pool.lab.wait(spec.id)
    end_broker(pool)
    assert there and done.record.status == "cancelled"
    assert "sleep\x0086399\x00" not in read_of_all("cmdline")


def read_of_all(name: str) -> set[str]:
    """Return the texts of a file that each process has in /proc."""
    found = set()
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        found.add(read_quietly(path))
    return found


def read_quietly(path: Path) -> str:
    """Return the text of a file of a process, nothing where that has ended."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").rstrip("\n")
    return ""


async def test_a_job_that_waits_too_long_says_who_was_ahead(pool):
    holder = await pool.start(GpuRequest(2, "exclusive"))
    done = await pool.lab.run("true", gpus=GpuRequest(1, "exclusive", wait_s=2.0))
    assert done.record.status == "no_gpu"
    assert f"GPU-0 by {holder}" in done.record.note
    assert "position 1" in done.record.note


async def test_sharers_of_a_gpu_run_together_and_wait_for_who_is_alone(pool):
    shared = GpuRequest(1, "shared", uuids=("GPU-0",), wait_s=20.0)
    first, second = await pool.start(shared), await pool.start(shared)
    alone = await pool.queue(GpuRequest(1, "exclusive", uuids=("GPU-0",), wait_s=20.0))
    third = await pool.queue(shared)
    for job in (first, second):
        await pool.lab.link.call("cancel", job=job)
    done = [(await pool.lab.wait(job)).record for job in (alone, third)]
    assert [r.status for r in done] == ["ok", "ok"]
    assert done[0].started_at < done[1].started_at


WINDOWED = GpuRequest(1, "windowed", wait_s=20.0)
IN_WINDOWS = """
import json, os, socket, sys, time
link = socket.socket(fileno=int(os.environ["LINK_SUPERVISOR"]))
def ask(do, part=""):
    link.send(json.dumps({"do": do, "role": part}).encode())
    return json.loads(link.recv(4096))
for turn in range(3):
    for part in ("shared", "alone"):
        said = ask("window", part)
        assert said["window"] is True, said
        begin = time.monotonic()
        time.sleep(0.05)
        print(part, begin, time.monotonic(), flush=True)
print("beside", ask("beside")["beside"])
"""


def in_windows(script: str = IN_WINDOWS) -> tuple[ProcessSpec, ...]:
    return (ProcessSpec(argv=("{python}", "-I", "-c", script), role="owner", trusted=True),)


async def begin_windowed(pool: Pool, script: str = IN_WINDOWS, **more) -> str:
    spec = pool.lab.spec(processes=in_windows(script), gpus=WINDOWED, **more)
    await pool.lab.submit(spec)
    return spec.id


async def test_jobs_share_a_gpu_and_have_it_alone_in_their_windows(open_lab, state: Path):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SHARERS="2")
    done = [await pool.lab.wait(job) for job in [await begin_windowed(pool) for _ in range(2)]]
    kept = await pool.lab.wait(await begin_windowed(pool))
    end_broker(pool)

    spans: list[list[tuple[str, float, float]]] = []
    for each in done:
        assert each.record.status == "ok", each
        *lines, beside = (line.split() for line in each.text.splitlines())
        spans.append([(part, float(begin), float(end)) for part, begin, end in lines])
        assert [part for part, *_ in spans[-1]] == ["shared", "alone"] * 3
        assert beside == ["beside", "True"]
    for part, begin, end in spans[0]:
        for other, since, until in spans[1]:
            if "alone" in (part, other):
                assert end <= since or until <= begin, (part, begin, end, other, since, until)
    assert kept.text.endswith("beside False\n")
    records = [each.record for each in done]
    held_s = max(each.ended_at for each in records) - min(each.submitted_at for each in records)
    assert all(each.gpu_s and each.gpu_s > 0 for each in records), records
    assert sum(each.gpu_s or 0 for each in records) <= held_s + 0.1, "a second of the GPU is charged once"
    assert kept.record.gpu_s and kept.record.gpu_s >= kept.record.wall_s - 0.1, "alone it is charged all"


async def test_the_wait_for_a_window_is_none_of_a_job_s_own_time(open_lab, state: Path):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SHARERS="2")
    long = IN_WINDOWS.replace("range(3)", "range(1)").replace("sleep(0.05)", "sleep(2.0)")
    first = await begin_windowed(pool, long)
    second = await begin_windowed(pool, IN_WINDOWS.replace("range(3)", "range(1)"), limits={"wall_s": 1.0})
    done = [await pool.lab.wait(job) for job in (first, second)]
    end_broker(pool)
    assert [each.record.status for each in done] == ["ok", "ok"], done
    assert done[1].record.wall_s > 1.0  # of which it waited most, for the first one's part


async def test_few_cores_or_a_sharer_without_windows_keep_a_job_with_windows_waiting(open_lab, state: Path):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_SHARERS="1")
    first = await pool.start(WINDOWED)
    second = await pool.queue(WINDOWED)
    third = await pool.queue(GpuRequest(1, "shared", wait_s=20.0))
    assert "shared by 1 already" in (await pool.lab.record(second)).note
    await pool.lab.link.call("cancel", job=first)
    done = [(await pool.lab.wait(job)).record for job in (second, third)]
    end_broker(pool)
    assert [each.status for each in done] == ["ok", "ok"]
    assert done[0].ended_at <= done[1].started_at


async def test_what_the_job_asks_of_a_gpu_is_heeded(open_lab, state):
    pool = await opened(
        open_lab,
        state,
        {"arch": "sm_80", "memory_total_bytes": 40 << 30, "nvlink": []},
        {"arch": "sm_90", "memory_total_bytes": 80 << 30, "nvlink": ["GPU-2"]},
        {"arch": "sm_90", "memory_total_bytes": 141 << 30, "nvlink": ["GPU-1"]},
    )
    asked = [
        (GpuRequest(1, "exclusive", arch="sm_90"), ("ok", ("GPU-1",), "")),
        (GpuRequest(1, "exclusive", memory_bytes=100 << 30), ("ok", ("GPU-2",), "")),
        (GpuRequest(2, "exclusive", nvlink=True), ("ok", ("GPU-1", "GPU-2"), "")),
        (GpuRequest(2, "exclusive", arch="sm_80"), ("no_gpu", (), "2 GPUs wanted, 1 fit (sm_80)")),
        (GpuRequest(3, "exclusive", nvlink=True), ("no_gpu", (), "no 3 GPUs of this host are all joined by NVLink")),
    ]
    for want, expected in asked:
        record = (await pool.lab.run("true", gpus=want)).record
        assert (record.status, record.gpus, record.note) == expected


@pytest.mark.parametrize(
    ("foreign", "gpus", "noted"), [("other", ("GPU-1",), False), ("warn", ("GPU-0",), True), ("wait", (), True)]
)
async def test_a_colleague_s_process_on_a_gpu(open_lab, state, stranger, foreign, gpus, noted):
    pool = await opened(open_lab, state, {"pids": [stranger.pid]}, {})
    try:
        uuids = ("GPU-0",) if foreign == "wait" else ()
        want = GpuRequest(1, "exclusive", foreign=foreign, uuids=uuids, wait_s=1.0)
        record = (await pool.lab.run("true", gpus=want)).record
        assert record.gpus == gpus
        assert record.status == ("ok" if gpus else "no_gpu")
        assert (str(stranger.pid) in record.note) == noted
    finally:
        end_broker(pool)


async def test_without_a_broker_that_answers_the_turns_decide_and_that_is_said(pool, state):
    first = await pool.start(GpuRequest(2, "exclusive"))
    waiting = await pool.queue()
    os.kill(broker_pid(pool.locks), signal.SIGSTOP)
    try:
        spec = pool.lab.spec("true", gpus=ALONE)
        await pool.lab.submit(spec)
        await asyncio.sleep(6.5)  # the broker's silence is noticed after five seconds
        await pool.lab.link.call("cancel", job=first)
        done = [(await pool.lab.wait(job)).record for job in (waiting, spec.id)]
        assert [r.status for r in done] == ["ok", "ok"]
        assert all("no broker answers" in r.note for r in done)
    finally:
        os.kill(broker_pid(pool.locks), signal.SIGCONT)


async def test_turns_of_the_processor_are_kept_in_line_too(pool):
    turn = GpuRequest(mode="exclusive", wait_s=20.0)
    first = await pool.start(turn)
    second = await pool.queue(turn)
    assert "processor is held by" in (await pool.lab.record(second)).note
    await pool.lab.link.call("cancel", job=first)
    record = (await pool.lab.wait(second)).record
    assert (record.status, record.gpus) == ("ok", ())


async def test_those_who_time_nothing_share_the_processor_and_keep_it_from_who_times(pool):
    shared, alone = GpuRequest(mode="shared", wait_s=20.0), GpuRequest(mode="exclusive", wait_s=20.0)
    first, second = await pool.start(shared), await pool.start(shared)
    timed = await pool.queue(alone)
    later = await pool.queue(shared)
    for job in (first, second):
        await pool.lab.link.call("cancel", job=job)
    done = [(await pool.lab.wait(job)).record for job in (timed, later)]
    assert [r.status for r in done] == ["ok", "ok"]
    assert done[0].ended_at <= done[1].started_at


async def test_no_more_jobs_share_the_processor_than_it_has_cores(pool):
    """Their calls have a limit by the clock, so a slow kernel that is right alone would be killed among many."""
    shared = GpuRequest(mode="shared", wait_s=20.0)
    begun = [await pool.start(shared) for _ in range(min(MAX_SHARERS, count_cores()))]
    late = await pool.queue(shared)
    assert f"shared by {len(begun)} already" in (await pool.lab.record(late)).note
    await pool.lab.link.call("cancel", job=begun[0])
    assert (await pool.lab.wait(late)).record.status == "ok"


async def test_jobs_under_a_reservation_use_its_gpus_one_after_the_other(pool):
    lease = await pool.reserve(2)
    outsider = await pool.queue()
    mine = GpuRequest(1, "exclusive", lease=lease, wait_s=20.0)
    begun = [await pool.start(mine, "sleep 0.3") for _ in range(2)]
    used = [(await pool.lab.wait(job)).record for job in begun]
    assert sorted(r.gpus for r in used) == [("GPU-0",), ("GPU-1",)]
    assert all(r.note == "" for r in used)
    both = (await pool.lab.run("true", gpus=GpuRequest(2, "exclusive", lease=lease, wait_s=20.0))).record
    assert both.gpus == ("GPU-0", "GPU-1")
    assert (await pool.lab.record(outsider)).state == "queued"
    await pool.lab.link.call("cancel", job=lease)
    assert (await pool.lab.wait(outsider)).record.status == "ok"
    assert (await pool.lab.record(lease)).status == "cancelled"
    after = (await pool.lab.run("true", gpus=mine)).record
    assert after.status == "ok"
    assert f"reservation {lease} has ended" in after.note


async def test_a_reservation_ends_when_it_is_not_used_and_use_renews_it(pool):
    lease = await pool.reserve(1, keep_s=1.0)
    mine = GpuRequest(1, "exclusive", lease=lease, wait_s=20.0)
    for _ in range(2):
        done = await pool.lab.run("sleep", "0.8", gpus=mine)
        assert done.record.note == ""
        (standing,) = await pool.reservations()
        assert standing["in_use"] is False
    done = await pool.lab.wait(lease)
    assert (done.record.status, done.record.note) == ("timeout", "not used for 1 s")
    assert done.record.wall_s > 2.0
    assert await pool.reservations() == []


async def test_a_reservation_that_idles_gives_way_after_notice_to_who_waits(pool):
    lease = await pool.reserve(2, keep_s=60.0, idle_s=0.2)
    waiting = await pool.queue()
    noticed = False
    while not noticed:
        (standing,) = await pool.reservations()
        noticed = standing["leaves_in_s"] is not None
        await asyncio.sleep(0.01)
    used = (await pool.lab.run("true", gpus=GpuRequest(1, "exclusive", lease=lease))).record
    assert used.note == "", "it is there until its notice has run out, and use withdraws the notice"
    done = await pool.lab.wait(lease)
    assert done.record.status == "cancelled"
    assert "gave way to waiting jobs" in done.record.note
    assert (await pool.lab.wait(waiting)).record.status == "ok"


async def test_a_reservation_that_nobody_waits_for_stays(pool):
    lease = await pool.reserve(1, keep_s=60.0, idle_s=0.05)
    done = await pool.lab.run("true", gpus=ALONE)
    assert done.record.gpus == ("GPU-1",)
    (standing,) = await pool.reservations()
    assert (standing["lease_id"], standing["leaves_in_s"]) == (lease, None)


async def test_kill_9_of_a_reservation_frees_its_gpu_but_not_the_one_that_a_job_uses(pool):
    lease = await pool.reserve(2)
    used = await pool.start(GpuRequest(1, "exclusive", lease=lease))
    os.kill(pool.lab.supervisor(lease), signal.SIGKILL)
    other = (await pool.lab.run("true", gpus=ALONE)).record
    busy = (await pool.lab.record(used)).gpus
    assert (other.status, other.gpus) == ("ok", tuple({"GPU-0", "GPU-1"} - set(busy)))
    assert (await pool.lab.record(used)).state == "running"
    assert (await pool.lab.record(lease)).status == "broken"


async def test_a_new_broker_hears_of_old_reservations(pool):
    lease = await pool.reserve(2, keep_s=60.0, idle_s=0.2)
    os.kill(broker_pid(pool.locks), signal.SIGKILL)
    waiting = await pool.queue()
    assert (await pool.lab.wait(waiting)).record.status == "ok"
    assert "gave way" in (await pool.lab.record(lease)).note


async def test_on_a_drained_host_jobs_go_on_and_those_who_wait_keep_their_places(pool):
    running = await pool.start(GpuRequest(2, "exclusive"))
    waiting = await pool.queue()
    answer, _ = await pool.lab.link.call("drain", on=True, why="new driver", by="ann")
    assert "being drained by ann" in answer["drained"]
    with pytest.raises(HostDrained, match="new driver"):
        await pool.lab.submit(pool.lab.spec("true"))
    await pool.lab.link.call("cancel", job=running)
    assert (await pool.lab.wait(running)).record.status == "cancelled"
    while "drained by ann" not in (seen := await pool.lab.record(waiting)).note:
        assert seen.state == "queued"
        await asyncio.sleep(0.01)
    os.kill(broker_pid(pool.locks), signal.SIGKILL)
    assert (await pool.lab.link.call("drain", on=False))[0]["drained"] == ""
    assert (await pool.lab.wait(waiting)).record.status == "ok"


async def test_two_hosts_do_not_know_of_each_other(open_lab, state, tmp_path):
    one = await opened(open_lab, state, {})
    await one.start()
    (tmp_path / "gpus.json").write_text(listed({}))
    env = {"GPU_MCP_HOSTD_GPUS": str(tmp_path / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(tmp_path / "locks")}
    other = await Laboratory.open(state.parent / "second", "full", env)
    try:
        assert (await other.run("true", gpus=ALONE)).record.status == "ok"
    finally:
        await other.close()


async def test_jobs_of_a_killed_hostd_go_on_waiting_when_they_are_detached(pool, open_lab):
    first = await pool.start(GpuRequest(2, "exclusive"), "sleep 1.5")
    spec = pool.lab.spec("true", gpus=ALONE, detached=True)
    await pool.lab.submit(spec)
    assert eventually(lambda: broker_status(pool.locks).get("all_waiting") == 1)
    began = time.time()
    os.kill(pool.lab.pid, signal.SIGKILL)
    again = await open_lab("full")
    record = (await again.wait(spec.id)).record
    assert record.status == "ok"
    assert record.started_at > began
    assert (await again.wait(first)).record.status == "caller_lost"


@needs_root
async def test_a_job_next_in_line_waits_for_no_uids_there(open_lab, state: Path):
    """Else it would not hear that its turn has come."""
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_UIDS="2", GPU_MCP_HOSTD_SPARE_CORES="1")
    holders = [await pool.start(), await pool.lab.start("/bin/sh", "-c", "echo on; sleep 60", until=b"on")]
    roles = (ProcessSpec(argv=("{python}", "-I", "-c", OWNER, "owner"), role="owner", trusted=True),)
    spec = pool.lab.spec(processes=roles, gpus=ALONE._replace(ahead=True))
    await pool.lab.submit(spec)
    while not (stood := await pool.lab.record(spec.id)).note:
        await asyncio.sleep(0.005)
    for job in reversed(holders):
        await pool.lab.link.call("cancel", job=job)
    done = await pool.lab.wait(spec.id)
    end_broker(pool)

    assert stood.note.startswith("position 1") and done.record.status == "ok", (stood, done)


@needs_root
async def test_a_job_that_lacks_uids_leaves_the_free_gpu_to_others_and_starts_when_there_are_some(open_lab, state):
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_UIDS="2", GPU_MCP_HOSTD_SPARE_CORES="1")
    others = [await pool.lab.start("/bin/sh", "-c", "echo on; sleep 60", until=b"on") for _ in range(2)]
    roles = (ProcessSpec(argv=("{python}", "-I", "-c", OWNER, "owner"), role="owner", trusted=True),)
    spec = pool.lab.spec(processes=roles, gpus=ALONE._replace(ahead=True))
    await pool.lab.submit(spec)
    while "uids" not in (stood := await pool.lab.record(spec.id)).note:
        await asyncio.sleep(0.005)
    holder = pool.locks.holder("GPU-0")
    await pool.lab.link.call("cancel", job=others[0])
    done = await pool.lab.wait(spec.id)
    await pool.lab.link.call("cancel", job=others[1])
    end_broker(pool)

    assert (stood.state, holder) == ("queued", None)
    assert stood.note.startswith("position 1") and "before enough uids for jobs are free" in stood.note
    assert done.record.status == "ok", done


@needs_root
async def test_more_jobs_than_uids_stand_in_line_and_take_none_from_those_that_run(open_lab, state: Path):
    """Three uids: one runs on the GPU, six wait for it, and jobs without a GPU run meanwhile; then more than three run."""
    pool = await opened(open_lab, state, {}, GPU_MCP_HOSTD_UIDS="3")
    first = await pool.start()
    script = "id -u; cat given/deep.txt; stat -c %u given given/deep.txt ."
    waiting = [pool.lab.spec("/bin/sh", "-c", script, gpus=ALONE) for _ in range(6)]
    for spec in waiting:
        await pool.lab.submit(spec, {"given/deep.txt": b"deep\n"})
    assert eventually(lambda: broker_status(pool.locks).get("all_waiting") == 6)

    beside = await pool.lab.run("true")
    specs = [pool.lab.spec("/bin/sleep", "60", limits={"wall_s": 60.0}) for _ in range(4)]
    for spec in specs:
        await pool.lab.submit(spec)
    while len(queued := [s.id for s in specs if (await said_so(pool, s.id)).state == "queued"]) > 2:
        await asyncio.sleep(0.005)
    for job in (first, *(s.id for s in specs if s.id not in queued)):
        await pool.lab.link.call("cancel", job=job)
    after = [await pool.lab.wait(spec.id) for spec in waiting]
    late = [(await begun(pool, job)).state for job in queued]
    for job in queued:
        await pool.lab.link.call("cancel", job=job)
        await pool.lab.wait(job)
    end_broker(pool)

    assert beside.record.status == "ok"
    assert len(queued) == 2, "one of three uids is the first job's"
    assert set(late) == {"running"}
    for done in after:
        assert done.record.status == "ok", done.record
        uid, text, *owners = done.text.split()
        assert (text, {*owners}) == ("deep", {uid})


async def begun(pool: Pool, job: str):
    """Return the record of a job that stood in line, once it does no longer; the test's own limit ends the waiting."""
    while (seen := await pool.lab.record(job)).state == "queued":
        await asyncio.sleep(0.005)
    return seen


async def said_so(pool: Pool, job: str):
    """Return the record of a job that runs, or says why it does not."""
    while (seen := await pool.lab.record(job)).state == "queued" and "uids" not in seen.note:
        await asyncio.sleep(0.005)
    return seen
