"""Bad input over the channel: a clear error, and jobs of others unharmed."""
# nothing else runs on the loop of a test

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.backends.bundle import HOSTD
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.errors import BadRequest, GpuMcpError, HostUnavailable
from gpu_mcp_server.hostd.protocol import GpuRequest, ProcessSpec, pack, read_frame, to_json
from tests.hostd.laboratory import Laboratory, names


async def refused(lab, **changes) -> str:
    spec = {**to_json(lab.spec("true")), **changes}
    with pytest.raises(BadRequest) as caught:
        await lab.link.call("submit", spec=spec, blobs=[])
    return str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"walls": 1}, {"limits": {"wall_s": 1, "memroy_bytes": 1}}, {"id": "../../x"}, {"id": "A B"}, {"id": 7},
        {"processes": []}, {"processes": [{"argv": []}]}, {"processes": [{"argv": ["true"], "root": True}]},
        {"processes": [{"argv": ["a"], "role": "../x"}]}, {"processes": [{"argv": ["a"], "role": "x"}, {"argv": ["b"], "role": "x"}]},
        {"processes": [{"argv": ["true", "a\0--bind\0/\0/"]}]}, {"processes": [{"argv": ["true"], "env": {"A": "x\0--bind\0/\0/"}}]},
        {"processes": [{"argv": ["true"], "env": {"A\0--bind\0/\0/": "x"}}]}, {"processes": [{"argv": ["true"], "env": {"A=B": "x"}}]},
        {"processes": [{"argv": ["true"], "env": {"LINK_X": "3"}}]}, {"processes": [{"argv": ["true", 7]}]},
        {"processes": [{"argv": ["true", "\ud800"]}]}, {"processes": "true"}, {"processes": [["true"]]},
        {"links": [["main", "nobody"]]}, {"links": [["main"]]}, {"links": "ab"}, {"files": {"other": []}}, {"files": []},
        {"files": {"main": [{"path": "a", "sha256": "0" * 64, "size": 1}, {"path": "a/b", "sha256": "0" * 64, "size": 1}]}},
        {"files": {"main": [{"path": "a", "sha256": "../../etc", "size": 1}]}}, {"files": {"main": [{"path": "a"}]}},
        {"outputs": ["/etc/passwd"]}, {"outputs": "*"}, {"roots": ["relative"]}, {"roots": ["/a\0--bind"]},
        {"limits": {"wall_s": -1}}, {"limits": {"wall_s": "long"}}, {"limits": {"memory_bytes": 1.5}}, {"limits": []},
        {"limits": {"wall_s": float("nan")}}, {"limits": {"disk_files": True}}, {"gpus": {"count": -1}},
        {"gpus": {"count": 1, "mode": "none"}}, {"gpus": {"count": 1, "mode": "mine"}}, {"network": "yes"},
        {"stdin": "x" * (1 << 20) + "y"}, {"stdin": 7}, {"purpose": "a b"},
    ],
    ids=lambda c: str(c)[:50],
)  # fmt: skip
async def test_a_specification_that_is_not_sound_is_refused_and_makes_no_job(full, changes):
    message = await refused(full, **changes)
    assert message
    assert names(full.state / "jobs") == []
    assert (await full.link.call("hello"))[0]["pid"] == full.pid


async def test_requests_that_are_none_are_answered_with_an_error(full):
    for verb, arguments in (
        ("nonsense", {}), ("record", {}), ("fetch", {}), ("fetch", {"sha256": "x"}), ("fetch", {"sha256": "../../etc/passwd"}),
        ("fetch", {"sha256": "0" * 64}), ("have", {}), ("have", {"sha256": [7]}), ("put", {"blobs": [["0" * 64, 5]]}),
        ("put", {"blobs": "x"}), ("submit", {}), ("submit", {"spec": []}), ("list", {"limit": "x"}), ("wait", {"job": None}),
    ):  # fmt: skip
        with pytest.raises(GpuMcpError):
            await full.link.call(verb, **arguments)
    assert (await full.sh("echo on")).text == "on\n"
    job = (await full.sh("true")).record.id
    for arguments in ({"stdout_at": "x"}, {"timeout_s": "long"}):
        with pytest.raises(BadRequest):
            await full.link.call("wait", job=job, **arguments)
    for arguments in ({"stream": "record.json"}, {"stream": "stdout", "role": "../x"}):
        with pytest.raises(GpuMcpError):
            await full.link.call("read", job=job, offset=0, size=9, **arguments)


async def test_contents_that_are_not_what_they_say_are_refused(full):
    with pytest.raises(BadRequest, match="does not have the hash"):
        await full.link.call("put", b"other", blobs=[["0" * 64, 5]])
    with pytest.raises(BadRequest, match="announced"):
        await full.link.call("put", b"longer", blobs=[[hashlib.sha256(b"x").hexdigest(), 1]])


async def test_a_job_whose_contents_are_missing_says_which(full):
    spec = full.spec("true")
    missing = "0" * 64
    spec = spec._replace(files={"main": ({"path": "a", "sha256": missing, "size": 1},)})
    answer, _ = await full.link.call("submit", spec=to_json(spec), blobs=[])
    assert answer == {"missing": [missing]}


def start_hostd(state) -> "subprocess.Popen[bytes]":
    code = f"import sys; sys.path.insert(0, {str(HOSTD.parent)!r}); from hostd.__main__ import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code, "serve", str(state)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_what_is_no_frame_ends_the_channel_and_says_why(state):
    hostd = start_hostd(state)
    out, err = hostd.communicate(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    assert (hostd.returncode, out) == (3, b"")
    assert b"not a frame" in err
    assert b"Traceback" not in err


def test_a_frame_that_is_no_request_is_answered_and_the_channel_stays(state):
    hostd = start_hostd(state)
    assert hostd.stdin and hostd.stdout and hostd.stderr
    for text in (b"\xff\xfe", b"[]", b"7", b"{}", b'{"verb": []}', b'{"verb": "hello"}', b"[" * 100_000):
        head = pack({}, b"")[:12]
        hostd.stdin.write(len(text).to_bytes(4, "big") + head[4:] + text)
        hostd.stdin.flush()
        reply = read_frame(hostd.stdout)
        assert reply is not None
        assert reply[0]["error"]["kind"] in ("bad_request", "protocol")
    out, err = hostd.communicate(pack({"id": 1, "verb": "hello"}))
    assert (hostd.returncode, err) == (0, b"")
    assert b'"pid"' in out


def test_a_caller_that_stops_listening_ends_hostd_quietly(state):
    hostd = start_hostd(state)
    assert hostd.stdin and hostd.stdout and hostd.stderr
    hostd.stdout.close()
    hostd.stdin.write(pack({"id": 1, "verb": "hello"}) * 3)
    hostd.stdin.close()
    assert hostd.wait(10) == 0
    assert hostd.stderr.read() == b""
    hostd.stderr.close()


async def test_a_probe_does_not_hold_up_the_channel(full):
    probe = asyncio.create_task(full.link.call("probe", judge_pythons=["/bin/sleep"]))
    done = await full.sh("echo meanwhile")
    assert done.text == "meanwhile\n"
    answer, _ = await probe
    assert (answer["level"], answer["gpus"] is not None) == ("full", True)


async def test_a_large_content_arrives_whole(full):
    data = os.urandom(40 << 20)
    sha256 = hashlib.sha256(data).hexdigest()
    await full.link.call("put", data, blobs=[[sha256, len(data)]])
    assert (await full.link.call("fetch", sha256=sha256))[1] == data


async def test_a_lost_channel_is_said_to_who_waits(full):
    job = await full.start("sleep", "1000")
    waiting = asyncio.create_task(full.wait(job))
    await asyncio.sleep(0)
    os.kill(full.pid, 9)
    with pytest.raises(HostUnavailable):
        await waiting


async def test_finished_and_running_jobs_are_listed_newest_first(full):
    first = (await full.sh("true")).record.id
    second = await full.start("sleep", "1000")
    answer, _ = await full.link.call("list", limit=10)
    assert {r["id"]: r["state"] for r in answer["records"]} == {first: "finished", second: "running"}
    gpus, _ = await full.link.call("gpus")
    assert gpus["jobs_running"] == 1
    assert gpus["load"] >= 0 and 0 < gpus["memory_available_bytes"] < os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    )


async def test_more_gpus_than_a_host_can_have_are_refused(full):
    with pytest.raises(BadRequest):
        await full.submit(full.spec(processes=(ProcessSpec(("true",)),), gpus=GpuRequest(1000, "shared")))


async def test_hostd_runs_under_python_3_8(state):
    known = [*(Path.home() / ".pyenv/versions").glob("3.8.*/bin/python3.8"), *Path("/usr/bin").glob("python3.8")]
    works = [p for p in known if subprocess.run([p, "-c", "import ctypes"], capture_output=True).returncode == 0]
    if not works:
        pytest.skip("no Python 3.8 here")
    lab = Laboratory(await HostdClient.open(LocalBackend(python=str(works[0]), state_dir=str(state))), state)
    try:
        assert str(lab.link.greeting["python"]).startswith("3.8.")
        for _ in range(2):
            await lab.warm_up()
            done = await lab.sh("cat f; echo x > out", contents={"f": b"laid"}, outputs=("*",))
            assert (done.record.status, done.text, len(done.record.outputs)) == ("ok", "laid", 1)
        assert (await lab.link.call("probe"))[0]["machine"]
        assert (state / "supervisor.log").read_text() == ""
    finally:
        await lab.close()
