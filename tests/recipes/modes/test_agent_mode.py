"""Agent mode: an agent in its sandbox with our tools as its hands, its model's address as its only way out."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.protocol import JobSpec, ProcessSpec
from gpu_mcp_server.recipes.agents.agent_proxy import Address, door
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.inside.sandbox_proxy import MODEL
from gpu_mcp_server.recipes.run.journal import Journal, entries
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.lab import Lab
from tests.commands import shared_commands
from tests.laboratory import Folder
from tests.real.clients.model import ScriptedModel, Shown, Step, Use
from tests.recipes.conftest import Begun

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

GOOD = """
#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + 1;
    return 0;
}
"""
WRONG = GOOD.replace("+ 1", "+ 2")


def judge(problem_id: str, source: str) -> Use:
    """Have a source judged."""
    given = {"problem_id": problem_id, "source": source, "language": "c", "timing": {"tier": "smoke"}}
    return Use("evaluate_kernel", given)


async def test_a_model_behind_an_address_works_with_our_tools_until_a_verdict_reaches_the_target(
    lab: Lab, begun: Begun
):
    secret = lab.settings.data_dir / "secret.c"
    secret.write_text("int secret;\n")
    steps: list[Step] = [
        lambda _: Use("compile_kernel", {"path": str(secret), "language": "c"}),
        lambda _: Use("run_command", {"command": ["true"], "fetch": True}),
        lambda _: judge(problem_id, WRONG),
        lambda _: judge(problem_id, GOOD),
        lambda shown: f"best is {shown[-1].data['attempt_id']}",
    ]
    told: list[str] = []

    async def tell(message: str) -> None:
        told.append(message)

    with ScriptedModel(steps) as model:
        agent = {"client": "chat", "command": [], "address": f"{model.url}/v1", "model": "local"}
        run_id = await begun("chat", {**agent, "decoding": {"temperature": 0.2, "seed": 7}}, mode="agent")
        problem_id = Runs(lab).plan(run_id).problem
        state = await Runs(lab).go(run_id, tell)

    local, fetch, wrong, good = model.shown
    assert (state.stopped, [s.outcome for s in state.steps]) == ("target", ["incorrect", "correct", "ok"])
    assert state.best is not None and state.best.attempt_id == good.data["attempt_id"]
    assert (state.spent.agent_calls, state.spent.tool_calls, state.spent.tokens) == (1, 4, 10)
    assert 0 < (state.spent.tool_characters or 0) <= sum(len(shown.text) for shown in model.shown) < 8000
    assert "does not read local files" in local.text and "switched off" in fetch.text
    assert wrong.data["verdict"] == "incorrect"
    request = model.conversation[-1]
    assert (request["model"], request["temperature"], request["seed"]) == ("local", 0.2, 7)
    prompt = request["messages"][0]["content"]
    assert "# Optimize a kernel" in prompt and problem_id in prompt and "2 * x + 1" in prompt and len(prompt) < 8000
    folder = lab.settings.data_dir / "recipes" / run_id
    assert (folder / "best.txt").read_text() == GOOD
    assert any(line.startswith("call-003: evaluate_kernel, ") for line in told)
    assert await Runs(lab).go(run_id) == state


SHELL = """
import os, pathlib, socket, subprocess, sys
here = pathlib.Path("/job/own"); here.write_text("mine")
for place in sys.argv[1:]:
    done = subprocess.run(["sh", "-c", "echo written > " + place], capture_output=True, text=True)
    print(place, "written" if done.returncode == 0 else "refused")
try:
    socket.create_connection(("127.0.0.1", int(os.environ["NOT_THE_MODEL"])), 5)
    print("another port reached")
except OSError as error:
    print("no other port:", error.errno)
"""


async def test_an_agent_with_a_shell_of_its_own_writes_to_no_home_and_reaches_nothing_else(
    lab: Lab, begun: Begun, tmp_path: Path
):
    home = Path.home()
    places = [str(home / "written"), str(tmp_path / "written"), str(lab.settings.data_dir / "written"), "/etc/written"]
    (tmp_path / "shell.py").write_text(SHELL)
    with ScriptedModel([]) as model, ScriptedModel([]) as other:
        agent = {
            "command": ["{python}", "shell.py", *places], "files": {"shell.py": str(tmp_path / "shell.py")},
            "address": model.url, "environment": {"NOT_THE_MODEL": other.url.rpartition(":")[2]},
        }  # fmt: skip
        run_id = await begun("shell", agent, mode="agent")
        state = await Runs(lab).go(run_id)

    assert (state.stopped, state.why) == ("agent", "it had nothing judged on the run's problem")
    *tried, other_port = await said(lab, run_id)
    assert tried == [f"{place} refused" for place in places]
    assert other_port.startswith("no other port") and not any(Path(place).exists() for place in places)


GOES_ON = """
import json, subprocess
entry = json.load(open("mcp.json"))["mcpServers"]["gpu"]
tools = subprocess.Popen([entry["command"], *entry["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), file=tools.stdin, flush=True)
about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
send(id=0, method="initialize", params=about)
print("greeted:", json.loads(tools.stdout.readline())["result"]["serverInfo"]["name"])
send(method="notifications/initialized")
for number in range(1, 20):
    send(id=number, method="tools/call", params={"name": "list_problems", "arguments": {}})
    line = tools.stdout.readline()
    if not line:
        break
    print(number, "used up" in line)
print("the tools hung up")
"""


async def test_turns_are_bounded_and_an_agent_that_goes_on_loses_its_tools(lab: Lab, begun: Begun, tmp_path: Path):
    (tmp_path / "agent.py").write_text(GOES_ON)
    agent = {"command": ["{python}", "agent.py"], "files": {"agent.py": str(tmp_path / "agent.py")}, "turns": 2}
    run_id = await begun("bound", agent, mode="agent")
    state = await Runs(lab).go(run_id)

    answered = ["1 False", "2 False", *(f"{number} True" for number in range(3, 8))]
    assert await said(lab, run_id) == ["greeted: gpu-mcp-server", *answered, "the tools hung up"]
    assert state.spent.tool_calls == 2


async def said(lab: Lab, run_id: str) -> list[str]:
    """Return what the agent of the first session wrote."""
    journal = entries(lab.settings.data_dir / "recipes" / run_id)
    (done,) = [e for e in journal if e["event"] == "done" and e["step"] == "session-001"]
    return (await lab.store.artifacts.read(done["text_artifact_id"])).decode().splitlines()


def test_an_address_is_a_url_and_https_goes_by_way_of_a_proxy():
    local, remote = Address.of("http://10.0.0.7:8000/v1"), Address.of("https://api.example.com")
    assert (local.inside, str(local), local.environment) == ("http://127.0.0.1:18080/v1", "http:10.0.0.7:8000", {})
    assert (remote.inside, str(remote)) == ("https://api.example.com", "https:api.example.com:443")
    assert set(remote.environment.values()) == {"http://127.0.0.1:18080"}
    for wrong in ("api.example.com", "ftp://x", "http://", "http://a:b@c", "http://x:99999"):
        with pytest.raises(BadRequest, match="no address of a model"):
            Address.of(wrong)


async def test_a_session_that_was_killed_goes_on_from_what_was_judged(lab: Lab, begun: Begun):
    def killed(_: Sequence[Shown]) -> str:
        running.kill()
        running.wait()
        return "nobody hears this"

    steps: list[Step] = [lambda _: judge(problem_id, WRONG), killed]
    with ScriptedModel(steps) as model:
        agent = {"client": "chat", "command": [], "address": f"{model.url}/v1", "model": "m"}
        run_id = await begun("killed", agent, mode="agent")
        problem_id = Runs(lab).plan(run_id).problem
        env = {**os.environ, "GPU_MCP_DATA_DIR": str(lab.settings.data_dir), "GPU_MCP_INDEX_DOCUMENTATION": "false"}
        running = shared_commands().start("recipe", "resume", run_id, env=env, cwd=Path.cwd())
        assert await asyncio.to_thread(running.wait, 60) == -signal.SIGKILL
        before = Runs(lab).state(run_id)
        steps[:] = [lambda _: judge(problem_id, GOOD), lambda _: "done"]
        state = await Runs(lab).go(run_id)

    assert (before.state, [s.outcome for s in before.steps]) == ("unfinished", ["incorrect"])
    assert (state.stopped, [s.outcome for s in state.steps]) == ("target", ["incorrect", "correct", "ok"])
    assert "Judged so far" in model.told and str(before.steps[0].attempt_id) in model.told


DYING = """
import asyncio, os, signal
from gpu_mcp_server.recipes.agents.agent_proxy import Address, door

async def main():
    async with door(Address.of("http://127.0.0.1:9"), None):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_the_door_of_who_was_killed_is_cleared_away_by_the_next_one(monkeypatch: pytest.MonkeyPatch):
    model = Address.of("http://127.0.0.1:9")
    with Folder() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        async with door(model, None) as living:
            env = {**os.environ, "TMPDIR": str(folder)}
            done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", DYING], env=env, check=False)
            assert done.returncode == -signal.SIGKILL
            assert len(list(folder.iterdir())) == 2, "the dead one cleared nothing of the living away, nor its own"
            async with door(model, None) as second:
                assert set(folder.iterdir()) == {living.parent, second.parent}
                assert (living / MODEL).is_socket()
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("script", ["exit 1", "echo told what it found"])
async def test_an_agent_that_failed_as_its_server_was_killed_is_called_again(lab: Lab, begun: Begun, script: str):
    """The killed server left in the journal a session that was begun, and a job that ended without it."""
    steps: list[Step] = [lambda _: judge(problem_id, GOOD), lambda _: "done"]
    with ScriptedModel(steps) as model:
        agent: dict[str, Any] = {"client": "chat", "command": [], "address": f"{model.url}/v1", "model": "m"}
        run_id = await begun("orphan", agent, mode="agent")
        problem_id = Runs(lab).plan(run_id).problem
        job_id = new_job_id()
        await lab.jobs.runner.run(JobSpec(job_id, (ProcessSpec(("sh", "-c", script)),)), host="local")
        with Journal(lab.settings.data_dir / "recipes" / run_id) as journal:
            journal.begin("session-001", kind="session", job_id=job_id)
        state = await Runs(lab).go(run_id)

    failed = script == "exit 1"
    assert (state.steps[-1].outcome, bool(model.conversation)) == ("ok", failed)
    assert state.stopped == ("target" if failed else "agent"), state.why
