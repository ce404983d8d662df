"""Calls that last, as tasks over HTTP: whose they are, how they end, and that another server tells of them."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_mcp_server.mcp_api import tasks
from gpu_mcp_server.mcp_api.server import LabServer, server_from_settings
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.team.team_services import Team
from gpu_mcp_server.web.http_server import server_for
from tests.laboratory import HONEST, PROBLEM, Folder, called, settings_for
from tests.real.conformance_server import offer_asking_tasks
from tests.web.site import Served, served

KEY = "io.modelcontextprotocol/"


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "AFTER_S", 0.0)
        async with served() as site:
            yield site


async def asked(
    site: Served, token: str, method: str, params: dict[str, Any], *, declared: bool = True
) -> dict[str, Any]:
    """Send one request of the era of 2026 and return the JSON-RPC answer."""
    extensions = {tasks.IDENTIFIER: {}} if declared else {}
    meta = {
        f"{KEY}protocolVersion": "2026-07-28",
        f"{KEY}clientCapabilities": {"extensions": extensions},
        f"{KEY}clientInfo": {"name": "test", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    headers["Mcp-Name"] = params.get("name") or params["taskId"]
    answer = await site.ask("POST", "/mcp", token, json=body, headers=headers)
    lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1] if lines else answer.text)


async def started(site: Served, token: str, script: str, **more: Any) -> dict[str, Any]:
    arguments = {"command": ["sh", "-c", script], "timeout_s": 100}
    answer = await asked(site, token, "tools/call", {"name": "run_command", "arguments": arguments}, **more)
    return answer["result"]


async def ended(site: Served, token: str, task_id: str) -> dict[str, Any]:
    while True:
        answer = await asked(site, token, "tasks/get", {"taskId": task_id})
        if answer["result"]["status"] != "working":
            return answer["result"]
        await asyncio.sleep(0.05)


async def test_a_call_that_lasts_is_a_task_whose_id_is_its_jobs(site: Served):
    token = await site.token("ada")
    made = await started(site, token, "sleep 0.5; echo done")
    job = (await asked(site, token, "tools/call", {"name": "job_status", "arguments": {"job_id": made["taskId"]}}))[
        "result"
    ]
    end = await ended(site, token, made["taskId"])
    plain = await started(site, token, "echo done", declared=False)

    assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", None)
    assert job["structuredContent"]["job_id"] == made["taskId"]
    assert end["status"] == "completed"
    assert end["result"]["structuredContent"]["stdout"] == "done\n"
    assert plain["structuredContent"]["stdout"] == "done\n"
    assert "taskId" not in plain
    undeclared = await asked(site, token, "tasks/get", {"taskId": made["taskId"]}, declared=False)
    assert undeclared["error"]["code"] == -32021


async def test_a_verdict_comes_as_the_result_of_its_task(site: Served):
    token = await site.token("ada")
    async with site.client(token) as client:
        problem = await called(client, "register_problem", **PROBLEM)
    arguments = {"problem_id": problem["problem_id"], "source": HONEST, "language": "c", "timing": {"tier": "smoke"}}
    made = (await asked(site, token, "tools/call", {"name": "evaluate_kernel", "arguments": arguments}))["result"]
    end = await ended(site, token, made["taskId"])

    assert end["result"]["structuredContent"]["verdict"] == "correct"
    assert end["result"]["structuredContent"]["job_id"] == made["taskId"]


async def test_a_task_is_its_users_and_ends_when_they_say_so(site: Served):
    ada, bob = await site.token("ada"), await site.token("bob")
    made = await started(site, ada, "sleep 99")
    task = {"taskId": made["taskId"]}
    unknown = await asked(site, bob, "tasks/get", {"taskId": "j-0-0"})
    for method in ("tasks/get", "tasks/cancel"):
        guessed = await asked(site, bob, method, task)
        assert guessed["error"] == json.loads(json.dumps(unknown["error"]).replace("j-0-0", made["taskId"]))
    acks = [(await asked(site, ada, "tasks/cancel", task))["result"]["resultType"] for _ in range(2)]
    end = await ended(site, ada, made["taskId"])
    job = {"name": "job_status", "arguments": {"job_id": made["taskId"], "wait_s": 20}}
    status = (await asked(site, ada, "tools/call", job))["result"]["structuredContent"]["status"]

    assert acks == ["complete", "complete"]
    assert (end["status"], status) == ("cancelled", "cancelled")
    assert "result" not in end


@asynccontextmanager
async def serving(
    settings: Settings, offer: Callable[[LabServer], None] = lambda server: None
) -> AsyncGenerator[Served]:
    """Serve what is in a data folder until the block ends."""
    async with Team.open(settings) as team:
        lab = server_from_settings(settings, local_files=False)
        offer(lab)
        server = server_for(lab, settings, team, "127.0.0.1", 0, tokens=True)
        running = asyncio.create_task(server.serve())
        await server.listens.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Served(f"http://127.0.0.1:{port}", team, settings, server, None)
        finally:
            server.should_exit = True
            await running


async def test_the_job_of_a_task_outlives_its_server_and_the_next_one_has_the_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "AFTER_S", 0.0)
    with Folder() as folder:
        settings = settings_for(folder)
        async with serving(settings) as first:
            token = await first.token("ada")
            made = await started(first, token, "sleep 2; echo late")
        async with serving(settings) as second:
            end = await ended(second, token, made["taskId"])

    assert end["status"] == "completed"
    assert end["result"]["structuredContent"]["stdout"] == "late\n"


async def test_a_task_that_asks_waits_for_all_answers_of_its_user_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "AFTER_S", 0.0)
    monkeypatch.setattr(tasks, "LASTING", {"multi_input"})
    with Folder() as folder:
        async with serving(settings_for(folder), offer_asking_tasks) as site:
            ada, bob = [await site.token(name, project="p") for name in ("ada", "bob")]

            async def asking() -> tuple[dict[str, Any], dict[str, Any]]:
                made = (await asked(site, ada, "tools/call", {"name": "multi_input", "arguments": {}}))["result"]
                return {"taskId": made["taskId"]}, await ended(site, ada, made["taskId"])

            async def answered(task: dict[str, Any], token: str, **given: str) -> dict[str, Any]:
                responses = {key: {"action": "accept", "content": {"name": name}} for key, name in given.items()}
                return await asked(site, token, "tasks/update", {**task, "inputResponses": responses})

            task, parked = await asking()
            async with site.client(ada) as client:
                await called(client, "share", handle=task["taskId"])
            refused = await answered(task, bob, **{"1.first": "Eve", "1.second": "Eve"})
            await answered(task, ada, **{"1.first": "Ann", "no such": "Eve"})
            half = await ended(site, ada, task["taskId"])
            await answered(task, ada, **{"1.second": "Bea", "1.first": "Eve"})
            while (end := await ended(site, ada, task["taskId"]))["status"] == "input_required":
                await asyncio.sleep(0.05)
            other, _ = await asking()
            await asked(site, ada, "tasks/cancel", other)
            cancelled = await ended(site, ada, other["taskId"])

    assert (parked["status"], sorted(parked["inputRequests"])) == ("input_required", ["1.first", "1.second"])
    assert refused["error"]["message"].endswith("is not yours to answer.")
    assert sorted(half["inputRequests"]) == ["1.second"]
    assert end["status"] == "completed"
    assert [each["content"]["name"] for each in json.loads(end["result"]["content"][0]["text"]).values()] == [
        "Ann",
        "Bea",
    ]
    assert (cancelled["status"], "inputRequests" in cancelled) == ("cancelled", False)


async def test_who_subscribed_hears_of_a_jobs_end_and_of_other_tools_from_whichever_server(site: Served):
    token = await site.token("ada")
    made = await started(site, token, "sleep 99")
    uri = f"job://{made['taskId']}"
    async with (
        serving(site.settings) as other,
        other.client(token) as client,
        client.listen(tools_list_changed=True, resource_subscriptions=[uri]) as heard,
    ):
        await called(client, "write_files", files={"a": "a"})
        if looking := [task for task in asyncio.all_tasks() if task.get_name() == "tidy"]:
            await asyncio.wait(looking)  # for what an earlier server may have left
        await asked(site, token, "tasks/cancel", {"taskId": made["taskId"]})
        await site.team.users.put("ada", toolsets=["core"])
        names: set[str] = set()
        async for event in heard:
            names.add(type(event).__name__)
            if len(names) == 2:
                break
        told = await client.read_resource(uri)

    assert names == {"ResourceUpdated", "ToolsListChanged"}
    assert told.contents[0].text.startswith(f"cancelled: job {made['taskId']}")
