"""Decides by content which format a problem's file is of, and reads it."""

import asyncio
import functools
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from gpu_mcp_server.errors import BadRequest, ConfigError, GpuMcpError, NotFound, PathRefused
from gpu_mcp_server.models.problem import ImportOverrides, Problem
from gpu_mcp_server.services.problems.formats import (
    agent_arena,
    geak,
    gpumode,
    kernelbench,
    kernelbench_hard,
    problem_toml,
    program,
    trace,
)
from gpu_mcp_server.services.problems.formats.base import MAX_FILE_BYTES, ProblemFormat, ProblemSource
from gpu_mcp_server.services.workspaces.local_files import read_local

WISHED = cast("tuple[ProblemFormat, ...]", (agent_arena, trace, gpumode, kernelbench_hard, kernelbench))
"""Those whose problems are what others published, and may be wished otherwise."""
OWN = (*cast("tuple[ProblemFormat, ...]", (problem_toml, program, geak)), *WISHED)
"""In the order in which they are asked."""
GROUP = "gpu_mcp_server.problem_formats"
"""Entry points by which other packages add formats: each a subclass of `ProblemFormat`, or an object like one."""


@functools.cache
def known_formats() -> tuple[ProblemFormat, ...]:
    """Return our own formats, then those of other packages.

    Raises:
        ConfigError: If one of these cannot be loaded, or is none.
    """
    found = list(OWN)
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            each = loaded() if isinstance(loaded, type) else loaded
        except Exception as error:
            raise ConfigError(f"The problem format {entry.value} cannot be loaded: {error}.") from error
        if missing := [name for name in ("TITLE", "MAIN_FILES", "recognizes", "problem") if not hasattr(each, name)]:
            raise ConfigError(f"The problem format {entry.value} has no {', '.join(missing)}.")
        found.append(cast("ProblemFormat", each))
    return tuple(found)


async def source_at(path: Path) -> ProblemSource:
    """Return a problem's file by its path, or by the path of the folder that holds it.

    Raises:
        NotFound: If there is nothing, or the folder has no file that a format is known by.
        BadRequest: If it is not text.
    """
    path, part = await asyncio.to_thread(_parted, path)
    path = await asyncio.to_thread(_main_file, path)
    try:
        text = (await asyncio.to_thread(read_local, path, MAX_FILE_BYTES)).decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{str(path)!r} is binary junk, not text.", hint="Give UTF-8 text.") from error
    return ProblemSource(path.name, text, path.absolute().parent, part)


def _parted(path: Path) -> tuple[Path, str]:
    """Return the path of a file, and which part of it `FILE#PART` names."""
    name, sign, part = str(path).rpartition("#")
    return (Path(name), part) if sign and not path.exists() else (path, "")


def _main_file(path: Path) -> Path:
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise PathRefused(f"{str(path)!r} cannot be a path: {error}.", hint="Give an absolute path.") from error
    if not path.is_dir():
        return path
    names = [name for each in known_formats() for name in each.MAIN_FILES]
    found = next((path / name for name in names if (path / name).is_file()), None)
    if found is None:
        raise NotFound("problem file", str(path), hint=f"A folder is known by one of {', '.join(names)}.")
    return found


async def read_compile_only(source: ProblemSource) -> Problem:
    """Return the problem of a file where candidates are only compiled: a GEAK-HIP task needs no extractor then.

    Raises:
        BadRequest: As `read_problem` does.
    """
    return await geak.project(source) if geak.recognizes(source) else await read_problem(source)


async def read_problem(source: ProblemSource) -> Problem:
    """Return the problem that a file describes; nothing is run.

    Raises:
        BadRequest: If no format knows it, or the one that does finds it wrong.
    """
    known = next((each for each in known_formats() if each.recognizes(source)), None)
    if known is None:
        titles = ", ".join(each.TITLE for each in known_formats())
        why = "; ".join(each for each in (kernelbench.lacks(source), problem_toml.why_not_toml(source)) if each)
        file = repr(source.name) if source.name else "The text"
        raise BadRequest(
            f"{file} is no problem file of a known format{f': {why}' if why else ''}.",
            hint=f"Known are: {titles}. Or use register_problem.",
        )
    only_accepts = ImportOverrides(accept_degenerate=source.wish.accept_degenerate)
    if source.wish != only_accepts and known in OWN and known not in WISHED:
        raise BadRequest(
            "Every wish but accept_degenerate goes with a problem of a suite.",
            hint="Other files say themselves what they want.",
        )
    try:
        return await known.problem(source)
    except GpuMcpError:
        raise
    except Exception as error:  # nothing of it was run: the text has what its format does not foresee
        raise BadRequest(
            f"The file looks like {known.TITLE}, and cannot be read: {type(error).__name__}: {str(error)[:200]}.",
            hint="Correct it as its format says.",
        ) from error
