"""`jobs`, `logs`, `cancel`: what runs and ran."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.call import output_of
from gpu_mcp_server.cli.output import Json, announce, fail, print_result, table, withdraw
from gpu_mcp_server.time_format import format_duration, format_elapsed

if TYPE_CHECKING:
    from gpu_mcp_server.services.commands.job_listing import JobListing

JobId = Annotated[str, typer.Argument(help="job_id.")]


def jobs(
    limit: Annotated[int, typer.Option(help="Jobs to show.")] = 20,
    internal: Annotated[bool, typer.Option("--all", help="Also the server's own probes.")] = False,
    as_json: Json = False,
) -> None:
    """List the latest jobs: command, user, age, duration, host."""

    async def work() -> "list[JobListing]":
        from gpu_mcp_server.services.commands.job_listing import JobListing, list_jobs

        if address := in_process_client.remote_address():
            async with in_process_client.remote_session(address) as there:
                return [JobListing(**row) for row in await there.server.jobs(limit, internal=internal)]
        async with in_process_client.laboratory() as lab:
            states = await lab.commands.refresh_running_jobs()
            return await list_jobs(lab.store.db, limit, internal=internal, states=states)

    announce("asking hosts how their jobs stand")
    rows = in_process_client.run(work)
    print_result({"jobs": [asdict(row) for row in rows]}, jobs_table(rows), as_json=as_json)


def jobs_table(rows: "Sequence[JobListing]") -> str:
    """Return one line a job, its command shortened; `--json` has all of it."""
    if not rows:
        return "no jobs yet"
    shown = [
        [
            row.job_id,
            " ".join(row.command.split()),
            row.user or "-",
            row.status or row.state,
            format_elapsed(row.age_s),
            format_duration(row.duration_s) if row.duration_s is not None else "-",
            row.host,
        ]
        for row in rows
    ]
    return table(["JOB", "COMMAND", "USER", "STATUS", "AGE", "TOOK", "HOST"], shown, shorten=(1,))


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    as_json: Json = False,
) -> None:
    """Print a job's stdout and stderr."""
    if follow:
        _follow(job_id)
        return

    async def work() -> tuple[in_process_client.ToolAnswer, bytes, bytes]:
        async with in_process_client.chosen_session() as lab:
            answer = await lab.call("job_status", {"job_id": job_id})
            if answer.failed or as_json:
                return answer, b"", b""
            return answer, await output_of(lab, answer.data, "stdout"), await output_of(lab, answer.data, "stderr")

    announce(f"asking the host of {job_id} for its output")
    answer, out, err = in_process_client.run(work)
    withdraw()
    if answer.failed:
        raise fail(answer.text, as_json=as_json)
    if as_json:
        print_result(answer.data, "", as_json=True)
        return
    typer.echo(out, nl=False)
    typer.echo(err, nl=False, err=True)


def _follow(job_id: str) -> None:
    """Print output as it comes; who stops looking does not stop the job."""

    async def work() -> tuple[str | None, str]:
        if address := in_process_client.remote_address():
            async with in_process_client.remote_session(address) as there:
                ended = await there.server.follow(job_id, in_process_client.print_output)
                return ended["status"], ended["note"]
        async with in_process_client.laboratory() as lab:
            record = await lab.jobs.runner.follow(job_id, in_process_client.print_output)
            return record.status, record.note

    announce(f"waiting for output of {job_id}")
    ended = in_process_client.run(work)
    withdraw()
    typer.echo(": ".join(filter(None, ended)), err=True)


def cancel(job_id: JobId, as_json: Json = False) -> None:
    """End a job and free its GPUs."""
    answer = in_process_client.answer_of("cancel_job", {"job_id": job_id}, as_json=as_json)
    ended = " ".join(str(answer.data.get(key)) for key in ("state", "status") if answer.data.get(key))
    print_result(answer.data, f"{job_id}: {ended}", as_json=as_json)
