"""Read the kernels of a source tree: a folder, or a revision of a git repository."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpu_mcp_server.backends.child_process import run_here
from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound, ToolMissing
from gpu_mcp_server.models.problem import Implementation, Problem
from gpu_mcp_server.services.problems.formats import problem_toml
from gpu_mcp_server.services.problems.formats.base import MAX_FILE_BYTES
from gpu_mcp_server.services.problems.formats.detect import source_at
from gpu_mcp_server.services.workspaces.local_files import is_folder

MAIN_FILE = problem_toml.MAIN_FILES[0]
MOST_PROBLEMS = 200
MOST_FILES = 4000
"""Files in the folders of a revision's problems."""
GIT_S = 120.0
REGULAR = ("100644", "100755")
"""Modes of a tree's entries that are regular files; symbolic links and submodules are left out."""


@dataclass(frozen=True)
class TreeProblem:
    """A `problem.toml` of a tree, with the kernels that it names."""

    problem: Problem | None
    refused: str = ""
    """Why the file describes no problem."""

    def kernels(self) -> Mapping[str, Implementation]:
        """Return its implementations by name."""
        return self.problem.implementations if self.problem is not None else {}


@asynccontextmanager
async def open_tree(name: str, repository: Path) -> AsyncGenerator[Path]:
    """Yield the folder of a tree: `name` itself if it is a folder, else a copy of that revision's problems.

    Only regular files beside a `problem.toml` are copied, and none too large to be read; no filter or hook of the
    repository runs.

    Raises:
        NotFound: If `name` is neither a folder nor a revision.
        LimitExceeded: If the problems' folders have too many files.
        BadRequest: If git cannot read the revision.
    """
    if is_folder(name):
        yield Path(name)
        return
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-revision-") as folder:
        await _check_out(name, repository, Path(folder))
        yield Path(folder)


async def read_tree(root: Path) -> dict[str, TreeProblem]:
    """Return the problems of a folder by their path in it; one that cannot be read says why.

    Raises:
        LimitExceeded: If there are more than `MOST_PROBLEMS`.
    """
    paths = await asyncio.to_thread(_main_files, root)
    if len(paths) > MOST_PROBLEMS:
        raise LimitExceeded(
            f"{root} has {len(paths)} problems; the limit is {MOST_PROBLEMS}.", hint="Name a folder with fewer."
        )
    found: dict[str, TreeProblem] = {}
    for path in paths:
        try:
            one = TreeProblem(await problem_toml.problem(await source_at(path)))
        except BadRequest as error:
            one = TreeProblem(None, str(error))
        found[path.parent.relative_to(root).as_posix()] = one
    return found


def _main_files(root: Path) -> list[Path]:
    """Return the main files below a folder, without hidden folders; no symbolic link is followed."""
    found: list[Path] = []
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if MAIN_FILE in names and not Path(folder, MAIN_FILE).is_symlink():
            found.append(Path(folder, MAIN_FILE))
    return found


async def _check_out(revision: str, repository: Path, into: Path) -> None:
    try:
        commit = await _git(
            repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except BadRequest as error:
        raise NotFound(
            "folder or git revision", revision, hint="Give a folder, or a revision of the repository that you are in."
        ) from error
    listed = await _git(repository, "ls-tree", "-r", "-z", "--long", commit.decode().strip())
    entries = [_entry(line) for line in listed.split(b"\0") if line]
    folders = {path.parent for path, *_ in entries if path.name == MAIN_FILE}
    wanted = [entry for entry in entries if entry[0].parent in folders]
    if len(wanted) > MOST_FILES:
        raise LimitExceeded(
            f"The problems' folders of {revision} have {len(wanted)} files; the limit is {MOST_FILES}.",
            hint="Keep a problem, its reference and its kernels in a folder of their own.",
        )
    for path, mode, blob, size in wanted:
        if mode in REGULAR and size <= MAX_FILE_BYTES and not path.is_absolute() and ".." not in path.parts:
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(await _git(repository, "cat-file", "blob", blob))


def _entry(line: bytes) -> tuple[PurePosixPath, str, str, int]:
    """Return path, mode, object and size of a line of `git ls-tree --long -z`; a submodule has no size."""
    facts, _, name = line.partition(b"\t")
    mode, _, blob, size = facts.decode().split()
    return PurePosixPath(os.fsdecode(name)), mode, blob, int(size) if size.isdigit() else 0


async def _git(repository: Path, *arguments: str) -> bytes:
    """Return what a git command printed.

    Raises:
        ToolMissing: If git is not installed.
        BadRequest: If git fails, or does not answer in `GIT_S`.
    """
    program = shutil.which("git")
    if program is None:
        raise ToolMissing("git", "this machine", hint="Install git, or compare two folders.")
    try:
        code, out, _ = await asyncio.wait_for(run_here([program, "-C", str(repository), *arguments]), GIT_S)
    except TimeoutError as error:
        raise BadRequest(f"git {arguments[0]} took more than {GIT_S:.0f} s.", hint="Compare two folders.") from error
    if code:
        raise BadRequest(
            f"git {arguments[0]} ended with {code}.",
            hint="Fetch all of the revision, or compare two folders.",
        )
    return out
