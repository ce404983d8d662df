"""Real agents run a recipe to its end: confined, with our tools alone, a scripted model behind each."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory
from tests.real.clients import installer
from tests.real.clients.model import ScriptedModel, Step, Use
from tests.recipes.conftest import HERE, register_anew
from tests.recipes.modes.test_nccl_mode import PRODUCT
from tests.recipes.modes.test_program_mode import FILES
from tests.services.programs.test_problem_capture import PYTHON, needs_torch

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]
GOOD = """
#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + 1;
    return 0;
}
"""
BROKEN = GOOD.replace("int64_t n", "int65_t n")
WRONG = GOOD.replace("+ 1", "+ 2")


@dataclass(frozen=True)
class Client:
    """An agent as a plan has it."""

    agent: Callable[[str], dict[str, Any]]
    prefix: str
    shell: str
    """A tool of its own that it must not have here, with what it would be given; empty if it brings none."""
    given: dict[str, Any] = field(default_factory=dict[str, Any])


def claude(url: str) -> dict[str, Any]:
    program = installer.claude()
    return {
        "client": "claude", "command": [str(program)], "roots": [str(program.parent)], "address": url,
        "pass_environment": [], "environment": {"ANTHROPIC_API_KEY": "dummy-key"}, "model": "claude-sonnet-4-5",
    }  # fmt: skip


def codex(url: str) -> dict[str, Any]:
    program = installer.codex()
    return {
        "client": "codex", "command": [str(program)], "roots": [str(program.parents[1])], "address": f"{url}/v1",
        "environment": {"OPENAI_API_KEY": "dummy-key"}, "model": "gpt-5",
    }  # fmt: skip


def gemini(url: str) -> dict[str, Any]:
    script, node = installer.gemini(), installer.node()
    folders = {str(script.parents[1]), str(node.parents[1])}
    return {
        "client": "gemini", "command": [str(node), str(script)], "roots": sorted(folders), "address": url,
        "environment": {"GEMINI_API_KEY": "dummy-key"}, "model": "gemini-2.5-flash",
    }  # fmt: skip


def smolagents(url: str) -> dict[str, Any]:
    folder, program = installer.smolagents(), Path(__file__).parent / "clients" / "smol.py"
    return {
        "command": ["{python}", "smol.py", "{address}", "{turns}"], "files": {"smol.py": str(program)},
        "roots": [str(folder)], "address": f"{url}/v1", "environment": {"PYTHONPATH": str(folder)},
    }  # fmt: skip


CLIENTS = {
    "claude": Client(claude, "mcp__gpu__", "Bash", {"command": "echo out > ~/out"}),
    "codex": Client(codex, "", "exec_command", {"cmd": "echo out > ~/out"}),
    "gemini": Client(gemini, "mcp_gpu_", "run_shell_command", {"command": "echo out > ~/out"}),
    "smolagents": Client(smolagents, "", ""),
}


def self_signed(folder: Path) -> Path:
    """Return a file with a key and its certificate for 127.0.0.1."""
    path, names = folder / "certificate.pem", "subjectAltName=IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-addext", names, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("name", ["claude", "gemini"])
async def test_a_model_behind_https_is_reached_by_the_proxy_alone(lab: Lab, tmp_path: Path, name: str):
    certificate = self_signed(tmp_path)
    steps: list[Step] = [lambda _: Use(f"{CLIENTS[name].prefix}list_problems", {}), lambda _: "done"]
    with ScriptedModel(steps, certificate) as model:
        agent = CLIENTS[name].agent(model.url)
        agent["files"] = {"ca.pem": str(certificate)}
        agent["environment"] |= {"NODE_EXTRA_CA_CERTS": "/job/ca.pem"}
        agent["timeout_s"] = 120
        values = {"name": name, "mode": "agent", "problem": await register_anew(lab), "language": "c", "tier": "smoke"}
        state = await Runs(lab).go(Runs(lab).create(plan_of({**values, "agent": agent}, HERE)))

    assert state.spent.tool_calls == 1, state.summary()
    assert state.problem_id is not None and state.problem_id in model.shown[0].text and model.strangers == []


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_real_agent_runs_a_recipe_to_its_end(lab: Lab, name: str):
    client = CLIENTS[name]
    problem_id = await register_anew(lab)

    def judge(source: str) -> Step:
        given = {"problem_id": problem_id, "source": source, "language": "c", "timing": {"tier": "smoke"}}
        return lambda _: Use(f"{client.prefix}evaluate_kernel", given)

    steps: list[Step] = [
        *([lambda _: Use(client.shell, client.given)] if client.shell else []),
        judge(BROKEN), judge(WRONG), judge(GOOD),
        lambda _: Use("final_answer", {"answer": "done"}) if "final_answer" in model.tools() else "done",
    ]  # fmt: skip
    with ScriptedModel(steps) as model:
        values = {"name": name, "mode": "agent", "problem": problem_id, "language": "c", "tier": "smoke"}
        run_id = Runs(lab).create(plan_of({**values, "agent": client.agent(model.url)}, HERE))
        state = await Runs(lab).go(run_id)

    assert state.stopped == "target", state.summary()
    assert [s.outcome for s in state.steps] == ["compile_failed", "incorrect", "correct", "ok"]
    assert state.spent.tool_calls == 3 and state.spent.tool_characters is not None
    assert (state.spent.cost_usd is not None) == (name == "claude")
    assert bool(state.spent.tokens) == (name != "smolagents")
    assert model.strangers == []
    judged = model.shown[-3:]
    for own_shell in model.shown[:-3]:
        assert any(word in own_shell.text for word in ("No such tool", "unsupported call", "not found"))
    names = {tool.removeprefix(client.prefix) for tool in model.tools()}
    assert {"evaluate_kernel", "compile_kernel", "search_docs"} <= names and client.shell not in model.tools()
    outcomes = ("compile_failed", "incorrect", "correct")
    for shown, outcome, step in zip(judged, outcomes, state.steps, strict=False):
        assert outcome in shown.text and str(step.attempt_id) in shown.text
        assert len(shown.text) < 8000 and not_cut(shown.text)
    assert sum(len(shown.text) for shown in judged) < 12_000
    assert "problem_id: " + problem_id in model.told.replace("\\n", "\n")


def candidate(prompt: str) -> str:
    """Answer as analyst and coder: a specification, and kernels of which the second is right."""
    if "You write the specification" in prompt:
        return json.dumps({"operation": "y = 2 x + 1"})
    source = BROKEN if "This is candidate 1." in prompt else GOOD
    return f"One idea.\n\n```json\n{json.dumps({'source': source, 'idea': 'a loop'})}\n```"


def script(name: str, scenario: str = "") -> Callable[[str], str]:
    """Return what answers as one of the scripted agents does."""

    def answer(prompt: str) -> str:
        command, environment = [sys.executable, str(HERE / name)], {**os.environ, "SCENARIO": scenario}
        return subprocess.run(
            command, input=prompt, env=environment, capture_output=True, text=True, check=True
        ).stdout  # fmt: skip

    return answer


MODES: dict[str, tuple[Callable[[str], str], dict[str, Any], str]] = {
    "structured": (candidate, {}, "target"),
    "population": (candidate, {"population": {"rounds": 1, "descendant_num": 2}}, "target"),
    "nccl": (script("nccl_agent.py"), {"problem": "p.cu", "nccl": {"until": "static"}}, "target"),
    "project": (script("project_agent.py", "histogram"), {"request": "a histogram", "language": "cpp"}, "target"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
async def test_a_real_agent_answers_in_every_mode(lab: Lab, tmp_path: Path, name: str, mode: str):
    answer, more, stopped = MODES[mode]
    (tmp_path / "p.cu").write_text(PRODUCT)
    values: dict[str, Any] = {"name": f"{name}-{mode}", "mode": mode, **more}
    if mode in ("structured", "population"):
        values |= {"problem": await register_anew(lab), "language": "c", "tier": "smoke"}
    with ScriptedModel([], answer=answer) as model:
        runs = Runs(lab)
        state = await runs.go(runs.create(plan_of({**values, "agent": CLIENTS[name].agent(model.url)}, tmp_path)))

    assert state.stopped == stopped, state.summary()
    assert state.spent.agent_calls >= 2 and state.spent.tokens and model.strangers == []


def choice_and_kernels(prompt: str) -> str:
    """Answer as the scripted agent of mode program does, which is told its step and not to read it from the prompt."""
    begins = {"choose the target": "target-001", "You write the specification": "specification-001"}
    named = [step for words, step in begins.items() if words in prompt]
    step = named[0] if named else f"code-00{1 if 'This is candidate 1.' in prompt else 2}"
    command = [sys.executable, str(HERE / "program_agent.py"), step]
    return subprocess.run(command, input=prompt, capture_output=True, text=True, check=True).stdout


@needs_torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
async def test_a_real_agent_answers_in_mode_program(tmp_path: Path, name: str):
    (tmp_path / "loop").mkdir()
    for path, text in FILES.items():
        (tmp_path / "loop" / path).write_text(text)
    options = {"command": [PYTHON, "bench.py", "1"], "pairs": 6}
    values: dict[str, Any] = {
        "name": f"{name}-program", "mode": "program", "problem": "loop", "language": "c", "program": options,
        "target": {"speedup": 1.5}, "accept_provisional": True,
    }  # fmt: skip
    async with laboratory(hosts={"local": {"judge_python": PYTHON}}) as lab:
        with ScriptedModel([], answer=choice_and_kernels) as model:
            runs = Runs(lab)
            state = await runs.go(runs.create(plan_of({**values, "agent": CLIENTS[name].agent(model.url)}, tmp_path)))

    outcomes = {step.step: step.outcome for step in state.steps}
    assert outcomes["capture-002"].startswith("captured recurrence:scan: "), state.summary()
    assert (outcomes["judge-001"], outcomes["judge-002"]) == ("incorrect", "correct")
    assert state.stopped in ("faster", "no_gain") and "of the whole" in state.why, state.summary()  # one call is little
    assert state.spent.agent_calls == 5 and state.spent.tokens and model.strangers == []


def not_cut(text: str) -> bool:
    """Say whether a structure is whole where one is shown; clients put words of their own before and after it."""
    start = text.find('{"status"')
    if start < 0:
        return "attempt " in text
    found, _ = json.JSONDecoder().raw_decode(text[start:])
    return bool(found["attempt_id"])
