"""Sandboxes that Apptainer makes: a real one where there is one, and its process 1 in any case."""

import json
import os
import secrets
import signal
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract import BEHAVIOURS, DoesNotApply
from gpu_mcp_server.backends.contract.escapes import try_escapes_on
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.hostd.protocol import GpuRequest
from gpu_mcp_server.hostd.sandbox import apptainer, landlock
from tests.hostd.apptainers import PYTHON, account, surroundings
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import Laboratory, alive, eventually, processes_with, workspaces, wrapped

NVIDIA, MINORS = 195, (91, 92)


@pytest.fixture(params=["real", "stand-in"])
def backend(request: pytest.FixtureRequest, state: Path, tmp_path: Path) -> LocalBackend:
    """Return a way to a hostd of an ordinary user that has Apptainer and no bubblewrap."""
    uid, as_user = account()
    before, env = surroundings(request.param, state.parent)
    state.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(state, uid, uid)
    pretended = state.parent / "gpus.json"
    pretended.write_text(json.dumps([{"uuid": f"GPU-{m}", "minor": m} for m in MINORS]))
    env |= {"HOME": "/nonexistent", "GPU_MCP_HOSTD_LEVEL": "apptainer", "GPU_MCP_HOSTD_GPUS": str(pretended)}
    env["GPU_MCP_HOSTD_LOCKS"] = str(state / "locks")
    python = wrapped(state, env, f"{before} {as_user}", PYTHON)
    return LocalBackend("tested", python=str(python), state_dir=str(state))


@pytest.fixture
async def host(backend: LocalBackend) -> AsyncIterator[ContractHost]:
    async with ContractHost(backend) as opened:
        assert opened.level == "apptainer", opened.weaker_because
        yield opened


@pytest.fixture
def lab(host: ContractHost, state: Path) -> Laboratory:
    return Laboratory(host.link, state)


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Device nodes of GPUs that are not there: opening one that is shown says so."""
    made = [f"/dev/nvidia{minor}" for minor in MINORS]
    for path, minor in zip(made, MINORS, strict=True):
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(NVIDIA, minor))
        Path(path).chmod(0o666)
    yield made
    for path in made:
        Path(path).unlink()


BY_GROUP = {123, 124, 125}
"""Rows that a control group closes, which this level may have or not."""


async def test_no_way_out_is_open_and_the_temporary_folders_are_not_promised(host: ContractHost):
    found = [outcome async for outcome in try_escapes_on(host)]
    assert [o for o in found if o.result == "open"] == []
    without_landlock = {70} if landlock.abi() == 0 else set[int]()
    assert {o.attempt.row for o in found if o.result == "not closed here"} - BY_GROUP == {19, 20} | without_landlock


async def test_what_every_host_must_do_holds(host: ContractHost):
    unmet: list[str] = []
    for behaviour in (b for b in BEHAVIOURS if b.room in ("confinement", "programs", "limits")):
        try:
            await behaviour.check(host)
        except DoesNotApply:
            continue
        except AssertionError as error:
            unmet.append(f"{behaviour.name}: {error}")
    assert unmet == []


async def test_every_record_says_who_makes_the_sandbox_and_why(host: ContractHost):
    record = (await host.run("true")).record
    assert record.level == "apptainer"
    assert record.weaker_because == "Apptainer makes the sandboxes: bubblewrap is not installed"
    refused = (await host.run("true", min_level="namespaces")).record
    assert refused.status == "refused"
    assert "this host gives apptainer" in refused.note


@needs_root
async def test_a_job_sees_the_node_of_its_own_gpu_and_no_other(nodes: list[str], host: ContractHost):
    script = f"ls /dev | grep nvidia; cat {nodes[0]}; cat {nodes[1]}; ls /sys; true"
    done = await host.sh(script, gpus=GpuRequest(count=1, mode="exclusive", uuids=("GPU-92",)))
    assert done.text.split() == ["nvidia92", "bus", "class", "dev", "devices", "module"]
    assert b"nvidia91: No such file" in done.stderr
    assert b"nvidia92: No such device or address" in done.stderr


async def test_process_1_hides_what_apptainer_left_in_its_environment(host: ContractHost):
    script = "for f in environ maps mem; do cat /proc/1/$f 2>&1 | tail -c 20; done; ls /proc/1/fd 2>&1; env"
    done = await host.sh(script)
    assert done.text.count("Permission denied") == 4
    assert "APPTAINER" not in done.text


async def test_a_sandbox_that_waits_takes_a_job_as_a_new_one_does(lab: Laboratory):
    await lab.warm_up()
    done = await lab.sh("cat; pwd; kill -TERM $$", stdin="in\n")
    assert (done.text, done.record.processes[0].signal) == ("in\n/job\n", signal.SIGTERM)


@pytest.mark.parametrize("whom", ["supervisor", "keeper"])
async def test_nothing_outlives_who_held_it(lab: Laboratory, whom: str):
    marker = secrets.token_hex(8)
    script = "(setsid sh -c 'echo ready; exec sleep 1000' &); exec sleep 1000"
    job = await lab.start("/bin/sh", "-c", script, env={"MARKER": marker}, until=b"ready")
    children = Path(f"/proc/{lab.supervisor(job)}/task/{lab.supervisor(job)}/children").read_text().split()
    assert eventually(lambda: len(processes_with(marker)) >= 2)  # while one execs, its environment reads as empty
    inside = processes_with(marker)
    os.kill(lab.supervisor(job) if whom == "supervisor" else int(children[0]), signal.SIGKILL)
    done = await lab.wait(job)
    assert done.record.status in ("broken", "failed")
    assert eventually(lambda: not any(map(alive, inside)))
    assert eventually(lambda: workspaces(lab.state, job) == [])


@pytest.mark.parametrize("backend", ["stand-in"], indirect=True)
async def test_a_container_that_shows_more_than_was_asked_for_is_refused(backend: LocalBackend, state: Path):
    (state.parent / "shows").write_text("/mnt")
    async with ContractHost(backend) as opened:
        assert opened.level != "apptainer"
        assert "/mnt is shown without being asked for" in opened.weaker_because


def made(tmp_path: Path, **more: object) -> list[str]:
    """Return the command line of a container."""
    given: dict[str, object] = {
        "argv": ["job", "--secret"], "env": {"TOKEN": "secret"}, "shown": [("/usr", "/usr")], "workdir": "/w/1",
        "devices": [], "keep": [7], "rlimits": [], "life": 8, "network": False, "profiler": False,
    }  # fmt: skip
    command, told = apptainer.Apptainer("/usr/bin/apptainer", str(tmp_path), PYTHON, ["/bin"]).container(
        **{**given, **more}  # type: ignore[arg-type]
    )
    os.close(told)
    return command


def test_the_command_line_has_the_leased_node_and_nothing_of_the_job(tmp_path: Path):
    command = made(tmp_path, devices=["/dev/nvidia3"])
    words = " ".join(command)
    assert "secret" not in words and " --nv " not in words
    assert "--net --network none" in words
    mounts = [command[i + 1] for i, word in enumerate(command) if word == "--mount"]
    assert mounts[0] == "type=bind,source=/usr,destination=/usr,ro"
    assert [m for m in mounts if "ro" not in m.split(",")] == [
        "type=bind,source=/w/1,destination=/job", "type=bind,source=/dev/nvidia3,destination=/dev/nvidia3",
    ]  # fmt: skip
    assert "sys,home,cwd,tmp,hostfs,bind-paths" in command
    assert "--net" not in made(tmp_path, network=True)


def test_paths_with_commas_and_quotes_are_one_value():
    assert apptainer.mount('/a,"b', "/c d") == 'type=bind,"source=/a,""b",destination=/c d'


def test_the_image_has_links_where_the_system_has_them(tmp_path: Path):
    made(tmp_path)
    made(tmp_path)
    assert os.path.lexists(tmp_path / "image" / "bin") == Path("/bin").is_symlink()
    assert subprocess.run(["find", str(tmp_path / "image"), "-type", "f"], capture_output=True).stdout == b""
