"""hostd as an ordinary user, as most people start it; and as root, which must never run a job as root."""
# nothing else runs on the loop of a test

import os
import secrets
import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.backends.bundle import HOSTD
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.hostd.sandbox import landlock
from gpu_mcp_server.hostd.sandbox.confinement import BY_BUBBLEWRAP, Sandbox, SandboxSpec
from gpu_mcp_server.hostd.sandbox.mounts import can_access
from tests.hostd.apptainers import surroundings
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import Laboratory, eventually, processes_with, workspaces, wrapped

UID = 61500
AS_USER = f"setpriv --reuid {UID} --regid {UID} --clear-groups"
PYTHON = "/usr/bin/python3"


@pytest.fixture(params=["full", "namespaces", "apptainer", "landlock"])
async def user(request, state: Path):
    """Return a hostd that an ordinary user has started; a level is the most that it may find."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not Path(PYTHON).exists():
        pytest.skip("needs root, setpriv and a system Python to become an ordinary user")
    if not can_access(str(HOSTD), UID, 0o5):
        pytest.skip(f"{HOSTD} cannot be read by an ordinary user")
    env = surroundings("stand-in", state.parent)[1] if request.param == "apptainer" else {}
    lab = Laboratory(await HostdClient.open(as_user(state, {**env, "GPU_MCP_HOSTD_LEVEL": request.param})), state)
    assert lab.link.greeting["root"] is False
    expected = ("full", "namespaces") if request.param in ("full", "namespaces") else (request.param,)
    assert lab.level in expected, lab.weaker_because
    yield lab
    await lab.close()


async def test_jobs_of_an_ordinary_user_run_and_bring_their_files_back(user):
    script = "id -u; cat f; echo changed >> f; mkdir -p d; echo new > d/n; echo err > /dev/stderr"
    done = await user.sh(script, contents={"f": b"laid\n"}, outputs=("*",))
    assert done.record.status == "ok", done
    assert done.text == ("10001" if user.level in BY_BUBBLEWRAP else str(UID)) + "\nlaid\n"
    assert done.stderr == b"err\n"
    assert sorted(o.path for o in done.record.outputs) == ["d/n", "f"]
    assert done.record.level == user.level


async def test_jobs_of_an_ordinary_user_have_limits(user):
    hog = "held = []\nwhile True: held.append(bytearray(b'x') * (4 << 20))"
    done = await user.python(hog, limits={"memory_bytes": 64 << 20})
    assert done.record.status == "oom"
    bomb = (
        "import os, time\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(1000)\n"
        "except BlockingIOError: time.sleep(1000)"
    )
    done = await user.python(bomb, limits={"processes": 30, "wall_s": 5})
    assert done.record.status == "failed"
    assert "limit of 30 processes" in done.record.note
    done = await user.sh("head -c 40000000 /dev/zero > a; sleep 1000", limits={"disk_bytes": 16 << 20})
    assert done.record.status == "disk_quota"
    if user.level != "landlock":  # whose /tmp is the host's
        many = "i=0; while :; do i=$((i + 1)); : > /tmp/$i; done"
        done = await user.sh(many, limits={"tmp_files": 1000})
        assert (done.record.status, "1000 files in /tmp" in done.record.note) == ("disk_quota", True), done
    done = await user.sh("sleep 1000", limits={"wall_s": 0.3})
    assert done.record.status == "timeout"


async def test_trees_that_a_job_closed_are_removed_by_an_ordinary_user(user):
    done = await user.sh("mkdir -p a/b; touch a/b/f; chmod 000 a/b a; chmod 500 .", outputs=("*",))
    assert [o.path for o in done.record.outputs] == ["a/b/f"]
    assert eventually(lambda: workspaces(user.state, done.record.id) == [])


async def test_a_killed_supervisor_of_an_ordinary_user_leaves_nothing(user):
    marker = secrets.token_hex(8)
    script = "echo ready; (setsid sleep 1000 &); cd /; exec env -i sleep 1000"
    job = await user.start("/bin/sh", "-c", script, env={"MARKER": marker}, until=b"ready")
    os.kill(user.supervisor(job), 9)
    done = await user.wait(job)
    assert done.record.status == "broken"
    assert eventually(lambda: processes_with(marker) == [])
    assert eventually(lambda: workspaces(user.state, done.record.id) == [])


async def test_a_hundred_jobs_of_an_ordinary_user_run_at_once(user):
    import asyncio

    specs = [user.spec("/bin/sh", "-c", f"echo {i}") for i in range(50)]
    await asyncio.gather(*(user.submit(s) for s in specs))
    done = await asyncio.gather(*(user.wait(s.id, timeout_s=60) for s in specs))
    assert [d.text for d in done] == [f"{i}\n" for i in range(50)]


def as_user(state: Path, env: dict[str, str]) -> LocalBackend:
    """Return the way to a hostd of an ordinary user, with its folder made."""
    python = wrapped(state, {"HOME": "/nonexistent", **env}, AS_USER, PYTHON)
    state.mkdir(mode=0o700)
    os.chown(state, UID, UID)
    return LocalBackend(python=str(python), state_dir=str(state))


@needs_root
@pytest.mark.parametrize(("version", "scoped"), [(landlock.SCOPES - 1, False), (landlock.SCOPES, True)])
async def test_jobs_that_can_stop_each_other_are_told_of_by_their_host(state: Path, version: int, scoped: bool):
    if landlock.abi() < version or not can_access(str(HOSTD), UID, 0o5):
        pytest.skip(f"Landlock {version} is needed, and a hostd that an ordinary user can read")
    env = {"GPU_MCP_HOSTD_LEVEL": "landlock", landlock.OLDER: str(version)}
    lab = Laboratory(await HostdClient.open(as_user(state, env)), state)
    marker = secrets.token_hex(8)
    job = await lab.start("/bin/sh", "-c", "echo ready; exec sleep 1000", env={"MARKER": marker}, until=b"ready")
    assert eventually(lambda: len(processes_with(marker)) == 1)  # while it execs, its environment reads as empty
    (neighbour,) = processes_with(marker)
    done = await lab.python(f"import os\nos.kill({neighbour}, 19)")
    stopped = Path(f"/proc/{neighbour}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    probe, _ = await lab.link.call("probe")
    await lab.link.call("cancel", job=job)
    await lab.close()

    assert (stopped, done.record.leader.exit_code == 0) == (not scoped, not scoped), done
    assert probe["signals_scoped"] is scoped
    assert ("nothing is timed here" in lab.weaker_because) is not scoped


@needs_root
def test_root_without_another_uid_starts_no_job(tmp_path):
    for level in ("full", "landlock", "unconfined"):
        for uid in (None, 0):
            with pytest.raises(PermissionError, match="no uid of its own"):
                Sandbox(level).spawn(["true"], {}, SandboxSpec(str(tmp_path), uid=uid), (0, 1, 2))


@needs_root
async def test_every_job_of_root_has_a_uid_of_its_own(open_lab):
    lab = await open_lab()
    jobs = [await lab.start("/bin/sh", "-c", "echo ready; sleep 1000", until=b"ready") for _ in range(3)]
    owners = {Path(workdir).stat().st_uid for workdir in workspaces(lab.state, *jobs)}
    assert len(owners) == 3
    assert all(61000 <= uid < 61184 for uid in owners)
    for job in jobs:
        await lab.link.call("cancel", job=job)
