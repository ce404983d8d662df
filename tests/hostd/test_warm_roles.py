"""Several programs of one job, made ahead together: taken by one job whose shape is theirs, linked, and gone with it."""

import hashlib
import os
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.host import LOCKS
from gpu_mcp_server.hostd.jobs import JobFolder
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, JobSpec, ProcessSpec, to_json
from gpu_mcp_server.hostd.shape import shape_of
from tests.hostd.conftest import Opener
from tests.hostd.laboratory import Done, Laboratory, alive, eventually, names
from tests.hostd.test_warm import took_one, until

SOURCE = """
import os, socket, sys
state = []
def prepare():
    state.append(open("kit/f").read())
    open("/tmp/prepared", "w").close()
def main(arguments):
    role, other = arguments
    link = socket.socket(fileno=int(os.environ["LINK_" + other.upper()]))
    link.send(role.encode())
    heard = link.recv(64).decode()
    if role == "first":
        print(state, heard, open("own").read(), os.environ["ZED"], "LINK_SUPERVISOR" in os.environ, os.listdir("/tmp"))
        open("result", "w").write("made")
"""


def job(lab: Laboratory, kit: bytes = b"kit", source: str = SOURCE, zed: str = "z") -> tuple[JobSpec, list[bytes]]:
    def role(name: str, other: str) -> ProcessSpec:
        return ProcessSpec(
            ("role", name, other), role=name, trusted=name == "first", workspace=name,
            program=source, python="/usr/bin/python3", ahead="kit", env={"ZED": zed},
        )  # fmt: skip

    blobs = [kit, secrets.token_hex(4).encode()]
    refs = [FileRef(p, hashlib.sha256(d).hexdigest(), len(d)) for p, d in zip(("kit/f", "own"), blobs, strict=True)]
    spec = lab.spec(
        processes=(role("first", "second"), role("second", "first")),
        links=(("first", "second"),), outputs=("*",),
        files={"first": tuple(refs), "second": (refs[0],)},
    )  # fmt: skip
    return spec, blobs


async def ran(lab: Laboratory, spec: JobSpec, blobs: list[bytes]) -> Done:
    listed = [[hashlib.sha256(d).hexdigest(), len(d)] for d in blobs]
    assert await lab.link.call("submit", b"".join(blobs), spec=to_json(spec), blobs=listed) == ({"claimed": True}, b"")
    return await lab.wait(spec.id)


@pytest.fixture
async def full(open_lab: Opener, state: Path) -> Laboratory:
    """Return a hostd with locks of its own: while others time something it would make nothing."""
    return await open_lab("full", **{LOCKS: str(state.parent / "locks")})


@pytest.fixture
async def warm(full: Laboratory) -> Laboratory:
    await ran(full, *job(full))
    await until(full, 1)
    return full


async def test_they_wait_together_prepared_with_what_lies_there_ahead_and_take_one_job_each(warm):
    for _ in range(2):
        spec, blobs = job(warm)
        done = await ran(warm, spec, blobs)
        assert done.text == f"['kit'] second {blobs[1].decode()} z True ['prepared']\n", done.stderr
        assert [o.path for o in done.record.outputs] == ["result"]
        assert (done.record.processes[0].role, done.record.processes[0].exit_code) == ("first", 0)
        assert took_one(warm, done.record.id)
        await until(warm, 1)


async def test_without_them_the_same_job_starts_its_programs_unprepared(full):
    spec, blobs = job(full)
    done = await ran(full, spec, blobs)
    assert (done.text, took_one(full, spec.id)) == (f"[] second {blobs[1].decode()} z True []\n", False)


@pytest.mark.parametrize("other", [{"kit": b"another"}, {"zed": "y"}, {"source": SOURCE + "#"}], ids=str)
async def test_other_files_ahead_another_environment_or_program_are_another_shape(warm, other):
    spec, blobs = job(warm, **other)
    done = await ran(warm, spec, blobs)
    assert done.record.status == "ok"
    assert not took_one(warm, spec.id)


async def test_one_that_still_prepares_takes_a_job_and_is_not_cut_short(full):
    slow = SOURCE.replace("    state.append", "    import time; time.sleep(0.5)\n    state.append")
    await ran(full, *job(full, source=slow))
    await until(full, 1)
    for _ in range(2):
        spec, blobs = job(full, source=slow)
        assert (await ran(full, spec, blobs)).text.startswith("['kit'] second")
        assert took_one(full, spec.id)
        assert eventually(lambda: len(names(full.state / "nests")) == 1)  # the next one has begun


async def test_nothing_is_made_while_the_processor_is_timed(warm):
    await ran(warm, *job(warm))  # leaves an empty place
    script = "echo ready; sleep 0.6"
    timed = await warm.start("/bin/sh", "-c", script, until=b"ready", gpus=GpuRequest(mode="exclusive", wait_s=15))
    before = names(warm.state / "nests")
    assert (await warm.wait(timed)).record.status == "ok"
    assert set(names(warm.state / "nests")) <= set(before)
    await until(warm, 1)


async def test_all_of_them_end_with_their_hostd(warm):
    marked = [JobFolder(str(p)).noted() for p in (warm.state / "nests").iterdir()]
    (about,) = [m for m in marked if len(m["workdirs"]) == 2]
    os.kill(warm.pid, 9)
    assert eventually(lambda: not alive(about["pid"]))
    assert eventually(lambda: not any(Path(w).exists() for w in about["workdirs"]))


GPU = {"uuid": "GPU-a", "memory_total_bytes": 1 << 30, "arch": "sm_90"}


async def test_gpus_are_shown_ahead_only_where_no_others_could_be_had(full):
    spec, _ = job(full)
    asking = replace(spec, gpus=GpuRequest(count=1, mode="exclusive"))
    shape = shape_of(asking, [GPU])
    assert shape is not None and shape.gpus == ("GPU-a",)
    assert shape_of(asking, [GPU, {**GPU, "uuid": "GPU-b"}]) is None
    assert shape_of(replace(asking, gpus=replace(asking.gpus, uuids=("GPU-b",))), [GPU]) is None
    assert shape_of(asking, []) is None
