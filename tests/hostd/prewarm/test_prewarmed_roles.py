"""Several programs of one job, made ahead together: taken by one job whose shape is theirs, linked, and gone with it."""

import asyncio
import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.jobs.job_folder import JobFolder
from gpu_mcp_server.hostd.prewarm.prewarm_pool import IDLE, SHAPES
from gpu_mcp_server.hostd.prewarm.sandbox_template import template_for
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, JobSpec, ProcessSpec, to_json
from tests.hostd.conftest import Opener
from tests.hostd.laboratory import Done, Laboratory, alive, eventually, names
from tests.hostd.prewarm.test_prewarm_pool import took_one, until

SOURCE = """
import os, socket, sys
state = []
def prepare():
    state.append(open(os.environ["TREE_KIT"] + "/f").read())
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
            program=source, python="/usr/bin/python3", env={"ZED": zed},
        )  # fmt: skip

    blobs = [kit, secrets.token_hex(4).encode()]
    refs = [FileRef(p, hashlib.sha256(d).hexdigest(), len(d)) for p, d in zip(("f", "own"), blobs, strict=True)]
    spec = lab.spec(
        processes=(role("first", "second"), role("second", "first")),
        links=(("first", "second"),), outputs=("*",),
        files={"first": (refs[1],)}, trees={"kit": (refs[0],)},
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


async def test_they_wait_together_prepared_with_their_tree_and_take_one_job_each(warm):
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
async def test_another_tree_another_environment_or_program_are_another_shape(warm, other):
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
        before = set(names(full.state / "nests"))
        assert (await ran(full, spec, blobs)).text.startswith("['kit'] second")
        assert took_one(full, spec.id)
        assert eventually(lambda known=before: set(names(full.state / "nests")) - known)  # the next one has begun


async def test_nothing_is_made_while_the_processor_is_timed(warm):
    await ran(warm, *job(warm))  # leaves an empty place
    script = "echo ready; sleep 0.6"
    timed = await warm.start("/bin/sh", "-c", script, until=b"ready", gpus=GpuRequest(mode="exclusive", wait_s=15))
    before = names(warm.state / "nests")
    assert (await warm.wait(timed)).record.status == "ok"
    assert set(names(warm.state / "nests")) <= set(before)
    await until(warm, 1)


async def test_all_of_them_end_with_their_hostd(warm):
    marked = [JobFolder(str(p)).read_notes() for p in (warm.state / "nests").iterdir()]
    (about,) = [m for m in marked if len(m["workdirs"]) == 2]
    os.kill(warm.pid, 9)
    assert eventually(lambda: not alive(about["pid"]))
    assert eventually(lambda: not any(Path(w).exists() for w in about["workdirs"]))


async def announced(lab: Laboratory, spec: JobSpec, blobs: list[bytes]) -> list[str]:
    """Announce a job by what decides its shape; return which contents the host lacks."""
    listed = [[hashlib.sha256(d).hexdigest(), len(d)] for d in blobs]
    answer, _ = await lab.link.call("expect", b"".join(blobs), spec=to_json(spec._replace(files={})), blobs=listed)
    return answer["missing"]


async def test_the_first_job_takes_what_was_made_when_it_was_announced(full):
    spec, blobs = job(full)
    assert await announced(full, spec, blobs[:1]) == []
    await until(full, 1)
    done = await ran(full, spec, blobs)
    assert done.text == f"['kit'] second {blobs[1].decode()} z True ['prepared']\n", done.stderr
    assert took_one(full, spec.id)


async def test_a_first_job_that_was_announced_is_given_to_one_that_still_prepares(full):
    slow = SOURCE.replace("    state.append", "    import time; time.sleep(0.5)\n    state.append")
    spec, blobs = job(full, source=slow)
    await announced(full, spec, blobs[:1])
    assert eventually(lambda: len(names(full.state / "nests")) == 1)
    assert (await ran(full, spec, blobs)).text.startswith("['kit'] second")
    assert took_one(full, spec.id)


async def test_an_announcement_names_the_files_that_are_not_here_and_nothing_is_made(full):
    spec, blobs = job(full)
    lacking = [hashlib.sha256(blobs[0]).hexdigest()]
    assert await announced(full, spec, []) == lacking
    assert names(full.state / "nests") == []


async def test_another_job_than_the_one_announced_starts_cold_and_leaves_it_waiting(full):
    announcing, blobs = job(full)
    await announced(full, announcing, blobs[:1])
    await until(full, 1)
    other, others = job(full, zed="y")
    assert (await ran(full, other, others)).record.status == "ok"
    assert not took_one(full, other.id)
    assert (await ran(full, announcing, blobs)).record.status == "ok"
    assert took_one(full, announcing.id)


async def test_one_is_made_however_often_it_is_announced(full):
    spec, blobs = job(full)
    for _ in range(5):
        await announced(full, spec, blobs[:1])
    await until(full, 1)
    await announced(full, spec, blobs[:1])
    assert (await full.link.call("hello"))[0]["warm"] == 1
    assert len(names(full.state / "nests")) == 1


async def test_of_many_shapes_announced_those_of_the_last_ones_wait_and_no_more(full):
    for zed in "abcdefgh"[: SHAPES["several"] + 1]:
        spec, blobs = job(full, zed=zed)
        await announced(full, spec, blobs[:1])
        await until(full, 1)
    assert eventually(lambda: len(names(full.state / "nests")) == SHAPES["several"])
    await until(full, SHAPES["several"])
    assert (await ran(full, spec, blobs)).record.status == "ok"
    assert took_one(full, spec.id)


async def seen(lab: Laboratory) -> dict[str, Any]:
    """Wait until one of several programs is being made; return what it says of itself."""
    for _ in range(4000):
        found = [JobFolder(str(p)).read_notes() for p in (lab.state / "nests").iterdir()]
        several = [about for about in found if len(about.get("workdirs", [])) == 2]
        if several:
            return several[0]
        await asyncio.sleep(0.001)
    raise AssertionError("none was made")


async def gone(lab: Laboratory, about: dict[str, Any]) -> bool:
    """Say whether one is gone, with its workspaces, in time, and its hostd has heard of it."""
    for _ in range(2000):
        await lab.link.call("hello")
        if not alive(about["pid"]) and not any(Path(w).exists() for w in about["workdirs"]):
            await lab.link.call("hello")
            return True
        await asyncio.sleep(0.005)
    return False


async def test_what_was_announced_and_does_not_come_is_given_up_after_the_idle_time(open_lab, state):
    lab = await open_lab("full", **{LOCKS: str(state.parent / "locks"), IDLE: "1.5"})
    spec, blobs = job(lab)
    await announced(lab, spec, blobs[:1])
    made = await seen(lab)
    assert await gone(lab, made)
    assert ((await lab.link.call("hello"))[0]["warm"], names(lab.state / "nests")) == (0, [])


async def test_nothing_is_made_for_an_announcement_while_the_processor_is_timed(full):
    script = "echo ready; sleep 1000"
    timed = await full.start("/bin/sh", "-c", script, until=b"ready", gpus=GpuRequest(mode="exclusive", wait_s=15))
    spec, blobs = job(full)
    await announced(full, spec, blobs[:1])
    await full.link.call("hello")
    assert names(full.state / "nests") == []
    await full.link.call("cancel", job=timed)
    assert (await full.wait(timed)).record.status == "cancelled"
    await seen(full)
    assert (await ran(full, spec, blobs)).record.status == "ok"
    assert took_one(full, spec.id)


async def test_those_that_still_import_end_when_something_is_timed_and_are_made_again_afterwards(full):
    slow = SOURCE.replace("    state.append", "    import time; time.sleep(3)\n    state.append")
    spec, blobs = job(full, source=slow)
    await announced(full, spec, blobs[:1])
    importing = await seen(full)
    script = "echo ready; sleep 1000"
    timed = await full.start("/bin/sh", "-c", script, until=b"ready", gpus=GpuRequest(mode="exclusive", wait_s=15))
    assert await gone(full, importing)
    await full.link.call("cancel", job=timed)
    assert (await full.wait(timed)).record.status == "cancelled"
    await seen(full)
    assert (await ran(full, spec, blobs)).text.startswith("['kit'] second")
    assert took_one(full, spec.id)


async def test_an_announced_program_that_dies_while_it_is_prepared_is_not_made_again_and_its_job_starts_cold(full):
    source = SOURCE.replace("def prepare():", "def prepare():\n    import time; time.sleep(1); os._exit(1)")
    spec, blobs = job(full, source=source)
    await announced(full, spec, blobs[:1])
    assert await gone(full, await seen(full))
    await announced(full, spec, blobs[:1])
    done = await ran(full, spec, blobs)
    assert (done.text, took_one(full, spec.id)) == (f"[] second {blobs[1].decode()} z True []\n", False)


GPU = {"uuid": "GPU-a", "memory_total_bytes": 1 << 30, "arch": "sm_90"}


async def test_gpus_are_shown_ahead_only_where_no_others_could_be_had(full):
    spec, _ = job(full)
    asking = spec._replace(gpus=GpuRequest(count=1, mode="exclusive"))
    shape = template_for(asking, [GPU])
    assert shape is not None and shape.gpus == ("GPU-a",)
    assert template_for(asking, [GPU, {**GPU, "uuid": "GPU-b"}]) is None
    assert template_for(asking._replace(gpus=asking.gpus._replace(uuids=("GPU-b",))), [GPU]) is None
    assert template_for(asking, []) is None
