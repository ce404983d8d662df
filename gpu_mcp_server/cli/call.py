"""`call`, the twin of every tool, and the commands that are one call with a shorter name."""

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.files import copied_in
from gpu_mcp_server.cli.output import Json, announce, fail, note, print_result, shorten_line, withdraw

TIMED_OUT = 124
"""As `timeout` of GNU coreutils exits."""
STARTED = re.compile(r"job (j-\S+) on ")
"""What run_command says first of its progress."""
WAIT_S = 240.0
"""Longest wait of one call; output is followed beyond it."""
PROGRAM_TOOLS = ("find_hotspots", "capture_problem", "verify_in_place")
LEAD = 32
"""Columns of a command where it is only named."""


def _arguments(text: str) -> dict[str, Any]:
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{text[1:]}: {error.strerror}") from None
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        form = """--args '{"KEY": "VALUE"}', or --args @FILE"""
        raise typer.BadParameter(f"not JSON: {error}; write {form}") from None
    if not isinstance(arguments, dict):
        raise typer.BadParameter("a JSON object is needed")
    return cast("dict[str, Any]", arguments)


def _one_call(tool: str, arguments: dict[str, Any], as_json: bool) -> None:
    answer = in_process_client.answer_of(tool, arguments, as_json=as_json, typed=True)
    print_result(answer.data, answer.text, as_json=as_json, verbatim=not sys.stdout.isatty())
    if tool in PROGRAM_TOOLS:
        from gpu_mcp_server.models.program_speed import UNDONE

        if any(line.startswith(UNDONE) for line in answer.text.splitlines()):
            raise typer.Exit(1)


def call(
    tool: Annotated[str, typer.Argument(help="Name of the tool.")],
    args: Annotated[str, typer.Option(help="Arguments as JSON; @FILE, or - for stdin.")] = "{}",
    as_json: Json = False,
) -> None:
    """Call any tool, as an agent would. Exit code 1 if the tool reports an error.

    Exit code 1 also if find_hotspots, capture_problem or verify_in_place ends without a result. A wrong
    kernel has a result: its verdict.

    At a terminal lines are wrapped; into a file or pipe they stay as the tool wrote them.
    """
    _one_call(tool, _arguments(args), as_json)


def run(
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    workspace: Annotated[str | None, typer.Option(help="workspace_id to run in.")] = None,
    host: Annotated[str | None, typer.Option(help="Host to run on.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs to hold.")] = 0,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="Seconds until it is killed: 60, or 86400 (24 h) with --detach.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job_id alone, and do not wait.")] = False,
    push: Annotated[
        Path | None, typer.Option(help="Folder or file to copy into its workspace first.", exists=True)
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Run with network, if allow_fetch is set.")] = False,
    as_json: Json = False,
) -> None:
    """Run a command in the sandbox, and end with its exit code.

    124 after a time-out, 127 if there is no such program, as in a shell.
    """
    if push is not None:
        workspace = _workspace_with(push, workspace, as_json)
    arguments = {
        "command": command,
        "workspace_id": workspace,
        "host": host,
        "gpus": gpus,
        "timeout_s": timeout_s,
        "detach": detach,
        "fetch": fetch,
    }
    if as_json or detach:
        _run(arguments, as_json)
    else:
        _stream(arguments)


def _workspace_with(path: Path, workspace: str | None, as_json: bool) -> str:
    """Copy a folder or file into a workspace, and return its workspace_id."""
    data = copied_in(path, workspace, as_json=as_json).data
    made = str(data["workspace_id"])
    more = f"; {data['note']}" if data.get("note") else ""
    note(f"files are in workspace {made}; `gpu-mcp-server pull {made} FOLDER` brings them back{more}")
    return made


def _stream(arguments: dict[str, Any]) -> None:
    """Run and print what the program writes when it writes it."""
    import math

    if address := in_process_client.remote_address():
        _stream_from(address, arguments)
        return

    async def work() -> Any:
        given = {name: value for name, value in arguments.items() if name != "command"}
        async with in_process_client.laboratory() as lab:
            return await lab.commands.run(
                arguments["command"], **given, wait_s=math.inf, on_output=in_process_client.print_output
            )

    announce(f"starting {_described(arguments)}")
    result = in_process_client.run(work)
    note(result.summary().partition("\n--- std")[0])
    _exit_as(result.status, result.exit_code)


def _stream_from(address: str, arguments: dict[str, Any]) -> None:
    """Do the same at a team's server: the job is followed as soon as it is named."""

    async def work() -> in_process_client.ToolAnswer:
        async with in_process_client.remote_session(address) as there:
            following: asyncio.Task[Any] | None = None

            async def says(text: str) -> None:
                nonlocal following
                if following is None and (found := STARTED.match(text)):
                    following = asyncio.create_task(there.server.follow(found[1], in_process_client.print_output))

            given = {name: value for name, value in arguments.items() if value is not None}
            result = await there.server.call("run_command", {**given, "wait_s": WAIT_S}, says)
            job: dict[str, Any] = result.get("structuredContent") or {}
            if result.get("isError"):
                raise fail(result["content"][0]["text"], as_json=False)
            try:
                await (following or there.server.follow(job["job_id"], in_process_client.print_output))
            except asyncio.CancelledError:
                await there.call("cancel_job", {"job_id": job["job_id"]}, quiet=True)
                raise
            return await there.call("job_status", {"job_id": job["job_id"]}, quiet=True)

    announce(f"starting {_described(arguments)}")
    answer = in_process_client.run(work)
    note(f"at {address}: {answer.text.partition(chr(10) + '--- std')[0]}")
    _exit_as(answer.data.get("status"), answer.data.get("exit_code"))


def _described(arguments: dict[str, Any]) -> str:
    command = shorten_line(shlex.join(arguments["command"]), LEAD)
    return f"`{command}` on {in_process_client.describe_host(arguments['host'])}"


def _exit_as(status: str | None, exit_code: int | None) -> None:
    if status != "ok":
        raise typer.Exit(TIMED_OUT if status == "timeout" else exit_code or 1)


def _run(arguments: dict[str, Any], as_json: bool) -> None:
    async def work() -> tuple[in_process_client.ToolAnswer, bytes, bytes]:
        async with in_process_client.chosen_session() as lab:
            answer = await lab.call("run_command", arguments, quiet=True)
            data = answer.data
            if answer.failed or as_json:
                return answer, b"", b""
            return answer, await output_of(lab, data, "stdout"), await output_of(lab, data, "stderr")

    announce(f"starting {_described(arguments)}")
    answer, out, err = in_process_client.run(work)
    withdraw()
    if answer.failed:
        raise fail(answer.text, as_json=as_json)
    data = answer.data
    if as_json:
        print_result(data, "", as_json=True)
    elif arguments["detach"]:
        typer.echo(data["job_id"])
    else:
        typer.echo(out, nl=False)
        typer.echo(err, nl=False, err=True)
        note(answer.text.partition("\n--- std")[0])
    if data.get("state") == "finished":
        _exit_as(data.get("status"), data.get("exit_code"))


async def output_of(lab: in_process_client.Session, job: dict[str, Any], name: str) -> bytes:
    """Return the whole of a job's stdout or stderr, as far as it was kept."""
    artifact = job.get(f"{name}_artifact_id")
    return await lab.whole(artifact) if artifact else str(job.get(name, "")).encode()
