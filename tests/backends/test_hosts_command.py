"""`gpu-mcp-server hosts`, against a real sshd."""

import functools
import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest
from typer.testing import CliRunner

from gpu_mcp_server.backends.schedulers import DIALECTS
from gpu_mcp_server.cli.app import app
from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.settings.host_settings import BATCH_KINDS, HOST_KINDS
from tests.backends.dockerd import Dockerd
from tests.backends.sshd import USER, Sshd
from tests.commands import Commands, Done
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder

Run = Callable[..., Done]


@pytest.fixture
def run(commands: Commands, tmp_path: Path) -> Run:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPU_MCP_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }  # fmt: skip
    return functools.partial(commands.run, "hosts", env=environment, cwd=tmp_path)


@pytest.fixture
def add(run: Run, sshd: Sshd, state_dir: str) -> Callable[..., Done]:
    def call(*more: str) -> Done:
        target = f"{USER}@127.0.0.1:{sshd.port}"
        return run("add", "box", target, "--identity-file", str(sshd.user_key), "--state-dir", state_dir, *more)

    return call


def test_a_host_is_added_its_key_accepted_checked_and_removed(
    run: Run, add: Callable[..., Done], sshd: Sshd, tmp_path: Path
):
    fingerprint = sshd.host_key.get_fingerprint()

    added = add()
    assert added.returncode == 1
    command = f"hosts check box --accept-key {fingerprint}"
    assert f"`gpu-mcp-server {command}`" in added.stdout
    config = tomllib.loads((tmp_path / "config" / "gpu-mcp-server" / "config.toml").read_text())
    assert config["hosts"]["box"]["port"] == sshd.port

    unknown = run("check", "box")
    assert unknown.returncode == 1
    assert f"{fingerprint}: not accepted yet" in unknown.stdout

    accepted = run(*command.split()[1:])
    assert accepted.returncode == 0, accepted.stderr
    assert "box: answers" in accepted.stdout
    assert (tmp_path / ".ssh" / "known_hosts").read_text() == sshd.known_line()

    checked = json.loads(run("check", "box", "--json").stdout)
    assert checked["hosts"][0]["reachable"]
    assert (checked["key"]["state"], checked["key"]["fingerprint"]) == ("known", fingerprint)

    assert json.loads(run("list", "--json").stdout)["hosts"]["box"]["host"] == "127.0.0.1"
    assert run("remove", "box").returncode == 0
    assert "box" not in json.loads(run("list", "--json").stdout)["hosts"]


def test_another_fingerprint_is_not_accepted(run: Run, add: Callable[..., Done], sshd: Sshd, tmp_path: Path):
    add("--no-check")

    done = run("check", "box", "--accept-key", "SHA256:wrong", "--json")

    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert "nothing is accepted" in error
    assert sshd.host_key.get_fingerprint() in error
    assert not (tmp_path / ".ssh" / "known_hosts").exists()


def test_a_changed_key_is_not_accepted_over_the_old_one(run: Run, add: Callable[..., Done], sshd: Sshd, tmp_path: Path):
    known = tmp_path / "known"
    known.write_text(sshd.known_line(asyncssh.generate_private_key("ssh-ed25519")))
    add("--no-check", "--known-hosts", str(known))
    before = known.read_text()

    shown = run("check", "box")
    done = run("check", "box", "--accept-key", sshd.host_key.get_fingerprint())

    assert (shown.returncode, done.returncode) == (1, 2)
    assert "NOT THE ONE IN known_hosts" in shown.stdout
    assert "HAS CHANGED" in done.stderr
    assert known.read_text() == before

    remove = ["ssh-keygen", "-f", str(known), "-R", f"[127.0.0.1]:{sshd.port}"]
    assert " ".join(remove[:4]) in done.stderr
    subprocess.run(remove, check=True, capture_output=True)
    assert run("check", "box", "--accept-key", sshd.host_key.get_fingerprint()).returncode == 0


def test_keys_are_accepted_for_ssh_hosts_alone(run: Run):
    assert run("check", "--accept-key", "SHA256:any").returncode == 2
    assert "is no SSH host" in run("check", "local", "--accept-key", "SHA256:any").stderr


def test_a_host_is_added_for_the_ssh_program(run: Run, add: Callable[..., Done], sshd: Sshd, tmp_path: Path):
    known = str(tmp_path / "known")  # ssh takes the home folder from the system, not from HOME
    assert add("--kind", "openssh", "--control-path", "none", "--known-hosts", known).returncode == 1

    accepted = run("check", "box", "--accept-key", sshd.host_key.get_fingerprint())

    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert "box: answers" in accepted.stdout
    assert json.loads(run("list", "--json").stdout)["hosts"]["box"]["kind"] == "openssh"
    assert run("login", "local").returncode == 2


def test_a_container_is_added_as_a_host(run: Run, dockerd: Dockerd, tmp_path: Path):
    values = dockerd.settings()
    mounts = json.dumps(values.mounts)
    more = ["--set", f"docker_url={values.docker_url}", "--set", f"mounts={mounts}", "--set", "idle_s=1"]
    added = run("add", "box", values.image, "--kind", "docker", *more)

    assert added.returncode == 0, added.stdout + added.stderr
    assert "box: answers" in added.stdout
    config = tomllib.loads((tmp_path / "config" / "gpu-mcp-server" / "config.toml").read_text())
    assert (config["hosts"]["box"]["image"], config["hosts"]["box"]["mounts"]) == (values.image, values.mounts)
    assert values.image in run("list").stdout


def test_a_cluster_is_added_with_its_login_node(run: Run, tmp_path: Path):
    add = ["add", "lab", "ada@login:2222", "--kind", "slurm", "--identity-file", "/k", "--no-check"]
    assert run(*add, "--set", "partition=long", "--set", "gpus=4").returncode == 0

    host = json.loads(run("list", "--json").stdout)["hosts"]["lab"]
    assert (host["kind"], host["partition"], host["gpus"]) == ("slurm", "long", 4)
    assert (host["login"]["kind"], host["login"]["user"], host["login"]["port"]) == ("ssh", "ada", 2222)
    assert "ada@login" in run("list").stdout
    assert run("remove", "lab").returncode == 0
    assert run("add", "here", "--kind", "pbs", "--no-check").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kind", "docker"], "takes its image"),
        (["--kind", "ssh"], "Where is it?"),
        (["h", "--kind", "carrier-pigeon"], "carrier-pigeon"),
        (["h", "--kind", "slurm", "--set", "partition"], "no KEY=VALUE"),
        (["h", "--kind", "slurm", "--set", "gpus=-1"], "gpus"),
        (["--kind", "slurm", "--identity-file", "/k"], "need the login node"),
    ],
)
def test_what_cannot_be_a_host_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GPU_MCP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["hosts", "add", "wrong", *arguments, "--no-check"])
    assert isinstance(done.exception, ConfigError) and words in str(done.exception)
    config = tmp_path / "gpu-mcp-server" / "config.toml"
    assert not config.exists() or "wrong" not in config.read_text()


def test_this_machine_is_drained_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Folder() as folder:
        python = wrapped(folder / "state", {"GPU_MCP_HOSTD_LOCKS": str(folder / "locks")})
        told = {"DATA_DIR": folder / "data", "HOSTS__LOCAL__PYTHON": python}
        for name, value in told.items():
            monkeypatch.setenv(f"GPU_MCP_{name}", str(value))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        drained = CliRunner().invoke(app, ["hosts", "drain", "local", "--why", "new driver"])
        assert drained.exit_code == 0 and "new driver" in " ".join(drained.output.split())
        refused = CliRunner().invoke(app, ["call", "run_command", "--args", '{"command": ["true"]}'])
        assert refused.exit_code != 0 and "takes nothing new" in refused.output
        resumed = CliRunner().invoke(app, ["hosts", "resume", "local"])
        assert (resumed.exit_code, resumed.output) == (0, "local: takes jobs\n")


def test_every_kind_of_batch_host_has_a_dialect():
    assert set(DIALECTS) == set(BATCH_KINDS) < set(HOST_KINDS)
