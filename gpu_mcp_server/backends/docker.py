"""A machine's Docker: one hardened container for each host of the settings, with hostd on the stdio of an exec.

The container is the hull: no network, no capability, no new privileges, a read-only root, limits on memory and
processes, and of the host's devices only the GPUs asked for. Inside it jobs run in the same sandboxes as elsewhere,
which is why the container may make user namespaces and see all of /proc as an ordinary user does.

It ends by itself when nothing has run in it for a while; what jobs left is in a volume and is found again.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import socket
import tarfile
from collections.abc import Callable
from typing import Any, TypeVar

from gpu_mcp_server.backends.base import Channel
from gpu_mcp_server.backends.deploy import PYTHONS, HostLocation, load, start_words
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostUnavailable, ToolMissing
from gpu_mcp_server.hostd.sandbox import seccomp
from gpu_mcp_server.settings.host_settings import DockerHost

T = TypeVar("T")

UID = 10001
STATE = "/state/hostd"
LABEL = "gpu-mcp-server.host"
CONFIG_LABEL = "gpu-mcp-server.config"
PROCESSES = 4096
DEFAULT_URL = "unix:///var/run/docker.sock"
TIMEOUT_S = 60
KNOCK_S = 10.0
STDERR_KEPT = 4096
CLOSE_S = 2.0
ENDED_WORDS = ("is not running", "marked for removal")
MAKES_SANDBOXES = frozenset({
    "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree", "pivot_root",
    "sethostname", "setns", "umount2", "unshare",
})  # fmt: skip
"""What the sandboxes inside need; each of them denies these to its job."""

FIRST_PROCESS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
idle_s, busy_at = float(sys.argv[1]), time.monotonic()
while time.monotonic() - busy_at < idle_s:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    if sum(name.isdigit() for name in os.listdir("/proc")) > 1:
        busy_at = time.monotonic()
    time.sleep(min(1.0, idle_s / 4))
"""
"""Takes in orphans, and ends the container when it has been alone for long enough."""


class DockerBackend:
    """Opens channels into the container of one host."""

    kind = "docker"

    def __init__(self, name: str, host: DockerHost) -> None:
        self.name = name
        self._host = host
        self._address = HostLocation(
            name, f"{name!r} (image {host.image})", "docker exec … echo ok", host.python, STATE
        )
        self._lock = asyncio.Lock()

    async def open(self) -> Channel:
        """Make or find the container, and start hostd in it.

        Raises:
            HostUnavailable: If Docker cannot be reached, or does not start the container.
            ConfigError: If it has no such image.
            ToolMissing: If the image has no Python 3.8.
        """
        async with self._lock:
            container = await asyncio.to_thread(self._explaining, self._container)
            number, end = await asyncio.to_thread(self._explaining, lambda api: self._exec(api, container))
        stream = await _ExecStream.over(end)

        async def status() -> int | None:
            found = await asyncio.to_thread(self._explaining, lambda api: api.exec_inspect(number))
            return None if found.get("Running") else found.get("ExitCode")

        async def why_ended() -> str:
            code = None
            with contextlib.suppress(GpuMcpError):
                code = await status()
            return f"hostd in its container ended with status {code}: {stream.stderr_tail() or 'no message'}"

        stream.ask_status = status
        try:
            await load(stream, self._address)
        except BaseException:
            await stream.close()
            raise
        return Channel(stream.reader, stream.writer, stream.close, why_ended)

    async def remove(self) -> None:
        """End the host's containers, and with them all that runs there."""
        await asyncio.to_thread(self._explaining, lambda api: self._drop_others(api, ""))

    def _explaining(self, work: Callable[[Any], T]) -> T:
        """Do something with Docker and put what it complains about into our words."""
        import docker.errors
        import requests

        try:
            with contextlib.closing(self._connect()) as api:
                return work(api)
        except docker.errors.ImageNotFound as error:
            raise ConfigError(
                f"Docker host {self.name!r} has no image {self._host.image!r}.",
                hint=f"`docker pull {self._host.image}` there, or correct `image` of this host.",
            ) from error
        except docker.errors.APIError as error:
            said = str(error.explanation or error)
            if "no such file or directory" in said:
                raise self._lacks_python() from error
            hint = ""
            if "could not select device driver" in said:
                hint = "GPUs in Docker need nvidia-container-toolkit on its host: install it, then restart dockerd."
            raise HostUnavailable(f"Docker of host {self.name!r} refuses: {said[:400]}.", hint=hint) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            hint = "Is dockerd running, and may you use it? `docker info` must work"
            hint += f" with DOCKER_HOST={self._host.docker_url}." if self._host.docker_url else "."
            raise HostUnavailable(f"Docker of host {self.name!r} does not answer: {error}.", hint=hint) from error

    def _lacks_python(self) -> ToolMissing:
        tried = self._host.python or ", ".join(PYTHONS)
        hint = "Take another image, or set `python` of this host."
        return ToolMissing(f"Python 3.8 or newer ({tried}, or /bin/sh)", self.name, hint=hint)

    def _connect(self) -> Any:
        import docker
        from docker.utils import kwargs_from_env

        url = self._host.docker_url
        where: dict[str, Any] = {"base_url": url} if url else dict(kwargs_from_env())
        probe_socket(str(where.get("base_url") or DEFAULT_URL))
        return docker.APIClient(version="auto", timeout=TIMEOUT_S, **where)

    def config(self) -> dict[str, Any]:
        """Return the container as Docker's API wants it described."""
        host = self._host
        binds = [f"{path}:{path}:ro" for path in host.mounts]
        find = 'for p in "$@"; do "$p" -IS -c pass 2>/dev/null && exec "$p" -IS -c "$0" "$IDLE_S"; done; exit 77'
        limits: dict[str, Any] = {"PidsLimit": PROCESSES}
        limits |= {"Memory": host.memory_bytes, "MemorySwap": host.memory_bytes} if host.memory_bytes else {}
        limits |= {"NanoCpus": int(host.cpus * 1e9)} if host.cpus else {}
        return {
            "Image": host.image, "Entrypoint": [],
            "Cmd": ["/bin/sh", "-c", find, FIRST_PROCESS, *([host.python] if host.python else PYTHONS)],
            "User": f"{UID}:{UID}", "WorkingDir": "/", "NetworkDisabled": True,
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", f"IDLE_S={host.idle_s}"],
            "HostConfig": {
                **limits, "AutoRemove": True, "CapDrop": ["ALL"], "NetworkMode": "none", "ReadonlyRootfs": True,
                "SecurityOpt": ["no-new-privileges", f"seccomp={json.dumps(seccomp_profile())}", "apparmor=unconfined"],
                "MaskedPaths": [], "ReadonlyPaths": [], "LogConfig": {"Type": "none"}, "IpcMode": "private",
                "Tmpfs": {"/tmp": "size=64m,mode=1777,nosuid,nodev"},  # noqa: S108
                "Binds": [f"gpu-mcp-{self.name}:/state", *binds], "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
                "DeviceRequests": device_requests(host.gpus),
            },
        }  # fmt: skip

    def _container(self, api: Any) -> str:
        """Return the running container of this configuration."""
        import docker.errors

        config = self.config()
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
        self._drop_others(api, digest)
        found = self._listed(api, digest)
        if found:
            return str(found[0]["Id"])
        config["Labels"] = {LABEL: self.name, CONFIG_LABEL: digest}
        container = str(api.create_container_from_config(config)["Id"])
        try:
            api.put_archive(container, "/state", _state_folder())
            api.start(container)
        except BaseException:
            with contextlib.suppress(docker.errors.APIError):  # one that has ended removes itself
                api.remove_container(container, force=True)
            raise
        return container

    def _listed(self, api: Any, digest: str) -> list[dict[str, Any]]:
        labels = [f"{LABEL}={self.name}", *([f"{CONFIG_LABEL}={digest}"] if digest else [])]
        return list(api.containers(filters={"label": labels, **({"status": "running"} if digest else {})}, all=True))

    def _drop_others(self, api: Any, digest: str) -> None:
        """Remove containers of earlier settings, and those that did not start."""
        import docker.errors

        for one in self._listed(api, ""):
            if one["Labels"].get(CONFIG_LABEL) != digest or one["State"] in ("exited", "dead"):
                with contextlib.suppress(docker.errors.NotFound):
                    api.remove_container(one["Id"], force=True)

    def _exec(self, api: Any, container: str) -> tuple[str, socket.socket]:
        """Start hostd in a container that was found running."""
        import docker.errors

        words = start_words(self._host.python)
        try:
            number = api.exec_create(
                container, words, stdin=True, user=f"{UID}:{UID}", environment={"HOME": STATE}, workdir="/"
            )["Id"]
            end = api.exec_start(number, socket=True)
        except docker.errors.APIError as error:
            # A first process that finds no Python ends, and its container removes itself, before either question.
            ended = any(text in str(error.explanation) for text in ENDED_WORDS)
            if ended or isinstance(error, docker.errors.NotFound):
                raise self._lacks_python() from error
            raise
        plain = getattr(end, "_sock", end)
        if not isinstance(plain, socket.socket) or type(plain) is not socket.socket:
            raise HostUnavailable(
                "Channels into Docker go over a Unix socket or plain TCP.",
                hint='For a Docker behind TLS or SSH, make its machine a host of kind "ssh".',
                retryable=False,
            )
        copy = plain.dup()
        copy.setblocking(False)
        end._response.close()  # lets go of the client's own hold on the connection
        end.close()
        plain.close()
        return number, copy


def probe_socket(url: str) -> None:
    """Connect to a Unix socket and let go of it: docker's client leaks its own when nobody answers.

    Raises:
        OSError: If nobody listens there, in words.
    """
    scheme, _, path = url.partition("://")
    if not scheme.endswith("unix"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(KNOCK_S)
        try:
            end.connect(path)
        except FileNotFoundError as error:
            raise OSError(f"there is no {path}") from error
        except ConnectionRefusedError as error:
            raise OSError(f"no daemon listens on {path}") from error
        except PermissionError as error:
            raise OSError(f"this user may not open {path}") from error


def device_requests(gpus: str) -> list[dict[str, Any]]:
    """Return Docker's request for GPUs: none, `all`, or numbers and UUIDs by commas."""
    if not gpus:
        return []
    wanted: dict[str, Any] = {"Count": -1} if gpus == "all" else {"DeviceIDs": [g.strip() for g in gpus.split(",")]}
    return [{"Driver": "", "Capabilities": [["gpu"]], **wanted}]


def seccomp_profile() -> dict[str, Any]:
    """Return a seccomp profile that denies what hostd's sandboxes deny, but for what makes sandboxes."""
    names = sorted(set(seccomp.DENIED) - MAKES_SANDBOXES)
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": names, "action": "SCMP_ACT_ERRNO"}]}


def _state_folder() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo("hostd")
        info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o711, UID, UID
        archive.addfile(info)
    return data.getvalue()


class _ExecStream:
    """The stdio of an exec: Docker lays stdout and stderr into one stream, in frames of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._raw, self.writer = reader, writer
        self.reader = asyncio.StreamReader()
        self.tail = bytearray()
        self.ask_status: Any = None
        self._sorting = asyncio.create_task(self._sort(), name="docker exec")

    @classmethod
    async def over(cls, end: socket.socket) -> "_ExecStream":
        return cls(*await asyncio.open_connection(sock=end))

    async def _sort(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self._raw.readexactly(8)
                data = await self._raw.readexactly(int.from_bytes(head[4:], "big"))
                if head[0] == 2:
                    self.tail += data
                    del self.tail[:-STDERR_KEPT]
                else:
                    self.reader.feed_data(data)
        self.reader.feed_eof()

    async def read(self) -> bytes:
        return await self.reader.read(STDERR_KEPT)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int | None:
        return await self.ask_status()

    def stderr_tail(self) -> str:
        return self.tail.decode("utf-8", "replace").strip()[-400:]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), CLOSE_S)
        self._sorting.cancel()
        await asyncio.gather(self._sorting, return_exceptions=True)
