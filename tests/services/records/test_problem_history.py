"""The course of a problem: best so far, devices apart, pictures that a browser can show."""

import csv
import itertools
import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.cli import history as command
from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory
from gpu_mcp_server.plots import history_plots
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.status.dashboard_queries import DashboardQueries
from gpu_mcp_server.store.database import Database

STEERING = "\x07\x1b\x00\u202e\ud800"


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.db") as db:
        await db.execute(
            "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES ('p-1', 'h', 'now', ?)",
            ('{"name": "soft <max>"}',),
        )
        yield db


async def tried(
    experience: AttemptStore, device: str | None, verdict: str | None, speedup: float | None, **more: Any
) -> str:
    attempt = await experience.start("evaluate", problem_id="p-1", **more)
    await experience.finish(
        attempt, status="judged" if verdict else "compile_failed", verdict=verdict, speedup=speedup, device=device
    )
    return attempt


async def test_the_best_so_far_rises_and_devices_are_never_mixed(db: Database):
    experience = AttemptStore(db)
    first = await tried(experience, "H200", "correct", 1.5, source_artifact_id="b-1")
    await tried(experience, "H200", "incorrect", None, parent_id=first)
    await tried(experience, "cpu", "correct", 99.0)
    voided = await tried(experience, "H200", "correct", 50.0, parent_id=first)
    await experience.void(voided, "not had twice")
    await tried(experience, None, None, None, parent_id=first, note="does not compile")
    await tried(experience, "H200", "correct", 3.0, parent_id=first)

    found = await experience.history("p-1")
    assert (found.device, found.devices) == ("H200", ["H200", "cpu"])
    assert [(p.outcome, p.best) for p in found.points] == [
        ("correct", 1.5), ("incorrect", 1.5), ("voided", 1.5), ("compile_failed", 1.5), ("correct", 3.0),
    ]  # fmt: skip
    assert [p.source_artifact_id for p in found.points[:2]] == ["b-1", None]
    assert "best" in found.summary() and "speed-up 3" in found.summary()
    assert [p.speedup for p in (await experience.history("p-1", "cpu")).points if p.speedup] == [99.0]
    with pytest.raises(NotFound, match="A100"):
        await experience.history("p-1", "A100")
    with pytest.raises(NotFound, match="p-2"):
        await experience.history("p-2")


async def test_the_best_so_far_of_history_and_boards_is_the_first_of_the_ranking(db: Database):
    experience = AttemptStore(db)

    async def timed(speedup: float, low: float, **evidence: str) -> str:
        attempt = await experience.start("evaluate", problem_id="p-1", device="H200", problem_hash="h")
        told = {"speedup_range": [low, speedup + 0.1], **evidence}
        await experience.finish(attempt, status="judged", verdict="correct", speedup=speedup, evidence=told)
        return attempt

    await timed(9.0, 8.0, unconfirmable="the host is busy")
    await timed(5.0, 4.9)
    await timed(4.0, 1.0, confirmed_by="itself")
    sure = await timed(3.0, 2.9, confirmed_by="itself")
    await timed(6.0, 5.9)

    points = (await experience.history("p-1")).points
    assert [(p.best, (p.best_trust or "").partition(":")[0]) for p in points] == [
        (9.0, "unconfirmable"), (5.0, "provisional"), (4.0, "confirmed"), (3.0, "confirmed"), (3.0, "confirmed"),
    ]  # fmt: skip
    nothing: Any = None
    queries = DashboardQueries(db, nothing, nothing, experience)
    (board,) = await queries.boards("p-1")
    (first, *_) = await queries.ranking(board, "p-1")
    (listed, *_) = (await experience.list("best", problem_id="p-1")).attempts
    assert first.attempt_id == listed.attempt_id == sure
    assert (board.evaluations, board.correct, board.best, board.best_trust) == (5, 5, 3.0, "confirmed")


@pytest.mark.parametrize("count", [0, 1, 500])
def test_pictures_are_well_formed_whatever_the_words(count: int):
    words = '<script>alert("x")</script> & "quotes" \x07\x1b[31m\x00\u202e\ud800'
    points = [
        HistoryPoint(
            number=n, attempt_id=f"a-{n}", parent_id=f"a-{n // 2}" if n > 1 else None, created_at="now",
            outcome="correct" if n % 3 else "incorrect", speedup=n / 10 if n % 3 else None, best=n / 10, note=words,
        )
        for n in range(1, count + 1)
    ]  # fmt: skip
    history = ProblemHistory(problem_id="p-1", name=words, device="d", points=points)
    for text in (history_plots.plot_history(history), history_plots.plot_lineage(history)):
        root = ET.fromstring(text)
        assert "<script>" not in text and root.tag.endswith("svg")
        assert not set(text) & set(STEERING) and "\\x1b[31m" in text and "\\u202e" in text
        circles = [e for e in root.iter() if e.tag.endswith("circle")]
        assert len(circles) == min(count, history_plots.MAX_NODES if "lineage of" in text else count)
        for circle in circles:
            assert 0 <= float(circle.get("cx", "-1")) <= float(root.get("width", "0"))


def test_exported_rows_steer_neither_a_terminal_nor_a_spreadsheet(tmp_path: Path):
    words = ["=1+1\x1b[2J", "@SUM(A1)\u202e", "plain\x9b, quoted"]
    points = [
        HistoryPoint(number=n, attempt_id="a", created_at="now", outcome="correct", speedup=-1.5, note=note)
        for n, note in enumerate(words)
    ]
    history = ProblemHistory(problem_id="p-1", name="n", points=points)
    for name in ("all.csv", "all.json"):
        command._written(history, None, None, tmp_path / name)
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))

    assert [row["note"] for row in rows] == ["'=1+1\\x1b[2J", "'@SUM(A1)\\u202e", "plain\\x9b, quoted"]
    assert rows[0]["speedup"] == "-1.5", "a number stays one"
    text = (tmp_path / "all.json").read_text()
    assert text.isascii() and "\x1b" not in text
    assert [point["note"] for point in json.loads(text)["points"]] == words, "nothing is lost there"


def drawn_lineage(parents: Sequence[str | None]) -> ET.Element:
    """Return the picture of attempts named a, b, c ... with these parents."""
    points = [
        HistoryPoint(
            number=n, attempt_id=chr(96 + n), parent_id=parent, created_at="now", outcome="incorrect", note="x" * 200
        )
        for n, parent in enumerate(parents, 1)
    ]
    return ET.fromstring(history_plots.plot_lineage(ProblemHistory(problem_id="p", name="n", points=points)))


def corners(path: str) -> list[tuple[float, float]]:
    """Return the corners of a line of vertical and horizontal parts."""
    found = [(0.0, 0.0)]
    for kind, value in re.findall(r"([MVH])([\d. ]+)", path):
        x, y = found[-1]
        numbers = [float(each) for each in value.split()]
        found.append((numbers[0], numbers[1]) if kind == "M" else (x, numbers[0]) if kind == "V" else (numbers[0], y))
    return found[1:]


def test_a_child_stands_below_its_parent_and_the_last_child_in_its_lane():
    root = drawn_lineage([None, "a", "a", "c", None])
    where = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter() if c.tag.endswith("circle")]
    (ax, ay), (bx, by), (cx, cy), (dx, dy), (ex, ey) = where
    assert ay < by < cy < dy < ey, "in order of time"
    assert ax == cx == dx < bx and ex == ax


@pytest.mark.parametrize("seed", range(12))
def test_no_line_of_the_lineage_crosses_a_label_or_another_attempt(seed: int):
    chance = random.Random(seed)
    parents = [
        None if n == 0 or chance.random() < 0.1 else chr(97 + chance.randrange(max(0, n - 6), n)) for n in range(26)
    ]
    root = drawn_lineage(parents)
    circles = {(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter() if c.tag.endswith("circle")}
    labels = [float(t.get("x", "")) for t in root.iter() if t.tag.endswith("text")][1:]
    paths = [corners(e.get("d", "")) for e in root.iter() if e.tag.endswith("path")]
    assert len(paths) == sum(parent is not None for parent in parents)
    for path in paths:
        assert max(x for x, _ in path) < min(labels)
        passed = [
            (x, y)
            for (x1, y1), (x2, y2) in itertools.pairwise(path)
            for x, y in circles - {path[0], path[-1]}
            if min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2)
        ]
        assert not passed, (path, passed)


def test_the_best_goes_by_trust_and_then_by_what_it_has_at_least():
    def point(name: str, trust: str, speedup: float, low: float) -> HistoryPoint:
        return HistoryPoint(
            number=1,
            attempt_id=name,
            created_at="now",
            outcome="correct",
            speedup=speedup,
            speedup_low=low,
            trust=trust,
        )

    listed = [
        point("a-lucky", "unconfirmable: the host is busy", 9, 8),
        point("a-wide", "confirmed", 4, 1),
        point("a-narrow", "confirmed", 3, 2.9),
        point("a-first-look", "provisional", 5, 4.9),
    ]
    history = ProblemHistory(problem_id="p-1", name="softmax", device="cpu", points=listed)

    assert "best a-narrow with speed-up 3, confirmed; a-lucky shows 9, unconfirmable" in history.summary()
    assert history.model_copy(update={"points": listed[2:3]}).summary().endswith("speed-up 3, confirmed")


def test_the_course_has_intervals_as_whiskers_and_ticks_around_all_of_them():
    points = [
        HistoryPoint(
            number=n, attempt_id=f"a-{n}", created_at="now", outcome="correct", speedup=speedup, best=speedup,
            speedup_low=low, speedup_high=high,
        )
        for n, (speedup, low, high) in enumerate([(1.5, 1.4, 1.6), (4.9, 4.7, 5.3), (2.0, None, None)], 1)
    ]  # fmt: skip
    root = ET.fromstring(history_plots.plot_history(ProblemHistory(problem_id="p", name="n", points=points)))
    assert len([e for e in root.iter() if e.tag.endswith("path")]) == 2, "unknown is not drawn"
    said = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert "\u00d71" in said and "\u00d710" in said, "the ticks around 1 and 5.3"
    assert "attempt number" in said and "speed-up against the reference" in said
