"""Name, description and implementations are not the problem: old ids stay valid, split histories are one."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.problem import Implementation, Problem
from gpu_mcp_server.models.store_merge import StoreExport
from gpu_mcp_server.models.user import User
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.experience.experience_search import ExperienceSearch
from gpu_mcp_server.services.experience.store_merge import Merging
from gpu_mcp_server.services.problems.problem_identity import content_hash, id_of
from gpu_mcp_server.services.problems.problem_joining import join_renamed_problems
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from tests.services.problems.test_problem_table import softmax

NAIVE = Implementation(language="c", source="int launch(void) { return 1; }")
FAST = Implementation(language="cuda", source="// fast")
ANN, BOB = (User(name=name, scopes=("read", "run")) for name in ("ann", "bob"))


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.sqlite3") as db:
        yield db


def as_before(**changes: Any) -> Problem:
    """Return a problem with the id that the first rule gave it."""
    problem = softmax(**changes)
    digest = content_hash(problem, 1)
    return problem.model_copy(update={"problem_id": id_of(digest), "content_hash": digest})


async def keep_as_before(db: Database, problem: Problem, attempt_id: str) -> None:
    await db.execute(
        "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES (?, ?, ?, ?)",
        (problem.problem_id, problem.content_hash, "2026", problem.model_dump_json()),
    )
    await db.execute(
        "INSERT INTO attempts (attempt_id, kind, created_at, status, verdict, problem_id, problem_hash, device, speedup) "
        "VALUES (?, 'evaluate', '2026', 'judged', 'correct', ?, ?, 'cpu', 2.0)",
        (attempt_id, problem.problem_id, problem.content_hash),
    )


async def test_an_implementation_is_added_replaced_and_removed_and_the_problem_stays(db: Database):
    problems, problem = Problems(db), softmax()
    await problems.add(problem)
    assert (await problems.change_implementation(problem.problem_id, "naive", NAIVE)).done == "added"
    assert (await problems.change_implementation(problem.problem_id, "naive", FAST)).done == "replaced"
    found = await problems.get(problem.problem_id)
    assert found.implementations == {"naive": FAST} and found.content_hash == problem.content_hash
    assert (await problems.change_implementation(problem.problem_id, "naive", None)).implementations == []
    with pytest.raises(NotFound, match="implementation of yours 'naive'"):
        await problems.change_implementation(problem.problem_id, "naive", None)
    with pytest.raises(BadRequest, match="cannot name"):
        await problems.change_implementation(problem.problem_id, "all", NAIVE)


async def test_registering_again_with_another_name_is_the_same_problem_with_more_implementations(db: Database):
    problems = Problems(db)
    assert await problems.add(softmax(implementations={"naive": NAIVE})) == "new"
    assert await problems.add(softmax(name="other", implementations={"fast": FAST})) == "already"
    found = await problems.get(softmax().problem_id)
    assert (found.name, found.implementations) == ("softmax", {"naive": NAIVE, "fast": FAST})


async def test_an_implementation_is_its_owners_though_the_problem_is_everybodys(db: Database):
    problems, problem = Problems(db), softmax()
    for user, kept in ((ANN, NAIVE), (BOB, FAST)):
        with acting_as(user):
            await problems.add(problem)
            await problems.change_implementation(problem.problem_id, "best", kept)
    with acting_as(ANN):
        assert (await problems.get(problem.problem_id)).implementations == {"best": NAIVE}
    with acting_as(BOB):
        await problems.change_implementation(problem.problem_id, "best", None)
        assert (await problems.get(problem.problem_id)).implementations == {}
    with acting_as(ANN):
        assert (await problems.get(problem.problem_id)).implementations == {"best": NAIVE}


async def test_histories_that_a_name_or_an_implementation_split_are_joined_and_old_ids_stay_valid(db: Database):
    first, second = as_before(), as_before(name="renamed", implementations={"naive": NAIVE})
    await keep_as_before(db, first, "a-1")
    await keep_as_before(db, second, "a-2")
    await ExperienceSearch(db).add_note("mind the tail", problem_id=second.problem_id)
    assert first.problem_id != second.problem_id
    assert await join_renamed_problems(db) == 2
    assert await join_renamed_problems(db) == 0

    problems, attempts = Problems(db), AttemptStore(db)
    assert await problems.count() == 1
    for problem_id in (first.problem_id, second.problem_id, softmax().problem_id):
        found = await problems.get(problem_id)
        assert (found.problem_id, found.name) == (softmax().problem_id, "softmax")
        assert found.implementations == {"naive": NAIVE}
        listed = (await attempts.list("best", problem_id=problem_id)).attempts
        assert {(a.attempt_id, a.problem_hash) for a in listed} == {
            ("a-1", found.content_hash), ("a-2", found.content_hash)
        }  # fmt: skip
        assert len((await attempts.history(problem_id)).points) == 2
        assert len(await attempts.evaluations_of(problem_id)) == 0  # these have no source
        assert [one.says for one in (await ExperienceSearch(db).lessons(problem_id=problem_id)).lessons] == [
            "mind the tail"
        ]


async def test_what_an_older_version_sends_joins_the_problem_of_today(db: Database, tmp_path: Path):
    merging, sent = Merging(db, Artifacts(tmp_path / "artifacts", db)), as_before(implementations={"naive": NAIVE})
    attempt = Attempt(
        attempt_id="a-0123456789abcd", kind="evaluate", created_at="2026", status="judged", verdict="correct",
        problem_id=sent.problem_id, problem_hash=sent.content_hash,
    )  # fmt: skip
    taken = await merging.take(StoreExport(problems=[sent], attempts=[attempt]))
    assert (taken.problems, taken.attempts) == (1, 1)
    kept = await AttemptStore(db).get(attempt.attempt_id)
    assert (kept.problem_id, kept.problem_hash) == (softmax().problem_id, softmax().content_hash)
    forged = sent.model_copy(update={"rtol": 1.0})
    with pytest.raises(BadRequest, match="not what its id says"):
        await merging.take(StoreExport(problems=[forged]))
