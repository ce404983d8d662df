"""A real sshd on loopback, with keys and configuration of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncssh
import pytest

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.backends.ssh import SshBackend
from gpu_mcp_server.settings import SshHost
from tests.backends.hosts import TestedHost

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or ""
USER = (
    os.environ.get("USER") or subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
)


class Sshd:
    """A running sshd; `home` is the home folder of those who log in."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.folder, self.lines = folder, lines
        self.home = folder / "home"
        self.home.mkdir(mode=0o755)
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.user_key = folder / "user_key"
        user_key = asyncssh.generate_private_key("ssh-ed25519")
        user_key.write_private_key(self.user_key)
        user_key.write_public_key(folder / "authorized_keys")
        self.log: deque[str] = deque(maxlen=200)
        self.start()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(self.known_line())

    def start(self) -> None:
        """Start it on a free port; the same port again after a `stop`."""
        self.host_key.write_private_key(self.folder / "host_key")
        (self.folder / "host_key").chmod(0o600)
        for _ in range(5):
            self.port = getattr(self, "port", None) or _free_port()
            if self._started():
                return
            self.port = 0
        raise RuntimeError("sshd does not start: " + " | ".join(self.log))

    def _started(self) -> bool:
        config = self.folder / "sshd_config"
        settings = [
            *self.lines, f"HostKey {self.folder}/host_key", f"AuthorizedKeysFile {self.folder}/authorized_keys",
            "ListenAddress 127.0.0.1", f"PidFile {self.folder}/sshd.pid", f"SetEnv HOME={self.home}", "StrictModes no",
            "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin yes",
        ]  # fmt: skip
        config.write_text("\n".join(settings) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [SSHD, "-D", "-e", "-f", str(config), "-p", str(self.port)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr
        for line in self.process.stderr:
            self.log.append(line.strip())
            if "Server listening" in line:
                self.listening = threading.Thread(target=self.log.extend, args=(self.process.stderr,), daemon=True)
                self.listening.start()
                return True
        self.process.wait()
        self.process.stderr.close()
        return False

    def stop(self) -> None:
        """End it and its sessions."""
        self.cut()
        self.process.terminate()
        self.process.wait()
        self.listening.join(10)
        assert self.process.stderr
        self.process.stderr.close()

    def sessions(self) -> list[int]:
        """Return the processes that serve connections."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def cut(self) -> None:
        """Cut every connection, as by a crash."""
        for pid in self.sessions():
            for child in [*_children(pid), pid]:
                with contextlib.suppress(ProcessLookupError):
                    if "sshd" in Path(f"/proc/{child}/cmdline").read_text():
                        os.kill(child, 9)

    def known_line(self, key: asyncssh.SSHKey | None = None) -> str:
        """Return the line of known_hosts for it."""
        return f"[127.0.0.1]:{self.port} {(key or self.host_key).export_public_key().decode().strip()}\n"

    def settings(self, **changes: object) -> SshHost:
        """Return settings of a host that reaches it."""
        values = {
            "host": "127.0.0.1", "user": USER, "port": self.port, "identity_file": self.user_key,
            "known_hosts": self.known_hosts, "ssh_config": _empty(self.folder),
        }  # fmt: skip
        return SshHost.model_validate({k: v for k, v in (values | changes).items() if v is not None})

    def pushed(self) -> list[str]:
        """Return what lies in the cache of the home folder."""
        folder = self.home / ".cache" / "gpu-mcp-server"
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def _empty(folder: Path) -> Path:
    path = folder / "no_ssh_config"
    path.touch()
    return path


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="session")
def start_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sshd]]:
    """Starts servers with more lines of configuration; they end with the session."""
    if not SSHD:
        pytest.skip("no sshd here: apt-get install openssh-server")
    started: list[Sshd] = []

    def start(*lines: str) -> Sshd:
        started.append(Sshd(tmp_path_factory.mktemp("sshd"), *lines))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture(scope="session")
def sshd(start_sshd: Callable[..., Sshd]) -> Sshd:
    return start_sshd()


@pytest.fixture
def state_dir() -> Iterator[str]:
    """A folder for jobs that the uid of a job can reach, as pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="hostd-"))
    folder.chmod(0o711)
    yield str(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["local", "ssh"])
def backend(request: pytest.FixtureRequest, state_dir: str) -> Backend:
    """Every way to reach a host; a new one is one more line here."""
    if request.param == "local":
        return LocalBackend("tested", state_dir=state_dir)
    server: Sshd = request.getfixturevalue("sshd")
    return SshBackend("tested", server.settings(state_dir=state_dir))


@pytest.fixture
async def host(backend: Backend) -> AsyncIterator[TestedHost]:
    async with TestedHost(backend) as opened:
        if opened.link.greeting["level"] not in ("full", "namespaces"):
            pytest.skip(f"jobs cannot run here: {opened.link.greeting['weaker_because']}")
        yield opened
