"""Candidates under version control: a bare git repository in which every judged attempt is a commit after its parent.

Commits follow from the records alone (source, verdict, time of the attempt), so the repository can be thrown away and
is made again with the same hashes. Nothing is ever checked out here, and no configuration but git's own is read.
Whatever a candidate's file was called, its path in the repository is harmless where somebody else checks it out.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_mcp_server.backends.child_process import killed_unless_awaited
from gpu_mcp_server.errors import BadRequest, HostError, NotFound, ToolMissing
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.history import ExportedBranch
from gpu_mcp_server.services.builds.candidate_source import NAMES, TREE_TYPE
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.file_archive import ArchiveFile, Tree, unpack
from gpu_mcp_server.store.artifacts import Artifacts

AUTHOR = "gpu-mcp-server <gpu-mcp-server@localhost>"
REFS = "refs/attempts/"
GIT_S = 120.0
MESSAGE = 4000
"""Characters of a note or reason in a commit's message."""
PLAIN = re.compile(r"\.?[A-Za-z0-9_][A-Za-z0-9._+@,=-]*(?<![. ])", re.ASCII)
MAX_PART = 120
"""Characters of one name; file systems have 255 bytes."""


class CandidateRepository:
    """The repository of a data folder: `candidates.git`."""

    def __init__(self, path: Path, experience: AttemptStore, artifacts: Artifacts) -> None:
        self.path, self._experience, self._artifacts = path, experience, artifacts

    async def sync(self, problem_id: str) -> int:
        """Commit what was judged at a problem and is not here yet; return how many.

        Raises:
            NotFound: If there is no such problem.
            ToolMissing: If git is not installed.
        """
        attempts = await self._experience.evaluations_of(problem_id)
        async with self._locked():
            listed = await self._git("for-each-ref", "--format=%(refname)", REFS)
            known = {name.removeprefix(REFS) for name in listed.splitlines()}
            fresh = [attempt for attempt in attempts if attempt.attempt_id not in known]
            if fresh:
                await self._import(fresh, known)
        return len(fresh)

    async def export(
        self, problem_id: str, branch: str, attempt_id: str | None = None, into: Path | None = None
    ) -> ExportedBranch:
        """Make a branch of an attempt and its ancestors: here, or in a repository of the user's.

        Args:
            problem_id: Whose attempts.
            branch: Its name; one that is there must be an ancestor of what it becomes.
            attempt_id: The tip; the best whose time is confirmed if absent.
            into: Another repository on this machine, pushed to.

        Raises:
            NotFound: If there is no such attempt at the problem, or no correct one.
            BadRequest: If the branch cannot have this name, or holds something else.
        """
        await self.sync(problem_id)
        attempt_id = attempt_id or await self._best(problem_id)
        tip = REFS + attempt_id
        try:
            await self._git("check-ref-format", "--branch", branch)
            commit = (await self._git("rev-parse", "--verify", "--quiet", f"{tip}^{{commit}}")).strip()
        except GitFailed as error:
            if error.command == "check-ref-format":
                raise BadRequest(f"{branch!r} cannot be a branch.", hint="Letters, digits, - and /.") from error
            raise NotFound("judged attempt", attempt_id, hint="list_attempts shows those there are.") from error
        target = await asyncio.to_thread(_folder, into or self.path)
        if target is None:
            raise NotFound("repository", str(into), hint="Give the folder of a git repository.")
        try:
            await self._git("push", "--quiet", str(target), f"{commit}:refs/heads/{branch}")
        except GitFailed as error:
            raise BadRequest(f"Branch {branch} was not written: {error.said}", hint="Choose another name.") from error
        commits = int(await self._git("rev-list", "--count", commit))
        return ExportedBranch(
            branch=branch, commit=commit, commits=commits, attempt_id=attempt_id, repository=str(target)
        )

    async def _best(self, problem_id: str) -> str:
        best = (await self._experience.list("best", problem_id=problem_id, limit=1)).attempts
        if not best or best[0].trust != "confirmed":
            hint = "audit_attempt confirms one; --attempt-id names any."
            raise NotFound("correct attempt with a confirmed time", problem_id, hint=hint)
        return best[0].attempt_id

    async def _import(self, attempts: Sequence[Attempt], known: set[str]) -> None:
        async with self._begun("fast-import", "--quiet", "--done", stdin=asyncio.subprocess.PIPE) as process:
            assert process.stdin is not None
            try:
                for attempt in attempts:
                    process.stdin.write(_commit(attempt, await self._files(attempt), known))
                    await process.stdin.drain()
                    known.add(attempt.attempt_id)
                process.stdin.write(b"done\n")
            except ConnectionError:
                pass  # what it said is below
            _, said = await asyncio.wait_for(process.communicate(), GIT_S)
        if process.returncode:
            raise GitFailed("fast-import", said.decode("utf-8", "replace").strip()[-500:])

    async def _files(self, attempt: Attempt) -> Tree:
        """Return an attempt's files by harmless paths; a note where its source was pruned."""
        try:
            data = await self._artifacts.read(attempt.source_artifact_id or "")
            kept = await self._artifacts.info(attempt.source_artifact_id or "")
        except NotFound:
            return {"SOURCE-WAS-PRUNED": ArchiveFile(b"", 0o644)}
        if kept.media_type == TREE_TYPE:
            return {sanitize_path(path): file for path, file in unpack(data).items()}
        return {NAMES.get(attempt.language or "", "candidate.txt"): ArchiveFile(data, 0o644)}

    @asynccontextmanager
    async def _locked(self) -> AsyncGenerator[None]:
        """Hold the repository against other processes; it is made if it is not there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("wb") as lock:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            if not (self.path / "HEAD").is_file():
                await self._git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(self.path))
            yield

    async def _git(self, *arguments: str) -> str:
        async with self._begun(*arguments) as process:
            out, said = await asyncio.wait_for(process.communicate(), GIT_S)
        if process.returncode:
            raise GitFailed(arguments[0], said.decode("utf-8", "replace").strip()[-500:])
        return out.decode("utf-8", "replace")

    @asynccontextmanager
    async def _begun(
        self, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL
    ) -> AsyncGenerator[asyncio.subprocess.Process]:
        program = shutil.which("git")
        if program is None:
            raise ToolMissing("git", "this machine", hint="Install git; it is what the candidates' history is kept in.")
        where = () if arguments[0] in ("init", "check-ref-format") else (f"--git-dir={self.path}",)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.path.parent), "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            program, *where, *arguments, stdin=stdin, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment, cwd=self.path.parent,
        )  # fmt: skip
        async with killed_unless_awaited(process):
            yield process


def _folder(path: Path) -> Path | None:
    whole = path.expanduser().absolute()
    return whole if whole.is_dir() else None


class GitFailed(HostError):
    """A git command ended otherwise than well; callers say what that means."""

    def __init__(self, command: str, said: str) -> None:
        super().__init__(f"git {command} failed: {said}", hint="The repository can be deleted; it is made again.")
        self.command, self.said = command, said


def _commit(attempt: Attempt, files: Tree, known: set[str]) -> bytes:
    """Return an attempt as a command of fast-import: its files alone, after its parent where that is here."""
    message = _message(attempt).encode("utf-8", "replace")
    when = int(datetime.fromisoformat(attempt.created_at).timestamp())
    lines = [f"commit {REFS}{attempt.attempt_id}\n", f"author {AUTHOR} {when} +0000\n"]
    lines += [f"committer {AUTHOR} {when} +0000\n", f"data {len(message)}\n"]
    parts = ["".join(lines).encode(), message, b"\n"]
    if attempt.parent_id in known:
        parts.append(f"from {REFS}{attempt.parent_id}\n".encode())
    parts.append(b"deleteall\n")
    for path, file in sorted(files.items()):
        mode = "100755" if file.mode & 0o100 else "100644"
        parts += [f"M {mode} inline {quote_for_fast_import(path)}\ndata {len(file.data)}\n".encode(), file.data, b"\n"]
    return b"".join(parts)


def _message(attempt: Attempt) -> str:
    """Return what the records say of an attempt; the first line is ours."""
    first: dict[str, Any] = (attempt.evidence or {}).get("first") or {}
    speedup: float | None = first.get("speedup", attempt.speedup)  # a commit keeps its hash when that is confirmed
    speed = f", speed-up {speedup:.3g}" if speedup is not None else ""
    about = {"device": attempt.device, "language": attempt.language, "flags": attempt.flags, "launcher": attempt.entry}
    said = [text for text in (attempt.note, attempt.reason) if text]
    lines = [f"{attempt.attempt_id}: {attempt.verdict or attempt.status}{speed}", ""]
    lines += [" ".join(text.split())[:MESSAGE].replace("\0", "") for text in said]
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in about.items() if value)]) + "\n"


def sanitize_path(path: str) -> str:
    """Return a path whose names git and file systems take for nothing special; different paths stay different.

    Names beginning with `.git` (and `git~`, its short form on NTFS) are hooks, attributes or submodules to git; those
    with controls, spaces, quotes, backslashes, colons or other letters mean something to somebody. All their bytes but
    letters and digits are written as %XX.

    Source: git's verify_path (read-cache.c) and fsck's checks of trees: CVE-2014-9390, CVE-2018-11235, CVE-2019-1352.
    """
    return "/".join(_part(part) for part in path.split("/"))


def quote_for_fast_import(path: str) -> str:
    """Return a path as `git fast-import` reads it: in double quotes, as in C."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _part(part: str) -> str:
    low = part.lower()
    plain = PLAIN.fullmatch(part) is not None and not low.startswith((".git", "git~"))
    if not plain:
        part = "".join(
            chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}"
            for byte in part.encode("utf-8", "replace")
        )
    if len(part) > MAX_PART:
        return part[: MAX_PART - 17] + "%" + hashlib.sha256(part.encode()).hexdigest()[:16]
    return part or "%"
