import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.attempt import AttemptList
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.status.lab_status import count_confirmed
from gpu_mcp_server.store.database import Database


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.sqlite3") as database:
        yield database


@pytest.fixture
async def experience(db: Database) -> AttemptStore:
    return AttemptStore(db)


async def tried(experience: AttemptStore, device: str, **columns: Any) -> str:
    """Note an evaluation from its start to its end."""
    start = {name: columns.pop(name) for name in ("parent_id", "problem_id") if name in columns}
    attempt_id = await experience.start("evaluate", device=device, **start)
    await experience.finish(attempt_id, **{"status": "judged", **columns})
    return attempt_id


async def correct(experience: AttemptStore, device: str, speedup: float, **columns: Any) -> str:
    return await tried(experience, device, verdict="correct", speedup=speedup, **columns)


async def listed(experience: AttemptStore, view: Any, **arguments: Any) -> list[str]:
    return [attempt.attempt_id for attempt in (await experience.list(view, **arguments)).attempts]


async def test_an_attempt_runs_until_it_is_finished_once(experience: AttemptStore):
    attempt_id = await experience.start("evaluate", problem_id="p-1", note="tiled", versions={"gcc": "14"})
    running = await experience.get(attempt_id)
    assert (running.status, running.note, running.versions, running.evidence) == (
        "running",
        "tiled",
        {"gcc": "14"},
        None,
    )
    assert await experience.finish(attempt_id, status="judged", verdict="correct", evidence={"samples": [1, 2.5]})
    assert not await experience.finish(attempt_id, status="failed", verdict="cheat")
    done = await experience.get(attempt_id)
    assert (done.status, done.verdict, done.evidence) == ("judged", "correct", {"samples": [1, 2.5]})
    with pytest.raises(BadRequest, match="status"):
        await experience.finish(attempt_id, verdict="correct")
    with pytest.raises(TypeError, match="colour"):
        await experience.start("run", **{"colour": "red"})  # pyright: ignore


async def test_ids_sort_by_time_and_many_writers_get_different_ones(experience: AttemptStore, db: Database):
    one_by_one = [await experience.start("run") for _ in range(50)]
    assert one_by_one == sorted(one_by_one)
    other = await Database.open(db.path)
    both = await asyncio.gather(*(e.start("run") for e in (experience, AttemptStore(other)) for _ in range(50)))
    assert len(set(both)) == 100
    await other.close()


async def test_the_best_are_correct_evaluations_of_one_device_fastest_first(experience: AttemptStore):
    slow = await correct(experience, "H200", 1.5)
    fast = await correct(experience, "H200", 3.0)
    await tried(experience, "H200", verdict="cheat", speedup=900.0)
    await tried(experience, "H200", verdict="incorrect")
    elsewhere = await correct(experience, "EPYC", 40.0)
    await experience.start("evaluate", device="H200")
    best = await experience.list("best")
    assert [attempt.attempt_id for attempt in best.attempts] == [fast, slow]
    assert best.devices == ["H200", "EPYC"]
    assert await listed(experience, "best", device="EPYC") == [elsewhere]
    assert await listed(experience, "best", device="none such") == []


async def test_an_attempt_whose_time_could_not_be_confirmed_ranks_behind_those_whose_was(experience: AttemptStore):
    unsure = await correct(experience, "EPYC", 9.0, evidence={"unconfirmable": "the judge's clock reads 40 % more"})
    sure = await correct(experience, "EPYC", 1.1)
    assert await listed(experience, "best") == [sure, unsure]


async def test_of_the_last_times_on_a_host_it_is_counted_how_many_were_confirmed(
    experience: AttemptStore, db: Database
):
    assert await count_confirmed(db, "box", 20) == (0, 0)
    for number in range(5):
        unsure = {"unconfirmable": "the judge's clock reads more"} if number < 2 else {}
        await correct(experience, "EPYC", 2.0, host="box", evidence=unsure)
    await correct(experience, "EPYC", 2.0, host="another")
    await tried(experience, "EPYC", verdict="incorrect", host="box")
    assert [await count_confirmed(db, "box", last) for last in (20, 4)] == [(3, 5), (3, 4)]


async def test_the_best_device_is_one_that_has_a_correct_attempt(experience: AttemptStore):
    for _ in range(3):
        await tried(experience, "H200", verdict="incorrect")
    only = await correct(experience, "EPYC", 2.0)
    assert await listed(experience, "best") == [only]


async def test_lists_narrow_by_problem_and_kind_and_say_what_they_leave_out(experience: AttemptStore, db: Database):
    await db.execute("INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES ('p-1', '1', '', '{}')")
    mine = [await correct(experience, "cpu", float(i + 1), problem_id="p-1") for i in range(5)]
    await correct(experience, "cpu", 99.0, problem_id="p-2")
    compiled = await experience.start("compile", problem_id="p-1")
    best = await experience.list("best", "p-1", limit=2)
    assert [attempt.attempt_id for attempt in best.attempts] == [mine[4], mine[3]]
    assert best.left_out == 3
    assert "(1 to 2 of 5; go on with offset 2; problem_id, device or another view narrow the list)" in best.summary()
    second = await experience.list("best", "p-1", limit=2, offset=2)
    assert [(each.attempt_id, each.rank) for each in second.attempts] == [(mine[2], 3), (mine[1], 4)]
    last = await experience.list("recent", "p-1", limit=2, offset=4)
    assert [each.attempt_id for each in last.attempts] == [mine[1], mine[0]] and "go on" not in last.summary()
    beyond = await experience.list("failures", "p-1", offset=1 << 70)
    assert beyond.summary() == f"no attempts (failures) behind {1 << 70}"
    assert await listed(experience, "recent", problem_id="p-1") == [compiled, *reversed(mine)]
    assert await listed(experience, "recent", kind="compile") == [compiled]
    empty = (await experience.list("failures", "p-1")).summary()
    assert empty.startswith("no attempts (failures); ") and ("devices with" in empty or "evaluate_kernel" in empty)
    none = AttemptList(view="best", attempts=[], devices=["a GPU"]).summary()
    assert "devices with attempts: a GPU" in none and "view recent shows the others" in none


async def test_failures_come_newest_first_with_their_reasons(experience: AttemptStore):
    await correct(experience, "cpu", 2.0)
    wrong = await tried(experience, "cpu", verdict="incorrect", reason="row 7 differs")
    cheat = await tried(experience, "cpu", verdict="cheat", reason="late" * 500)
    broken = await experience.start("compile")
    await experience.finish(broken, status="failed", reason="kernel.cu:3: error")
    fine = await experience.start("run")
    await experience.finish(fine, status="ok")
    await experience.start("run")
    failures = (await experience.list("failures")).attempts
    assert [attempt.attempt_id for attempt in failures] == [broken, cheat, wrong]
    assert failures[2].reason == "row 7 differs"
    assert len(failures[1].reason or "") < 320
    assert len((await experience.get(cheat)).reason or "") == 2000


async def test_ancestors_lead_from_an_attempt_to_its_root(experience: AttemptStore):
    root = await correct(experience, "cpu", 1.0)
    middle = await correct(experience, "H200", 2.0, parent_id=root)
    await correct(experience, "cpu", 9.0, parent_id=root)
    leaf = await correct(experience, "cpu", 3.0, parent_id=middle)
    assert await listed(experience, "ancestors", attempt_id=leaf) == [leaf, middle, root]
    short = await experience.list("ancestors", attempt_id=leaf, limit=1)
    assert (len(short.attempts), short.left_out) == (1, 2)
    next_one = await experience.list("ancestors", attempt_id=leaf, limit=1, offset=1)
    assert [each.attempt_id for each in next_one.attempts] == [middle]
    with pytest.raises(BadRequest, match="attempt_id"):
        await experience.list("ancestors")


async def test_evidence_is_only_in_a_single_attempt(experience: AttemptStore):
    attempt_id = await correct(experience, "cpu", 2.0, evidence={"seed": "x"})
    assert (await experience.list("recent")).attempts[0].evidence is None
    assert (await experience.get(attempt_id)).evidence == {"seed": "x"}


async def test_what_names_no_attempt_is_not_found(experience: AttemptStore):
    for call in (
        experience.get("a-none"),
        experience.finish("a-none", status="ok"),
        experience.start("run", parent_id="a-none"),
        experience.list("ancestors", attempt_id="a-none"),
    ):
        with pytest.raises(NotFound, match="list_attempts"):
            await call


@pytest.mark.parametrize(("view", "limit"), [("worst", 10), ("best", 0), ("best", 101)])
async def test_an_unknown_view_or_limit_is_refused(experience: AttemptStore, view: Any, limit: int):
    with pytest.raises(BadRequest):
        await experience.list(view, limit=limit)


async def test_attempts_at_an_unknown_problem_are_an_error_that_names_it(experience: AttemptStore):
    with pytest.raises(NotFound, match=r"'p-nope'.*list_problems"):
        await experience.list("recent", problem_id="p-nope")


async def test_the_best_stays_who_is_fastest_and_what_is_not_robust_is_shown_beside_it(experience: AttemptStore):
    said = "no; large: looks like TF32 or float16"
    fast = await correct(experience, "a GPU", 2.0, evidence={"robust": said})
    sound = await correct(experience, "a GPU", 1.5, evidence={"robust": "yes, with 6 other distributions"})
    old = await correct(experience, "a GPU", 1.2)

    best = (await experience.list("best")).attempts
    assert [attempt.attempt_id for attempt in best] == [fast, sound, old]
    assert f"robust: {said}" in best[0].line_text() and best[2].robust is None
