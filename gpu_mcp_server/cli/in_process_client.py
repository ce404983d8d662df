"""The laboratory as commands use it: the same MCP server as agents get, in this process."""

import asyncio
import re
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer

from gpu_mcp_server.cli.output import announce, fail, withdraw

if TYPE_CHECKING:
    from mcp import Client

    from gpu_mcp_server.bridge.command_session import CommandSession
    from gpu_mcp_server.services.lab import Lab
    from gpu_mcp_server.settings.server_settings import Settings

T = TypeVar("T")

CLEARED = "\r\x1b[K"
"""To the start of the line, and the rest of it erased. Source: ECMA-48, EL."""
_COUNTED = re.compile(r"\bround \d+|, about \d+ s|\bfor \d+ s\b")
"""Parts of a message that change from look to look: one line is enough where nothing else differs."""
GOES_ON = (
    "begun", "waits", "queue: ", "attempt a-", "still running", "starting ", "first call", "hidden shapes", "shape ",
)  # fmt: skip
"""Beginnings of the messages of a step, or of a candidate in it, before its end."""

LOCAL_ONLY: ContextVar[bool] = ContextVar("local_only", default=False)
"""Whether `--local` was given: the command acts on this machine's store although the user is logged in elsewhere."""

TOOL_OPTIONS: ContextVar[dict[str, Any]] = ContextVar("offered")
"""What was given before the command: toolsets, read_only, exclude_tools."""

DOING = {
    "gpu_status": "looking for GPUs, compilers and the judge's Python",
    "write_files": "copying files into a workspace",
    "cancel_job": "ending the job and what it started",
    "list_attempts": "reading what was tried",
    "search_docs": "searching the documentation",
    "run_command": "starting the command",
    "compile_kernel": "compiling",
    "register_problem": "running the problem's reference",
    "evaluate_kernel": "judging",
    "evaluate_kernels": "judging",
}
"""What a person reads while a tool works."""
IN_THE_STORE = ("write_files", "cancel_job", "list_attempts", "search_docs", "find_attempts", "list_problems")
"""Tools that name no host."""
STARTERS = (
    "run_command", "evaluate_kernel", "audit_attempt", "check_memory", "profile_kernel", "find_hotspots",
    "capture_problem", "verify_in_place", "make_dispatcher",
)  # fmt: skip
WAIT_S = 60


@dataclass(frozen=True)
class ToolAnswer:
    """Answer of a tool."""

    data: dict[str, Any]
    text: str
    failed: bool


class InProcessSession:
    """A connection to the server in this process."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def call(self, tool: str, arguments: dict[str, Any], *, quiet: bool = False) -> ToolAnswer:
        """Call a tool; its progress goes to stderr unless `quiet`. Arguments that are `None` count as not given."""
        given = {name: value for name, value in arguments.items() if value is not None}
        line = ProgressLine()
        try:
            result = await self._client.call_tool(tool, given, progress_callback=None if quiet else line)
        finally:
            line.end()
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        return ToolAnswer(result.structured_content or {}, text, bool(result.is_error))

    async def whole(self, artifact_id: str) -> bytes:
        """Return the content of an artifact."""
        import base64

        result = await self._client.read_resource(f"artifact://{artifact_id}")
        content = result.contents[0]
        blob = getattr(content, "blob", None)
        return base64.b64decode(blob) if blob is not None else getattr(content, "text", "").encode()


class RemoteSession:
    """The same for a team's server; what no tool offers is asked of `server`."""

    def __init__(self, server: "CommandSession") -> None:
        self.server = server

    async def call(self, tool: str, arguments: dict[str, Any], *, quiet: bool = False) -> ToolAnswer:
        """Call a tool, with files of this machine; see `InProcessSession.call`."""
        given = {name: value for name, value in arguments.items() if value is not None}
        line = ProgressLine()

        async def says(text: str) -> None:
            if not quiet:
                await line(0.0, None, text)

        try:
            result = await self.server.call(tool, given, says)
        finally:
            line.end()
        blocks: list[dict[str, Any]] = result.get("content") or []
        text = "\n".join(str(block.get("text", "")) for block in blocks)
        return ToolAnswer(result.get("structuredContent") or {}, text, bool(result.get("isError")))

    async def whole(self, artifact_id: str) -> bytes:
        """Return the content of an artifact."""
        return await self.server.whole(artifact_id)


Session = InProcessSession | RemoteSession


class ProgressLine:
    """Shows progress on stderr: one line that changes on a terminal, otherwise a line for each new thing."""

    def __init__(self, terminal: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._said = ""
        self._queued: dict[str, str] = {}

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Show a message."""
        if not message:
            return
        withdraw()
        if self._terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            typer.echo(f"{CLEARED}{message[:width]}", err=True, nl=False, color=True)
            self._said = message
            return
        what = _COUNTED.sub("", message)
        waiting, queue, _ = what.partition("queue: ")
        known = self._queued.get(waiting) if queue else self._said  # candidates that wait together speak in turn
        if what != known:
            typer.echo(message, err=True)
        if queue:
            self._queued[waiting] = what
        self._said = what

    def end(self) -> None:
        """Leave the line clean."""
        if self._terminal and self._said:
            typer.echo(CLEARED, err=True, nl=False, color=True)
        self._said = ""


async def print_output(name: str, fresh: bytes) -> None:
    """Print a job's fresh output: stdout to stdout, everything else to stderr."""
    withdraw()
    if name == "queue":
        typer.echo(fresh.decode("utf-8", "replace"), err=True)
    else:
        typer.echo(fresh, nl=False, err=name != "stdout")


@asynccontextmanager
async def session(settings: "Settings | None" = None) -> AsyncGenerator[InProcessSession]:
    """Open the server in this process, with every toolset unless the options before the command chose some."""
    from mcp import Client

    from gpu_mcp_server.mcp_api.server import server_from_settings
    from gpu_mcp_server.runtime.current_user import acting_as
    from gpu_mcp_server.runtime.logging_setup import log_to_stderr
    from gpu_mcp_server.settings.server_settings import load_settings
    from gpu_mcp_server.team.team_services import chosen_user

    log_to_stderr("WARNING")
    settings = settings or load_settings(**{"toolsets": "all", **TOOL_OPTIONS.get({})})
    with acting_as(await chosen_user(settings)):
        async with Client(server_from_settings(settings)) as client:
            yield InProcessSession(client)


def remote_address() -> str | None:
    """Return the address of the team's server that commands act on; None for this machine."""
    if LOCAL_ONLY.get():
        return None
    from gpu_mcp_server.bridge.kept_tokens import current_server

    return current_server()


@asynccontextmanager
async def remote_session(address: str) -> AsyncGenerator[RemoteSession]:
    """Connect to a team's server."""
    from gpu_mcp_server.bridge.command_session import CommandSession

    async with CommandSession.open(address) as server:
        yield RemoteSession(server)


@asynccontextmanager
async def chosen_session() -> AsyncGenerator[Session]:
    """Open the team's server that the user is logged in to, or the one in this process."""
    address = remote_address()
    if address is not None:
        async with remote_session(address) as there:
            yield there
    else:
        async with session() as here:
            yield here


@asynccontextmanager
async def laboratory() -> AsyncGenerator["Lab"]:
    """Open the laboratory itself, for what no tool offers."""
    from gpu_mcp_server.runtime.current_user import acting_as
    from gpu_mcp_server.runtime.logging_setup import log_to_stderr
    from gpu_mcp_server.services.lab import Lab
    from gpu_mcp_server.settings.server_settings import load_settings
    from gpu_mcp_server.team.team_services import chosen_user

    log_to_stderr("WARNING")
    settings = load_settings()
    user = await chosen_user(settings)
    async with Lab.open(settings) as lab:
        with acting_as(user):
            yield lab


class CommandStopped(Exception):
    """Signal that a command was cancelled, with the words that say how to go on."""


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` in an event loop; SIGINT and SIGTERM cancel it, and with it its job."""

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except CommandStopped as error:
        raise KeyboardInterrupt(str(error)) from None


def call(tool: str, arguments: dict[str, Any]) -> ToolAnswer:
    """Call one tool in a session of its own.

    An attached job ends with its caller, which is this process: where an agent would get a job_id, the job is waited
    for.
    """
    announce(describe_call(tool, arguments))

    async def work() -> ToolAnswer:
        async with chosen_session() as lab:
            answer = await lab.call(tool, arguments)
            if tool == "evaluate_kernels":
                answer = await _whole_table(lab, arguments, answer)
            if tool in STARTERS and not answer.failed and not arguments.get("detach"):
                answer = await _ended(lab, answer)
            return answer

    return run(work)


def describe_call(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return what a call of a tool does and where, as a person reads it."""
    words = DOING.get(tool, f"calling {tool}")
    if address := remote_address():
        return f"{words} at {address}"
    if tool in IN_THE_STORE:
        return words
    if tool == "gpu_status" and not arguments.get("host"):
        return f"{words} on every host"
    return f"{words} on {describe_host(arguments.get('host'))}"


def describe_host(name: str | None) -> str:
    """Return the name and the address of a host, of the default one without a name."""
    if address := remote_address():
        return f"{name} of {address}" if name else address
    from gpu_mcp_server.settings.server_settings import load_settings

    settings = load_settings()
    chosen = name or settings.default_host or next(iter(settings.hosts), "no host")
    host = settings.hosts.get(chosen)
    way = getattr(host, "login", None) or host
    where = "@".join(filter(None, (getattr(way, "user", None), getattr(way, "host", None))))
    return f"{chosen} ({where})" if where and where != chosen else chosen


async def _whole_table(lab: Session, arguments: dict[str, Any], answer: ToolAnswer) -> ToolAnswer:
    """Wait for candidates that are being judged, whose jobs would end with this process, then ask for the rest."""
    running, missing = _missing(answer)
    while running or missing:
        text = f"{len(running) + missing} candidates have no verdict yet: waiting for them (Ctrl-C ends all)"
        typer.echo(text, err=True)
        for job_id in running:
            state = ""
            while state != "finished":
                looked = await lab.call("job_status", {"job_id": job_id, "wait_s": WAIT_S}, quiet=True)
                state = "finished" if looked.failed else str(looked.data.get("state"))
        given = [{**each, "fresh": False} for each in arguments.get("candidates") or ()]  # what was judged is kept
        more = {"candidates": given or None, "wait_s": max(WAIT_S, arguments.get("wait_s") or 0)}
        later = await lab.call("evaluate_kernels", {**arguments, **more})
        before, (running, missing) = len(running) + missing, _missing(later)
        answer = later
        if later.failed or len(running) + missing >= before:
            break
    return answer


def _missing(answer: ToolAnswer) -> tuple[list[str], int]:
    """Return the jobs that run, and how many candidates had no turn."""
    rows = cast("list[dict[str, Any]]", answer.data.get("rows") or [])
    running = [str(row["job_id"]) for row in rows if row["status"] == "running" and row.get("job_id")]
    return running, sum(row["status"] == "not_begun" for row in rows)


async def _ended(lab: Session, answer: ToolAnswer) -> ToolAnswer:
    job_id = answer.data.get("job_id")
    if answer.data.get("status") != "running" and answer.data.get("state") not in ("queued", "running"):
        return answer
    typer.echo(f"job {job_id} still runs and would end with this command: waiting for it (Ctrl-C ends both)", err=True)
    while answer.data.get("state") != "finished" and not answer.failed:
        answer = await lab.call("job_status", {"job_id": job_id, "wait_s": WAIT_S})
    return answer


def answer_of(tool: str, arguments: dict[str, Any], *, as_json: bool, typed: bool = False) -> ToolAnswer:
    """Call one tool, which the user may have typed by its name; an error of it ends the command with exit code 1."""
    answer = call(tool, arguments)
    if answer.failed:
        raise fail(answer.text, as_json=as_json, typed=tool if typed else "")
    return answer
