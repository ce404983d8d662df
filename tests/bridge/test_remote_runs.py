"""Recipes at home, judge at the server: the agent in a sandbox of the laptop, everything else at a team's server."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.server_process import ServerProcess
from tests.bridge.test_commands import Laptop
from tests.laboratory import Folder
from tests.recipes.conftest import HERE, TWICE

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
    pytest.mark.timeout(600),
]
PLAN = """
name = "twice"
problem = "problem.toml"
language = "c"
tier = "smoke"
accept_provisional = true
reference_code = ["notes.c"]
[agent]
command = ["/usr/bin/python3", "agent.py"]
files = {{ "agent.py" = "{agent}" }}
environment = {{ SCENARIO = "{scenario}", OUTSIDE = "/nowhere", SECRET = "only-of-the-laptop" }}
[iterations]
compile = 3
"""
SLOW = """
import pathlib, sys, time
time.sleep(3)
exec(pathlib.Path("scripted.py").read_text())
"""


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with Folder() as folder:
        process = ServerProcess(folder)
        process.environment |= {name: value for name, value in os.environ.items() if name.startswith("GPU_MCP_HOSTS__")}
        yield process
        if process.process is not None and process.process.poll() is None:
            process.process.terminate()
            process.process.wait()


@pytest.fixture
def home() -> Iterator[Path]:
    with Folder() as folder:
        yield folder


async def laptop_of(server: ServerProcess, home: Path, scenario: str, *, slow: bool = False, **more: str) -> Laptop:
    """Return a laptop that is logged in, with a plan for the scripted agent."""
    token = server.token()  # before it starts: it asks for tokens as there is one
    server.start()
    await server.answers()
    laptop = Laptop(home, f"http://127.0.0.1:{server.port}", token)
    laptop.environment |= {"GPU_MCP_MIN_LEVEL": "unconfined", "GPU_MCP_ACCEPT_UNCONFINED": "true"}
    (laptop.project / "problem.toml").write_text(TWICE)
    (laptop.project / "notes.c").write_text("/* a note of the laptop */\n")
    plan = PLAN.format(agent=HERE / "agent.py", scenario=scenario)
    if slow:
        (laptop.project / "slow.py").write_text(SLOW)
        files = f'files = {{ "agent.py" = "slow.py", "scripted.py" = "{HERE / "agent.py"}" }}'
        plan = plan.replace(f'files = {{ "agent.py" = "{HERE / "agent.py"}" }}', files)
    for old, new in more.items():
        plan = plan.replace(old, new)
    (laptop.project / "plan.toml").write_text(plan)
    return laptop


def rows(server: ServerProcess, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{server.folder}/data/lab.db?mode=ro", uri=True) as db:
        return db.execute(query).fetchall()


def evaluations(server: ServerProcess) -> list[str]:
    return [row[0] for row in rows(server, "SELECT status FROM attempts WHERE kind = 'evaluate' ORDER BY created_at")]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.05)


def journal(server: ServerProcess, run_id: str) -> str:
    path = server.folder / "data" / "recipes" / run_id / "journal.jsonl"
    return path.read_text() if path.exists() else ""


async def test_the_agent_stays_on_the_laptop_and_the_server_judges(server: ServerProcess, home: Path):
    laptop = await laptop_of(server, home, "learns")
    done = await laptop.run("recipe", "run", "plan.toml", "--run-id", "r-one", "--json")
    state = json.loads(done.stdout)
    shown = await laptop.told("recipe", "show", "r-one")
    listed = await laptop.told("recipe", "list")
    again = await laptop.told("recipe", "resume", "r-one")
    report = await laptop.run("recipe", "report", "r-one", "-o", "page.html")
    here = await laptop.told("--local", "recipe", "list")
    hip = await laptop.run("recipe", "suite", "hip", "plan.toml", "--instructions", "x.json")

    judged = [step["outcome"] for step in state["steps"] if step["kind"] == "judge"]
    assert (state["state"], judged) == ("finished", ["compile_failed", "incorrect", "correct"]), done.stderr
    assert "judge-002: incorrect" in done.stderr and f"judged at http://127.0.0.1:{server.port}" in done.stderr
    assert shown == again == state and [each["run_id"] for each in listed] == ["r-one"] and here == []
    assert report.returncode == 0 and "int65_t" in (laptop.project / "page.html").read_text()
    assert hip.returncode == 2 and "--local" in hip.stderr

    owned = rows(
        server, "SELECT owner, count(*) FROM owners WHERE handle IN (SELECT attempt_id FROM attempts) GROUP BY 1"
    )
    assert owned == [("ada", 3)] and rows(server, "SELECT owner FROM owners WHERE handle = 'r-one'") == [("ada",)]
    assert len(rows(server, "SELECT 1 FROM recipe_attempts WHERE run_id = 'r-one'")) == 3, "with their prompts"
    assert rows(server, "SELECT 1 FROM jobs WHERE context LIKE '%recipe_step%'") == [], "no agent ran there"
    plan = (server.folder / "data" / "recipes" / "r-one" / "plan.json").read_text()
    assert "only-of-the-laptop" not in plan and str(HERE) not in plan and str(home) not in plan
    with sqlite3.connect(home / "data" / "lab.db") as db:
        assert db.execute("SELECT count(*) FROM attempts").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM jobs WHERE context LIKE '%recipe_step%'").fetchone() == (4,)


async def test_a_killed_command_and_a_killed_server_go_on_where_they_stopped(server: ServerProcess, home: Path):
    laptop = await laptop_of(server, home, "learns", slow=True)
    command = [sys.executable, "-m", "gpu_mcp_server", "recipe"]

    def begin(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, *words], env=laptop.environment, cwd=laptop.project,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    first = begin("run", "plan.toml", "--run-id", "r-two")
    await until(lambda: '"begun","step":"code-001"' in journal(server, "r-two") or first.poll() is not None)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = begin("resume", "r-two", "--json")
    await until(lambda: '"begun","step":"code-002"' in journal(server, "r-two") or second.poll() is not None)
    server.kill()
    server.start()
    out, err = await asyncio.to_thread(second.communicate, timeout=300)
    assert second.returncode == 0, err
    state = json.loads(out)
    steps = [step["step"] for step in state["steps"]]

    assert state["state"] == "finished" and len(steps) == len(set(steps))
    assert [s["outcome"] for s in state["steps"] if s["kind"] == "judge"] == ["compile_failed", "incorrect", "correct"]
    assert state["spent"]["agent_calls"] == 4
    with sqlite3.connect(home / "data" / "lab.db") as db:
        calls = db.execute("SELECT count(*) FROM jobs WHERE context LIKE '%recipe_step%'").fetchone()[0]
    assert calls == 4, "the call that the kill left behind was taken up, and none was made twice"
    assert sorted(evaluations(server)) == ["compile_failed", "judged", "judged"]
