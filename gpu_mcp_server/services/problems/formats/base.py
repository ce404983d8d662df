"""Interface of problem formats: the input that every format is given, and the problem it makes of it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.problem import ImportOverrides, Problem
from gpu_mcp_server.services.workspaces.local_files import checked_path, read_local

MAX_FILE_BYTES = 1 << 20


AS_IT_IS = ImportOverrides()


@dataclass(frozen=True)
class ProblemSource:
    """A problem's file, and the folder that it lies in."""

    name: str
    """File name without folder; empty for a text that was sent."""
    text: str
    folder: Path | None = None
    """On the server's own machine; None for a text that was sent."""
    part: str = ""
    """Which of several problems in the file: what stood behind `#` in its path."""

    wish: ImportOverrides = AS_IT_IS

    async def sibling_text(self, name: str) -> str:
        """Return the text of another file of the folder.

        Raises:
            BadRequest: If there is no folder, or the file is not text.
            NotFound, PathRefused, LimitExceeded: As for every local file; it may not leave the folder.
        """
        if self.folder is None:
            raise BadRequest(
                f"The problem names the file {name!r}, and it was sent as text.", hint="Put that file's text into it."
            )
        path = self.folder / checked_path(name)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise BadRequest(f"{name!r} leaves the problem's folder.", hint="Put the file beside the problem.")
        return await self._text_at(path, name)

    async def text_near(self, name: str) -> str:
        """Return the text of a Python file in the folder, or up to two folders above it, as tasks share some.

        Raises:
            BadRequest: If it lies elsewhere, or is not Python text.
            NotFound, PathRefused, LimitExceeded: As for every local file.
        """
        if ".." not in Path(name).parts:
            return await self.sibling_text(name)
        if self.folder is None:
            raise BadRequest(f"The problem names {name!r}, and it was sent as text.", hint="Give its folder's path.")
        path, folder = (self.folder / name).resolve(), self.folder.resolve()
        top = folder.parents[min(1, len(folder.parents) - 1)]
        if not path.is_relative_to(top) or path.suffix != ".py":
            raise BadRequest(
                f"{name!r} leaves the folders around the problem, or is no Python file.",
                hint="A task may share .py files of up to two folders above it.",
            )
        return await self._text_at(path, name)

    async def _text_at(self, path: Path, name: str) -> str:
        """Return the text of a file that the problem's main file names."""
        try:
            return (await asyncio.to_thread(read_local, path, MAX_FILE_BYTES)).decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{name!r} is binary junk, not text.", hint="Give UTF-8 text.") from error
        except NotFound as error:
            error.hint = f"{self.name or 'The problem'} needs {name!r}. Copy it there from the suite's repository."
            raise


class ProblemFormat(Protocol):
    """A format of problem files: a module of this package, or what another package adds.

    A package adds one by an entry point of the group `gpu_mcp_server.problem_formats`, whose value is a subclass:

        [project.entry-points."gpu_mcp_server.problem_formats"]
        mine = "my_package.my_format:MyFormat"

    It is asked after ours. Its problems are tried like all others: `problem` reads text and runs nothing of it.
    `Problems.make_problem` makes a problem of arrays, `suite_problem` one of a suite with cases.
    """

    TITLE: str
    """As errors name it."""
    MAIN_FILES: tuple[str, ...]
    """File names that stand for a folder of this format."""

    def recognizes(self, source: ProblemSource) -> bool:
        """Say whether the content is of this format; cheap, never raises."""
        ...

    async def problem(self, source: ProblemSource) -> Problem:
        """Return the problem; nothing of it is run.

        Raises:
            BadRequest: If it is of this format and not right; says what and where.
        """
        ...
