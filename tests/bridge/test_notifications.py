"""Tasks and notifications through the bridge, for clients of both eras."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.mcp_api import tasks
from tests.bridge.bridged import Bridged
from tests.bridge.lines import line_to
from tests.bridge.test_commands import Laptop
from tests.web.site import Served, served
from tests.web.test_tasks import KEY

META = {
    f"{KEY}protocolVersion": "2026-07-28",
    f"{KEY}clientCapabilities": {"extensions": {tasks.IDENTIFIER: {}}},
    f"{KEY}clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "AFTER_S", 0.0)
        async with served() as site:
            yield site


async def heard(client: Bridged, method: str) -> dict[str, Any]:
    while True:
        found = [message for message in client.heard if message.get("method") == method]
        if found:
            return found[-1]
        await asyncio.sleep(0.05)


async def test_a_task_goes_on_over_lost_lines_and_is_cancelled_by_its_id(site: Served, tmp_path: Path):
    async with line_to(site.url) as line, Bridged(line.url, await site.token("ada"), tmp_path).running() as client:

        async def started(script: str) -> str:
            call = {"name": "run_command", "arguments": {"command": ["sh", "-c", script]}, "_meta": META}
            result = (await client.ask("tools/call", **call))["result"]
            assert result["resultType"] == "task", result
            return result["taskId"]

        async def state_of(task_id: str) -> dict[str, Any]:
            while True:
                line.cut()
                found = (await client.ask("tasks/get", taskId=task_id, _meta=META))["result"]
                if found["status"] != "working":
                    return found
                await asyncio.sleep(0.1)

        done = await state_of(await started("sleep 1; echo done"))
        endless = await started("sleep 60")
        await client.ask("tasks/cancel", taskId=endless, _meta=META)
        ended = await state_of(endless)

    assert done["result"]["structuredContent"]["stdout"] == "done\n"
    assert ended["status"] == "cancelled"


async def test_a_client_of_the_older_era_is_told_of_tools_and_resources_also_after_a_lost_line(
    site: Served, tmp_path: Path
):
    async with line_to(site.url) as line, Bridged(line.url, await site.token("ben"), tmp_path).running() as client:
        job = await client.call("run_command", command=["sleep", "60"], detach=True)
        await client.ask("resources/subscribe", uri=f"job://{job['job_id']}")
        while line.listens < 2:  # one for tools, one with the resource
            await asyncio.sleep(0.01)
        line.cut()
        while line.listens < 3:
            await asyncio.sleep(0.01)
        await client.call("cancel_job", job_id=job["job_id"])
        told = await heard(client, "notifications/resources/updated")
        await site.team.users.put("ben", toolsets=["core"])
        await heard(client, "notifications/tools/list_changed")

    assert told["params"]["uri"] == f"job://{job['job_id']}"


async def test_ctrl_c_ends_the_job_of_a_command_at_the_server(site: Served, tmp_path: Path):
    laptop = Laptop(tmp_path, site.url, await site.token("cat"))
    words = [sys.executable, "-m", "gpu_mcp_server", "run", "--", "sh", "-c", "echo begun; sleep 60"]
    process = await asyncio.create_subprocess_exec(
        *words, env=laptop.environment, cwd=laptop.project, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    first = await process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    code = await process.wait()
    lab = await site.lab()
    while (await lab.commands.recent(1))[0].state != "finished":
        await asyncio.sleep(0.1)

    assert (first, code) == (b"begun\n", 130)
    assert (await lab.commands.recent(1))[0].status == "cancelled"
