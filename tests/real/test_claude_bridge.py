"""The real Claude Code on a laptop without compilers works at a team's server: two networks, a tunnel between them."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.apart import two_apart
from tests.backends.sshd import USER, Sshd
from tests.bridge.server_process import ServerProcess
from tests.laboratory import Folder
from tests.real.clients import installer
from tests.real.clients.model import ScriptedModel, Step, Use

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
SOFTMAX = Path(__file__).parents[2] / "examples" / "softmax"
TAG, NET = "gmc", "10.213.9"
MARK = "a line that no model is shown"
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}
PROBLEM = {
    "name": "softmax", "reference_path": "reference.py", "inputs": [{"name": "x", **TENSOR}],
    "outputs": [{"name": "y", **TENSOR}], "shapes": [{"rows": 32, "cols": 1000}], "rtol": 1e-4, "atol": 1e-6,
}  # fmt: skip


@contextmanager
def sockets_of(space: str) -> Iterator[None]:
    """Have the sockets that this thread makes belong to another network; they stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        stack.callback(os.close, own)
        other = os.open(f"/run/netns/{space}", os.O_RDONLY)
        stack.callback(os.close, other)
        assert libc.setns(other, 0) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(own, 0) == 0


def within(number: int) -> list[str]:
    """Return what starts a program in the network of the laptop, 0, or of the server, 1."""
    return [shutil.which("ip") or "ip", "netns", "exec", f"{TAG}-{number}"]


def until_it_answers(address: str, number: int) -> None:
    """Wait for a server, asked within a network."""
    ask = f"import urllib.request; urllib.request.urlopen('{address}/healthz', timeout=5)"
    for _ in range(300):
        asked = [*within(number), sys.executable, "-c", ask]
        if subprocess.run(asked, capture_output=True, check=False, timeout=30).returncode == 0:
            return
        time.sleep(0.2)
    pytest.fail(f"{address} does not answer")


class Laptop:
    """A home without a compiler on its PATH, and a tunnel to the server's loopback."""

    def __init__(self, folder: Path, server: Sshd, port: int) -> None:
        self.home, self.project = folder, folder / "project"
        self.url = f"http://127.0.0.1:{port}"
        tools = folder / "bin"
        tools.mkdir()
        (tools / "sh").symlink_to("/bin/sh")
        self.project.mkdir()
        shutil.copy(SOFTMAX / "reference.py", self.project)
        (self.project / "kernel.c").write_text(f"// {MARK}\n" + (SOFTMAX / "naive.c").read_text())
        (self.project / ".env").write_text("KEY=1\n")
        self.environment = {
            "PATH": str(tools), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), "LANG": "C.UTF-8",
            "GPU_MCP_DATA_DIR": str(folder / "data"),
        }  # fmt: skip
        options = ["-o", f"UserKnownHostsFile={server.known_hosts}", "-o", "ExitOnForwardFailure=yes"]
        options += ["-F", "none", "-i", str(server.user_key), "-p", str(server.port)]
        line = f"{port}:127.0.0.1:{port}"
        self.tunnel = subprocess.Popen(
            [*within(0), "ssh", "-N", *options, "-L", line, f"{USER}@{server.address}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def run(self, *words: str, by: Path | None = None, stdin: str = "", **more: str) -> str:
        """Run a command of ours, or another program, on the laptop; return its stdout."""
        command = [str(by)] if by else [sys.executable, "-m", "gpu_mcp_server"]
        done = subprocess.run(
            [*within(0), *command, *words], env={**self.environment, **more}, cwd=self.project, input=stdin,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def have_claude_work(self, claude: Path, model: ScriptedModel) -> dict[str, Any]:
        """Have a conversation of Claude Code with the bridge as its server; return its first line."""
        entry = {"command": sys.executable, "args": ["-m", "gpu_mcp_server", "connect", self.url]}
        entry["env"] = {
            name: self.environment[name] for name in ("HOME", "XDG_CONFIG_HOME", "GPU_MCP_DATA_DIR", "PATH")
        }
        config = self.home / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"gpu": entry}}))
        quiet = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER")
        more = {
            "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "dummy-key", "TERM": "dumb",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", **dict.fromkeys(quiet, "1"),
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), model.url), "NO_PROXY": "127.0.0.1",
            "ENABLE_TOOL_SEARCH": "false",
        }  # fmt: skip
        options = ("--mcp-config", str(config), "--strict-mcp-config", "--allowedTools", "mcp__gpu")
        said = self.run("-p", "go", *options, "--output-format", "stream-json", "--verbose", by=claude, **more)
        lines = [json.loads(line) for line in said.splitlines()]
        return next(line for line in lines if line.get("subtype") == "init")


@pytest.fixture
def away() -> Iterator[tuple[Laptop, ServerProcess]]:
    """Yield a laptop that is logged in, and the server in another network."""
    with two_apart(TAG, NET) as (_, sshd), Folder() as at_server, Folder() as at_home, ExitStack() as stack:
        server = ServerProcess(at_server, inside=within(1))
        server.start()
        stack.callback(server.kill)
        until_it_answers(f"http://127.0.0.1:{server.port}", 1)
        laptop = Laptop(at_home, sshd, server.port)
        stack.callback(laptop.tunnel.wait)
        stack.callback(laptop.tunnel.terminate)
        until_it_answers(laptop.url, 0)
        laptop.run("login", laptop.url, "--no-clients", stdin=server.token() + "\n")
        yield laptop, server


def call(name: str, /, **arguments: Any) -> Callable[[Any], Use]:
    return lambda _: Use(f"mcp__gpu__{name}", arguments)


def test_a_laptop_without_compilers_works_at_the_server(away: tuple[Laptop, ServerProcess]):
    laptop, server = away
    assert shutil.which("gcc", path=laptop.environment["PATH"]) is None
    large = "i=0; while [ $i -lt 300000 ]; do echo 123456789; i=$((i+1)); done > large.txt; ls"
    steps: list[Step] = [
        call("compile_kernel", path="kernel.c"),
        call("register_problem", **PROBLEM),
        lambda shown: Use(
            "mcp__gpu__evaluate_kernel", {"problem_id": shown[-1].data["problem_id"], "path": "kernel.c"}
        ),
        call("write_files", local_path="."),
        lambda shown: Use(
            "mcp__gpu__run_command",
            {"command": ["sh", "-c", large], "workspace_id": shown[-1].data["workspace_id"]},
        ),
        lambda _: "done",
    ]
    claude = installer.claude()
    with sockets_of(f"{TAG}-0"):
        model = ScriptedModel(steps)
    with model:
        began = laptop.have_claude_work(claude, model)

    assert [(s["name"], s["status"]) for s in began["mcp_servers"]] == [("gpu", "connected")]
    assert model.strangers == []
    compiled, problem, verdict, pushed, ran = model.shown
    assert (compiled.data["status"], problem.data["registered"]) == ("ok", "new")
    assert (verdict.data["status"], verdict.data["verdict"]) == ("judged", "correct")
    assert ".env" in pushed.text, "secrets stay, and are named"
    assert ran.data["stdout"].split() == ["kernel.c", "large.txt", "reference.py"]
    assert MARK not in json.dumps(model.conversation), "no file's text passed through the model"
    with (server.folder / "data" / "lab.db").open("rb"):
        assert not (laptop.home / "data" / "lab.db").exists(), "all of it happened at the server"

    (output,) = [each for each in ran.data["outputs"] if each["path"] == "large.txt"]
    laptop.run("artifact", "save", output["artifact_id"], "large.txt")
    assert (laptop.project / "large.txt").read_text() == "123456789\n" * 300_000
