"""A job runs once, ends once, and outlives what it should outlive."""

import asyncio
from typing import Any

from gpu_mcp_server.backends.contract.behaviour import BehaviourGroup, expect, expect_equal
from gpu_mcp_server.backends.contract.host import ContractHost, new_id
from gpu_mcp_server.backends.contract.output import SAY_AND_WAIT
from gpu_mcp_server.errors import BadRequest, HostUnavailable, NotFound
from gpu_mcp_server.hostd.protocol import to_json

ROOM = BehaviourGroup("lifetimes")


@ROOM.behaviour("A job submitted twice runs once")
async def submitted_twice(host: ContractHost) -> None:
    """Submit the same job again."""
    spec = host.job("sh", "-c", "echo once")
    expect_equal(await host.submit(spec), {"claimed": True}, "the first answer")
    expect_equal(await host.submit(spec), {"claimed": False}, "the second answer")
    expect_equal((await host.wait_for_end(spec.id)).stdout, b"once\n", "stdout")
    expect_equal(await host.submit(spec), {"claimed": False}, "the answer after the end")


@ROOM.behaviour("A job submitted over two channels at once runs once")
async def submitted_by_two(host: ContractHost) -> None:
    """Race two submits."""
    async with host.another() as other:
        spec = host.job("sh", "-c", "echo once", detached=True)
        answers = await asyncio.gather(host.submit(spec), other.submit(spec))
        expect_equal(sorted(a["claimed"] for a in answers), [False, True], "who claimed it")
        expect_equal((await host.wait_for_end(spec.id)).stdout, b"once\n", "stdout as one sees it")
        expect_equal((await other.wait_for_end(spec.id)).stdout, b"once\n", "stdout as the other sees it")


@ROOM.behaviour("A job submitted again after a lost line runs once, and its end is found")
async def resubmitted(host: ContractHost) -> None:
    """Submit, lose the channel, submit again."""
    spec = host.job("sh", "-c", "echo started; sleep 0.3; echo ended", detached=True)
    async with host.another() as lost:
        await lost.submit(spec)
    expect_equal(await host.submit(spec), {"claimed": False}, "the answer to the second submit")
    expect_equal((await host.wait_for_end(spec.id)).stdout, b"started\nended\n", "stdout")


@ROOM.behaviour("A cancelled job ends at once and says so")
async def cancelled(host: ContractHost) -> None:
    """Cancel a job that would not end."""
    spec = host.job("sh", "-c", "trap '' TERM INT; echo started; while :; do sleep 1; done")
    await host.submit(spec)
    await host.wait_for_output(spec.id)
    await host.link.call("cancel", job=spec.id)
    expect_equal((await host.wait_for_end(spec.id)).record.status, "cancelled", "status")


@ROOM.behaviour("There is exactly one record: it never changes once it is final")
async def one_record(host: ContractHost) -> None:
    """Cancel what has ended, and read the record again."""
    spec = host.job("sh", "-c", "echo done", detached=True)
    await host.submit(spec)
    first = await host.wait_for_end(spec.id)
    await host.link.call("cancel", job=spec.id)
    async with host.another() as later:
        again = await later.wait_for_end(spec.id)
    expect_equal(again, first, "the record and output afterwards")


@ROOM.behaviour("A job over its wall limit ends as timeout, whatever it ignores")
async def wall_limit(host: ContractHost) -> None:
    """Ignore every signal."""
    done = await host.sh('trap "" TERM INT HUP; while :; do sleep 1; done', wall_s=0.5)
    expect_equal(done.record.status, "timeout", "status")
    expect("0.5 s" in done.record.note, "the note says the limit", done.record.note)


@ROOM.behaviour("A job that stops itself ends at its wall limit")
async def stopped_job(host: ContractHost) -> None:
    """Send SIGSTOP to itself."""
    expect_equal((await host.sh("kill -STOP $$", wall_s=0.5)).record.status, "timeout", "status")


@ROOM.behaviour("A job that closes its output is not taken for ended")
async def closed_output(host: ContractHost) -> None:
    """Close stdout and stderr and go on."""
    done = await host.sh("exec >&- 2>&-; sleep 0.5; exit 7")
    expect_equal(done.exit_code, 7, "exit code")


@ROOM.behaviour("A job ends with its leader, though a daemon holds its output")
async def daemons(host: ContractHost) -> None:
    """Leave processes behind."""
    done = await host.sh("setsid sleep 500 & (setsid sleep 500 >/dev/null 2>&1 &); echo left")
    expect_equal((done.record.status, done.stdout), ("ok", b"left\n"), "status and stdout")


@ROOM.behaviour("An attached job ends with its channel")
async def attached(host: ContractHost) -> None:
    """End the channel of a running job."""
    async with host.another() as lost:
        spec = host.job(*SAY_AND_WAIT)
        await lost.submit(spec)
        await lost.wait_for_output(spec.id)
    expect_equal((await host.wait_for_end(spec.id)).record.status, "caller_lost", "status")


@ROOM.behaviour("An attached job goes on for its grace after a lost line, and on and on while somebody asks for it")
async def grace(host: ContractHost) -> None:
    """Lose the line of a running job and ask for it over another."""
    async with host.another() as lost:
        spec = host.job("sh", "-c", "echo started; sleep 4; echo finished", grace_s=2.0)
        await lost.submit(spec)
        await lost.wait_for_output(spec.id)
        await lost.link.abandon()
    done = await host.wait_for_end(spec.id)
    expect_equal((done.record.status, done.stdout), ("ok", b"started\nfinished\n"), "status and stdout")


@ROOM.behaviour("An attached job that nobody asks for after a lost line ends when its grace is over")
async def forsaken(host: ContractHost) -> None:
    """Lose the line of a running job and let it be."""
    async with host.another() as lost:
        spec = host.job(*SAY_AND_WAIT, grace_s=0.5)
        await lost.submit(spec)
        await lost.wait_for_output(spec.id)
        await lost.link.abandon()
    await asyncio.sleep(1.5)  # asking would keep it alive
    done = await host.look(spec.id, timeout_s=5.0)
    expect_equal(done.record.status, "caller_lost", "status")
    expect("no request came" in done.record.note, "the note says why", done.record.note)


@ROOM.behaviour("A channel on which nothing is said for long enough is ended by the host, and its jobs with it")
async def silence(host: ContractHost) -> None:
    """Let a line fall silent, as one that was cut without a word."""
    async with host.another() as silent:
        spec = host.job(*SAY_AND_WAIT)
        await silent.submit(spec)
        await silent.wait_for_output(spec.id)
        await silent.link.call("hello", quiet_s=0.5)
        done = await host.wait_for_end(spec.id)
        expect_equal(done.record.status, "caller_lost", "status")


@ROOM.behaviour("A detached job survives its channel, and a new one finds it with all its output")
async def detached(host: ContractHost) -> None:
    """End the channel of a detached job and read on from an offset."""
    async with host.another() as lost:
        spec = host.job("sh", "-c", "echo started; sleep 1; echo finished", detached=True)
        await lost.submit(spec)
        await lost.wait_for_output(spec.id)
    done = await host.wait_for_end(spec.id)
    expect_equal((done.record.status, done.stdout), ("ok", b"started\nfinished\n"), "status and stdout")
    expect_equal((await host.look(spec.id, stdout_at=8)).stdout, b"finished\n", "stdout from byte 8")


@ROOM.behaviour("A detached job ends at its deadline without anybody's help")
async def detached_deadline(host: ContractHost) -> None:
    """Leave a job alone."""
    async with host.another() as lost:
        spec = host.job("sleep", "600", detached=True, wall_s=0.5)
        await lost.submit(spec)
    expect_equal((await host.wait_for_end(spec.id)).record.status, "timeout", "status")


@ROOM.behaviour("The latest jobs are listed, newest first")
async def listed(host: ContractHost) -> None:
    """List jobs."""
    ids = [(await host.run("true")).record.id for _ in range(2)]
    answer, _ = await host.link.call("list", limit=200)
    found = [record["id"] for record in answer["records"] if record["id"] in ids]
    expect_equal(sorted(found), sorted(ids), "both jobs")


@ROOM.behaviour("What the host does not know is refused in words, and the channel goes on")
async def unknown_requests(host: ContractHost) -> None:
    """Ask nonsense."""
    unknown = new_id()
    spec = to_json(host.job("true"))
    requests: tuple[tuple[type[BadRequest], str, dict[str, Any]], ...] = (
        (BadRequest, "dance", {}),
        (NotFound, "record", {"job": unknown}),
        (NotFound, "cancel", {"job": "../../etc"}),
        (BadRequest, "submit", {"spec": {**spec, "surprise": 1}, "blobs": []}),
        (BadRequest, "submit", {"spec": {**spec, "id": "../x"}, "blobs": []}),
        (BadRequest, "submit", {"spec": 7}),
    )
    for error, verb, arguments in requests:
        try:
            await host.link.call(verb, **arguments)
        except error as refusal:
            expect(str(refusal), "a refusal says why")
        else:
            expect(False, f"{verb} {arguments} is refused")
    expect_equal((await host.run("true")).record.status, "ok", "a job afterwards")


@ROOM.behaviour("Garbage ends the channel with a reason; who waits gets an error, never a success")
async def garbage(host: ContractHost) -> None:
    """Write what are no frames."""
    for noise in (b"GET / HTTP/1.1\r\nHost: there\r\n\r\n", b"Welcome to the box!\n", b"\xff" * 64):
        async with host.another() as lost:
            spec = host.job(*SAY_AND_WAIT)
            await lost.submit(spec)
            waiting = asyncio.create_task(lost.wait_for_end(spec.id))
            await lost.wait_for_output(spec.id)
            lost.link.raw_writer.write(noise + b"\0" * 4096)
            try:
                await asyncio.wait_for(waiting, 60)
            except HostUnavailable as error:
                expect(host.backend.name in str(error), "the error names the host", str(error))
            else:
                expect(False, "who waits gets an error")
            expect(not lost.link.is_open, "the link knows that it has ended")
    expect_equal((await host.run("true")).record.status, "ok", "a job of another channel")
