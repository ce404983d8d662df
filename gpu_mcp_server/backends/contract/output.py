"""Output comes back whole, in time, within its limit."""

import asyncio

from gpu_mcp_server.backends.contract.behaviour import BehaviourGroup, expect, expect_equal
from gpu_mcp_server.backends.contract.host import ContractHost

ROOM = BehaviourGroup("output")

SAY_AND_WAIT = ("sh", "-c", "echo started; exec sleep 600")
FLOOD_BYTES = 50_000_000


@ROOM.behaviour("Every byte comes back as it was written")
async def all_bytes(host: ContractHost) -> None:
    """Write each byte value many times."""
    done = await host.python("import os\nfor _ in range(2048): os.write(1, bytes(range(256)))")
    expect_equal(done.stdout, bytes(range(256)) * 2048, "stdout")


@ROOM.behaviour("Stdout and stderr are kept apart")
async def two_streams(host: ContractHost) -> None:
    """Write to both."""
    done = await host.sh("echo out; echo err >&2; echo more")
    expect_equal((done.stdout, done.stderr), (b"out\nmore\n", b"err\n"), "stdout and stderr")


@ROOM.behaviour("Output is seen while the program still runs")
async def streams(host: ContractHost) -> None:
    """Look at a job that goes on."""
    spec = host.job("sh", "-c", "echo one; exec sleep 600")
    await host.submit(spec)
    seen = await host.look(spec.id, timeout_s=30, on_output=True)
    while not seen.stdout and seen.record.state != "finished":
        seen = await host.look(spec.id, timeout_s=30, on_output=True)
    expect_equal((seen.record.state, seen.stdout), ("running", b"one\n"), "state and stdout")


@ROOM.behaviour("Output is read again from any byte offset, also after the end")
async def read_again(host: ContractHost) -> None:
    """Read a tail."""
    spec = host.job("sh", "-c", "echo err >&2; echo one; exec sleep 600")
    await host.submit(spec)
    await host.wait_for_output(spec.id, b"one\n")
    await host.link.call("cancel", job=spec.id)
    done = await host.wait_for_end(spec.id)
    expect_equal((done.stdout, done.stderr), (b"one\n", b"err\n"), "stdout and stderr")
    again = await host.look(spec.id, stdout_at=2, stderr_at=4)
    expect_equal((again.stdout, again.stderr), (b"e\n", b""), "what is behind the offsets")
    _, part = await host.link.call("read", job=spec.id, stream="stdout", offset=1, size=2)
    expect_equal(part, b"ne", "a part of stdout")


@ROOM.behaviour("Output that is there already is given at once")
async def given_at_once(host: ContractHost) -> None:
    """Ask again for what was seen."""
    spec = host.job(*SAY_AND_WAIT)
    await host.submit(spec)
    await host.wait_for_output(spec.id)
    again = await asyncio.wait_for(host.look(spec.id, timeout_s=600, on_output=True), 60)
    expect_equal((again.record.state, again.stdout), ("running", b"started\n"), "state and stdout")


@ROOM.behaviour("A flood is counted, kept up to its limit, and hurts nobody")
async def flood(host: ContractHost) -> None:
    """Write 50 MB with a limit of 64 KiB."""
    script = f"head -c {FLOOD_BYTES} /dev/zero"
    done = await host.sh(script, limits={"output_bytes": 65536})
    expect_equal(done.record.status, "ok", "status")
    expect_equal(len(done.stdout), 65536, "bytes kept")
    expect_equal(done.record.stdout_bytes, FLOOD_BYTES, "bytes counted")


@ROOM.behaviour("One line of three megabytes is kept whole where the limit allows it")
async def long_line(host: ContractHost) -> None:
    """Write a line without an end."""
    done = await host.sh("head -c 3000000 /dev/zero | tr '\\0' x", limits={"output_bytes": 4 << 20})
    expect_equal(len(done.stdout), 3_000_000, "bytes kept")
    expect(set(done.stdout) == {ord("x")}, "only what was written")


@ROOM.behaviour("What is no text comes back too, terminal sequences included")
async def no_text(host: ContractHost) -> None:
    """Write an escape sequence and bad UTF-8."""
    done = await host.sh("printf '\\033]52;c;ZXZp\\007\\033[2J\\377\\376'")
    expect_equal(done.stdout, b"\x1b]52;c;ZXZp\x07\x1b[2J\xff\xfe", "stdout")
