"""The course of a problem: best so far, devices apart, pictures that a browser can show."""

import csv
import json
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.cli import history as command
from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory
from gpu_mcp_server.plots import history_plots
from gpu_mcp_server.services.records.attempts import AttemptStore
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
    first = await tried(experience, "H200", "correct", 1.5)
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
    assert "best" in found.summary() and "speed-up 3" in found.summary()
    assert [p.speedup for p in (await experience.history("p-1", "cpu")).points if p.speedup] == [99.0]
    with pytest.raises(NotFound, match="A100"):
        await experience.history("p-1", "A100")
    with pytest.raises(NotFound, match="p-2"):
        await experience.history("p-2")


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
        assert len(circles) == min(count, history_plots.MAX_NODES if "who descends" in text else count)
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


def test_a_child_stands_below_its_parent():
    points = [
        HistoryPoint(number=n, attempt_id=a, parent_id=p, created_at="now", outcome="incorrect")
        for n, (a, p) in enumerate([("a", None), ("b", "a"), ("c", "a"), ("d", "c"), ("e", None)], 1)
    ]
    root = ET.fromstring(history_plots.plot_lineage(ProblemHistory(problem_id="p", name="n", points=points)))
    where = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter() if c.tag.endswith("circle")]
    (ax, ay), (bx, by), (cx, cy), (dx, dy), (_, ey) = where
    assert ay < by == cy < dy and ey == ay and ax == bx < cx == dx
