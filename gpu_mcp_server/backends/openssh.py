"""A machine over the user's own ssh program, and over the connection that a person opened with it.

For logins that a server cannot make by itself, such as those with one-time passwords: a person logs in once
(`gpu-mcp-server hosts login NAME`, or their own ControlMaster), and sessions here go over that connection. ssh asks
nobody here (BatchMode), verifies host keys whatever its configuration says, and forwards nothing.
"""

import asyncio
import re
from pathlib import Path

from gpu_mcp_server.backends.base import Channel
from gpu_mcp_server.backends.child_process import ChildProcess, run_here
from gpu_mcp_server.backends.deploy import HostLocation, load, ssh_location, start_command
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostKeyUnknown, HostUnavailable, ToolMissing
from gpu_mcp_server.settings.host_settings import OpenSshHost

SSH = "ssh"
CONNECT_S = 10
KEEPALIVE_S, KEEPALIVE_COUNT = 15, 3
LOOK_S = 20.0
MASTER_KEPT_S = 12 * 3600
"""How long a connection that `hosts login` opened outlives its last session."""
DEFAULT_CONTROL = Path("~/.ssh/gpu-mcp-%C")
SSH_FAILED = 255
"""Status of ssh itself, as opposed to the command's. Source: ssh(1)."""

_SHOWN_KEY = re.compile(r"Server host key: (\S+) (SHA256:\S+)")
_SSH_NOISE = re.compile(r"^(?:Warning: Permanently added|Connection to .* closed).*\n?", re.MULTILINE)


class OpenSshBackend:
    """Runs ssh as a child process."""

    kind = "openssh"

    def __init__(self, name: str, host: OpenSshHost, verb: str = "serve") -> None:
        self.name = name
        self._host = host
        self.address = ssh_location(name, host, verb)

    async def open(self) -> Channel:
        """Start ssh, push hostd if this version is not there, start it.

        Raises:
            HostUnavailable: If the host does not answer, or a person must log in first.
            HostKeyUnknown: If its key is new or has changed.
            ToolMissing: If there is no ssh here, or no Python 3.8 there.
            ConfigError: If a file of the settings is not there.
        """
        return await self.start(start_command(self._host.python), self.address)

    async def start(self, command: str, address: HostLocation) -> Channel:
        """Run a command there that becomes hostd.

        Raises:
            GpuMcpError: As `open` does.
        """
        self._check_files()
        try:
            child = await ChildProcess.start([*self.words(), "--", self._host.host, command])
        except FileNotFoundError:
            raise ToolMissing("ssh", "this machine", hint='Install OpenSSH\'s client, or use kind = "ssh".') from None
        try:
            await load(child, address)
        except GpuMcpError as error:
            await child.kill()
            await child.close()
            raise await self._explained(child, error) from error
        except BaseException:
            await child.kill()
            raise

        async def why_ended() -> str:
            code = await child.process.wait()
            return "the connection was lost" if code == SSH_FAILED else await child.why_ended()

        return child.channel(why_ended)

    async def run(self, command: str, stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
        """Run a command there to its end; return its exit status, `None` if the line was lost, stdout and stderr.

        Raises:
            GpuMcpError: As `open` does.
        """
        self._check_files()
        words = [*self.words(), "--", self._host.host, command]
        status, out, err = await run_here(words, stdin)
        if status == SSH_FAILED:
            raise HostUnavailable(
                f"Host {self.address.where} cannot be reached: {_last_line(err.decode('utf-8', 'replace'))}.",
                hint=f"`gpu-mcp-server hosts login {self.name}`, if a person must log in first.",
            )
        return status, out, err

    def words(self) -> list[str]:
        """Return the ssh program with its options."""
        options = {
            "BatchMode": "yes", "StrictHostKeyChecking": "yes", "UpdateHostKeys": "no", "ConnectTimeout": CONNECT_S,
            "ServerAliveInterval": KEEPALIVE_S, "ServerAliveCountMax": KEEPALIVE_COUNT, "ForwardAgent": "no",
            "ForwardX11": "no", "ClearAllForwardings": "yes", "PermitLocalCommand": "no", "RequestTTY": "no",
            "ControlMaster": "no", "ControlPath": self._control_path(),
        }  # fmt: skip
        words = [SSH, "-T"]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"] if value else []
        return [*words, *self._login_words()]

    def login_words(self) -> list[str]:
        """Return the command by which a person opens the connection that all sessions share."""
        options = {
            "ControlMaster": "yes", "ControlPath": self._control_path() or str(DEFAULT_CONTROL.expanduser()),
            "ControlPersist": MASTER_KEPT_S, "ServerAliveInterval": KEEPALIVE_S, "ForwardAgent": "no",
            "ClearAllForwardings": "yes",
        }  # fmt: skip
        words = [SSH, "-T", "-f", "-N"]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        return [*words, *self._login_words(), "--", self._host.host]

    def _control_path(self) -> str | None:
        """Return the socket to share; `None` leaves it to ssh's configuration, which may name one."""
        return self._host.control_path or (None if self._configured_control() else str(DEFAULT_CONTROL.expanduser()))

    def _configured_control(self) -> bool:
        """Say whether ssh's configuration names a socket for anything."""
        files = (
            (self._host.ssh_config,) if self._host.ssh_config else (Path("~/.ssh/config"), Path("/etc/ssh/ssh_config"))
        )
        for file in files:
            try:
                text = file.expanduser().read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if re.search(r"^\s*controlpath[\s=]+(?!none\b)\S", text, re.IGNORECASE | re.MULTILINE):
                return True
        return False

    def _login_words(self) -> list[str]:
        host = self._host
        words = ["-F", str(host.ssh_config)] if host.ssh_config else []
        words += ["-p", str(host.port)] if host.port else []
        words += ["-l", host.user] if host.user else []
        words += ["-i", str(host.identity_file), "-o", "IdentitiesOnly=yes"] if host.identity_file else []
        words += ["-o", f"UserKnownHostsFile={host.known_hosts}"] if host.known_hosts else []
        return words

    def _check_files(self) -> None:
        for setting, file in (("identity_file", self._host.identity_file), ("ssh_config", self._host.ssh_config)):
            if file is not None and not file.is_file():
                raise ConfigError(f"{setting} of host {self.name!r} is {file}, which is no file.")

    async def _explained(self, child: ChildProcess, error: GpuMcpError) -> GpuMcpError:
        """Return what ssh itself complains about in our words, or the error as it is."""
        if child.process.returncode != SSH_FAILED:
            return error
        said = _SSH_NOISE.sub("", child.tail.decode("utf-8", "replace"))
        where, name = self.address.where, self.name
        test = f"`{self.address.try_line}` tests just that."
        if "Host key verification failed" in said or "HOST IDENTIFICATION HAS CHANGED" in said:
            return await self._key_refused("HAS CHANGED" in said)
        if "UNPROTECTED PRIVATE KEY FILE" in said:
            return ConfigError(
                f"ssh does not use the key of host {where}: others may read its file.",
                hint=f"chmod 600 {self._host.identity_file or 'the identity file'}",
            )
        if "Permission denied" in said or "Too many authentication failures" in said:
            return HostUnavailable(
                f"Host {where} refuses the login: {_last_line(said)}.",
                hint="If it wants a password or a one-time code, a person must log in once: "
                f"`gpu-mcp-server hosts login {name}`. Else make `{self.address.try_line}` work first.",
                retryable=False,
            )  # fmt: skip
        if "timed out" in said:
            return HostUnavailable(f"Host {where} did not answer within {CONNECT_S} s: {_last_line(said)}.", hint=test)
        problem = _last_line(said) or "ssh does not say why"
        return HostUnavailable(f"Host {where} cannot be reached: {problem}.", hint=test)

    async def _key_refused(self, changed: bool) -> HostKeyUnknown:
        shown = await self._shown_key()
        where = self.address.where
        if changed:
            return HostKeyUnknown(
                f"THE SSH KEY OF HOST {where} HAS CHANGED: it shows {shown}, which is not the one in known_hosts. "
                "Another machine may stand between; nothing was sent.",
                hint="A person must ask the host's administrator. Only if they confirm the new key: "
                f"`gpu-mcp-server hosts check {self.name}` shows how to replace the old one.",
            )
        return HostKeyUnknown(
            f"Host {where} shows the SSH key {shown}, which is not accepted yet.",
            hint="A person must compare it with the one that the administrator names, then: "
            f"`gpu-mcp-server hosts check {self.name} --accept-key {shown.rpartition(' ')[2]}`.",
        )

    async def _shown_key(self) -> str:
        words = [SSH, "-v", *self.words()[1:], "--", self._host.host, "exit"]
        try:
            _, _, said = await asyncio.wait_for(run_here(words), LOOK_S)
        except TimeoutError:
            return "that could not be read"
        found = _SHOWN_KEY.search(said.decode("utf-8", "replace"))
        return f"{found[1]} {found[2]}" if found else "that could not be read"


def _last_line(said: str) -> str:
    return said.strip().rpartition("\n")[2].strip().rstrip(".")[:300]
