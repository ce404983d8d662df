"""Files that come by content: what is sent, by whom, within which limits, and that no hash opens another's file."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.laboratory import called
from tests.web.site import Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


def named(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listed(files: dict[str, bytes], **more: Any) -> str:
    rows = [{"path": path, "sha256": named(data), "size": len(data)} for path, data in files.items()]
    return json.dumps({"files": rows, **more})


def pack(*contents: bytes) -> bytes:
    return json.dumps([[named(data), len(data)] for data in contents]).encode() + b"\n" + b"".join(contents)


async def test_only_what_is_missing_is_sent_and_a_second_push_sends_nothing(site: Served):
    ada = await site.token("ada")
    large, files = os.urandom(70_000), {"src/k.c": b"int a;\n", "run.sh": b"true\n"}
    body = listed({**files, "t.bin": large})
    first = (await site.ask("PUT", "/workspaces/one", ada, content=body)).json()
    packed = await site.ask("POST", "/files", ada, content=pack(*files.values()))
    parts = f"/files/{named(large)}?size=70000&offset="
    begun = (await site.ask("PUT", f"{parts}0", ada, content=large[:40_000])).json()
    again = (await site.ask("PUT", f"{parts}0", ada, content=large[:40_000])).json()
    waiting = (await site.ask("PUT", "/workspaces/one", ada, content=body)).json()
    whole = (await site.ask("PUT", f"{parts}40000", ada, content=large[40_000:])).json()
    placed = (await site.ask("PUT", "/workspaces/one", ada, content=body)).json()
    second = (await site.ask("PUT", "/workspaces/two", ada, content=body)).json()
    async with site.client(ada) as client:
        read = await called(client, "read_file", workspace_id=placed["workspace_id"], path="src/k.c")
        rows = (await called(client, "list_files", workspace_id=second["workspace_id"]))["files"]

    assert len(first["missing"]) == 3 and first["workspace_id"] is None
    assert (packed.json(), begun, again, whole) == (
        {"kept": 2},
        {"received": 40_000},
        {"received": 40_000},
        {"received": 70_000},
    )
    assert waiting["missing"] == [named(large)] and waiting["begun"] == {named(large): 40_000}
    assert placed["missing"] == [] and second["missing"] == [] and second["workspace_id"] != placed["workspace_id"]
    assert "int a;" in str(read) and [row["size_bytes"] for row in rows] == [5, 7, 70_000]


async def test_a_hash_opens_nobody_elses_file(site: Served):
    ada, bob = await site.token("ada"), await site.token("bob")
    secret = b"ada's own\n"
    await site.ask("POST", "/files", ada, content=pack(secret))
    mine = (await site.ask("PUT", "/workspaces/s", ada, content=listed({"s": secret}))).json()
    theirs = (await site.ask("PUT", "/workspaces/s", bob, content=listed({"s": secret}))).json()
    into = await site.ask("PUT", "/workspaces/s", bob, content=listed({"s": secret}, workspace_id=mine["workspace_id"]))
    await site.ask("POST", "/files", bob, content=pack(secret))
    given = await site.ask(
        "PUT", "/workspaces/s", bob, content=listed({"s": secret}, workspace_id=mine["workspace_id"])
    )

    assert mine["missing"] == [] and theirs["missing"] == [named(secret)]
    assert into.json()["missing"] == [named(secret)] and given.status_code == 404


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "a\0b", "a\nb", "", "x" * 600, "a//../b", "k.c/deep"]
)
async def test_a_path_that_leaves_its_workspace_is_refused(site: Served, path: str):
    ada = await site.token("ada")
    await site.ask("POST", "/files", ada, content=pack(b"x", b"y"))
    answer = await site.ask("PUT", f"/workspaces/p{len(path)}", ada, content=listed({path: b"x", "k.c": b"y"}))

    assert answer.status_code == 400 and answer.json()["error"]


async def test_what_is_not_what_it_says_is_refused(site: Served):
    ada, eve = await site.token("ada"), await site.token("eve", "read")
    lie = json.dumps([[named(b"a"), 1]]).encode() + b"\nb"
    large = os.urandom(100)
    turned = f"/files/{named(large)}?size=100&offset=0"
    answers = [
        await site.ask("POST", "/files", ada, content=lie),
        await site.ask("POST", "/files", ada, content=b"no list"),
        await site.ask("POST", "/files", ada, content=b'[["../../x", 1]]\nx'),
        await site.ask("POST", "/files", ada, content=pack(b"a") + b"more"),
        await site.ask("PUT", turned, ada, content=large[::-1]),
        await site.ask("PUT", f"/files/{'z' * 64}?size=1&offset=0", ada, content=b"x"),
        await site.ask("PUT", f"/files/{named(b'x')}?size=1e9&offset=0", ada, content=b"x"),
        await site.ask("PUT", f"/files/{named(b'x')}?size={3 << 30}&offset=0", ada, content=b"x"),
        await site.ask("PUT", "/workspaces/n", ada, content='{"files": [{"path": 1}]}'),
        await site.ask("PUT", "/workspaces/n", eve, content=listed({"a": b"a"})),
        await site.ask("POST", "/files", eve, content=pack(b"a")),
    ]
    untold = await site.ask("PUT", "/workspaces/n", content=listed({"a": b"a"}))
    right = (await site.ask("PUT", turned, ada, content=large)).json()

    assert [a.status_code for a in answers] == [400] * 11, [a.text for a in answers]
    assert untold.status_code == 401 and right == {"received": 100}


async def test_a_lie_about_a_size_is_found(site: Served):
    ada = await site.token("ada")
    await site.ask("POST", "/files", ada, content=pack(b"long content"))
    row = {"path": "a", "sha256": named(b"long content"), "size": 1}
    answer = await site.ask("PUT", "/workspaces/lie", ada, content=json.dumps({"files": [row]}))

    assert answer.status_code == 400 and "has 12 bytes, not 1" in answer.json()["error"]


async def test_what_is_sent_counts_in_the_quota_before_and_after_it_is_put_somewhere(site: Served):
    joe = await site.token("joe", quotas={"disk_bytes": 1000})
    some, more = os.urandom(600), os.urandom(600)
    refused = await site.ask("PUT", "/workspaces/q", joe, content=listed({"a": some, "b": more}))
    await site.ask("POST", "/files", joe, content=pack(some))
    second = await site.ask("POST", "/files", joe, content=pack(more))
    part = await site.ask("PUT", f"/files/{named(more)}?size=600&offset=0", joe, content=more[:10])
    put = (await site.ask("PUT", "/workspaces/q", joe, content=listed({"a": some}))).json()
    used = await site.team.allowances.usage_of("joe")

    assert [a.status_code for a in (refused, second, part)] == [403] * 3
    assert "disk_bytes" in refused.json()["error"]
    assert put["workspace_id"] and used.disk_bytes == 600


async def test_requests_at_once_do_not_pass_a_quota_together(site: Served):
    kim = await site.token("kim", quotas={"disk_bytes": 1000})
    packs = [pack(os.urandom(600)) for _ in range(6)]
    answers = await asyncio.gather(*(site.ask("POST", "/files", kim, content=each) for each in packs))

    assert sorted(a.status_code for a in answers)[1:] == [403] * 5
    assert (await site.team.allowances.usage_of("kim")).disk_bytes <= 1000


async def test_what_is_put_nowhere_counts_for_a_day(site: Served):
    lee = await site.token("lee", quotas={"disk_bytes": 1000})
    await site.ask("POST", "/files", lee, content=pack(os.urandom(900)))
    full = await site.ask("PUT", "/workspaces/x", lee, content=listed({"a": b"a" * 200}))
    await (await site.lab()).store.db.execute("UPDATE uploads SET created_at = '2020-01-01' WHERE owner = 'lee'")
    free = await site.ask("PUT", "/workspaces/x", lee, content=listed({"a": b"a" * 200}))

    assert (full.status_code, free.status_code) == (403, 200)
