"""A program: `program.toml` says how the project in its folder is built and run, and where its numbers are."""

import asyncio
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.models._base import describe_faults
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program import ProgramFile, ProgramProblem
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.problems.program_problems import MAX_PROJECT_BYTES
from gpu_mcp_server.services.workspaces.local_files import checked_path, collect

TITLE = "program.toml (name, rtol, atol, build, run, cases, outputs ...; the project beside it)"
MAIN_FILES = ("program.toml",)
TELLING = ("run", "cases", "outputs")
ABOUT = ("name", "description", "rtol", "atol")


def recognizes(source: ProblemSource) -> bool:
    """Say whether it is TOML that runs something, or has our name."""
    return source.name in MAIN_FILES or all(name in _table(source.text) for name in TELLING)


def _table(text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


async def problem(source: ProblemSource) -> Problem:
    """Return the problem.

    Raises:
        BadRequest: If it is no TOML, a field is missing, unknown or wrong, or a file is not there.
    """
    try:
        given = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{source.name or 'The text'} is no TOML: {error}.", hint="Correct it.") from error
    if not isinstance(given.get("files"), dict):
        given["files"] = await _listed(source, given.get("files"))
    return problem_from_table(given)


def problem_from_table(given: Mapping[str, Any]) -> Problem:
    """Return the problem of a table with a program's fields, and name, description, rtol and atol.

    Raises:
        BadRequest: If one is missing, unknown or wrong.
    """
    about = {name: given[name] for name in ABOUT if name in given}
    if not isinstance(about.get("name"), str) or not isinstance(about.get("description", ""), str):
        raise BadRequest("A program needs a name.", hint='name = "sum of squares"')
    for name in ("rtol", "atol"):
        if isinstance(about.get(name), bool) or not isinstance(about.get(name), (int, float)):
            raise BadRequest(f"A program needs {name}, a number.", hint="rtol = 1e-5")
    for name in ("build", "run", "generator"):
        if isinstance(given.get(name), str):
            raise BadRequest(
                f"{name} is a text; a command is a list of words.",
                hint=f'{name} = ["./app", "100"], or by a shell: {name} = ["sh", "-c", "./app 100 > out.txt"]',
            )
    try:
        program = ProgramProblem.model_validate({k: v for k, v in given.items() if k not in ABOUT})
    except ValidationError as error:
        text, hint = describe_faults(ProgramProblem, error.errors(include_url=False), ABOUT)
        raise BadRequest(f"The program: {text}.", hint=hint) from error
    return Problems.make_program(
        about["name"], about.get("description", ""), program, float(about["rtol"]), float(about["atol"])
    )


def table_of(text: str) -> dict[str, Any]:
    """Return a TOML file's table.

    Raises:
        BadRequest: If it is none.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"The file is no TOML: {error}.", hint="Correct it.") from error


async def _listed(source: ProblemSource, names: Any) -> dict[str, ProgramFile]:
    """Return files of the folder: those named, or all but the problem's own."""
    if source.folder is None:
        raise BadRequest(
            "The program was sent as text, and names files.", hint="Put their texts into it: [files.'app.c'] text = ..."
        )
    found = await files_of(source.folder)
    if names is None:
        return {path: file for path, file in found.items() if path != source.name}
    wanted = [checked_path(str(name)) for name in cast("list[Any]", names)] if isinstance(names, list) else []
    missing = [path for path in wanted if path not in found]
    if missing or not wanted:
        raise BadRequest(
            f"files names {', '.join(missing) or 'nothing'}, which is not in the folder.",
            hint=f"It has {', '.join(list(found)[:20])}.",
        )
    return {path: found[path] for path in wanted}


async def files_of(folder: Path) -> dict[str, ProgramFile]:
    """Return a folder's files by path.

    Raises:
        LimitExceeded: If they have more than 8 MiB.
        NotFound, PathRefused: As for every local folder.
    """
    found = await asyncio.to_thread(collect, folder)
    if sum(file.size for file in found) > MAX_PROJECT_BYTES:
        raise LimitExceeded(
            f"{str(folder)!r} has more than {MAX_PROJECT_BYTES >> 20} MiB.",
            hint="Name the needed ones in `files`, in a folder of their own.",
        )
    contents = await asyncio.to_thread(lambda: [file.source.read_bytes() for file in found])
    return {
        file.path: ProgramFile.from_bytes(data, executable=file.executable)
        for file, data in zip(found, contents, strict=True)
    }
