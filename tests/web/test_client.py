"""The client in three lines: tools as functions over HTTP, with a user's rights."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpu_mcp_server.client import connect
from gpu_mcp_server.errors import ToolCallFailed
from tests.laboratory import HONEST, PROBLEM
from tests.web.site import served


async def test_tools_are_functions_with_a_users_rights_and_threads_share_a_connection():
    async with served() as site:
        ada, bob = await site.token("ada"), await site.token("bob")

        def work() -> tuple[dict[str, Any], list[str], str]:
            def judged(number: int) -> dict[str, Any]:
                return gpu.evaluate_kernel(source=f"{HONEST}// {number}", **asked)

            with connect(site.url, ada) as gpu:
                problem = gpu.register_problem(**PROBLEM)["problem_id"]
                asked = {"problem_id": problem, "language": "c", "timing": {"tier": "smoke"}}
                with ThreadPoolExecutor(2) as pool:
                    found = list(pool.map(judged, range(2)))
                with connect(site.url, bob) as other, pytest.raises(ToolCallFailed) as unseen:
                    other.list_attempts(attempt_id=found[0]["attempt_id"])
                listed = gpu.list_attempts(problem_id=problem)
            return listed, [one["verdict"] for one in found], str(unseen.value)

        listed, verdicts, said = await asyncio.to_thread(work)
    assert verdicts == ["correct", "correct"] and len(listed["attempts"]) == 2
    assert "There is no attempt" in said


async def test_without_a_token_nothing_is_opened():
    async with served() as site:

        def work() -> None:
            with connect(site.url):
                pass

        with pytest.raises(ToolCallFailed, match="opens no session"):
            await asyncio.to_thread(work)
