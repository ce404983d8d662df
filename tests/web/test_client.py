"""The client in three lines: tools as functions over HTTP, with a user's rights."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.client import AsyncClient, Client
from gpu_mcp_server.errors import GpuMcpError, HostUnavailable, QuotaExceeded, ToolCallFailed
from tests.laboratory import HONEST, PROBLEM
from tests.web.site import Served, lab_of, served

ROOT = Path(__file__).parents[2]
SMOKE = {"language": "c", "timing": {"tier": "smoke"}}
WRONG = HONEST.replace("+ 1", "+ 2")


def search(site: Served, token: str, other: str) -> tuple[list[str], list[dict[str, object]], str, str]:
    """Do as a search does: many candidates side by side, one that is no candidate among them."""
    with Client(site.url, token) as gpu, Client(site.url, other) as stranger:
        problem = gpu.register_problem(**PROBLEM)["problem_id"]
        found = gpu.evaluate_many(problem, [HONEST, WRONG, "no C at all", "x" * 3_000_000], at_once=2, **SMOKE)
        assert isinstance(found[3], GpuMcpError)
        judged = [one for one in found[:3] if isinstance(one, dict)]
        with pytest.raises(ToolCallFailed) as unseen:
            stranger.list_attempts(attempt_id=judged[0]["attempt_id"])
        with pytest.raises(ToolCallFailed) as unknown:
            gpu.evaluate("p-000000000000", "def launch(x, y, n):\n    y[:] = x\n")
        listed = gpu.list_attempts(problem_id=problem, view="recent")["attempts"]
        return [one["verdict"] or one["status"] for one in judged], listed, str(unseen.value), str(unknown.value)


async def test_a_search_judges_side_by_side_with_a_users_rights():
    async with served() as site:
        ada, bob = await site.token("ada"), await site.token("bob")
        ends, listed, unseen, unknown = await asyncio.to_thread(search, site, ada, bob)
    assert ends == ["correct", "incorrect", "compile_failed"]
    assert {one["status"] for one in listed} == {"judged", "compile_failed"}
    assert "There is no attempt" in unseen
    assert "p-000000000000" in unknown


async def test_the_examples_of_the_documents_run():
    readme, guide = ((ROOT / page).read_text() for page in ("README.md", "docs/how-to/team-server.md"))
    lines = re.findall(r"`((?:from gpu_mcp_server\.client|gpu = |verdict = gpu)[^`]+)`", readme)
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(lines) == 3 and len(blocks) == 1
    examples = ["\n".join(lines), *blocks]
    async with served() as site:
        token = await site.token("ada")

        def run() -> list[str]:
            with Client(site.url, token) as gpu:
                names = {"token": token, "problem_id": gpu.register_problem(**PROBLEM)["problem_id"], "source": HONEST}
            found: list[str] = []
            for example in examples:
                told: dict[str, Any] = dict(names)
                for there, here in (("https://gpu.example.org", site.url), ('language="cuda"', 'language="c"')):
                    assert there in example
                    example = example.replace(there, here)
                exec(example, told)
                found.append(told["verdict"]["verdict"])
                told["gpu"].close()
            return found

        verdicts = await asyncio.to_thread(run)
    assert verdicts == ["correct", "correct"]


async def test_an_evaluation_waits_for_its_verdict_beyond_the_call():
    async with served(tokens=False) as site, AsyncClient(f"{site.url}/mcp") as gpu:
        problem = (await gpu.register_problem(**PROBLEM))["problem_id"]
        found = await gpu.evaluate(problem, HONEST, wait_s=0, **SMOKE)
    assert (found["status"], found["verdict"], found["problem_id"]) == ("judged", "correct", problem)


@pytest.mark.parametrize(
    ("name", "limit", "kind", "advice"),
    [
        ("concurrent_jobs", 1, ToolCallFailed, "Wait for one with job_status, or end one with cancel_job."),
        ("disk_bytes", 1, ToolCallFailed, "An admin prunes with gpu-mcp-server store prune, or gives more."),
        ("requests_per_minute", 1, QuotaExceeded, "Use job_status with wait_s instead of polling."),
    ],
)
async def test_a_client_meets_a_users_quota_over_http_and_the_error_says_what_to_do(
    name: str, limit: int, kind: type[GpuMcpError], advice: str
):
    def search(url: str, token: str) -> str:
        with Client(url, token, away_s=0.0) as gpu, pytest.raises(kind) as met:
            gpu.run_command(command=["sleep", "600"], detach=True)
            gpu.register_problem(**PROBLEM)
            gpu.write_files(files={"kernel.c": HONEST})
        return str(met.value)

    async with served() as site:
        said = await asyncio.to_thread(search, site.url, await site.token("ada", quotas={name: limit}))
        lab = await lab_of(site)
        for job in await lab.commands.recent():
            await lab.jobs.runner.cancel(job.job_id, "local")
    assert said.startswith(("You have 1 jobs", "Your quota")) and f"({name})" in said and advice in said, said


async def test_a_refused_token_and_a_server_that_is_away_are_told_apart():
    async with served() as site, AsyncClient(site.url) as gpu:
        with pytest.raises(ToolCallFailed, match="token"):
            await gpu.gpu_status()
    async with AsyncClient(site.url, "any", away_s=0.0) as gpu:
        with pytest.raises(HostUnavailable, match="did not answer") as away:
            await gpu.gpu_status()
    assert away.value.retryable
