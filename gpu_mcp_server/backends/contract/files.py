"""Files travel by content, both ways, and never half."""

import asyncio
import secrets

from gpu_mcp_server.backends.contract.behaviour import BehaviourGroup, expect, expect_equal
from gpu_mcp_server.backends.contract.host import ContractHost, sha256
from gpu_mcp_server.errors import BadRequest, GpuMcpError, NotFound
from gpu_mcp_server.hostd import protocol
from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, to_json

ROOM = BehaviourGroup("files")

SMALL_FILES = 1000
LARGE_BYTES = 3 << 20


@ROOM.behaviour("Content that is missing is named and nothing runs; content that is there does not travel again")
async def only_what_is_missing(host: ContractHost) -> None:
    """Submit without, with, and again without the content."""
    data = secrets.token_bytes(64)
    spec = host.job("cat", "in/data", files={"in/data": data})
    expect_equal(await host.submit(spec), {"missing": [sha256(data)]}, "answer without the content")
    expect_equal(await host.submit(spec, {"in/data": data}), {"claimed": True}, "answer with the content")
    again = host.job("cat", "in/data", files={"in/data": data})
    expect_equal(await host.submit(again), {"claimed": True}, "answer to another job without the content")
    expect_equal((await host.wait_for_end(spec.id)).stdout, data, "what the first job read")
    expect_equal((await host.wait_for_end(again.id)).stdout, data, "what the second job read")


@ROOM.behaviour("New and changed files come back by content")
async def outputs(host: ContractHost) -> None:
    """Make a file and change one."""
    script = b"mkdir -p out/deep; printf new >out/deep/a; printf more >>kept; printf x >dropped"
    done = await host.run("sh", "go.sh", files={"go.sh": script, "kept": b"old"}, outputs=("out/deep/a", "kept"))
    found = {o.path: await host.fetch(o.sha256) for o in done.record.outputs}
    expect_equal(found, {"out/deep/a": b"new", "kept": b"oldmore"}, "the files")


@ROOM.behaviour("All that is new or changed comes back for `*`, and what was not touched does not")
async def all_outputs(host: ContractHost) -> None:
    """Ask for everything."""
    done = await host.run("sh", "-c", "echo 1 >new; cat same", files={"same": b"as before"}, outputs=("*",))
    expect_equal([o.path for o in done.record.outputs], ["new"], "the files")


@ROOM.behaviour("An output that was not written, or that vanished, does not come back and harms nothing")
async def missing_output(host: ContractHost) -> None:
    """Ask for a file that was removed, one that never was, and one that is there."""
    done = await host.sh("rm given; echo x >there", files={"given": b"x"}, outputs=("given", "never", "there"))
    expect_equal(done.record.status, "ok", "status")
    expect_equal([o.path for o in done.record.outputs], ["there"], "files that came back")


@ROOM.behaviour("A thousand small files travel in one frame")
async def thousand_files(host: ContractHost) -> None:
    """Count and read them there."""
    files = {f"d{n % 10}/f{n}": b"%d" % n * 500 for n in range(SMALL_FILES)}
    done = await host.run("sh", "-c", "find . -type f | wc -l; cat d7/f7", files=files)
    expect_equal(done.stdout, b"1000\n" + b"7" * 500, "their number and one of them")


@ROOM.behaviour("Three megabytes of any bytes come back as they went")
async def binary_files(host: ContractHost) -> None:
    """Copy a random file."""
    data = secrets.token_bytes(LARGE_BYTES)
    done = await host.run("cp", "there", "back", files={"there": data}, outputs=("back",))
    expect_equal([o.size for o in done.record.outputs], [LARGE_BYTES], "sizes")
    expect(await host.fetch(done.record.outputs[0].sha256) == data, "the same bytes")


@ROOM.behaviour("Names in any script, with spaces and quotes, go and come back")
async def odd_names(host: ContractHost) -> None:
    """Copy files with such names."""
    names = ["ü ñ/漢字.txt", "with 'quotes\".c", "-rf", "a b", "💡"]
    files = {name: name.encode() for name in names}
    script = (
        "import pathlib\nfor p in list(pathlib.Path('.').rglob('*')):\n"
        " if p.is_file(): p.with_name(p.name + '+').write_bytes(p.read_bytes())"
    )
    done = await host.python(script, files=files, outputs=("*",))
    found = {o.path: await host.fetch(o.sha256) for o in done.record.outputs}
    expect_equal(found, {f"{name}+": name.encode() for name in names}, "the copies")


@ROOM.behaviour("A program that is sent as executable runs, and a new one comes back so")
async def modes(host: ContractHost) -> None:
    """Run a script by its own name."""
    script = b"#!/bin/sh\ncp tool made; chmod 4755 made\n"
    done = await host.run("./tool", files={"tool": script}, modes={"tool": 0o755}, outputs=("made",))
    expect_equal(done.record.status, "ok", "status")
    expect_equal([o.mode & 0o7111 for o in done.record.outputs], [0o111], "executable, and not set-uid")


@ROOM.behaviour("Links out of the workspace are never followed")
async def links_out(host: ContractHost) -> None:
    """Plant links where outputs are taken."""
    script = "ln -s /etc/hostname leak; ln -s /etc dir; ln leak hard 2>/dev/null; echo ok >real"
    done = await host.sh(script, outputs=("leak", "dir/hostname", "real"))
    expect_equal([o.path for o in done.record.outputs], ["real"], "files that came back")
    expect_equal(len(done.record.outputs_left_out), 2, "files left out")
    everything = await host.sh(script, outputs=("*",))
    expect_equal([o.path for o in everything.record.outputs], ["real"], "all files that came back")


@ROOM.behaviour("A pipe among the outputs is left out and holds nobody up")
async def pipes(host: ContractHost) -> None:
    """Plant a FIFO."""
    done = await host.sh("mkfifo f; echo x >g", outputs=("f", "g"))
    expect_equal([o.path for o in done.record.outputs], ["g"], "files that came back")


@ROOM.behaviour("Paths that leave the workspace are refused before anything runs")
async def paths_outside(host: ContractHost) -> None:
    """Ask for such files."""
    for path in ("../out", "/etc/passwd", "a/../../b", "a//b", ""):
        spec = host.job("true", outputs=(path,))
        expect(await _refused(host, spec), f"outputs {path!r} are refused")
        laid = JobSpec(
            id=spec.id, processes=spec.processes, files={"main": (FileRef(path, sha256(b""), 0),)}, min_level=host.level
        )
        expect(await _refused(host, laid), f"a file {path!r} is refused")


async def _refused(host: ContractHost, spec: JobSpec) -> bool:
    try:
        await host.link.call("submit", spec=to_json(spec), blobs=[])
    except BadRequest:
        return True
    return False


@ROOM.behaviour("Content that does not have its hash is refused and not kept")
async def damaged_content(host: ContractHost) -> None:
    """Put a content under another's name."""
    name = sha256(secrets.token_bytes(16))
    try:
        await host.link.call("put", b"something else", blobs=[[name, 14]])
    except GpuMcpError as error:
        expect("hash" in str(error), "the refusal names the hash", str(error))
    else:
        expect(False, "damaged content is refused")
    answer, _ = await host.link.call("have", sha256=[name])
    expect_equal(answer, {"missing": [name]}, "what is missing")


@ROOM.behaviour("A transfer that is cut leaves no half file")
async def cut_transfer(host: ContractHost) -> None:
    """Send half a frame and end the channel."""
    data = secrets.token_bytes(1 << 20)
    frame = protocol.pack({"id": 10_000, "verb": "put", "blobs": [[sha256(data), len(data)]]}, data)
    async with host.another() as cut:
        cut.link.raw_writer.write(frame[: len(frame) // 2])
        await cut.link.raw_writer.drain()
    answer, _ = await host.link.call("have", sha256=[sha256(data)])
    expect_equal(answer, {"missing": [sha256(data)]}, "what is missing")
    await host.link.call("put", data, blobs=[[sha256(data), len(data)]])
    expect(await host.fetch(sha256(data)) == data, "the content after it was sent again")


@ROOM.behaviour("A content that nobody has is not found, in words")
async def unknown_content(host: ContractHost) -> None:
    """Fetch it."""
    try:
        await host.fetch(sha256(secrets.token_bytes(16)))
    except NotFound:
        return
    expect(False, "an unknown content is refused as not found")


@ROOM.behaviour("Every job has a workspace of its own, laid anew")
async def fresh_workspace(host: ContractHost) -> None:
    """Change a file in one job and look in another with the same files."""
    given = {"data": b"as given"}
    first = await host.sh("cat data; echo changed >data; echo x >mine", files=given)
    second = await host.sh("cat data; ls", files=given)
    expect_equal((first.stdout, second.stdout), (b"as given", b"as givendata\n"), "what each found")


@ROOM.behaviour("Contents sent by several channels at once are each kept whole")
async def put_at_once(host: ContractHost) -> None:
    """Put the same contents over two channels."""
    contents = [secrets.token_bytes(100_000) for _ in range(8)]
    listed = [[sha256(c), len(c)] for c in contents]
    async with host.another() as other:
        await asyncio.gather(
            *(one.link.call("put", b"".join(contents), blobs=listed) for one in (host, other, host, other))
        )
    for content in contents:
        expect(await host.fetch(sha256(content)) == content, "the content as it was sent")
