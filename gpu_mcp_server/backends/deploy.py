"""Deployment of hostd onto a host over the streams of one command there, whatever carries them.

The command finds a Python and makes it run what comes on stdin: first the loader's text, then, if the host does not
have it yet, hostd as one zip file by content hash. The loader becomes hostd, and the streams are the channel.
"""

import asyncio
import contextlib
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_mcp_server.backends.bundle import hostd_zip
from gpu_mcp_server.errors import DiskFull, GpuMcpError, HostUnavailable, ToolMissing
from gpu_mcp_server.settings.host_settings import Login

START_S = 30.0
BANNER_BYTES = 64 << 10
"""What a login shell may print before hostd starts."""
NO_PYTHON = 77
PYTHONS = ("python3", "/usr/bin/python3", "/usr/local/bin/python3", "python")
LOADER = Path(__file__).with_name("bootstrap.py")


class CommandStreams(Protocol):
    """The streams of the command that becomes hostd."""

    tail: bytearray
    """The end of what it printed on stderr."""

    async def read(self) -> bytes:
        """Return some of its stdout, nothing at the end."""
        ...

    def write(self, data: bytes) -> None:
        """Write to its stdin; what cannot be written is told by the end of its stdout."""
        ...

    async def status(self) -> int | None:
        """Return its exit status, `None` if there is none (yet)."""
        ...


@dataclass(frozen=True)
class HostLocation:
    """A host as errors name it, and what hostd needs to know there."""

    name: str
    where: str
    """Its name and, where it differs, what it is reached by."""
    try_line: str
    """A shell line that must print ok."""
    python: str | None = None
    state_dir: str | None = None
    verb: str = "serve"
    """What hostd is started with."""


def ssh_location(name: str, host: Login, verb: str) -> HostLocation:
    """Return a host's name and address with user and port, and the command that tests just the way there."""
    address = (f"{host.user}@" if host.user else "") + (f"[{host.host}]" if ":" in host.host else host.host)
    address += f":{host.port}" if host.port else ""
    options = (
        *(("-F", str(host.ssh_config)) if host.ssh_config else ()),
        *(("-i", str(host.identity_file)) if host.identity_file else ()),
        *(("-o", f"UserKnownHostsFile={host.known_hosts}") if host.known_hosts else ()),
        *(("-p", str(host.port)) if host.port else ()),
        *(("-l", host.user) if host.user else ()),
    )
    where = repr(name) if name == address else f"{name!r} ({address})"
    try_line = f"{shlex.join(['ssh', *options, host.host])} echo ok"
    return HostLocation(name, where, try_line, host.python, host.state_dir, verb)


def start_command(python: str | None) -> str:
    """Return the command that finds a Python and makes it run what comes on stdin.

    sh, csh and fish read it alike: no newline, and no backslash inside single quotes.
    """
    return "exec " + shlex.join(start_words(python))


def start_words(python: str | None) -> list[str]:
    """Return the same as a list of words."""
    words = " ".join(python_words(python))
    test = "import sys; sys.exit(sys.version_info < (3, 8))"
    run = "import sys; f = sys.stdin.buffer.raw; exec(eval(f.readline()))"
    tried = f'"$p" -IS -c "{test}" </dev/null >/dev/null 2>&1 && exec "$p" -IS -c "{run}"'
    return ["/bin/sh", "-c", f"for p in {words}; do {tried}; done; exit {NO_PYTHON}"]


def python_words(python: str | None) -> list[str]:
    """Return where a Python may be, as words of a shell."""
    return [shell_word(p) for p in ([python] if python else PYTHONS)]


def shell_word(path: str) -> str:
    """Return a path as a word of a shell, its home folder put in there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


async def load(talk: CommandStreams, to: HostLocation) -> None:
    """Talk with the loader until it has become hostd.

    Raises:
        HostUnavailable: If the command does not become hostd; the text has what it printed instead.
        ToolMissing: If the host has no Python 3.8.
        DiskFull: If there is no room for hostd.
    """
    digest, content = hostd_zip()
    mark = f"hostd-{secrets.token_hex(8)}"
    arguments = f"f, {mark!r}, {digest!r}, {len(content)}, {to.state_dir or ''!r}, {to.verb!r}"
    said = bytearray()
    _write(talk, repr(LOADER.read_text(encoding="utf-8") + f"\nload({arguments})\n").encode() + b"\n")
    try:
        async with asyncio.timeout(START_S):
            word = await next_marked_line(talk, mark, said)
            if word == "need":
                _write(talk, content)
                word = await next_marked_line(talk, mark, said)
    except TimeoutError:
        raise await _not_started(talk, to, said, f"did not start within {START_S:g} s") from None
    if word is None:
        raise await _not_started(talk, to, said, "did not start")
    if word != "go":
        raise _not_put(to, word.removeprefix("no "))


def _write(talk: CommandStreams, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a login that ended already is told by what it printed
        talk.write(data)


async def next_marked_line(talk: CommandStreams, mark: str, said: bytearray) -> str | None:
    """Return the next line that carries the mark, or nothing at the end; what else is printed is kept in `said`."""
    start = mark.encode() + b" "
    while len(said) < BANNER_BYTES:
        before, found, after = said.partition(start)
        if found and b"\n" in after:
            line, _, rest = after.partition(b"\n")
            said[:] = before + rest
            return line.decode("utf-8", "replace")
        chunk = await talk.read()
        if not chunk:
            return None
        said += chunk
    return None


def _not_put(to: HostLocation, why: str) -> GpuMcpError:
    if "No space left" in why or "quota exceeded" in why:
        return DiskFull(
            f"Host {to.where} has no room for hostd: {why}.",
            hint="Free some of the home folder there (its quota may be full), or set state_dir to another disk.",
        )
    if "Read-only file system" in why:
        return HostUnavailable(
            f"hostd could not be put on host {to.where}, its home folder is read-only: {why}.",
            hint="Set state_dir of this host to a folder that can be written.", retryable=False,
        )  # fmt: skip
    return HostUnavailable(
        f"hostd could not be put on host {to.where}: {why}.",
        hint="Is the home folder there writable and not full? Else set state_dir to a folder that is.",
        retryable=False,
    )


async def _not_started(talk: CommandStreams, to: HostLocation, said: bytearray, how: str) -> GpuMcpError:
    status = await talk.status()
    if status == NO_PYTHON:
        hint = "Correct `python` of this host." if to.python else "Install python3 there, or set `python`."
        return ToolMissing(f"Python 3.8 or newer ({to.python or ', '.join(PYTHONS)})", to.name, hint=hint)
    printed = said.decode("utf-8", "replace").strip()[:300]
    words = [f"it printed {printed!r}" if printed else "it printed nothing"]
    errors = talk.tail.decode("utf-8", "replace").strip()[-300:]
    words += [f"and on stderr {errors!r}"] if errors else []
    ended = "" if status is None else f" (the login ended with status {status})"
    by = f" by {to.python}" if to.python else ""
    return HostUnavailable(
        f"hostd {how}{by} on host {to.where}{ended}; {' '.join(words)}.",
        hint="The account must let commands run: look for a ForceCommand, a restricted shell, or a start-up file "
        f"that asks or exits. `{to.try_line}` must print ok.",
        retryable=False,
    )
