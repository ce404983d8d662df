"""`nccl`: take a program to the device, or verify one; the files that are given stay as they are."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result, withdraw

app = typer.Typer(help="NCCL programs: from host collectives to device-initiated ones.", no_args_is_help=True)

Program = Annotated[Path, typer.Argument(help="Main file.", exists=True, dir_okay=False)]
Ranks = Annotated[int, typer.Option(help="GPUs, and processes where a launcher starts them.")]
Launcher = Annotated[str, typer.Option(help="self (it starts its ranks), torchrun or mpirun.")]
Host = Annotated[str | None, typer.Option(help="Host to build and run on.")]
Until = Annotated[str, typer.Option(help="static, build, run or all.")]
Arguments = Annotated[list[str] | None, typer.Option("--arg", help="An argument of the program; may be repeated.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds of each run.")]


@app.command()
def run(
    file: Program,
    out: Annotated[Path | None, typer.Option(help="Folder for new files; FILE.nccl if absent.")] = None,
    ranks: Ranks = 2,
    launcher: Launcher = "self",
    arguments: Arguments = None,
    api: Annotated[str, typer.Option(help="auto, lsa or gin.")] = "auto",
    together: Annotated[bool, typer.Option("--together", help="Both stages at once.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Repeat every step.")] = False,
    until: Until = "all",
    timeout_s: Timeout = 120,
    host: Host = None,
    as_json: Json = False,
) -> None:
    """Analyze, transform and verify, stage by stage; finished steps are not repeated.

    Exit code 1 if a step failed.
    """
    options = _options(ranks, launcher, arguments, until, timeout_s, host)
    options |= {"api": api, "together": together, "again": again}

    async def work() -> Any:
        from gpu_mcp_server.models.nccl_pipeline import NcclPipelineOptions
        from gpu_mcp_server.services.nccl.pipeline import Pipeline
        from gpu_mcp_server.services.nccl.transform import local_program

        files, _ = local_program(file)
        folder = out or file.with_name(file.name + ".nccl")
        async with in_process_client.laboratory() as lab:
            pipeline = Pipeline(lab.nccl.verifier, lab.store.experience)
            return await pipeline.run(files, file.name, folder, _checked(NcclPipelineOptions, options), progress=_said)

    announce(f"checking {file.name} on {in_process_client.describe_host(host)}")
    result = in_process_client.run(work)
    print_result(result.model_dump(mode="json", exclude_none=True), result.summary(), as_json=as_json)
    if result.status == "failed":
        raise typer.Exit(1)


@app.command()
def verify(
    file: Program,
    original: Annotated[str | None, typer.Option(help="Main file with host collectives, beside FILE.")] = None,
    before: Annotated[Path | None, typer.Option(help="Folder with the stage's input: frozen text.")] = None,
    ranks: Ranks = 2,
    launcher: Launcher = "self",
    arguments: Arguments = None,
    until: Until = "all",
    timeout_s: Timeout = 120,
    host: Host = None,
    as_json: Json = False,
) -> None:
    """Check a program that uses NCCL's device interface. Exit code 1 if a check failed."""
    options = _options(ranks, launcher, arguments, until, timeout_s, host)

    async def work() -> Any:
        from gpu_mcp_server.models.nccl_check import NcclRunOptions
        from gpu_mcp_server.services.nccl.transform import local_program

        files, _ = local_program(file)
        earlier = local_program(before)[0] if before is not None else None
        async with in_process_client.laboratory() as lab:
            return await lab.nccl.verifier.verify(
                files,
                file.name,
                original=original,
                before=earlier,
                options=_checked(NcclRunOptions, options),
                progress=_said,
            )

    announce(f"checking {file.name} on {in_process_client.describe_host(host)}")
    result = in_process_client.run(work)
    print_result(result.model_dump(mode="json", exclude_none=True), result.summary(), as_json=as_json)
    if result.verdict == "failed":
        raise typer.Exit(1)


def _options(
    ranks: int, launcher: str, arguments: list[str] | None, until: str, timeout_s: float, host: str | None
) -> dict[str, Any]:
    return {
        "ranks": ranks,
        "launcher": launcher,
        "arguments": arguments or [],
        "until": until,
        "timeout_s": timeout_s,
        "host": host,
    }


def _checked(model: Any, options: dict[str, Any]) -> Any:
    """Return the options as the services take them.

    Raises:
        BadParameter: Naming the first that cannot be used.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


async def _said(text: str) -> None:
    withdraw()
    typer.echo(text, err=True)
