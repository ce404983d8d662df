"""Webhooks: what a user's address is told of jobs that ended, once."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_mcp_server.hostd.protocol import JobRecord
from gpu_mcp_server.models.attempt import AttemptKind
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.jobs.job_table import JobTable, new_job_id
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.team.users import Users
from gpu_mcp_server.web.webhooks import Webhooks
from tests.team.test_users import ADA, BOB, db, finished

__all__ = ["db"]  # the fixture: a store with these users


@asynccontextmanager
async def webhook_of_ada(db: Database) -> AsyncGenerator[list[dict[str, Any]]]:
    """Give Ada a webhook; yield what it is told."""
    told: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        told.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        await Users(db).put("ada", webhook=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x")
        yield told


async def test_a_webhook_is_told_once_of_each_job_that_ended_since_it_was_set(db: Database):
    await finished(db, ADA, 1.0)
    assert not await Webhooks(db).is_wanted()
    async with webhook_of_ada(db) as told:
        job_id = await finished(db, ADA, 2.0, gpus=1)
        await finished(db, BOB, 3.0)
        counts = [await Webhooks(db).tell(), await Webhooks(db).tell()]

    assert counts == [1, 0]
    assert [(t["event"], t["job_id"], t["status"], t["wall_s"], t["gpus"]) for t in told] == [
        ("job.finished", job_id, "ok", 2.0, 1)
    ]


async def test_a_webhook_has_confirmed_times_alone_and_waits_until_the_verdict_is_noted(db: Database):
    experience, table = AttemptStore(db), JobTable(db)

    async def judged(kind: AttemptKind, **more: Any) -> str:
        with acting_as(ADA):
            attempt_id = await experience.start(kind, **more)
            row = await table.add(new_job_id(), "local", "judge", attempt_id=attempt_id)
            await table.finish(row.job_id, JobRecord(row.job_id, "finished", "judge", "ok", wall_s=1.0))
        return attempt_id

    async with webhook_of_ada(db) as told:
        first = await judged("evaluate")
        assert await Webhooks(db).tell() == 0
        await experience.finish(first, status="judged", verdict="correct", speedup=9.0)
        again = await judged("confirm", parent_id=first)
        exact = {"confirmed_by": "itself"}
        await experience.finish(again, status="judged", verdict="correct", speedup=3.0, evidence=exact)
        voided = await judged("evaluate")
        await experience.finish(voided, status="judged", verdict="correct", speedup=5.0, evidence=exact)
        await experience.void(voided, "not had twice")
        assert await Webhooks(db).tell() == 3

    found = {each["attempt_id"]: (each["verdict"], each["speedup"], each["confirms"]) for each in told}
    assert found == {
        first: ("correct", None, None), again: ("correct", 3.0, first), voided: ("correct", None, None),
    }  # fmt: skip


async def test_a_webhook_that_cannot_be_reached_is_given_up_and_noted(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpu_mcp_server.web.webhooks.BACK_OFF_S", 0)
    await Users(db).put("ada", webhook="http://127.0.0.1:1/x")
    await finished(db, ADA, 2.0)
    counts = [await Webhooks(db).tell(), await Webhooks(db).tell()]
    (row,) = await db.fetch_all("SELECT outcome FROM webhook_deliveries")

    assert counts == [1, 0] and row["outcome"] == "failed: ConnectError"
