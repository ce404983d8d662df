"""The user's own ssh program: its complaints in our words, and the connection that a person opened."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import pytest

from gpu_mcp_server.backends import openssh
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.openssh import OpenSshBackend
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostKeyUnknown, HostUnavailable, ToolMissing
from tests.backends.sshd import Sshd

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh here: apt-get install openssh-client")

StartSshd = Callable[..., Sshd]


async def refused(backend: OpenSshBackend) -> GpuMcpError:
    with pytest.raises(GpuMcpError) as caught:
        link = await HostdClient.open(backend)
        await link.close()
    return caught.value


async def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_command_that_accepts_it(
    sshd: Sshd, tmp_path: Path
):
    error = await refused(OpenSshBackend("box", sshd.openssh(known_hosts=tmp_path / "none")))

    assert isinstance(error, HostKeyUnknown)
    assert f"`gpu-mcp-server hosts check box --accept-key {sshd.host_key.get_fingerprint()}`" in str(error)
    assert not (tmp_path / "none").exists()


async def test_a_changed_key_is_refused_loudly(sshd: Sshd, tmp_path: Path):
    file = tmp_path / "known"
    file.write_text(sshd.known_line(asyncssh.generate_private_key("ssh-ed25519")))

    error = await refused(OpenSshBackend("box", sshd.openssh(known_hosts=file)))

    assert isinstance(error, HostKeyUnknown)
    assert "HAS CHANGED" in str(error) and sshd.host_key.get_fingerprint() in str(error)


async def test_configuration_cannot_switch_verification_or_forwarding_on(sshd: Sshd, tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  ForwardAgent yes\n")
    backend = OpenSshBackend("box", sshd.openssh(ssh_config=config, known_hosts=None))

    assert isinstance(await refused(backend), HostKeyUnknown)
    shown = subprocess.run(
        [*backend.words(), "-G", "--", "127.0.0.1"], capture_output=True, text=True, check=True
    ).stdout
    assert {"forwardagent no", "stricthostkeychecking true", "batchmode yes"} <= set(shown.splitlines())


async def test_a_login_that_needs_a_person_says_how_to_log_in(sshd: Sshd, tmp_path: Path):
    key = tmp_path / "key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)
    key.chmod(0o600)

    error = await refused(OpenSshBackend("box", sshd.openssh(identity_file=key)))

    assert isinstance(error, HostUnavailable) and not error.retryable
    assert "refuses the login" in str(error) and "`gpu-mcp-server hosts login box`" in str(error)
    key.write_bytes(sshd.user_key.read_bytes())
    key.chmod(0o644)
    assert "chmod 600" in str(await refused(OpenSshBackend("box", sshd.openssh(identity_file=key))))


@pytest.fixture
def opened(sshd: Sshd, tmp_path: Path) -> Iterator[OpenSshBackend]:
    """A host of which a person has opened the connection; nothing else can log in."""
    control = tmp_path / "c"
    master = OpenSshBackend("box", sshd.openssh(control_path=str(control)))
    subprocess.run(
        master.login_words(), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    none = tmp_path / "key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(none)
    none.chmod(0o600)
    yield OpenSshBackend("box", sshd.openssh(control_path=str(control), identity_file=none))
    subprocess.run([*master.words(), "-O", "exit", "--", "127.0.0.1"], check=False, capture_output=True)


async def test_sessions_go_over_the_connection_that_a_person_opened(opened: OpenSshBackend):
    async with ContractHost(opened) as host:
        assert (await host.run("echo", "over it")).stdout == b"over it\n"


async def test_many_sessions_over_one_connection_stay_below_its_limit(opened: OpenSshBackend):
    async with ContractHost(opened) as host:
        done = await asyncio.gather(*(host.sh(f"echo {n}") for n in range(50)))
    assert [int(d.stdout) for d in done] == list(range(50))


async def test_a_closed_port_and_one_that_hangs_are_told_apart(sshd: Sshd, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        closed = await refused(OpenSshBackend("box", sshd.openssh(port=one.getsockname()[1])))
        monkeypatch.setattr(openssh, "CONNECT_S", 1)
        one.listen()
        silent = await refused(OpenSshBackend("box", sshd.openssh(port=one.getsockname()[1])))

    assert isinstance(closed, HostUnavailable) and "refused" in str(closed)
    assert isinstance(silent, HostUnavailable) and "did not answer within 1 s" in str(silent)
    assert closed.retryable and silent.retryable


async def test_no_ssh_no_python_and_no_key_file_are_said(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert isinstance(await refused(OpenSshBackend("box", sshd.openssh(python="/opt/none/python3"))), ToolMissing)
    assert isinstance(await refused(OpenSshBackend("box", sshd.openssh(identity_file=tmp_path / "no"))), ConfigError)
    monkeypatch.setattr(openssh, "SSH", str(tmp_path / "ssh"))
    error = await refused(OpenSshBackend("box", sshd.openssh()))
    assert isinstance(error, ToolMissing) and "OpenSSH" in str(error)


async def test_a_lost_line_is_an_error_and_never_a_success(start_sshd: StartSshd, state_dir: str):
    server = start_sshd()
    async with ContractHost(OpenSshBackend("box", server.openssh(state_dir=state_dir))) as host:
        spec = host.job("sh", "-c", "echo started; exec sleep 600")
        await host.submit(spec)
        await host.wait_for_output(spec.id)
        waiting = asyncio.create_task(host.wait_for_end(spec.id))
        await asyncio.sleep(0)
        server.cut()
        with pytest.raises(HostUnavailable, match="box"):
            await waiting


async def test_the_socket_is_the_configuration_s_if_it_names_one(sshd: Sshd, tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("Host *\n  ControlPath ~/.ssh/own-%C\n")
    plain = sshd.openssh().model_copy(update={"control_path": None})

    assert any("gpu-mcp-%C" in w for w in OpenSshBackend("box", plain).words())
    own = OpenSshBackend("box", plain.model_copy(update={"ssh_config": config})).words()
    assert not any("ControlPath" in w for w in own)
