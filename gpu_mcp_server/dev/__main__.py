"""`python -m gpu_mcp_server.dev`: what maintainers run in a checkout."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpu_mcp_server.cli.output import Json, fail, print_result, table
from gpu_mcp_server.errors import GpuMcpError

app = typer.Typer(name="python -m gpu_mcp_server.dev", no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def pages(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit code 1 if a page is stale.")] = False,
    folder: Annotated[Path, typer.Option(help="Folder of the documentation.")] = Path("docs"),
    as_json: Json = False,
) -> None:
    """Generate the tables of docs/reference and of README.md."""
    from gpu_mcp_server.dev.generated_pages import write_pages

    stale = write_pages(folder, check=check)
    said = ("stale: " if check else "written: ") + ", ".join(stale) if stale else "up to date"
    print_result({"stale" if check else "written": stale}, said, as_json=as_json)
    if check and stale:
        raise typer.Exit(1)


@app.command("evaluate-docs")
def evaluate_docs(
    questions: Annotated[list[Path] | None, typer.Argument(help="Files of questions; ours if absent.")] = None,
    lexical: Annotated[bool, typer.Option("--lexical", help="Without the channel of meaning.")] = False,
    floor: Annotated[Path | None, typer.Option(help="TOML of least scores by kind; exit code 1 below one.")] = None,
    missed: Annotated[bool, typer.Option("--missed", help="Also what was not among the first five.")] = False,
    as_json: Json = False,
) -> None:
    """Ask questions with known answers: recall at 1 and 5, mean reciprocal rank, latency, by kind."""
    from gpu_mcp_server.knowledge.evaluation.retrieval_benchmark import measure
    from gpu_mcp_server.settings.server_settings import load_settings

    measured = measure(load_settings().data_dir, questions, dense=not lexical)
    rows = measured.rows()
    lines = [table(["kind", "n", "R@1", "R@5", "MRR", "p50 ms", "p95 ms"], rows), measured.note]
    lines += [f"missed ({q.kind}): {q.text}" for q in measured.evaluation.missed] if missed else []
    below = measured.results_below(floor) if floor is not None else []
    lines += [f"BELOW THE FLOOR: {each}" for each in below]
    print_result(measured.figures() | {"below": below}, "\n".join(lines), as_json=as_json)
    if below:
        raise typer.Exit(1)


@app.command("check-release")
def check_release(
    dist: Annotated[Path, typer.Option(help="Where wheel, sdist and bill of materials go; emptied first.")] = Path(
        "dist"
    ),
    as_json: Json = False,
) -> None:
    """Build the release, install it in empty environments, run its demo, check versions and links."""
    from gpu_mcp_server.dev.release_check import check_release as check

    passed = check(Path.cwd(), dist.absolute())
    print_result({"passed": passed}, "\n".join(f"ok  {line}" for line in passed), as_json=as_json)


if __name__ == "__main__":
    try:
        app()
    except GpuMcpError as error:
        sys.exit(fail(str(error), as_json="--json" in sys.argv, code=2).exit_code)
