import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.hostd.protocol import JobRecord, OutputFile, ProcessRecord
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.store.database import Database

RECORD = JobRecord(
    id="j-1",
    state="finished",
    status="ok",
    level="namespaces",
    processes=(ProcessRecord("main", exit_code=0, peak_memory_bytes=1024),),
    submitted_at=1.5,
    ended_at=2.5,
    outputs=(OutputFile("a.out", "ab" * 32, 7, 0o755),),
    outputs_left_out=("x: too large",),
)


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.sqlite3") as database:
        yield database


@pytest.fixture
async def jobs(db: Database) -> JobTable:
    return JobTable(db)


async def test_a_job_comes_back_with_its_context_and_record(jobs: JobTable):
    noted = await jobs.add("j-1", "box", "judge", "w-1", "a-1", {"problem_id": "p-1", "nested": [1, 2]})
    assert noted == await jobs.get("j-1")
    row = await jobs.get("j-1")
    assert (row.host, row.purpose, row.workspace_id, row.attempt_id) == ("box", "judge", "w-1", "a-1")
    assert row.context == {"problem_id": "p-1", "nested": [1, 2]}
    assert row.record is None
    assert await jobs.finish("j-1", RECORD)
    assert (await jobs.get("j-1")).record == RECORD


async def test_the_first_final_record_stays(jobs: JobTable):
    await jobs.add("j-1", "local", "run")
    assert await jobs.finish("j-1", RECORD)
    assert not await jobs.finish("j-1", JobRecord(id="j-1", state="finished", status="broken"))
    assert (await jobs.get("j-1")).record == RECORD


async def test_of_many_servers_that_finish_a_job_one_is_first(jobs: JobTable, db: Database):
    await jobs.add("j-1", "local", "run")
    others = await asyncio.gather(*(Database.open(db.path) for _ in range(5)))
    firsts = await asyncio.gather(
        *(JobTable(other).finish("j-1", JobRecord("j-1", "finished", note=str(i))) for i, other in enumerate(others))
    )
    assert sorted(firsts) == [False, False, False, False, True]
    record = (await jobs.get("j-1")).record
    assert record is not None
    assert record.note == str(firsts.index(True))
    await asyncio.gather(*(other.close() for other in others))


async def test_a_job_is_noted_once(jobs: JobTable):
    first = await jobs.add("j-1", "local", "run")
    assert await jobs.add("j-1", "elsewhere", "run") == first
    assert (await jobs.get("j-1")).host == "local"


async def test_an_unknown_job_is_not_found(jobs: JobTable):
    with pytest.raises(NotFound, match="j-none"):
        await jobs.get("j-none")
    with pytest.raises(NotFound, match="j-none"):
        await jobs.finish("j-none", RECORD)


async def test_recent_jobs_come_newest_first(jobs: JobTable):
    for i in range(5):
        await jobs.add(f"j-{i}", "local", "run")
    assert [row.job_id for row in await jobs.recent(3)] == ["j-4", "j-3", "j-2"]
