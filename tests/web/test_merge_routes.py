"""A private store merged into a team's."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.models.store_merge import StoreExport
from gpu_mcp_server.services.experience.experience_search import ExperienceSearch
from gpu_mcp_server.services.experience.store_merge import Merging
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from tests.laboratory import called
from tests.web.site import Served, served
from tests.web.test_serving import a_problem


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


async def private(folder: Path, db: Database) -> tuple[list[StoreExport], str, str]:
    """Return a private store's parts, its attempt and the attempt's source."""
    artifacts, experience, problem = Artifacts(folder / "artifacts", db), AttemptStore(db), a_problem()
    await Problems(db).add(problem)
    source = await artifacts.put(b"int launch(void);", name="k.c")
    about = {"problem_id": problem.problem_id, "problem_hash": problem.content_hash, "device": "cpu"}
    attempt = await experience.start("evaluate", source_artifact_id=source, **about)
    await experience.finish(attempt, status="judged", verdict="correct", speedup=99.0)
    await ExperienceSearch(db).add_note("Unroll it.", attempt_id=attempt)
    return [part async for part in Merging(db, artifacts).parts()], attempt, source


async def test_a_private_store_is_merged_once_and_its_verdicts_do_not_count_here(site: Served, tmp_path: Path):
    ada, bob = await site.token("ada"), await site.token("bob")
    async with await Database.open(tmp_path / "lab.db") as db:
        parts, attempt, source = await private(tmp_path, db)
    bodies = [part.model_dump_json() for part in parts]
    first = [(await site.ask("POST", "/store/merge", ada, content=body)).json() for body in bodies]
    sent = await site.ask("PUT", f"/store/artifacts/{source}?name=k.c", ada, content=b"int launch(void);")
    wrong = await site.ask("PUT", f"/store/artifacts/{source}", ada, content=b"another")
    again = [(await site.ask("POST", "/store/merge", ada, content=body)).json() for body in bodies]
    stolen = (await site.ask("POST", "/store/merge", bob, content=bodies[1])).json()
    async with site.client(ada) as client, site.client(bob) as other:
        mine = await called(client, "list_attempts", attempt_id=attempt)
        best = await called(client, "list_attempts", view="best")
        theirs = await called(other, "list_attempts", view="recent")
        text = await called(client, "read_artifact", artifact_id=source)

    assert [(m["problems"], m["attempts"], m["notes"]) for m in first] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert first[1]["wanted"] == [source] and sent.status_code == 200 and wrong.status_code == 400
    assert [m["left_out"] for m in again] == [0, 1, 1] and again[1]["wanted"] == []
    assert "by ada's word" in mine["attempts"][0]["voided"] and best["attempts"] == []
    assert stolen["attempts"] == 0 and theirs["attempts"] == []
    assert "int launch" in json.dumps(text)


async def test_what_is_no_part_of_a_store_is_refused(site: Served, tmp_path: Path):
    ada, eve = await site.token("ada"), await site.token("eve", "read")
    async with await Database.open(tmp_path / "lab.db") as db:
        parts, _, _ = await private(tmp_path, db)
    forged = json.loads(parts[0].model_dump_json())
    forged["problems"][0]["reference"] = "def reference(x):\n    return x\n"
    answers = [
        await site.ask("POST", "/store/merge", ada, content=json.dumps(forged)),
        await site.ask("POST", "/store/merge", ada, content='{"attempts": [{"x": 1}]}'),
        await site.ask("POST", "/store/merge", ada, content="{"),
        await site.ask("POST", "/store/merge", eve, content=parts[0].model_dump_json()),
    ]

    assert [a.status_code for a in answers] == [400] * 4
    assert "not what its id says" in answers[0].json()["error"]
    assert "'run'" in answers[3].json()["error"]
    assert (await site.ask("POST", "/store/merge", content="{}")).status_code == 401
