"""`implementations` and `compare`: known candidates that come with a problem, and those that a change touches."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result, withdraw
from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.text_safety import escape_controls

if TYPE_CHECKING:
    from gpu_mcp_server.models.comparison import KernelChanges


def implementations(
    problem_id: Annotated[str, typer.Argument(help="Problem that has the candidates.")],
    name: Annotated[str | None, typer.Argument(help="Name of the candidate to add, replace or remove.")] = None,
    file: Annotated[Path | None, typer.Option(help="Source file to add or to replace it with.")] = None,
    language: Annotated[str | None, typer.Option(help="Language; absent: by the file's suffix and content.")] = None,
    entry: Annotated[str, typer.Option(help="Name of the launcher function.")] = "launch",
    flag: Annotated[list[str] | None, typer.Option(help="A compiler flag; may be repeated: --flag=-O2.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it.")] = False,
    as_json: Json = False,
) -> None:
    """List a problem's named candidates; with --file or --remove add, replace or remove one."""
    if name is None and (file is not None or remove):
        raise BadRequest(
            "The name of the implementation is missing.", hint="`implementations PROBLEM_ID NAME --file FILE`."
        )
    if name is not None and (file is not None) == remove:
        raise BadRequest("A name goes with either --file or --remove.", hint="Leave the name out to list them.")
    if name is None:
        announce("reading the problem")
        answer = in_process_client.answer_of("list_problems", {"problem_id": problem_id}, as_json=as_json)
        known = answer.data["problems"][0]["implementations"]
        print_result({"implementations": known}, "\n".join(known) or "none", as_json=as_json)
        return
    arguments = {"problem_id": problem_id, "name": name, "entry": entry, "flags": flag or [], "remove": remove}
    arguments |= {"path": str(file.absolute())} if file is not None else {}
    arguments |= {"language": language} if language else {}
    answer = in_process_client.answer_of("set_implementation", arguments, as_json=as_json)
    print_result(answer.data, answer.text, as_json=as_json)


def one_line(text: str) -> str:
    """Return a text that holds names of files as one line: in GitHub's log a line of its own could be a command."""
    return escape_controls(" ".join(text.split()))


def compare(
    base: Annotated[str, typer.Argument(help="Folder or git revision before the change.")],
    head: Annotated[str, typer.Argument(help="Folder or git revision with the change.")] = ".",
    turns: Annotated[int, typer.Option(help="Judgements of each side of a kernel.", min=3, max=31)] = 8,
    host: Annotated[str | None, typer.Option(help="Host to run on; the default host if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Judge the kernels that a change touches against those before it; exit code 1 if one is slower, wrong or refused.

    Kernels are the implementations that problem.toml files name. Prints a table in Markdown for a pull request.
    """

    async def work() -> "KernelChanges":
        from gpu_mcp_server.recipes.kernel_comparison import compare_kernels

        line = in_process_client.ProgressLine()

        async def tell(message: str) -> None:
            withdraw()
            line.end()
            typer.echo(one_line(message), err=True)

        async def detail(message: str) -> None:
            if sys.stderr.isatty() or "queue: " in message:  # in a log a line for each step is enough
                await line(0.0, None, one_line(message))

        async with in_process_client.laboratory() as lab:
            try:
                return await compare_kernels(lab, base, head, tell=tell, detail=detail, turns=turns, host=host)
            finally:
                line.end()

    announce(f"comparing {base} and {head}")
    found = in_process_client.run(work)
    print_result(found.model_dump(mode="json"), found.summary(), as_json=as_json, verbatim=True)
    if found.fails():
        raise typer.Exit(1)
