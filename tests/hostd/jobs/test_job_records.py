"""One job, one record: submitted twice, cancelled, detached, found by another hostd, a hundred at once."""
# nothing else runs on the loop of a test

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_mcp_server.errors import DiskFull, NotFound
from gpu_mcp_server.hostd.protocol import GpuRequest, ProcessSpec
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import eventually, names, processes_with, workspaces


async def test_a_submit_that_is_sent_twice_runs_once(lab):
    spec = lab.spec("/bin/sh", "-c", "echo run >> /proc/self/fd/1")
    answers = await asyncio.gather(*(lab.submit(spec) for _ in range(5)))
    assert sorted(a["claimed"] for a in answers) == [False] * 4 + [True]
    assert (await lab.wait(spec.id)).text == "run\n"


async def test_two_hostds_that_are_sent_the_same_job_run_it_once(open_lab):
    one, two = await open_lab(), await open_lab()
    for _ in range(5):
        spec = one.spec("/bin/sh", "-c", "echo run")
        answers = await asyncio.gather(one.submit(spec), two.submit(spec))
        assert sorted(a["claimed"] for a in answers) == [False, True]
        done = await asyncio.gather(one.wait(spec.id), two.wait(spec.id))
        assert done[0].record == done[1].record
        assert done[0].text == "run\n"


async def test_a_cancelled_job_ends_and_says_so(lab):
    marker = secrets.token_hex(8)
    job = await lab.start("/bin/sh", "-c", "echo ready; sleep 1000", env={"MARKER": marker}, until=b"ready")
    await lab.link.call("cancel", job=job)
    done = await lab.wait(job)
    assert (done.record.status, done.text) == ("cancelled", "ready\n")
    assert processes_with(marker) == []


async def test_a_job_that_is_cancelled_at_any_moment_of_its_start_is_cancelled(full):
    for _ in range(12):
        spec = full.spec("sleep", "1000")
        await asyncio.gather(full.submit(spec), full.link.call("cancel", job=spec.id))
        done = await full.wait(spec.id)
        assert done.record.status == "cancelled"


async def test_cancelling_a_finished_job_changes_nothing(full):
    done = await full.sh("echo said")
    await full.link.call("cancel", job=done.record.id)
    assert await full.record(done.record.id) == done.record


async def test_a_job_of_another_hostd_can_be_waited_for_and_cancelled(open_lab):
    one, two = await open_lab(), await open_lab()
    job = await one.start("/bin/sh", "-c", "echo ready; sleep 1000", until=b"ready")
    assert (await two.record(job)).state == "running"
    waiting = asyncio.create_task(two.wait(job))
    await two.link.call("cancel", job=job)
    done = await waiting
    assert (done.record.status, done.text) == ("cancelled", "ready\n")
    assert (await one.wait(job)).record == done.record


async def test_an_attached_job_ends_with_its_channel(lab, open_lab):
    marker = secrets.token_hex(8)
    job = await lab.start("/bin/sh", "-c", "echo ready; sleep 1000", env={"MARKER": marker}, until=b"ready")
    await lab.close()
    other = await open_lab(lab.level)
    done = await other.wait(job)
    assert done.record.status == "caller_lost"
    assert processes_with(marker) == []


async def test_a_detached_job_outlives_its_hostd_and_another_reads_on_where_the_first_stopped(lab, open_lab):
    gate = "while [ ! -e go ]; do sleep 0.02; done"
    job = await lab.start(
        "/bin/sh", "-c", f"echo first; ({gate}) 2>/dev/null & sleep 0.6; echo second", detached=True, until=b"first\n"
    )
    os.kill(lab.pid, 9)
    other = await open_lab(lab.level)
    seen = await other.wait(job, stdout_at=len("first\n"))
    assert (seen.record.status, seen.text) == ("ok", "second\n")
    answer, data = await other.link.call("read", job=job, stream="stdout", offset=2, size=6)
    assert (answer, data) == ({"size": 6}, b"rst\nse")


async def test_output_comes_while_the_job_runs(lab):
    job = await lab.start("/bin/sh", "-c", "echo one; sleep 1000", until=b"one")
    again = await lab.wait(job, on_output=True)
    assert again.text == "one\n", "what was written before the question counts too"
    await lab.link.call("cancel", job=job)


async def test_a_hundred_jobs_at_once_all_run(full):
    specs = [full.spec("/bin/sh", "-c", f"echo {i}") for i in range(100)]
    await asyncio.gather(*(full.submit(s) for s in specs))
    done = await asyncio.gather(*(full.wait(s.id, timeout_s=60) for s in specs))
    assert [d.text for d in done] == [f"{i}\n" for i in range(100)]
    assert {d.record.status for d in done} == {"ok"}
    assert await full.link.call("gpus")


async def test_nothing_is_left_of_finished_jobs_but_their_folders(lab):
    def descriptors() -> int:
        return len(names(Path(f"/proc/{lab.pid}/fd")))

    async def rounds(count: int) -> list[str]:
        done = [await lab.sh("true", contents={"f": b"x"}, outputs=("*",)) for _ in range(count)]
        return [d.record.id for d in done]

    jobs = await rounds(3)
    before = descriptors()
    jobs += await rounds(10)
    assert eventually(lambda: workspaces(lab.state, *jobs) == [])
    assert eventually(lambda: names(lab.state / "open") == [])
    assert eventually(lambda: descriptors() <= before + 2), "two sandboxes may wait for jobs"
    assert (lab.state / "supervisor.log").read_text() == ""
    children = Path(f"/proc/{lab.pid}/task/{lab.pid}/children")
    assert eventually(lambda: len(children.read_text().split()) <= 2)


async def test_who_starts_sandboxes_has_no_threads(full):
    job = await full.start("/bin/sh", "-c", "echo ready; sleep 100", until=b"ready")
    for pid in (full.supervisor(job), full.link.greeting["pid"]):
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1, "the end of a thread kills what it has started"
    await full.link.call("cancel", job=job)


async def test_a_job_that_wants_a_stronger_sandbox_than_there_is_is_refused(open_lab):
    lab = await open_lab("namespaces")
    done = await lab.run("true", min_level="full")
    assert done.record.status == "refused"
    assert "this host gives namespaces" in done.record.note
    weak = await open_lab("landlock")
    done = await weak.run("true", min_level="namespaces")
    assert (done.record.status, "bubblewrap is not installed" in done.record.note) == ("refused", True)
    assert "apt-get install bubblewrap" in done.record.note


async def test_a_job_for_more_gpus_than_there_are_gets_none(full):
    if shutil.which("nvidia-smi"):
        pytest.skip("there may be GPUs here")
    done = await full.run("true", gpus=GpuRequest(1, "exclusive"))
    assert (done.record.status, done.record.note) == ("no_gpu", "1 GPUs wanted, 0 fit")


async def test_the_network_is_for_fetching_only(full):
    done = await full.run("true", network=True)
    assert done.record.status == "refused"
    done = await full.run(
        "/bin/sh",
        "-c",
        "ls /sys/class/net /proc/self/net/dev; wc -l < /proc/self/net/dev",
        network=True,
        purpose="fetch",
    )
    assert done.record.status in ("ok", "failed")


async def test_two_processes_of_a_job_talk_over_their_link(lab):
    talk = "import os, socket; s = socket.socket(fileno=int(os.environ['LINK_%s'])); %s"
    one = ProcessSpec(("{python}", "-c", talk % ("B", "s.send(b'ping'); print(s.recv(9).decode())")), role="a")
    two = ProcessSpec(("{python}", "-c", talk % ("A", "s.send(s.recv(9)[::-1])")), role="b", workspace="other")
    done = await lab.run(processes=(one, two), links=(("a", "b"),))
    assert (done.record.status, done.text) == ("ok", "gnip\n")
    assert [p.role for p in done.record.processes] == ["a", "b"]


async def test_an_unknown_job_is_not_found(full):
    with pytest.raises(NotFound):
        await full.record("j-nobody")
    with pytest.raises(NotFound):
        await full.record("../../etc")


@needs_root
async def test_a_full_disk_is_said_and_loses_no_record(open_lab, state):
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=711", "none", str(state)], check=True)
    try:
        lab = await open_lab()
        spec = lab.spec(
            "/bin/sh", "-c", "head -c 9000000 /dev/zero; echo >&2; head -c 9000000 /dev/zero > f", outputs=("*",)
        )
        await lab.submit(spec._replace(limits=spec.limits._replace(output_bytes=9_000_000)))
        done = await lab.wait(spec.id)
        assert done.record.status == "failed"
        assert "disk_full" in done.record.note
        assert done.record.stdout_bytes == 9_000_000 > done.record.stdout_kept
        with contextlib.suppress(OSError), (state / "filling").open("wb", buffering=0) as out:
            while out.write(bytes(65536)):
                pass
        with pytest.raises(DiskFull):
            await lab.submit(lab.spec("true"), {"f": os.urandom(100_000)})
        with pytest.raises(DiskFull):
            await lab.submit(lab.spec("true"))
        (state / "filling").unlink()
        (state / "jobs" / spec.id / "main.stdout").unlink()
        assert (await lab.sh("echo on")).text == "on\n"
        await lab.close()
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


@needs_root
@pytest.mark.parametrize(
    ("script", "outputs"),
    [
        ("head -c 9000000 /dev/zero", ()),
        ("head -c 9000000 /dev/zero >&2", ()),
        ("head -c 1800000 /dev/zero > f", ("f",)),
    ],
    ids=["stdout", "stderr", "a file"],
)
async def test_a_job_whose_output_a_full_disk_swallowed_is_not_ok(open_lab, state, script, outputs):
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=711", "none", str(state)], check=True)
    try:
        lab = await open_lab()
        spec = lab.spec("/bin/sh", "-c", script, outputs=outputs)
        await lab.submit(spec._replace(limits=spec.limits._replace(output_bytes=9_000_000)))
        record = (await lab.wait(spec.id)).record
        await lab.close()
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)
    assert (record.status, record.processes[0].exit_code) == ("broken", 0)
    assert "disk_full: the host's disk has no room left" in record.note
    assert record.outputs == () and len(record.outputs_left_out) == len(outputs)
