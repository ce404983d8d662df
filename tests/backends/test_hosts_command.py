"""`gpu-mcp-server hosts`, against a real sshd."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from tests.backends.sshd import USER, Sshd

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPU_MCP_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }  # fmt: skip

    def call(*arguments: str) -> Done:
        command = [sys.executable, "-m", "gpu_mcp_server", "hosts", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return call


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
