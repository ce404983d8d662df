"""`jobs`, `logs`, `cancel`: what runs and ran."""

from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.call import output_of
from gpu_mcp_server.cli.output import Json, fail, print_result, table

JobId = Annotated[str, typer.Argument(help="job_id.")]


def jobs(limit: Annotated[int, typer.Option(help="Jobs to show.")] = 20, as_json: Json = False) -> None:
    """List the latest jobs."""

    async def work() -> list[dict[str, Any]]:
        async with in_process_client.laboratory() as lab:
            return [row.model_dump(mode="json") for row in await lab.commands.recent(limit)]

    rows = in_process_client.run(work)
    shown = [[str(row.get(k) or "-") for k in ("job_id", "host", "purpose", "state", "status")] for row in rows]
    text = table(["JOB", "HOST", "PURPOSE", "STATE", "STATUS"], shown) if rows else "no jobs yet"
    print_result({"jobs": rows}, text, as_json=as_json)


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    as_json: Json = False,
) -> None:
    """Print a job's stdout and stderr."""
    if follow:
        _follow(job_id)
        return

    async def work() -> tuple[in_process_client.ToolAnswer, bytes, bytes]:
        async with in_process_client.session() as lab:
            answer = await lab.call("job_status", {"job_id": job_id})
            if answer.failed or as_json:
                return answer, b"", b""
            return answer, await output_of(lab, answer.data, "stdout"), await output_of(lab, answer.data, "stderr")

    answer, out, err = in_process_client.run(work)
    if answer.failed:
        raise fail(answer.text, as_json=as_json)
    if as_json:
        print_result(answer.data, "", as_json=True)
        return
    typer.echo(out, nl=False)
    typer.echo(err, nl=False, err=True)


def _follow(job_id: str) -> None:
    """Print output as it comes; who stops looking does not stop the job."""

    async def work() -> Any:
        async with in_process_client.laboratory() as lab:
            return await lab.jobs.runner.follow(job_id, in_process_client.print_output)

    record = in_process_client.run(work)
    typer.echo(": ".join(filter(None, [record.status, record.note])), err=True)


def cancel(job_id: JobId, as_json: Json = False) -> None:
    """End a job and free its GPUs."""
    answer = in_process_client.answer_of("cancel_job", {"job_id": job_id}, as_json=as_json)
    print_result(answer.data, answer.text, as_json=as_json)
