"""SSH as it goes wrong: keys, logins, shells, cut lines; and jump hosts."""

import asyncio
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import pytest

from gpu_mcp_server.backends import deploy, ssh
from gpu_mcp_server.backends.bundle import hostd_zip
from gpu_mcp_server.backends.contract.host import ContractHost, job
from gpu_mcp_server.backends.deploy import start_command
from gpu_mcp_server.backends.host_keys import accept
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.openssh import OpenSshBackend
from gpu_mcp_server.backends.ssh import SshBackend
from gpu_mcp_server.errors import BadRequest, ConfigError, GpuMcpError, HostKeyUnknown, HostUnavailable, ToolMissing
from gpu_mcp_server.services.hosts.host_connections import Hosts
from gpu_mcp_server.settings.server_settings import Settings
from tests.backends.sshd import USER, Sshd

StartSshd = Callable[..., Sshd]


@pytest.fixture
def own_sshd(start_sshd: StartSshd) -> Iterator[Sshd]:
    """A server that the test may break."""
    server = start_sshd()
    yield server
    if server.process.poll() is None:
        server.stop()


async def refused(backend: SshBackend) -> GpuMcpError:
    """Return the error of opening."""
    with pytest.raises(GpuMcpError) as caught:
        link = await HostdClient.open(backend)
        await link.close()
    return caught.value


async def answers(backend: SshBackend) -> bool:
    link = await HostdClient.open(backend)
    await link.close()
    return True


def fingerprint(key: asyncssh.SSHKey) -> str:
    return str(key.get_fingerprint())


async def test_an_unknown_host_key_is_refused_with_its_fingerprint_and_the_command_that_accepts_it(
    sshd: Sshd, tmp_path: Path
):
    file = tmp_path / "new" / "known_hosts"
    backend = SshBackend("box", sshd.settings(known_hosts=file))

    error = await refused(backend)

    assert isinstance(error, HostKeyUnknown)
    assert not error.retryable
    assert f"`gpu-mcp-server hosts check box --accept-key {fingerprint(sshd.host_key)}`" in str(error)
    assert str(file) in str(error)
    assert not file.exists()


async def test_a_key_is_accepted_only_by_its_own_fingerprint(sshd: Sshd, tmp_path: Path):
    file = tmp_path / "known_hosts"
    file.write_text("# a line of somebody's, without an end")
    backend = SshBackend("box", sshd.settings(known_hosts=file))
    shown = await backend.shown_key()

    assert (shown.state, shown.fingerprint) == ("new", fingerprint(sshd.host_key))
    with pytest.raises(BadRequest, match="nothing is accepted"):
        accept("box", shown, "SHA256:somethingElse")
    assert accept("box", shown, fingerprint(sshd.host_key))

    assert file.read_text() == f"# a line of somebody's, without an end\n{sshd.known_line()}"
    assert (await backend.shown_key()).state == "known"
    assert not accept("box", await backend.shown_key(), fingerprint(sshd.host_key))
    assert await answers(backend)


async def test_a_changed_host_key_is_refused_loudly_and_cannot_be_accepted_over_the_old_one(sshd: Sshd, tmp_path: Path):
    old = asyncssh.generate_private_key("ssh-ed25519")
    file = tmp_path / "known_hosts"
    file.write_text(sshd.known_line(old))
    backend = SshBackend("box", sshd.settings(known_hosts=file))

    error = await refused(backend)

    assert isinstance(error, HostKeyUnknown)
    assert "THE SSH KEY OF HOST 'box'" in str(error)
    assert "HAS CHANGED" in str(error)
    assert fingerprint(old) in str(error)
    assert fingerprint(sshd.host_key) in str(error)
    with pytest.raises(HostKeyUnknown, match="ssh-keygen"):
        accept("box", await backend.shown_key(), fingerprint(sshd.host_key))
    assert file.read_text() == sshd.known_line(old)


async def test_ssh_configuration_cannot_switch_verification_off(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile none\n  GlobalKnownHostsFile none\n")
    backend = SshBackend("box", sshd.settings(known_hosts=None, ssh_config=config))

    assert isinstance(await refused(backend), HostKeyUnknown)


async def test_a_login_that_is_refused_says_what_to_try(sshd: Sshd, tmp_path: Path):
    key = tmp_path / "key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)

    error = await refused(SshBackend("box", sshd.settings(identity_file=key)))

    assert isinstance(error, HostUnavailable)
    assert not error.retryable
    assert "refuses the login" in str(error)
    assert " 127.0.0.1 echo ok` work without a question first" in str(error)


async def test_a_key_with_a_passphrase_asks_nobody(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = tmp_path / "key"
    asyncssh.read_private_key(sshd.user_key).write_private_key(key, passphrase="secret", rounds=50)

    error = await refused(SshBackend("box", sshd.settings(identity_file=key)))

    assert isinstance(error, HostUnavailable)
    assert "by an agent or a key without passphrase" in str(error)


async def test_a_key_of_the_agent_is_used(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not shutil.which("ssh-agent"):
        pytest.skip("no ssh-agent here: apt-get install openssh-client")
    address = tmp_path / "agent"
    agent = await asyncio.create_subprocess_exec("ssh-agent", "-D", "-a", address, stdout=asyncio.subprocess.PIPE)
    try:
        assert agent.stdout
        await agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
        async with asyncssh.connect_agent(str(address)) as connected:
            await connected.add_keys([str(sshd.user_key)])
        assert await answers(SshBackend("box", sshd.settings(identity_file=None)))
    finally:
        agent.terminate()
        await agent.wait()


async def test_one_session_is_enough(start_sshd: StartSshd):
    server = start_sshd("MaxSessions 1")

    assert await answers(SshBackend("box", server.settings()))


async def test_a_key_file_that_is_not_there_is_a_fault_of_the_settings(sshd: Sshd, tmp_path: Path):
    error = await refused(SshBackend("box", sshd.settings(identity_file=tmp_path / "nothing")))

    assert isinstance(error, ConfigError)
    assert "identity_file of host 'box'" in str(error)


async def test_ssh_configuration_with_a_mistake_is_a_fault_of_the_settings(sshd: Sshd, tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("Host box\n  Port many\n")

    error = await refused(SshBackend("box", sshd.settings(host="box", ssh_config=config, port=None)))

    assert isinstance(error, ConfigError)
    assert "Port" in str(error)


async def test_a_closed_port_is_said_at_once(sshd: Sshd):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        error = await refused(SshBackend("box", sshd.settings(port=closed.getsockname()[1])))

    assert isinstance(error, HostUnavailable)
    assert error.retryable
    assert "cannot be reached" in str(error)


async def test_a_port_that_never_answers_is_given_up_after_the_connect_timeout(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ssh, "CONNECT_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        error = await refused(SshBackend("box", sshd.settings(port=silent.getsockname()[1])))

    assert isinstance(error, HostUnavailable)
    assert error.retryable
    assert "did not answer within 0.3 s" in str(error)


async def test_a_host_without_python_says_which_were_tried(
    sshd: Sshd, start_sshd: StartSshd, monkeypatch: pytest.MonkeyPatch
):
    error = await refused(SshBackend("box", sshd.settings(python="/opt/none/bin/python3")))
    assert isinstance(error, ToolMissing)
    assert "/opt/none/bin/python3" in str(error)
    assert "Correct `python`" in str(error)

    monkeypatch.setattr(deploy, "PYTHONS", ("python3", "python"))
    bare = start_sshd("SetEnv PATH=/nowhere")
    bare_error = await refused(SshBackend("box", bare.settings()))
    assert isinstance(bare_error, ToolMissing)
    assert "(python3, python)" in str(bare_error)


async def test_an_old_python_is_passed_over_for_a_newer_one(start_sshd: StartSshd, tmp_path: Path):
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    server = start_sshd(f"SetEnv PATH={old.parent}:/usr/bin:/bin")

    assert await answers(SshBackend("box", server.settings()))


async def test_what_a_start_up_file_prints_does_not_matter(start_sshd: StartSshd, tmp_path: Path):
    server = start_sshd()
    (server.home / ".bashrc").write_text("echo; echo Welcome to the box; echo hostd- ; printf '\\0\\377'\n")
    wrapper = tmp_path / "login"
    wrapper.write_text('#!/bin/sh\necho "Maintenance on Sunday"\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    wrapper.chmod(0o755)
    forced = start_sshd(f"ForceCommand {wrapper}")

    assert await answers(SshBackend("box", server.settings()))
    assert await answers(SshBackend("box", forced.settings()))


async def test_a_login_that_runs_something_else_is_said_with_what_it_printed(start_sshd: StartSshd):
    server = start_sshd("ForceCommand echo This account is currently not available. ; exit 1")

    error = await refused(SshBackend("box", server.settings()))

    assert isinstance(error, HostUnavailable)
    assert not error.retryable
    assert "'This account is currently not available.'" in str(error)
    assert "status 1" in str(error)
    assert "ForceCommand" in str(error)


async def test_a_login_that_never_runs_the_command_is_given_up(start_sshd: StartSshd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deploy, "START_S", 0.5)
    server = start_sshd("ForceCommand echo Password: ; exec sleep 600")

    error = await refused(SshBackend("box", server.settings()))

    assert isinstance(error, HostUnavailable)
    assert "did not start within 0.5 s" in str(error)
    assert "Password:" in str(error)


async def test_a_home_that_is_full_or_not_writable_is_said(start_sshd: StartSshd):
    server = start_sshd()
    (server.home / ".cache").write_text("a file where a folder should be")

    error = await refused(SshBackend("box", server.settings()))

    assert isinstance(error, HostUnavailable)
    assert "could not be put" in str(error)
    assert "Is the home folder there writable" in str(error)


@pytest.mark.parametrize(
    "shell", ["/bin/sh", "/bin/bash", "/bin/dash", "/usr/bin/fish", "/usr/bin/tcsh", "/usr/bin/zsh"]
)
async def test_every_login_shell_reads_the_command_alike(shell: str):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    for python in (None, "/a b/it's", "~/env/bin/python3"):
        command = start_command(python)
        process = await asyncio.create_subprocess_exec(
            shell, "-c", command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate(repr("import sys\nprint(f.read().decode())").encode() + b"\nfor hostd")
        assert "\n" not in command
        assert (process.returncode, said) == ((0, b"for hostd\n") if python is None else (deploy.NO_PYTHON, b""))


async def test_hostd_is_pushed_once_and_again_if_its_copy_is_damaged(start_sshd: StartSshd):
    server = start_sshd()
    backend = SshBackend("box", server.settings())
    name = f"hostd-{hostd_zip()[0]}.pyz"
    path = server.home / ".cache" / "gpu-mcp-server" / name

    assert await answers(backend)
    first = path.stat()
    assert await answers(backend)
    assert path.stat().st_ino == first.st_ino
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    path.write_bytes(path.read_bytes()[:1000])
    assert await answers(backend)
    assert path.read_bytes() == hostd_zip()[1]
    assert server.pushed() == [name]


async def test_an_interrupted_push_leaves_no_half_hostd(start_sshd: StartSshd, monkeypatch: pytest.MonkeyPatch):
    server = start_sshd()
    backend = SshBackend("box", server.settings())
    digest, content = hostd_zip()
    answer = deploy.next_marked_line

    async def cut_after_half(talk: deploy.CommandStreams, mark: str, said: bytearray) -> str | None:
        word = await answer(talk, mark, said)
        if word == "need":
            talk.write(content[: len(content) // 2])
            await asyncio.sleep(0)
            server.cut()
        return word

    monkeypatch.setattr(deploy, "next_marked_line", cut_after_half)
    assert isinstance(await refused(backend), HostUnavailable)
    assert server.pushed() == []

    monkeypatch.setattr(deploy, "next_marked_line", answer)
    assert await answers(backend)
    assert server.pushed() == [f"hostd-{digest}.pyz"]


async def test_a_cut_line_ends_attached_jobs_keeps_detached_ones_and_the_next_call_connects_again(
    own_sshd: Sshd, state_dir: str, tmp_path: Path
):
    box = own_sshd.settings(state_dir=state_dir)
    hosts = Hosts(Settings(data_dir=tmp_path, hosts={"box": box}))
    try:
        tested = ContractHost(hosts.backend("box"))
        tested.link = await hosts.link("box")
        kept = job("sh", "-c", "echo started; sleep 1; echo finished", detached=True)
        lost = job("sh", "-c", "echo started; exec sleep 600")
        for spec in (kept, lost):
            await tested.submit(spec)
            await tested.wait_for_output(spec.id)
        waiting = asyncio.create_task(tested.link.call("wait", job=lost.id, timeout_s=60))
        await asyncio.sleep(0)

        own_sshd.cut()

        with pytest.raises(HostUnavailable, match="box"):
            await waiting
        assert not tested.link.is_open
        answer, _ = await hosts.call("box", "wait", job=lost.id, timeout_s=60)
        assert answer["record"]["status"] == "caller_lost"
        answer, data = await hosts.call("box", "wait", job=kept.id, timeout_s=60)
        assert answer["record"]["status"] == "ok"
        assert data == b"started\nfinished\n"
    finally:
        await hosts.close()


async def test_a_line_that_falls_silent_is_noticed(own_sshd: Sshd, state_dir: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ssh, "KEEPALIVE_S", 0.2)
    link = await HostdClient.open(SshBackend("box", own_sshd.settings(state_dir=state_dir)))
    silent = own_sshd.sessions()
    for pid in silent:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(HostUnavailable, match="box"):
            await link.call("hello")
        assert not link.is_open
    finally:
        for pid in silent:
            os.kill(pid, signal.SIGCONT)
        await link.close()


async def test_a_server_that_was_away_is_found_again(own_sshd: Sshd, state_dir: str, tmp_path: Path):
    hosts = Hosts(Settings(data_dir=tmp_path, hosts={"box": own_sshd.settings(state_dir=state_dir)}))
    try:
        await hosts.call("box", "hello")
        own_sshd.stop()
        with pytest.raises(HostUnavailable, match="cannot be reached"):
            await hosts.call("box", "hello")
        own_sshd.start()
        greeting, _ = await hosts.call("box", "hello")
        assert greeting["pid"]
    finally:
        await hosts.close()


async def test_hostd_that_is_killed_is_started_again(sshd: Sshd, state_dir: str, tmp_path: Path):
    hosts = Hosts(Settings(data_dir=tmp_path, hosts={"box": sshd.settings(state_dir=state_dir)}))
    try:
        before, _ = await hosts.call("box", "hello")
        os.kill(before["pid"], signal.SIGKILL)
        after, _ = await hosts.call("box", "hello")
        assert after["pid"] != before["pid"]
    finally:
        await hosts.close()


@pytest.fixture
def jump_config(sshd: Sshd, start_sshd: StartSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh_config in which `inner` is behind `gate`."""
    gate = start_sshd("AllowTcpForwarding yes")
    monkeypatch.setenv("HOME", str(tmp_path))
    known = tmp_path / ".ssh" / "known_hosts"
    known.parent.mkdir()
    known.write_text(gate.known_line() + f"inner {sshd.host_key.export_public_key().decode()}")
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User {USER}\n  IdentityFile {gate.user_key}\n"
        f"Host inner\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {USER}\n  IdentityFile {sshd.user_key}\n"
        "  HostKeyAlias inner\n  ProxyJump gate\n"
    )
    return config


def through(config: Path, sshd: Sshd, **changes: object) -> SshBackend:
    nothing = {"user": None, "port": None, "identity_file": None, "known_hosts": None}
    return SshBackend("box", sshd.settings(**{**nothing, "host": "inner", "ssh_config": config, **changes}))


async def test_a_jump_host_of_the_ssh_configuration_is_used(jump_config: Path, sshd: Sshd):
    assert await answers(through(jump_config, sshd))


async def test_keys_behind_a_jump_host_are_shown_and_accepted_too(jump_config: Path, sshd: Sshd, tmp_path: Path):
    backend = through(jump_config, sshd, known_hosts=tmp_path / "own")

    error = await refused(backend)

    assert isinstance(error, HostKeyUnknown)
    assert fingerprint(sshd.host_key) in str(error)
    assert accept("box", await backend.shown_key(), fingerprint(sshd.host_key))
    assert (tmp_path / "own").read_text().startswith("inner ssh-ed25519 ")
    assert await answers(backend)


async def test_an_unknown_key_of_the_jump_host_is_told_apart(jump_config: Path, sshd: Sshd, tmp_path: Path):
    known = tmp_path / ".ssh" / "known_hosts"
    known.write_text(known.read_text().splitlines()[1] + "\n")

    error = await refused(through(jump_config, sshd))

    assert isinstance(error, HostUnavailable)
    assert "jump host" in str(error)
    assert fingerprint(sshd.host_key) not in str(error)


INCLUDED = {
    "distribution": "Match final all\n    GSSAPIAuthentication yes\n    ForwardX11Trusted yes\n",
    "others": "Host somewhere-else\n    User nobody\n",
    "boxes": "Host gpubox\n    HostName {address}\n    Port {port}\n    User {user}\n    IdentityFile {key}\n    UserKnownHostsFile {known}\n",
}
"""Files that a laptop's configuration includes; asyncssh before 2.24 read nothing behind a block that does not match."""


@pytest.mark.parametrize("kind", ["ssh", "openssh"])
async def test_a_host_of_an_included_file_behind_other_blocks_is_found(sshd: Sshd, tmp_path: Path, kind: str):
    known = {"address": sshd.address, "port": sshd.port, "user": USER, "key": sshd.user_key, "known": sshd.known_hosts}
    for name, text in INCLUDED.items():
        (tmp_path / name).write_text(text.format(**known))
    config = tmp_path / "config"
    config.write_text("".join(f"Include {tmp_path / name}\n" for name in INCLUDED))
    own = {
        "host": "gpubox",
        "ssh_config": config,
        "user": None,
        "port": None,
        "identity_file": None,
        "known_hosts": None,
    }
    backend = SshBackend("box", sshd.settings(**own)) if kind == "ssh" else OpenSshBackend("box", sshd.openssh(**own))
    async with ContractHost(backend) as host:
        assert (await host.run("true")).record.status == "ok"
