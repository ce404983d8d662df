"""`implementations`: known candidates that come with a problem, listed, added, replaced and removed."""

from pathlib import Path
from typing import Annotated

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result
from gpu_mcp_server.errors import BadRequest


def implementations(
    problem_id: Annotated[str, typer.Argument(help="Whose implementations.")],
    name: Annotated[str | None, typer.Argument(help="Which one is added, replaced or removed.")] = None,
    file: Annotated[Path | None, typer.Option(help="Its source: adds it, or replaces it.")] = None,
    language: Annotated[str | None, typer.Option(help="Else by the file's suffix and content.")] = None,
    entry: Annotated[str, typer.Option(help="Name of the launcher function.")] = "launch",
    flag: Annotated[list[str] | None, typer.Option(help="A compiler flag; may be repeated: --flag=-O2.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it.")] = False,
    as_json: Json = False,
) -> None:
    """List a problem's named candidates; with a name and --file or --remove change them, never the problem."""
    if name is None and (file is not None or remove):
        raise BadRequest("Which implementation is not said.", hint="`implementations PROBLEM_ID NAME --file FILE`.")
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
