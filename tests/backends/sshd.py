"""A real sshd on loopback, with keys and configuration of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections import deque
from pathlib import Path

import asyncssh

from gpu_mcp_server.settings.server_settings import OpenSshHost, SshHost

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or ""
USER = (
    os.environ.get("USER") or subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
)


class Sshd:
    """A running sshd; `home` is the home folder of those who log in, `namespace` the network that it lives in."""

    def __init__(self, folder: Path, *lines: str, address: str = "127.0.0.1", namespace: str = "") -> None:
        self.folder, self.lines, self.address = folder, lines, address
        self.inside = ["ip", "netns", "exec", namespace] if namespace else []
        self.home = folder / "home"
        self.home.mkdir(mode=0o755)
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.user_key = folder / "user_key"
        user_key = asyncssh.generate_private_key("ssh-ed25519")
        user_key.write_private_key(self.user_key)
        self.user_key.chmod(0o600)
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
            f"ListenAddress {self.address}", f"PidFile {self.folder}/sshd.pid", f"SetEnv HOME={self.home}", "StrictModes no",
            "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin yes",
        ]  # fmt: skip
        config.write_text("\n".join(settings) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [*self.inside, SSHD, "-D", "-e", "-f", str(config), "-p", str(self.port)]
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
        """Return the processes of sshd that serve connections, those nearest to the client's end first."""
        found: list[int] = []
        ahead = _children(self.process.pid)
        while ahead:
            pid = ahead.pop()
            if _is_sshd(pid):
                found.insert(0, pid)
                ahead += _children(pid)
        return found

    def cut(self) -> None:
        """Cut every connection, as by a crash."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def known_line(self, key: asyncssh.SSHKey | None = None) -> str:
        """Return the line of known_hosts for it."""
        return f"[{self.address}]:{self.port} {(key or self.host_key).export_public_key().decode().strip()}\n"

    def settings(self, **changes: object) -> SshHost:
        """Return settings of a host that reaches it."""
        values = {
            "host": self.address, "user": USER, "port": self.port, "identity_file": self.user_key,
            "known_hosts": self.known_hosts, "ssh_config": _empty(self.folder),
        }  # fmt: skip
        return SshHost.model_validate({k: v for k, v in (values | changes).items() if v is not None})

    def openssh(self, **changes: object) -> OpenSshHost:
        """Return settings of a host that reaches it by the ssh program, sharing no connection."""
        values = {**self.settings().model_dump(exclude={"kind"}), "control_path": "none"} | changes
        return OpenSshHost.model_validate({k: v for k, v in values.items() if v is not None})

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


def _is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
