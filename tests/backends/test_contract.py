"""What every backend's channel to hostd must do, whatever lies between."""

import asyncio
import json
import os
import signal

import pytest

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.link import HostLink
from gpu_mcp_server.errors import BadRequest, HostUnavailable, NotFound
from gpu_mcp_server.hostd import protocol
from gpu_mcp_server.hostd.protocol import to_json
from tests.backends.hosts import TestedHost, job, sha256

SAY_AND_WAIT = ("sh", "-c", "echo started; exec sleep 600")


async def test_a_channel_opens_and_hostd_greets(host: TestedHost):
    assert host.link.greeting["protocol"] == protocol.PROTOCOL_VERSION
    assert host.link.open_


async def test_true_runs(host: TestedHost):
    done = await host.run("true")

    assert (done.record.status, done.stdout, done.stderr) == ("ok", b"", b"")
    assert done.record.leader is not None
    assert (done.record.leader.exit_code, done.record.leader.signal) == (0, None)


async def test_an_exit_code_comes_back(host: TestedHost):
    done = await host.run("sh", "-c", "exit 77")

    assert done.record.status == "failed"
    assert done.record.leader and done.record.leader.exit_code == 77


async def test_a_signal_comes_back(host: TestedHost):
    done = await host.run("sh", "-c", "kill -SEGV $$")

    assert done.record.status == "failed"
    assert done.record.leader and done.record.leader.signal == signal.SIGSEGV


async def test_output_streams_while_the_job_runs_and_is_read_again_from_any_offset(host: TestedHost):
    spec = job("sh", "-c", "echo err >&2; echo one; exec sleep 600")
    await host.submit(spec)
    first = await host.look(spec.id, timeout_s=30, on_output=True)
    while not first.stdout:
        first = await host.look(spec.id, timeout_s=30, on_output=True)

    assert (first.record.state, first.stdout) == ("running", b"one\n")
    await host.link.call("cancel", job=spec.id)
    done = await host.finished(spec.id)
    assert (done.stdout, done.stderr) == (b"one\n", b"err\n")
    assert (await host.look(spec.id, stdout_at=2, stderr_at=4)).stdout == b"e\n"


async def test_output_that_is_there_already_is_given_at_once(host: TestedHost):
    spec = job(*SAY_AND_WAIT)
    await host.submit(spec)
    await host.started(spec.id)

    again = await asyncio.wait_for(host.look(spec.id, timeout_s=600, on_output=True), 60)

    assert (again.record.state, again.stdout) == ("running", b"started\n")


async def test_all_bytes_of_output_come_back(host: TestedHost):
    done = await host.run("{python}", "-c", "import os; os.write(1, bytes(range(256)) * 2048)")

    assert done.record.status == "ok"
    assert done.stdout == bytes(range(256)) * 2048


async def test_a_content_that_is_there_does_not_travel_again(host: TestedHost):
    data = os.urandom(32).hex().encode()
    spec = job("cat", "in/data", files={"in/data": data})

    assert await host.submit(spec) == {"missing": [sha256(data)]}
    assert await host.submit(spec, {"in/data": data}) == {"claimed": True}
    again = job("cat", "in/data", files={"in/data": data})
    assert await host.submit(again) == {"claimed": True}
    assert (await host.finished(spec.id)).stdout == (await host.finished(again.id)).stdout == data


async def test_new_and_changed_files_come_back(host: TestedHost):
    script = b"mkdir out; printf new >out/a; printf more >>kept; printf x >dropped"
    done = await host.run("sh", "go.sh", files={"go.sh": script, "kept": b"old"}, outputs=("out/a", "kept"))

    assert {o.path: o.size for o in done.record.outputs} == {"out/a": 3, "kept": 7}
    contents = [(await host.link.call("fetch", sha256=o.sha256))[1] for o in done.record.outputs]
    assert sorted(contents) == [b"new", b"oldmore"]


async def test_a_thousand_small_files_travel_in_one_frame(host: TestedHost):
    files = {f"d{n % 10}/f{n}": b"%d" % n * 500 for n in range(1000)}

    done = await host.run("sh", "-c", "find . -type f | wc -l; cat d7/f7", files=files)

    assert done.stdout == b"1000\n" + b"7" * 500


async def test_stdin_reaches_the_job(host: TestedHost):
    done = await host.run("cat", stdin="first\nsecond, without a newline")

    assert done.stdout == b"first\nsecond, without a newline"


async def test_environment_travels_and_nothing_of_the_host_leaks_in(host: TestedHost):
    done = await host.run("env", env={"GREETING": "a 'quoted' \"word\"\nand a line"})

    said = done.stdout.decode()
    assert "GREETING=a 'quoted' \"word\"\nand a line\n" in said
    assert not {line.split("=")[0] for line in said.splitlines()} & {
        "SSH_CONNECTION",
        "SSH_CLIENT",
        "MAIL",
        "XDG_SESSION_ID",
    }


async def test_arguments_arrive_as_they_are(host: TestedHost):
    arguments = ["$(id)", "`id`", "a'b", 'c"d', "e\nf", "; exit 3", "\\", "*", "~", "", "ü", "%s"]

    done = await host.run("{python}", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *arguments)

    assert json.loads(done.stdout) == arguments


async def test_a_script_of_200_kb_runs(host: TestedHost):
    script = b"n=0\n" + b"n=$((n + 1)); : 'padding'\n" * 8000 + b"echo $n\n"

    done = await host.run("sh", "long.sh", files={"long.sh": script})

    assert len(script) > 200_000
    assert done.stdout == b"8000\n"


async def test_a_job_over_its_wall_limit_ends_as_timeout(host: TestedHost):
    done = await host.run("sh", "-c", 'trap "" TERM; while :; do sleep 1; done', wall_s=0.5)

    assert done.record.status == "timeout"
    assert "0.5 s" in done.record.note


async def test_a_cancelled_job_says_so(host: TestedHost):
    spec = job(*SAY_AND_WAIT)
    await host.submit(spec)
    await host.started(spec.id)
    await host.link.call("cancel", job=spec.id)

    assert (await host.finished(spec.id)).record.status == "cancelled"


async def test_an_attached_job_ends_with_its_channel(host: TestedHost):
    spec = job(*SAY_AND_WAIT)
    await host.submit(spec)
    await host.started(spec.id)
    await host.link.close()

    async with TestedHost(host.backend) as later:
        assert (await later.finished(spec.id)).record.status == "caller_lost"


async def test_a_detached_job_survives_its_channel_and_a_new_one_finds_it(host: TestedHost):
    spec = job("sh", "-c", "echo started; sleep 1; echo finished", detached=True)
    await host.submit(spec)
    await host.started(spec.id)
    await host.link.close()

    async with TestedHost(host.backend) as later:
        done = await later.finished(spec.id)
    assert (done.record.status, done.stdout) == ("ok", b"started\nfinished\n")


async def test_a_job_submitted_twice_runs_once(host: TestedHost):
    spec = job("sh", "-c", "echo once")

    assert await host.submit(spec) == {"claimed": True}
    assert await host.submit(spec) == {"claimed": False}
    assert (await host.finished(spec.id)).stdout == b"once\n"


async def test_what_hostd_does_not_know_is_refused_and_the_channel_goes_on(host: TestedHost):
    with pytest.raises(BadRequest, match="unknown verb 'dance'"):
        await host.link.call("dance")
    with pytest.raises(NotFound, match="j-000-unknown"):
        await host.link.call("record", job="j-000-unknown")
    with pytest.raises(BadRequest, match="unknown fields"):
        await host.link.call("submit", spec={**to_json(job("true")), "surprise": 1}, blobs=[])

    assert (await host.run("true")).record.status == "ok"


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: there\r\n\r\n", b"\0" * 11 + b"\1" + b"{", b"\xff" * 64])
async def test_garbage_ends_the_channel_with_a_reason(backend: Backend, garbage: bytes):
    link = await HostLink.open(backend)
    try:
        link._channel.writer.write(garbage + b"\0" * 4096)
        with pytest.raises(HostUnavailable, match="tested"):
            await link.call("hello")
        assert not link.open_
    finally:
        await link.close()


async def test_fifty_jobs_at_once_share_one_channel(host: TestedHost):
    results = await asyncio.gather(*(host.run("sh", "-c", f"sleep 0.1; echo {n}") for n in range(50)))

    assert [int(done.stdout) for done in results] == list(range(50))
