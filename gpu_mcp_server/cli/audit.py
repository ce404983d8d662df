"""`audit`: which bests may be forged, and whether they are had twice."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result

if TYPE_CHECKING:
    from gpu_mcp_server.models.attempt import OldVerdicts, RedoneVerdicts


def audit(
    problem_id: Annotated[str | None, typer.Argument(help="Only verdicts at this problem.")] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Judge the best of each ranking again.")] = False,
    as_json: Json = False,
) -> None:
    """List correct verdicts of versions in which candidates could forge them; --redo judges the best again."""

    async def work() -> "OldVerdicts | RedoneVerdicts":
        line = in_process_client.ProgressLine()

        async def report_progress(message: str) -> None:
            await line(0.0, None, message)

        async with in_process_client.laboratory() as lab:
            await lab.commands.refresh_running_jobs()
            try:
                return (
                    await lab.evaluation.auditor.redo(problem_id, progress=report_progress)
                    if redo
                    else await lab.evaluation.auditor.older(problem_id)
                )
            finally:
                line.end()

    announce("reading the verdicts of older versions")
    found = in_process_client.run(work)
    print_result(found.model_dump(mode="json"), found.summary(), as_json=as_json)
