"""Recipes at home, judge at the server: the agent in a sandbox of the laptop, everything else at a team's server."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.bridge.command_session import CommandSession
from gpu_mcp_server.bridge.kept_tokens import keep_token
from gpu_mcp_server.bridge.remote_runs import RemoteRuns
from gpu_mcp_server.bridge.team_server import TeamServer
from gpu_mcp_server.errors import BadRequest, HostUnavailable
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.suites import Suites
from gpu_mcp_server.services.lab import Lab
from tests.bridge.lines import line_to
from tests.bridge.server_process import ServerProcess
from tests.bridge.test_commands import Laptop
from tests.commands import Started, shared_commands
from tests.laboratory import Folder
from tests.real.clients.model import ScriptedModel, Step, Use
from tests.recipes.conftest import HERE, TWICE
from tests.web.site import Served, served

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
time.sleep(1.5)
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
    report = await laptop.run("recipe", "report", "r-one", "-o", "page.html")
    here = await laptop.told("--local", "recipe", "list")
    hip = await laptop.run("recipe", "suite", "hip", "plan.toml", "--instructions", "x.json")

    judged = [step["outcome"] for step in state["steps"] if step["kind"] == "judge"]
    assert (state["state"], judged) == ("finished", ["compile_failed", "incorrect", "correct"]), done.stderr
    assert "judge-002: incorrect" in done.stderr and f"judged at http://127.0.0.1:{server.port}" in done.stderr
    assert shown == state and here == []
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
    out, err = home / "out", home / "err"

    def begin(*words: str) -> Started:
        return shared_commands().start("recipe", *words, env=laptop.environment, cwd=laptop.project, out=out, err=err)

    first = begin("run", "plan.toml", "--run-id", "r-two")
    await until(lambda: '"begun","step":"code-001"' in journal(server, "r-two") or first.poll() is not None)
    first.send_signal(signal.SIGKILL)
    first.wait()
    out.unlink()
    second = begin("resume", "r-two", "--json")
    await until(lambda: '"begun","step":"code-002"' in journal(server, "r-two") or second.poll() is not None)
    server.kill()
    server.start()
    assert await asyncio.to_thread(second.wait, 300) == 0, err.read_text()
    state = json.loads(out.read_text())
    steps = [step["step"] for step in state["steps"]]

    assert state["state"] == "finished" and len(steps) == len(set(steps))
    assert [s["outcome"] for s in state["steps"] if s["kind"] == "judge"] == ["compile_failed", "incorrect", "correct"]
    assert state["spent"]["agent_calls"] == 4
    with sqlite3.connect(home / "data" / "lab.db") as db:
        calls = db.execute("SELECT count(*) FROM jobs WHERE context LIKE '%recipe_step%'").fetchone()[0]
    assert calls == 4, "the call that the kill left behind was taken up, and none was made twice"
    assert sorted(evaluations(server)) == ["compile_failed", "judged", "judged"]


@pytest.fixture
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


@asynccontextmanager
async def runs_of(url: str, token: str, lab: Lab, patience_s: float = 60.0) -> AsyncGenerator[RemoteRuns]:
    """Open a laptop's end of runs at a server; `lab` is the laptop's."""
    async with TeamServer(url, lambda: token, patience_s=patience_s).hold_connections() as server:
        yield RemoteRuns(CommandSession(server), lab)


def plan_in(folder: Path, **more: Any) -> RunPlan:
    (folder / "problem.toml").write_text(TWICE)
    agent = {
        "command": ["/usr/bin/python3", "agent.py"], "files": {"agent.py": str(HERE / "agent.py")},
        "environment": {"SCENARIO": "learns", "OUTSIDE": "/nowhere"},
    }  # fmt: skip
    values = {"name": "twice", "problem": "problem.toml", "language": "c", "agent": agent, "tier": "smoke"}
    return plan_of({**values, "accept_provisional": True, **more}, folder)


async def test_a_server_that_stays_away_is_named_and_the_run_goes_on_later(site: Served, own_lab: Lab, tmp_path: Path):
    token, told = await site.token("ada"), list[str]()
    async with line_to(site.url) as line:

        async def tell(message: str) -> None:
            told.append(message)
            if message.startswith("specification-001: ok"):
                line.down = True
                line.cut()

        async with runs_of(line.url, token, own_lab, patience_s=1.0) as runs:
            run_id = await runs.begin(plan_in(tmp_path))
            with pytest.raises(HostUnavailable, match="did not answer for"):
                await runs.go(run_id, tell)
        line.down = False
        visits = [
            await site.ask("POST", f"/recipes/{run_id}/attend", token, json={"visitor": letter * 32})
            for letter in "aba"
        ]
        async with runs_of(line.url, token, own_lab) as runs:
            state = await runs.go(run_id)
            series = await Suites(own_lab, runs).over(plan_in(tmp_path), "s", {"one": tmp_path / "problem.toml"})

    assert [s.outcome for s in state.steps if s.kind == "judge"] == ["compile_failed", "incorrect", "correct"]
    assert [answer.status_code for answer in visits] == [200, 200, 400] and "Another process" in visits[2].text
    assert len({s.step for s in state.steps}) == len(state.steps) and told
    assert [row.correct for row in series.rows] == [True], series.summary()


async def test_an_agent_with_tools_works_at_the_server_and_reads_no_file_of_the_laptop(
    site: Served, own_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    token = await site.token("ada")
    keep_token(site.url, token)
    (tmp_path / "secret.c").write_text("int secret;\n")
    told: list[str] = []

    async def tell(message: str) -> None:
        told.append(message)

    steps: list[Step] = [
        lambda _: Use("compile_kernel", {"path": str(tmp_path / "secret.c"), "language": "c"}),
        lambda _: Use("compile_kernel", {"source": "int two(void) { return 2; }\n", "language": "c"}),
        lambda _: "that is all",
    ]
    with ScriptedModel(steps) as model:
        agent = {"client": "chat", "address": f"{model.url}/v1", "model": "local"}
        async with runs_of(site.url, token, own_lab) as runs:
            plan = plan_in(tmp_path, agent=agent, mode="agent")
            state = await runs.go(await runs.begin(plan), tell)
            with pytest.raises(BadRequest, match=r"agent\.toolsets"):
                runs.check_agent(plan_in(tmp_path, agent={**agent, "toolsets": ["core"]}, mode="agent"))

    refused, compiled = model.shown
    assert "no local files" in refused.text and compiled.data["status"] == "ok"
    assert (state.stopped, [s.outcome for s in state.steps]) == ("agent", ["ok"]), state.summary()
    assert state.spent.tool_calls == 2 and any(line.startswith("call-002: compile_kernel") for line in told)


async def test_runs_are_their_users_alone_and_plans_bring_no_paths_of_the_server(site: Served, tmp_path: Path):
    ada, eve, reader = await site.token("ada"), await site.token("eve"), await site.token("rita", "read")
    plan = plan_in(tmp_path).model_dump(mode="json")
    mine = {"plan": {**plan, "problem": "p-0000"}}
    begun = await site.ask("PUT", "/recipes/r-mine", ada, json=mine)
    hostile = {"reference_code": ["/etc/passwd"], "documents": ["/etc/passwd"]}
    laid = await site.ask("PUT", "/recipes/r-laid", ada, json={"plan": {**plan, "problem": "p-0", **hostile}})
    kept = json.loads((site.settings.data_dir / "recipes" / "r-laid" / "plan.json").read_text())
    heard = {"visitor": "a" * 32}
    theirs = [
        await site.ask("PUT", "/recipes/r-mine", eve, json=mine),
        await site.ask("GET", "/recipes/r-mine", eve),
        await site.ask("GET", "/recipes/r-mine/journal", eve),
        await site.ask("GET", "/recipes/r-mine/report", eve),
        await site.ask("POST", "/recipes/r-mine/attend", eve, json=heard),
        await site.ask("DELETE", "/recipes/r-mine/attend", eve),
        await site.ask("POST", "/recipes/r-mine/answers/j-1", eve, json={"status": "ok"}),
        await site.ask(
            "POST",
            "/recipes/r-mine/calls/j-1",
            eve,
            json={"number": 1, "name": "x", "characters": 1, "is_error": False},
        ),
        await site.ask("PUT", "/recipes/r-new", reader, json=mine),
        await site.ask("PUT", "/recipes/r-path", ada, json={"plan": {**plan, "problem": "/etc/passwd"}}),
        await site.ask("PUT", "/recipes/x", ada, json=mine),
        await site.ask("PUT", "/recipes/r-up", ada, json={**mine, "seed": [{"name": "../x", "data": ""}]}),
        await site.ask("PUT", "/recipes/r-line%0A", ada, json=mine),
        await site.ask("PUT", "/recipes/r-no", ada, content=b"["),
        await site.ask(
            "PUT",
            "/recipes/r-tune",
            ada,
            json={"plan": {**plan, "mode": "tune", "problem": "p-0", "tune": {"N": [1]}, "tuning": {"source": "a.c"}}},
        ),
    ]
    full = await site.ask("PUT", "/recipes/r-full", await site.token("max", quotas={"disk_bytes": 0}), json=mine)
    lost = (await site.ask("POST", "/recipes/r-mine/attend", ada, json=heard)).json()
    listed = [run["run_id"] for run in (await site.ask("GET", "/recipes", ada)).json()["runs"]]

    assert begun.status_code == laid.status_code == 200
    assert (kept["reference_code"], kept["documents"], kept["agent"]["files"]) == ([], [], {})
    assert [a.status_code for a in theirs] == [400, 404, 404, 404, 404, 404, 404, 404, *[400] * 7]
    assert (
        "is taken" in theirs[0].text
        and "scope 'run'" in theirs[8].text
        and "no problem of this server" in theirs[9].text
    )
    assert full.status_code == 403 and "disk_bytes" in full.text
    assert "There is no problem" in lost["error"] and lost["refused"]
    assert sorted(listed) == ["r-laid", "r-mine"], "nothing is left of what was refused"
