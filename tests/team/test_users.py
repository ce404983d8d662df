"""Tokens, quotas, sharing and the audit log, without the web."""

import hmac
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, DiskFull, NotFound, QuotaExceeded
from gpu_mcp_server.hostd.protocol import JobRecord
from gpu_mcp_server.models.user import LOCAL, Quotas, User
from gpu_mcp_server.runtime.current_user import acting_as, as_server
from gpu_mcp_server.services.experience.experience_search import ExperienceSearch
from gpu_mcp_server.services.jobs.job_table import JobTable, new_job_id
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.team.audit import AuditLog
from gpu_mcp_server.team.quotas import QuotaService
from gpu_mcp_server.team.rate_limit import AT_ONCE, RateLimiter, TooManyRequests
from gpu_mcp_server.team.sharing import SharingService
from gpu_mcp_server.team.token_verifier import TokenRefusal
from gpu_mcp_server.team.tokens import Tokens
from gpu_mcp_server.team.users import Users

ADA, BOB = User(name="ada", project="kernels"), User(name="bob", scopes=("run",), project="kernels")
EVE = User(name="eve", scopes=("run",), project="others")
ADA = ADA.model_copy(update={"scopes": ("run",)})


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.db") as db:
        users = Users(db)
        for user in (ADA, BOB, EVE):
            await users.put(user.name, project=user.project)
        yield db


async def test_a_token_is_known_by_its_hash_alone(db: Database):
    _, secret = await Tokens(db).create("ada", note="laptop")
    found = await Tokens(db).verify(secret)
    kept = "".join(str(tuple(row)) for row in await db.fetch_all("SELECT * FROM tokens"))

    assert isinstance(found, User) and (found.name, found.project, found.scopes) == ("ada", "kernels", ("run",))
    assert found.may("read") and not found.may("admin") and not found.is_local
    assert secret.split("_", 2)[2] not in kept and (await db.fetch_all("PRAGMA integrity_check"))[0][0] == "ok"


async def test_revoking_a_token_ends_the_sessions_that_were_opened_with_it(db: Database):
    tokens = Tokens(db)
    token_id, secret = await tokens.create("ada")
    _, other = await tokens.create("ada")
    user, second = await tokens.verify(secret), await tokens.verify(other)
    assert isinstance(user, User) and isinstance(second, User)
    session, kept = await tokens.open_session(user), await tokens.open_session(second)
    await tokens.revoke(token_id)

    assert [await tokens.verify(each) for each in (secret, session)] == [
        TokenRefusal("revoked"),
        TokenRefusal("revoked"),
    ]
    assert isinstance(await tokens.verify(kept), User)
    assert [token.state for token in await tokens.list()] == ["revoked", "active"]


@pytest.mark.parametrize(
    ("name", "changes"), [("local", {}), ("a b", {}), ("", {}), ("x", {"weight": 0}), ("x", {"project": "*"})]
)
async def test_a_user_that_cannot_be_is_refused(db: Database, name: str, changes: dict[str, Any]):
    with pytest.raises(BadRequest):
        await Users(db).put(name, **changes)


async def test_a_secret_is_compared_in_constant_time_whether_or_not_its_id_exists(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    tokens, compared, really = Tokens(db), list[int](), hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(len(one) + len(other))
        return really(one, other)

    token_id, _ = await tokens.create("ada")
    monkeypatch.setattr(hmac, "compare_digest", counting)
    for shown in (token_id, "0" * 12):
        assert await tokens.verify(f"gpumcp_{shown}_{'A' * 43}") == TokenRefusal("unknown")

    assert compared == [64, 64]


async def test_what_is_shared_is_seen_by_the_project_with_what_it_needs(db: Database, tmp_path: Path):
    artifacts, experience, sharing = Artifacts(tmp_path / "a", db), AttemptStore(db), SharingService(db)
    with acting_as(ADA):
        source = await artifacts.put(b"int a;", name="k.c")
        attempt = await experience.start("run", source_artifact_id=source)
        shared = await sharing.share(attempt, "project")

    assert (shared.seen_by, shared.also) == ("project kernels", [source])
    with acting_as(BOB):
        assert (await experience.get(attempt)).attempt_id == attempt
        assert await artifacts.read(source) == b"int a;"
        with pytest.raises(BadRequest, match="ada"):
            await sharing.share(attempt, "everybody")
    with acting_as(EVE), pytest.raises(NotFound):
        await experience.get(attempt)
    with acting_as(ADA):
        await sharing.share(attempt, "nobody")
    with acting_as(BOB), pytest.raises(NotFound):
        await artifacts.read(source)


async def test_a_member_who_shares_everything_is_seen_by_the_project_alone(db: Database, tmp_path: Path):
    workspaces = Workspaces(db, Artifacts(tmp_path / "a", db))
    await Users(db).put("ada", sharing=True)
    with acting_as(ADA):
        made = (await workspaces.write(None, {"k.c": "int a;\n"})).workspace_id
    with acting_as(BOB):
        assert [f.path for f in (await workspaces.listing(made)).files] == ["k.c"]
        with pytest.raises(BadRequest, match="shared with you"):
            await workspaces.write(made, {"k.c": "int b;\n"})
    with acting_as(EVE), pytest.raises(NotFound):
        await workspaces.listing(made)


async def test_notes_and_lessons_are_ones_own_until_they_are_published(db: Database):
    memory = ExperienceSearch(db)
    with acting_as(ADA):
        note = await memory.add_note("Pad shared memory by one word.")
    with acting_as(EVE):
        assert (await memory.lessons()).lessons == []
    with acting_as(ADA):
        await SharingService(db).share(note.note_id, "everybody")
    with acting_as(EVE):
        assert [lesson.says for lesson in (await memory.lessons()).lessons] == ["Pad shared memory by one word."]


async def never(job_id: str, host: str) -> None:
    raise AssertionError("nobody asks for jobs that are not in the way")


async def finished(db: Database, user: User, wall_s: float, gpus: int = 1, context: Any = None) -> str:
    table = JobTable(db)
    with acting_as(user):
        row = await table.add(new_job_id(), "local", "run", context=context)
        record = JobRecord(row.job_id, "finished", "run", "ok", gpus=("g",) * gpus, wall_s=wall_s)
        await table.finish(row.job_id, record)
    return row.job_id


async def test_gpu_time_of_today_counts_and_a_refusal_says_which_quota_and_until_when(db: Database):
    user = ADA.model_copy(update={"quotas": Quotas(gpu_s_per_day=30)})
    allowances = QuotaService(db)
    await finished(db, user, 5.0, gpus=2)
    await finished(db, user, 1000.0, context={"lease": "l-1"})
    await finished(db, BOB, 1000.0)
    with acting_as(user):
        async with allowances.job(1, never):
            pass
        await finished(db, user, 20.0)
        with pytest.raises(QuotaExceeded, match=r"30 of 30 GPU seconds a day \(gpu_s_per_day\), until .* 00:00 UTC"):
            async with allowances.job(1, never):
                pass
        async with allowances.job(0, never):
            pass
    assert (await allowances.usage_of("ada")).gpu_s_today == 30


async def test_jobs_at_once_count_those_alone_that_have_not_ended(db: Database):
    user = ADA.model_copy(update={"quotas": Quotas(concurrent_jobs=1)})
    table, allowances = JobTable(db), QuotaService(db)
    with acting_as(user):
        row = await table.add(new_job_id(), "local", "run")

        async def still(job_id: str, host: str) -> None:
            assert (job_id, host) == (row.job_id, "local")

        async def ended(job_id: str, host: str) -> None:
            await table.finish(job_id, JobRecord(job_id, "finished", "run", "ok"))

        with pytest.raises(QuotaExceeded, match=rf"concurrent_jobs\), until one of them ends: {row.job_id}"):
            async with allowances.job(0, still):
                pass
        async with allowances.job(0, ended):
            pass


async def test_disk_is_what_ones_artifacts_and_workspaces_hold(db: Database, tmp_path: Path):
    artifacts, allowances = Artifacts(tmp_path / "a", db), QuotaService(db)
    workspaces = Workspaces(db, artifacts, allowances)
    with acting_as(ADA.model_copy(update={"quotas": Quotas(disk_bytes=100)})):
        await artifacts.put(b"x" * 40, name="a")
        await workspaces.write(None, {"b": "y" * 50})
        with pytest.raises(QuotaExceeded, match="90 of 100 bytes"):
            await workspaces.write(None, {"c": "z" * 11})
    with as_server():
        await workspaces.write(None, {"c": "z" * 1000})


def test_requests_are_counted_by_a_clock_that_nobody_sets():
    now = [0.0]
    flow, user = RateLimiter(lambda: now[0]), ADA.model_copy(update={"quotas": Quotas(requests_per_minute=60)})
    for _ in range(15):
        with flow.request(user):
            pass
    with pytest.raises(TooManyRequests, match="requests_per_minute") as refused, flow.request(user):
        pass
    now[0] += refused.value.wait_s
    with flow.request(user), flow.request(BOB), flow.request(LOCAL):
        pass


def test_only_so_many_requests_of_a_user_are_answered_at_once():
    flow, held = RateLimiter(), list[Any]()
    for _ in range(AT_ONCE):
        held.append(flow.request(BOB))
        held[-1].__enter__()
    with pytest.raises(TooManyRequests), flow.request(BOB):
        pass
    with flow.request(ADA), flow.request(BOB, endless=True):
        pass
    for each in held:
        each.__exit__(None, None, None)
    with flow.request(BOB):
        pass


async def test_the_audit_log_keeps_who_did_what_and_waits_for_a_store_that_is_full(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    audit, written = AuditLog(db), db.execute_many

    async def full(*_: Any) -> None:
        raise DiskFull("There is no room left.")

    monkeypatch.setattr(db, "execute_many", full)
    audit.note(ADA, "tools/call run_command", "j-1", "ok", "10.0.0.7")
    await audit.write()
    monkeypatch.setattr(db, "execute_many", written)
    async with audit.run_writer():
        audit.note(BOB, "tools/call cancel_job", "j-2", "refused", None)

    assert [(e.user, e.action, e.handle, e.outcome, e.address) for e in await audit.recent()] == [
        ("bob", "tools/call cancel_job", "j-2", "refused", None),
        ("ada", "tools/call run_command", "j-1", "ok", "10.0.0.7"),
    ]
    assert [e.user for e in await audit.recent("ada")] == ["ada"]
    assert datetime.fromisoformat((await audit.recent())[0].at) <= datetime.now(UTC)
