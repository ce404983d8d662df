"""The order of attempts by trust and lower bounds, ties, and what a time's word follows from."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.models.comparison import ComparisonRow
from gpu_mcp_server.models.history import HistoryPoint, rank_of
from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.recipes.run.prompt_verdict import trusted_worth
from gpu_mcp_server.services.evaluation import candidate_batches
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.records.confirmations import MOST_TRIES, Confirmations
from gpu_mcp_server.services.records.trust import as_first_judged, trust_of
from gpu_mcp_server.store.database import Database


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.sqlite3") as database:
        yield database


async def correct(db: Database, speedup: float | None, half: float = 0.0, **more: Any) -> str:
    """Record a correct evaluation whose speed-up is known to so much more or less."""
    experience = AttemptStore(db)
    attempt_id = await experience.start("evaluate", device="H100", problem_hash="h")
    evidence = {"speedup_range": [speedup - half, speedup + half]} if speedup else {}
    columns: dict[str, Any] = {"status": "judged", "verdict": "correct", "speedup": speedup, **more.pop("columns", {})}
    await experience.finish(attempt_id, **columns, evidence={**evidence, **more})
    return attempt_id


async def test_a_ranking_names_ties_and_goes_by_trust_then_by_the_lower_bound(db: Database):
    wide = await correct(db, 9.0, 5.0)
    narrow = await correct(db, 5.0, 0.1)
    slower = await correct(db, 3.0, 0.5)
    sure = await correct(db, 2.0, 0.2, confirmed_by="itself")
    alike = await correct(db, 1.9, 0.15, confirmed_by="a-other")
    doubted = await correct(db, 99.0, 0.1, unconfirmable="it waits for the GPU")
    untimed = await correct(db, None)
    best = (await AttemptStore(db).list("best")).attempts
    assert [(a.attempt_id, a.rank, a.tied_with) for a in best] == [
        (sure, 1, None), (alike, 1, sure), (narrow, 3, None), (wide, 3, narrow), (slower, 5, None), (doubted, 6, None),
        (untimed, None, None),
    ]  # fmt: skip
    assert [a.trust for a in best] == [
        "confirmed", "confirmed", "provisional", "provisional", "provisional", "unconfirmable: it waits for the GPU", None,
    ]  # fmt: skip
    lines = (await AttemptStore(db).list("best")).summary().splitlines()
    assert f"2.  {alike}" not in lines[2] and lines[2].startswith(f"1.  {alike}") and f"tied with {sure}" in lines[2]
    assert "speed-up 9 (4-14)" in lines[4] and "provisional" in lines[4]


async def test_times_without_a_baseline_rank_by_the_most_that_they_take(db: Database):
    wide = await correct(db, None, columns={"median_us": 10.0}, ranked_by="time", time_range_us=[5.0, 30.0])
    narrow = await correct(db, None, columns={"median_us": 12.0}, ranked_by="time", time_range_us=[11.0, 13.0])
    best = (await AttemptStore(db).list("best")).attempts
    assert [(a.attempt_id, a.tied_with) for a in best] == [(narrow, None), (wide, narrow)]


async def test_the_store_a_batch_a_history_and_a_run_have_one_order(db: Database):
    """Every order in the code is that of the ranking: what differs by one figure alone stands alike everywhere."""
    trusts: list[dict[str, Any]] = [{"confirmed_by": "itself"}, {}, {"unconfirmable": "busy"}]
    ends = [(2.9, 3.1), (1.0, 8.0), (2.5, 3.0), (3.0, 3.2), (0.5, 99.0)]
    for low, high in ends:
        for trust in trusts:
            await correct(db, (low + high) / 2, (high - low) / 2, **trust)
    for low, high in ends:
        for trust in trusts:
            columns = {"median_us": (low + high) / 2}
            await correct(db, None, columns=columns, ranked_by="time", time_range_us=[low, high], **trust)
    store = AttemptStore(db)
    ranked = (await store.list("best", limit=100)).attempts
    order = [attempt.attempt_id for attempt in ranked]
    made = sorted(ranked, key=lambda attempt: attempt.attempt_id)
    points = [
        HistoryPoint(
            number=number, outcome="correct", time_range_us=a.time_range_us, speedup_low=a.speedup_range and a.speedup_range[0],
            **{name: getattr(a, name) for name in ("attempt_id", "created_at", "speedup", "median_us", "trust")},
        )
        for number, a in enumerate(made)
    ]  # fmt: skip
    rows = [
        ComparisonRow(
            name=a.attempt_id, status="judged", verdict="correct", time_us=a.median_us, trust=a.trust or "",
            **{name: getattr(a, name) for name in ("speedup", "speedup_range", "time_range_us")},
        )
        for a in made
    ]  # fmt: skip
    verdicts = [
        Verdict(
            stage="performance", outcome="correct", trust=a.trust or "",
            **{n: getattr(a, n) for n in ("attempt_id", "speedup", "speedup_range", "median_us", "time_range_us")},
        )
        for a in made
    ]  # fmt: skip
    table = candidate_batches._ranked(rows)
    assert [point.attempt_id for point in sorted(points, key=rank_of)] == order
    assert [row.name for row in table] == order
    assert [row.rank for row in table] == [attempt.rank for attempt in ranked], "the same are tied"
    assert [v.attempt_id for v in sorted(verdicts, key=trusted_worth, reverse=True)] == order


@pytest.mark.parametrize(
    ("verdict", "voided", "evidence", "timed", "word"),
    [
        ("correct", None, {}, True, "provisional"),
        ("correct", None, {"confirmed_by": "itself"}, True, "confirmed"),
        ("correct", None, {"confirmed_by": "itself", "unconfirmable": "busy"}, True, "unconfirmable: busy"),
        ("correct", "slower", {"contradicted_by": "a-1", "confirmed_by": "a-0"}, True, "contradicted"),
        ("correct", "judged on another server", {}, True, None),
        ("correct", None, {}, False, None),
        ("cheat", None, {}, True, None),
    ],
)
def test_a_time_has_one_word(verdict: str, voided: str | None, evidence: dict[str, Any], timed: bool, word: str | None):
    assert trust_of(verdict, voided, evidence, timed=timed) == word


async def test_a_better_attempt_takes_the_place_of_what_is_owed_and_a_void_gives_it_back(db: Database):
    table, experience = Confirmations(db), AttemptStore(db)
    first = await correct(db, 2.0)
    await table.owe_best(first)
    better = await correct(db, 3.0)
    await table.owe_best(better)
    assert [c.attempt_id for c in await table.list_owed()] == [better]
    found = await table.get(first)
    assert found is not None and (found.state, found.said) == ("replaced", f"by {better}")
    await table.owe_best(first)
    assert [c.attempt_id for c in await table.list_owed()] == [better], "it is not the best"

    assert await table.claim(better, "one", "box") and not await table.claim(better, "two", "box")
    await experience.void(better, "incorrect at n=7", "a-again")
    await table.finish(better, "void", "incorrect at n=7", 3.0)
    await table.owe_next(better)
    assert [c.attempt_id for c in await table.list_owed()] == [first]
    assert await table.rest_s("box", 4.0) > 10


async def test_what_somebody_asked_for_is_not_replaced(db: Database):
    table = Confirmations(db)
    asked = await correct(db, 2.0)
    await table.owe(asked, "asked")
    await table.owe_best(better := await correct(db, 3.0))
    assert [c.attempt_id for c in await table.list_owed()] == [asked, better]


async def test_an_audit_of_what_is_owed_already_decides_by_itself(db: Database):
    table, attempt_id = Confirmations(db), await correct(db, 2.0)
    await table.owe_best(attempt_id)
    owed = await table.get(attempt_id)
    assert owed is not None and owed.needs_two(owed.started_at)
    run = await table.begin(attempt_id, "audit", "one", "box")
    asked = await table.get(attempt_id)
    assert asked is not None and (asked.why, asked.state, asked.needs_two(run)) == ("audit", "running", False)


async def test_a_run_that_another_one_has_taken_the_place_of_notes_no_end(db: Database):
    """As where somebody audits an attempt whose run goes on behind: the run gives way to that, and is owed no more."""
    table, attempt_id = Confirmations(db), await correct(db, 2.0)
    await table.owe_best(attempt_id)
    first = await table.claim(attempt_id, "one", "box")
    audit = await table.begin(attempt_id, "audit", "one", "box")
    for _ in range(MOST_TRIES):
        assert not await table.release(attempt_id, first, "it gave way", counted=True)
    await table.release_left(attempt_id, "one", first)
    stands = await table.get(attempt_id)
    assert stands is not None and (stands.state, stands.tries, stands.said) == ("running", 0, "")
    assert stands.needs_two(first) and not stands.needs_two(audit), "a slower time of the audit's decides"
    await table.release_left(attempt_id, "one", audit)
    assert (stands := await table.get(attempt_id)) is not None and stands.state == "owed"


async def test_a_run_that_never_decides_fails_and_says_why(db: Database):
    table, attempt_id = Confirmations(db), await correct(db, 2.0)
    await table.owe_best(attempt_id)
    for number in range(MOST_TRIES):
        run = await table.claim(attempt_id, "one", "box")
        assert await table.release(attempt_id, run, "the judge failed", counted=True) is (number == MOST_TRIES - 1)
    attempt = await AttemptStore(db).get(attempt_id)
    assert (attempt.trust, attempt.confirmation) == ("provisional", "failed 3 times: the judge failed")


async def test_a_run_that_gives_way_counts_in_the_time_that_runs_may_take(db: Database):
    table, attempt_id = Confirmations(db), await correct(db, 2.0)
    await table.owe_best(attempt_id)
    assert await table.claim(attempt_id, "one", "box")
    began = (datetime.now(UTC) - timedelta(seconds=60)).isoformat()
    await db.execute("UPDATE confirmations SET started_at = ? WHERE attempt_id = ?", (began, attempt_id))
    await table.release_left(attempt_id, "one", began)
    assert await table.rest_s("box", 1e6) > 59e6, "of a minute"
    assert await table.claim(attempt_id, "two", "box")
    began = (datetime.now(UTC) - timedelta(hours=10)).isoformat()
    await db.execute("UPDATE confirmations SET started_at = ? WHERE attempt_id = ?", (began, attempt_id))
    await table.release_left(attempt_id, "two", began)
    assert await table.rest_s("box", 1e6) <= 600e6, "no server was there for most of it"
    assert await table.rest_s("elsewhere", 1e6) == 0


async def test_the_first_look_at_an_attempt_can_be_read_after_its_confirmation(db: Database):
    experience, table = AttemptStore(db), Confirmations(db)
    confirmed, again, voided = await correct(db, 3.0, 0.5), await correct(db, 2.8, 0.1), await correct(db, 9.0)
    before = [await experience.get(each) for each in (confirmed, voided)]
    await table.confirm(before[0], await experience.get(again))
    await experience.void(voided, "wrong at n=7", again)
    now = [await experience.get(each) for each in (confirmed, voided)]
    assert [(a.trust, a.speedup) for a in now] == [("confirmed", 2.8), ("contradicted", 9.0)]
    first = [as_first_judged(each) for each in now]
    assert [(a.trust, a.speedup, a.speedup_range, a.voided) for a in first] == [
        ("provisional", 3.0, (2.5, 3.5), None), ("provisional", 9.0, (9.0, 9.0), None),
    ]  # fmt: skip
