"""Known SSH host keys, and the refusal of a key that is new or has changed."""

import asyncio
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import asyncssh
from asyncssh.public_key import get_default_public_key_algs

from gpu_mcp_server.errors import BadRequest, HostKeyUnknown

DEFAULT_KNOWN_HOSTS = Path("~/.ssh/known_hosts")
SSH_PORT = 22


@dataclass(frozen=True)
class ShownKey:
    """The key that a host showed."""

    state: Literal["known", "new", "changed", "revoked"]
    kind: str
    """Algorithm, such as ssh-ed25519."""
    fingerprint: str
    """`SHA256:` and base64, as ssh prints it."""
    pattern: str
    """How known_hosts names the host."""
    line: str
    """Its line for known_hosts."""
    known: tuple[str, ...]
    """Fingerprints that known_hosts has for the host."""
    file: Path
    """The known_hosts file that a new key goes into."""


class HostKeyClient(asyncssh.SSHClient):
    """Notes a key that known_hosts does not have; it is refused all the same."""

    def __init__(self) -> None:
        self.seen: tuple[str, str, int, asyncssh.SSHKey] | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Note the key and refuse it."""
        self.seen = (host, addr, port, key)
        return False


@dataclass(frozen=True)
class KnownHosts:
    """The known_hosts files of one host's connection; a file that does not exist counts as empty."""

    host: str
    """How known_hosts names it: an alias, or the name or address that ssh's configuration gives."""
    port: int
    alias: bool
    files: tuple[Path, ...]
    content: asyncssh.SSHKnownHosts

    @classmethod
    async def read_for_host(cls, host: str, options: dict[str, Any], file: Path | None) -> "KnownHosts":
        """Read what applies to a host: the file of the settings, or those that ssh's configuration names.

        A configuration that switches verification off (`UserKnownHostsFile none`) does not do so here.

        Raises:
            OSError, ValueError: If a file or the configuration cannot be read.
        """
        construct = functools.partial(asyncssh.SSHClientConnectionOptions, host=host, **{"config": (), **options})
        found = await asyncio.to_thread(construct)
        configured = cast("list[str] | None", found.known_hosts)
        named = [str(file)] if file else [str(f) for f in configured or ()]
        files, content = await asyncio.to_thread(_read, named)
        alias: str | None = found.host_key_alias
        return cls(alias or str(found.host), int(found.port), alias is not None, files, content)

    def algorithms(self) -> list[str]:
        """Return the key types to ask the host for: those that are known of it, or all."""
        trusted = self.content.match(self.host, "", self._odd_port(self.port))[0]
        names = {alg for key in trusted for alg in key.sig_algorithms}
        return [alg.decode() for alg in get_default_public_key_algs() if not names or alg in names]

    def _odd_port(self, port: int) -> int | None:
        return None if port == SSH_PORT else port

    def classify(self, seen: tuple[str, str, int, asyncssh.SSHKey]) -> ShownKey:
        """Compare a key with what is known of the host."""
        host, addr, port, key = seen
        trusted, _, revoked, *_ = self.content.match(host, addr, self._odd_port(port))
        state: Literal["known", "new", "changed", "revoked"] = "changed" if trusted else "new"
        if key in revoked:
            state = "revoked"
        elif key in trusted:
            state = "known"
        pattern = host if port == SSH_PORT or self.alias else f"[{host}]:{port}"
        return ShownKey(
            state=state, kind=key.get_algorithm(), fingerprint=key.get_fingerprint(), pattern=pattern,
            line=f"{pattern} {' '.join(key.export_public_key().decode().split()[:2])}",
            known=tuple(sorted(k.get_fingerprint() for k in trusted)), file=self.files[0],
        )  # fmt: skip


def refusal(name: str, shown: ShownKey) -> HostKeyUnknown:
    """Return the error for a key that is not accepted."""
    accept = f"gpu-mcp-server hosts check {name} --accept-key {shown.fingerprint}"
    if shown.state == "revoked":
        return HostKeyUnknown(f"Host {name!r} ({shown.pattern}) shows {shown.fingerprint}, which known_hosts revokes.")
    if shown.state == "changed":
        return HostKeyUnknown(
            f"THE SSH KEY OF HOST {name!r} ({shown.pattern}) HAS CHANGED: known_hosts has {', '.join(shown.known)}, "
            f"the host shows {shown.kind} {shown.fingerprint}. Another machine may stand between; nothing was sent.",
            hint="A person must ask the host's administrator. Only if they confirm the new key: "
            f"`ssh-keygen -f {shown.file} -R '{shown.pattern}'`, then `{accept}`.",
        )
    return HostKeyUnknown(
        f"Host {name!r} ({shown.pattern}) shows the SSH key {shown.kind} {shown.fingerprint}, "
        "which is not accepted yet.",
        hint=f"A person must compare it with the one of its administrator, then: `{accept}` (writes {shown.file}).",
    )


def accept(name: str, shown: ShownKey, fingerprint: str) -> bool:
    """Write a shown key into known_hosts if it is the one that was confirmed; False if it was there already.

    Raises:
        BadRequest: If the host shows another key.
        HostKeyUnknown: If known_hosts has another key of the host, or the key is revoked.
    """
    if shown.fingerprint != fingerprint:
        raise BadRequest(
            f"Host {name!r} shows {shown.kind} {shown.fingerprint}, not {fingerprint}; nothing is accepted.",
            hint="Compare both with the one that the administrator names.",
        )
    if shown.state == "known":
        return False
    if shown.state != "new":
        raise refusal(name, shown)
    shown.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = shown.file.read_bytes() if shown.file.exists() else b""
    gap = b"" if not before or before.endswith(b"\n") else b"\n"
    fd = os.open(shown.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(fd, "wb") as out:
        out.write(gap + shown.line.encode() + b"\n")
    return True


def _read(named: list[str]) -> tuple[tuple[Path, ...], asyncssh.SSHKnownHosts]:
    files = tuple(Path(f).expanduser() for f in named) or (DEFAULT_KNOWN_HOSTS.expanduser(),)
    return files, asyncssh.read_known_hosts([str(f) for f in files if f.is_file()])
