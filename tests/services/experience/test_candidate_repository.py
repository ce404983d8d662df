"""Candidates as commits after their parents, in a repository that real git finds sound, whatever files were called."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.services.builds.candidate_source import TREE_TYPE
from gpu_mcp_server.services.experience.candidate_repository import CandidateRepository, sanitize_path
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.file_archive import ArchiveFile, pack
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
PATHS = [".git/hooks/post-checkout", ".GIT/config", "git~1/config", ".gitmodules", "../../escaped", "a\nM 100644 inline b",
         'quo"te\\', "src/main.hip", "ünï", "/absolute", "x" * 300, "-flag", ".clang-format", "dot."]  # fmt: skip


@pytest.fixture
async def experience(tmp_path: Path) -> AsyncIterator[AttemptStore]:
    async with await Database.open(tmp_path / "lab.db") as db:
        sql = "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES (?, ?, 'now', '{}')"
        for problem_id in ("p-1", "p-2"):
            await db.execute(sql, (problem_id, problem_id))
        yield AttemptStore(db)


@pytest.fixture
def repository(experience: AttemptStore, tmp_path: Path) -> CandidateRepository:
    artifacts = Artifacts(tmp_path / "artifacts", experience._db)
    return CandidateRepository(tmp_path / "candidates.git", experience, artifacts)


async def tried(
    repository: CandidateRepository, source: str | bytes, parent: str | None = None, speedup: float | None = None,
    note: str | None = None, problem_id: str = "p-1", media_type: str = "text/plain", confirmed: bool = True,
) -> str:  # fmt: skip
    data = source.encode() if isinstance(source, str) else source
    kept = await repository._artifacts.put(data, name="../../evil\n", media_type=media_type)
    experience = repository._experience
    attempt_id = await experience.start(
        "evaluate", problem_id=problem_id, parent_id=parent, source_artifact_id=kept, language="cuda", note=note
    )
    verdict = "correct" if speedup else "incorrect"
    evidence = {"generation": 1, "confirmed_by": "itself" if confirmed else None}
    await experience.finish(
        attempt_id, status="judged", verdict=verdict, speedup=speedup, device="H200", evidence=evidence
    )
    return attempt_id


@pytest.fixture
def busy_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a git on the path that reads nothing and does not end; it makes the file whose path is returned, with its id."""
    folder, started = tmp_path / "bin", tmp_path / "started"
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\necho $$ >{started}.new; mv {started}.new {started}; exec sleep 600\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return started


async def test_a_git_that_is_not_waited_for_ends(repository: CandidateRepository, busy_git: Path):
    await tried(repository, "one")
    syncing = asyncio.create_task(repository.sync("p-1"))
    while not busy_git.exists():
        await asyncio.sleep(0.01)
    syncing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await syncing

    with pytest.raises(ProcessLookupError):
        os.kill(int(busy_git.read_text()), 0)


def git(*arguments: str, at: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=at, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


async def test_a_branch_is_the_winner_after_its_ancestors_and_goes_into_a_repository_of_the_users(
    repository: CandidateRepository, tmp_path: Path
):
    first = await tried(repository, "v1\n", note="naïve\n\ndata 5\ncommit refs/heads/evil\n")
    second = await tried(repository, "v2\n", first, 1.5, note="one warp a row")
    await tried(repository, "sideways\n", first, 1.2)
    best = await tried(repository, "v3\n", second, 2.5)
    await tried(repository, "elsewhere\n", None, 9.0, problem_id="p-2")

    found = await repository.export("p-1", "softmax/best")
    assert (found.attempt_id, found.commits, found.repository) == (best, 3, str(repository.path))
    assert not re.search("error|warning", git("fsck", "--strict", "--full", at=repository.path))
    subjects = git("log", "--format=%s", "softmax/best", at=repository.path).splitlines()
    assert subjects == [f"{best}: correct, speed-up 2.5", f"{second}: correct, speed-up 1.5", f"{first}: incorrect"]
    refs = git("for-each-ref", "--format=%(refname)", at=repository.path).split()
    assert len(refs) == 5 and "refs/heads/evil" not in refs, "four attempts of the problem, and the branch"
    assert git("show", "softmax/best:kernel.cu", at=repository.path) == "v3\n"

    own = tmp_path / "own"
    own.mkdir()
    git("init", "-q", at=own)
    pushed = await repository.export("p-1", "candidates", into=own)
    assert git("rev-list", "--count", "candidates", at=own).strip() == "3" and f"fetch {own}" in pushed.summary()
    with pytest.raises(BadRequest, match="was not written"):
        await repository.export("p-1", "candidates", attempt_id=first, into=own)


async def test_only_what_is_confirmed_is_exported_unless_it_is_named(repository: CandidateRepository):
    first = await tried(repository, "v1\n", None, 9.0, confirmed=False)
    with pytest.raises(NotFound, match="correct attempt with a confirmed time") as refused:
        await repository.export("p-1", "best")
    assert "audit_attempt" in str(refused.value)
    assert (await repository.export("p-1", "named", attempt_id=first)).attempt_id == first
    slower = await tried(repository, "v2\n", None, 1.5)
    assert (await repository.export("p-1", "best")).attempt_id == slower


async def test_the_repository_follows_from_the_records_alone_and_two_may_bring_it_up(repository: CandidateRepository):
    first = await tried(repository, "v1\n")
    await tried(repository, "v2\n", first, 2.0)
    counts = await asyncio.gather(repository.sync("p-1"), repository.sync("p-1"))
    assert sorted(counts) == [0, 2] and await repository.sync("p-1") == 0
    before = git("for-each-ref", at=repository.path)
    shutil.rmtree(repository.path)
    assert await repository.sync("p-1") == 2 and git("for-each-ref", at=repository.path) == before


async def test_hostile_names_and_sources_are_harmless_on_a_checkout(repository: CandidateRepository, tmp_path: Path):
    tree = {path: ArchiveFile(b"\x00data 7\ndone\n", 0o755) for path in PATHS}
    best = await tried(repository, pack(tree), speedup=1.0, media_type=TREE_TYPE)
    await repository.export("p-1", "best")
    assert not re.search("error|warning", git("fsck", "--strict", "--full", at=repository.path))
    git("clone", "-q", "-b", "best", str(repository.path), "clone", at=tmp_path)
    clone = tmp_path / "clone"
    files = {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()}
    files = {name for name in files if not name.startswith(".git/")}
    assert files == {sanitize_path(path) for path in PATHS} and len(files) == len(PATHS), best
    assert {"src/main.hip", ".clang-format"} < files and not list((clone / ".git/hooks").glob("post-checkout"))


async def test_what_cannot_be_exported_is_said(repository: CandidateRepository, tmp_path: Path):
    await tried(repository, "wrong\n")
    with pytest.raises(NotFound, match="correct attempt"):
        await repository.export("p-1", "best")
    with pytest.raises(NotFound, match="p-9"):
        await repository.export("p-9", "best")
    first = await tried(repository, "v1\n", speedup=1.0)
    for branch in ("../x", "a b", "-D", "", "x.lock"):
        with pytest.raises(BadRequest, match="cannot be a branch"):
            await repository.export("p-1", branch)
    with pytest.raises(NotFound, match="a-0"):
        await repository.export("p-1", "best", attempt_id="a-0")
    with pytest.raises(NotFound, match="nowhere"):
        await repository.export("p-1", "best", first, tmp_path / "nowhere")
    with pytest.raises(BadRequest, match="was not written"):
        await repository.export("p-1", "best", first, tmp_path)
