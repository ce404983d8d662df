"""The real Claude Code against this server; the model behind it is a script, the network is loopback alone."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.mcp_api.server import server_from_settings
from gpu_mcp_server.settings.server_settings import Settings
from tests.real.clients import installer
from tests.real.clients.model import ScriptedModel, Step, Use

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

SOFTMAX = Path(__file__).parents[2] / "examples" / "softmax"
SERVER = [sys.executable, "-m", "gpu_mcp_server"]
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}
PROBLEM = {
    "name": "softmax",
    "reference_path": str(SOFTMAX / "reference.py"),
    "inputs": [{"name": "x", **TENSOR}],
    "outputs": [{"name": "y", **TENSOR}],
    "shapes": [{"rows": 32, "cols": 1000}],
    "rtol": 1e-4,
    "atol": 1e-6,
}


@dataclass(frozen=True)
class Claude:
    """Claude Code in a home of its own."""

    program: Path
    home: Path
    data_dir: Path

    def environment(self, model: ScriptedModel, **more: str) -> dict[str, str]:
        """Return all that it knows of this machine: no account, and the model as its only address."""
        quiet = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER", "DISABLE_BUG_COMMAND")
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "dummy-key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **dict.fromkeys(quiet, "1"),
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), model.url),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
            **more,
        }

    def run(self, model: ScriptedModel, *arguments: str, **more: str) -> str:
        """Run it and return its stdout."""
        done = subprocess.run(
            [self.program, *arguments],
            capture_output=True,
            text=True,
            env=self.environment(model, **more),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert model.strangers == []
        return done.stdout

    def ask(self, model: ScriptedModel, *, server: dict[str, Any] | None = None, **more: str) -> dict[str, Any]:
        """Have a conversation and return its first line, which says what is connected."""
        entry = {"command": SERVER[0], "args": SERVER[1:], "env": {"GPU_MCP_DATA_DIR": str(self.data_dir)}}
        config = self.home / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"gpu": entry | (server or {})}}))
        options = ("--mcp-config", str(config), "--strict-mcp-config", "--allowedTools", "mcp__gpu")
        said = self.run(model, "-p", "go", *options, "--output-format", "stream-json", "--verbose", **more)
        lines = [json.loads(line) for line in said.splitlines()]
        return next(line for line in lines if line.get("subtype") == "init")


@pytest.fixture(scope="module")
def program() -> Path:
    return installer.claude()


@pytest.fixture
def claude(program: Path, tmp_path: Path) -> Iterator[Claude]:
    with tempfile.TemporaryDirectory() as folder:  # below tmp_path the uid of jobs could not reach it
        Path(folder).chmod(0o711)
        yield Claude(program, tmp_path, Path(folder) / "data")


def lab(claude: Claude, *arguments: str) -> dict[str, Any]:
    """Run a command of ours on the same laboratory."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(claude.home), "GPU_MCP_DATA_DIR": str(claude.data_dir)}
    command = [*SERVER, *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout)


@pytest.fixture
def sandboxed(claude: Claude) -> Claude:
    level = lab(claude, "status")["hosts"][0].get("level")
    if level not in ("full", "namespaces"):
        pytest.skip(f"jobs cannot run here: sandbox level {level}")
    return claude


def always(name: str, /, **arguments: Any) -> Step:
    return lambda _: Use(name, arguments)


def test_claude_code_compiles_evaluates_and_lists(sandboxed: Claude):
    kernel = SOFTMAX / "naive.c"
    names = ("compile_kernel", "register_problem", "evaluate_kernel", "list_attempts")
    steps: list[Step] = [
        always("ToolSearch", query="select:" + ",".join(f"mcp__gpu__{name}" for name in names)),
        always("mcp__gpu__compile_kernel", path=str(kernel)),
        always("mcp__gpu__register_problem", **PROBLEM),
        lambda shown: Use(
            "mcp__gpu__evaluate_kernel",
            {"problem_id": shown[-1].data["problem_id"], "source": kernel.read_text(), "language": "c"},
        ),
        lambda shown: Use("mcp__gpu__list_attempts", {"problem_id": shown[-1].data["problem_id"]}),
        lambda _: "done",
    ]
    with ScriptedModel(steps) as model:
        began = sandboxed.ask(model)

    search, compiled, problem, verdict, attempts = model.shown
    assert [(s["name"], s["status"]) for s in began["mcp_servers"]] == [("gpu", "connected")]
    instructions = str(server_from_settings(Settings(data_dir=sandboxed.data_dir)).instructions)
    assert len(instructions) > 1000 and json.dumps(instructions)[1:-1] in model.told
    assert not search.is_error
    assert (compiled.data["status"], compiled.data["language"]) == ("ok", "c")
    assert problem.data["registered"] == "new"
    assert "zeros" in problem.data["trivial_answers_tried"]
    assert (verdict.data["status"], verdict.data["verdict"]) == ("judged", "correct")
    assert verdict.data["problem_id"] == problem.data["problem_id"]
    assert verdict.data["shapes"][0]["candidate"]["median_us"] > 0
    assert [(a["attempt_id"], a["verdict"]) for a in attempts.data["attempts"]] == [
        (verdict.data["attempt_id"], "correct")
    ]
    assert all(len(result.text) < 8000 for result in (compiled, problem, verdict, attempts))


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_the_model_is_shown_every_tool_and_the_words_of_an_error(claude: Claude, era: str):
    steps: list[Step] = [
        always("mcp__gpu__gpu_status"),
        always("mcp__gpu__evaluate_kernel", problem_id="p-000000000000", source="int launch;", language="c"),
        always("mcp__gpu__run_command", command=["true"], timeout=1),
        lambda _: "done",
    ]
    with ScriptedModel(steps) as model:
        claude.ask(model, ENABLE_TOOL_SEARCH="false", MCP_PROTOCOL_NEGOTIATION=era)

    status, unknown, strict = model.shown
    tools = {name.removeprefix("mcp__gpu__"): tool for name, tool in model.tools().items() if "mcp__gpu__" in name}
    assert {"gpu_status", "compile_kernel", "run_command", "evaluate_kernel", "list_attempts"} <= set(tools)
    assert all(tool["description"] and tool["input_schema"]["type"] == "object" for tool in tools.values())
    assert status.data["hosts"][0]["host"] == "local"
    assert unknown.is_error
    assert "p-000000000000" in unknown.text
    assert "list_problems" in unknown.text
    assert strict.is_error
    assert "timeout_s" in strict.text


def test_a_call_that_claude_code_gives_up_on_ends_its_job(sandboxed: Claude):
    steps: list[Step] = [always("mcp__gpu__run_command", command=["sleep", "600"], timeout_s=900), lambda _: "done"]
    with ScriptedModel(steps) as model:
        sandboxed.ask(model, server={"timeout": 6000}, ENABLE_TOOL_SEARCH="false")

    (given_up,) = model.shown
    (job,) = lab(sandboxed, "jobs")["jobs"]
    ended = lab(sandboxed, "call", "job_status", "--args", json.dumps({"job_id": job["job_id"], "wait_s": 20}))
    assert given_up.is_error
    assert (ended["state"], ended["status"]) == ("finished", "cancelled"), ended


def test_claude_mcp_add_registers_the_server_and_list_finds_it_connected(claude: Claude):
    with ScriptedModel([]) as model:
        claude.run(model, "mcp", "add", "gpu", "--", *SERVER)
        said = claude.run(model, "mcp", "list")

    (line,) = [line for line in said.splitlines() if line.startswith("gpu:")]
    assert line.endswith("Connected")
