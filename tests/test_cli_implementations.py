"""Implementations of a problem by tool and by command: the problem, its history and its ranking stay as they are."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from gpu_mcp_server.services.lab import Lab
from tests.commands import Commands
from tests.laboratory import HONEST, Folder, called, client_of, refused, settings_for
from tests.services.problems.test_problem_table import softmax

FAST = HONEST.replace("2 * tanhf(x[i]) + 1", "1 + 2 * tanhf(x[i])")


async def known(client: Client, problem_id: str) -> tuple[Any, Any, Any]:
    """Return the problem's implementations, its id, and its ranked attempts."""
    (problem,) = (await called(client, "list_problems", problem_id=problem_id))["problems"]
    ranked = (await called(client, "list_attempts", problem_id=problem["problem_id"]))["attempts"]
    return problem["implementations"], problem["problem_id"], [each["attempt_id"] for each in ranked]


@pytest.mark.timeout(600)
async def test_implementations_change_and_the_problem_with_its_ranking_stays(commands: Commands, tmp_path: Path):
    problem = softmax()
    problem_id, ranked = problem.problem_id, list[str]()
    with Folder() as folder:
        async with Lab.open(settings_for(folder)) as lab:
            await lab.store.problems.add(problem)
            for speedup in (3.0, 1.5):
                ranked.append(await lab.store.experience.start("evaluate", problem_id=problem_id, device="cpu"))
                await lab.store.experience.finish(ranked[-1], status="judged", verdict="correct", speedup=speedup)
        async with client_of(folder) as client:
            assert await known(client, problem_id) == ([], problem_id, ranked)
            for name, source, done in (("a", HONEST, "added"), ("b", FAST, "added"), ("a", FAST, "replaced")):
                given = {"problem_id": problem_id, "name": name, "source": source, "language": "c"}
                assert (await called(client, "set_implementation", **given))["done"] == done
            assert await known(client, problem_id) == (["a", "b"], problem_id, ranked)
            assert "'c'" in await refused(client, "set_implementation", problem_id=problem_id, name="c", remove=True)

        (tmp_path / "naive.c").write_text(HONEST)
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GPU_MCP_DATA_DIR": str(folder),
            "GPU_MCP_INDEX_DOCUMENTATION": "false",
        }  # fmt: skip

        def run(*words: str) -> Any:
            done = commands.run("implementations", problem_id, *words, "--json", env=environment, cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            return json.loads(done.stdout)

        assert run("naive", "--file", "naive.c")["done"] == "added"
        assert run("naive", "--file", "naive.c")["done"] == "replaced"
        assert run("a", "--remove")["done"] == "removed"
        assert run()["implementations"] == ["b", "naive"]
        async with client_of(folder) as client:
            assert await known(client, problem_id) == (["b", "naive"], problem_id, ranked)
