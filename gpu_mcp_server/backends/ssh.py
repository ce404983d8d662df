"""A machine over SSH, by asyncssh: one channel to a hostd that was pushed by content hash.

Host keys are always verified. An unknown one is refused with its fingerprint and the command that accepts it.
Environment does not travel by SSH (sshd drops it), nothing is forwarded, and the only command line is one that
every login shell reads alike; all else goes through stdin.
"""

import asyncio
import contextlib
from typing import Any

import asyncssh
import stamina

from gpu_mcp_server.backends.base import Channel
from gpu_mcp_server.backends.deploy import HostLocation, load, ssh_location, start_command
from gpu_mcp_server.backends.host_keys import HostKeyClient, KnownHosts, ShownKey, refusal
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostUnavailable
from gpu_mcp_server.settings.host_settings import Login

CONNECT_S = 10.0
LOGIN_S = 20.0
KEEPALIVE_S, KEEPALIVE_COUNT = 15.0, 3
"""Source: measured; without keepalive a cut line is never noticed, with it `wait` ends with status None."""
STDERR_KEPT = 4096
READ_BYTES = 4096
CLOSE_S = 2.0

Process = asyncssh.SSHClientProcess[bytes]


class SshBackend:
    """Connects as the user's own ssh would: ~/.ssh/config, agent, keys, jump hosts."""

    kind = "ssh"

    def __init__(self, name: str, host: Login, verb: str = "serve") -> None:
        self.name = name
        self._host = host
        self.address = ssh_location(name, host, verb)

    async def open(self) -> Channel:
        """Connect, push hostd if this version is not there, start it.

        Raises:
            HostUnavailable: If the host does not answer, refuses the login, or lets no command run.
            HostKeyUnknown: If its key is new or has changed.
            ToolMissing: If it has no Python 3.8.
            ConfigError: If ssh's configuration or the key file cannot be read.
        """
        return await self.start(start_command(self._host.python), self.address)

    async def start(self, command: str, address: HostLocation) -> Channel:
        """Run a command there that becomes hostd.

        Raises:
            GpuMcpError: As `open` does.
        """
        connection = await self._connect()
        try:
            return await self._start(connection, command, address)
        except (OSError, asyncssh.Error) as error:
            connection.abort()
            raise HostUnavailable(f"Host {self.address.where} broke off while hostd started: {error}.") from error
        except BaseException:
            connection.abort()
            raise

    async def shown_key(self) -> ShownKey:
        """Return the key that the host shows now; nothing is accepted, nobody is logged in.

        Raises:
            HostUnavailable: If the host cannot be reached.
            HostKeyUnknown: If a jump host's key is not accepted.
            ConfigError: If ssh's configuration or known_hosts cannot be read.
        """
        watch = HostKeyClient()
        known = await self._known_hosts()
        options = self.options() | {"server_host_key_algs": known.algorithms()}
        try:
            connection = await asyncssh.connect(
                self._host.host, client_factory=lambda: watch, known_hosts=asyncssh.import_known_hosts(""), **options
            )
            connection.abort()
        except (OSError, ValueError, asyncssh.Error) as error:
            if watch.seen is None:
                raise self._unreachable(error) from error
        if watch.seen is None:
            raise HostUnavailable(f"Host {self.address.where} shows no key (it uses GSSAPI).", retryable=False)
        return known.classify(watch.seen)

    def options(self) -> dict[str, Any]:
        """Return the options of the connection besides host keys."""
        host = self._host
        options: dict[str, Any] = {
            "connect_timeout": CONNECT_S, "login_timeout": LOGIN_S, "keepalive_interval": KEEPALIVE_S,
            "keepalive_count_max": KEEPALIVE_COUNT, "agent_forwarding": False, "x11_forwarding": False,
            "compression_algs": None, "ignore_encrypted": True,
        }  # fmt: skip
        options |= {n: v for n, v in (("username", host.user), ("port", host.port)) if v is not None}
        if host.identity_file is not None:
            options["client_keys"] = [str(host.identity_file)]
        if host.ssh_config is not None:
            options["config"] = [str(host.ssh_config)]
        return options

    async def _known_hosts(self) -> KnownHosts:
        self._check_files()
        try:
            return await KnownHosts.read_for_host(self._host.host, self.options(), self._host.known_hosts)
        except (OSError, ValueError) as error:
            raise ConfigError(f"The SSH settings of host {self.address.where} cannot be used: {error}.") from error

    async def _connect(self) -> asyncssh.SSHClientConnection:
        watch = HostKeyClient()
        known = await self._known_hosts()

        @stamina.retry(on=(ConnectionResetError, asyncssh.ConnectionLost), attempts=3, timeout=15.0)
        async def connect() -> asyncssh.SSHClientConnection:
            return await asyncssh.connect(
                self._host.host, client_factory=lambda: watch, known_hosts=known.content, **self.options()
            )

        try:
            return await connect()
        except asyncssh.HostKeyNotVerifiable as error:
            shown = known.classify(watch.seen) if watch.seen else await self.shown_key()
            if shown.state == "known":
                raise self._unreachable(error) from error
            raise refusal(self.name, shown) from error
        except (OSError, ValueError, asyncssh.Error) as error:
            raise self._unreachable(error) from error

    def _check_files(self) -> None:
        for setting, file in (("identity_file", self._host.identity_file), ("ssh_config", self._host.ssh_config)):
            if file is not None and not file.is_file():
                raise ConfigError(f"{setting} of host {self.name!r} is {file}, which is no file.")

    def _unreachable(self, error: Exception) -> GpuMcpError:
        """Say why there is no connection, and what helps."""
        match error:
            case asyncssh.HostKeyNotVerifiable():
                return HostUnavailable(
                    f"On the way to host {self.address.where}: {error.reason}.",
                    hint="That is a jump host of ssh's configuration; a person must accept its key, as by `ssh` to it.",
                    retryable=False,
                )
            case asyncssh.PermissionDenied():
                return HostUnavailable(
                    f"Host {self.address.where} refuses the login: {error.reason}.",
                    hint=f"Make `{self.address.try_line}` work without a question first, by an agent or a key without "
                    "passphrase; ssh-copy-id puts your key there.",
                    retryable=False,
                )  # fmt: skip
            case TimeoutError():
                return HostUnavailable(
                    f"Host {self.address.where} did not answer within {CONNECT_S:g} s.", hint=self._test_hint()
                )
            case ValueError():
                return ConfigError(f"The SSH settings of host {self.address.where} cannot be used: {error}.")
            case _:
                return HostUnavailable(
                    f"Host {self.address.where} cannot be reached: {error or type(error).__name__}.",
                    hint=self._test_hint(),
                )

    def _test_hint(self) -> str:
        return f"`{self.address.try_line}` tests just that."

    async def run(self, command: str, stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
        """Run a command there to its end; return its exit status, `None` if the line was lost, stdout and stderr.

        Raises:
            GpuMcpError: As `open` does.
        """
        connection = await self._connect()
        try:
            done = await connection.run(command, input=stdin, encoding=None)
        except (OSError, asyncssh.Error) as error:
            raise HostUnavailable(f"Host {self.address.where} broke off: {error}.") from error
        finally:
            connection.close()
        return done.exit_status, bytes(done.stdout or b""), bytes(done.stderr or b"")  # type: ignore[arg-type]  # bytes

    async def _start(self, connection: asyncssh.SSHClientConnection, command: str, address: HostLocation) -> Channel:
        process: Process = await connection.create_process(command, encoding=None)
        tail = bytearray()
        listening = asyncio.create_task(_listen(process.stderr, tail), name=f"stderr {self.name}")

        async def close() -> None:
            process.close()
            connection.close()
            with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
                await asyncio.wait_for(connection.wait_closed(), CLOSE_S)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

        async def why_ended() -> str:
            with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
                await asyncio.wait_for(process.wait_closed(), CLOSE_S)
            if process.exit_status is None:
                return "the connection was lost"
            said = tail.decode("utf-8", "replace").strip()[-400:]
            return f"hostd ended with status {process.exit_status}: {said or 'no message'}"

        try:
            await load(_Talk(process, tail), address)
        except BaseException:
            await close()
            raise
        return Channel(_Reader(process.stdout), _Writer(process.stdin), close, why_ended)


async def _listen(stream: Any, tail: bytearray) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while chunk := await stream.read(STDERR_KEPT):
            tail += chunk
            del tail[:-STDERR_KEPT]


class _Talk:
    """The streams before the command is hostd."""

    def __init__(self, process: Process, tail: bytearray) -> None:
        self._process, self.tail = process, tail

    async def read(self) -> bytes:
        return await self._process.stdout.read(READ_BYTES)

    def write(self, data: bytes) -> None:
        self._process.stdin.write(data)

    async def status(self) -> int | None:
        with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
            await asyncio.wait_for(self._process.wait_closed(), CLOSE_S)
        return self._process.exit_status


class _Reader:
    """Stdout of hostd, with asyncssh's errors as the connection errors that they are."""

    def __init__(self, stream: "asyncssh.SSHReader[bytes]") -> None:
        self._stream = stream

    async def readexactly(self, n: int) -> bytes:
        try:
            return await self._stream.readexactly(n)
        except asyncssh.Error as error:
            raise ConnectionResetError(error.reason) from error


class _Writer:
    """Stdin of hostd, the same."""

    def __init__(self, stream: "asyncssh.SSHWriter[bytes]") -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except asyncssh.Error as error:
            raise ConnectionResetError(error.reason) from error

    async def drain(self) -> None:
        try:
            await self._stream.drain()
        except asyncssh.Error as error:
            raise ConnectionResetError(error.reason) from error
