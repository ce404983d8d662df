"""The wheel as users get it: built, installed into a fresh environment, spoken to over bare stdio."""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

TOOLS = {
    *("gpu_status", "write_files", "read_file", "list_files", "compile_kernel", "run_command", "job_status"),
    *("cancel_job", "read_artifact", "register_problem", "list_problems", "evaluate_kernel", "list_attempts"),
}
HEAVY = ("chromadb", "docker", "torch", "triton", "numpy", "asyncssh")
BLOCKER = """\
import os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            with open(os.environ["BLOCKED_LOG"], "a") as log:
                log.write(name + "\\n")
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
"""


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and the test environment's dependencies."""

    folder: Path
    wheel: Path

    @property
    def program(self) -> Path:
        """The console script."""
        return self.folder / "venv" / "bin" / "gpu-mcp-server"

    def environment(self, **more: str) -> dict[str, str]:
        """Return variables that keep everything in the folder; NumPy for the judge is the test environment's."""
        local = {"local": {"kind": "local", "judge_python": sys.executable}}
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "GPU_MCP_DATA_DIR": str(self.folder / "data"),
            "GPU_MCP_INDEX_DOCUMENTATION": "false",
            "GPU_MCP_HOSTS": json.dumps(local),
            **more,
        }

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the console script."""
        return subprocess.run(
            [self.program, *arguments],
            capture_output=True,
            text=True,
            env=self.environment(**more),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def speak(self, requests: Sequence[dict[str, Any]], **more: str) -> list[dict[str, Any]]:
        """Send requests over stdio, one after the other; every line of stdout is in what is returned."""
        process = subprocess.Popen(
            [self.program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment(**more),
            cwd=self.folder,
            text=True,
        )
        assert process.stdin and process.stdout
        lines: list[str] = []
        for request in requests:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
            process.stdin.flush()
            if "id" in request:
                lines.append(process.stdout.readline())
        rest, _ = process.communicate()
        answers = [json.loads(line) for line in [*lines, *rest.splitlines()]]
        assert all(answer["jsonrpc"] == "2.0" for answer in answers)
        assert process.returncode == 0
        return answers


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Iterator[Installed]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-warn-script-location")
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True)
        (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        blocker = folder / "blocker"
        blocker.mkdir()
        (blocker / "sitecustomize.py").write_text(BLOCKER)
        yield Installed(folder, wheel)


def in_the_working_tree(folder: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=False)
    tracked = done.stdout.split() or [str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*") if p.is_file()]
    return {name for name in tracked if "__pycache__" not in name and (ROOT / name).exists()}


def test_the_wheel_has_everything_that_runs_elsewhere_and_no_tests(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())

    assert in_the_working_tree("gpu_mcp_server") <= names
    assert {name.removeprefix("toolsets/") for name in in_the_working_tree("toolsets")} <= names
    for content in ("examples", "knowledge_base", "agent_recipes"):
        inside = {f"gpu_mcp_server/_content/{name}" for name in in_the_working_tree(content)}
        assert inside <= names
    assert "gpu_mcp_server/judge/devices/kernels.ptx" in names
    assert "gpu_mcp_server/hostd/jobs/supervisor.py" in names
    assert [name for name in names if "test" in Path(name).parts[0] or "/tests/" in name or "__pycache__" in name] == []
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "gpu_mcp_server",
        "gpu_mcp_toolsets",
    }


def test_the_console_script_runs_what_the_wheel_brought(installed: Installed):
    where = "import gpu_mcp_server, gpu_mcp_toolsets; print(gpu_mcp_server.__file__, gpu_mcp_toolsets.__file__)"
    python = installed.program.with_name("python")
    done = subprocess.run([python, "-c", where], capture_output=True, text=True, cwd=installed.folder, check=True)

    assert done.stdout.count(str(installed.folder)) == 2
    assert installed.run("--version").stdout.startswith("gpu-mcp-server ")


@pytest.mark.parametrize("era", ["initialize", "server/discover"])
def test_bare_stdio_greets_and_lists_without_importing_anything_heavy(installed: Installed, era: str, tmp_path: Path):
    log = tmp_path / "imports"
    version = {"initialize": "2025-06-18", "server/discover": "2026-07-28"}[era]
    me = {"name": "bare", "version": "1"}
    if era == "initialize":
        greeting: dict[str, Any] = {"protocolVersion": version, "capabilities": {}, "clientInfo": me}
        listing: dict[str, Any] = {}
        between = [{"method": "notifications/initialized"}]
    else:
        key = "io.modelcontextprotocol/"
        meta = {f"{key}protocolVersion": version, f"{key}clientCapabilities": {}, f"{key}clientInfo": me}
        greeting = listing = {"_meta": meta}
        between = []
    hello, tools = installed.speak(
        [
            {"id": 1, "method": era, "params": greeting},
            *between,
            {"id": 2, "method": "tools/list", "params": listing},
        ],
        PYTHONPATH=str(installed.folder / "blocker"),
        BLOCKED=" ".join(HEAVY),
        BLOCKED_LOG=str(log),
    )

    assert "gpu_status" in hello["result"]["instructions"]
    assert {tool["name"] for tool in tools["result"]["tools"]} >= TOOLS
    assert not log.exists(), log.read_text()


@pytest.mark.timeout(300)
def test_the_selftest_passes_where_chromadb_and_docker_cannot_be_imported(installed: Installed, tmp_path: Path):
    blocked = {
        "PYTHONPATH": str(installed.folder / "blocker"),
        "BLOCKED": "chromadb docker torch triton",
        "BLOCKED_LOG": os.devnull,
    }
    status = json.loads(installed.run("status", "--json", **blocked).stdout)
    if status["hosts"][0].get("level") not in ("full", "namespaces"):
        pytest.skip(f"jobs cannot run here: sandbox level {status['hosts'][0].get('level')}")
    done = installed.run("selftest", "--json", **blocked)

    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"ok  {step}\n" in done.stderr for step in ("sandbox", "compiler", "right kernel\nok  wrong kernel"))
    matrix = json.loads(done.stdout)
    assert {"rows", "missed", "false_alarms"} == set(matrix)
    assert (matrix["missed"], matrix["false_alarms"]) == (0, 0)
    assert all({"id", "kind", "verdict", "stopped_by", "caught_by"} == set(row) for row in matrix["rows"])
    assert {row["kind"] for row in matrix["rows"]} == {"cheat", "honest"}
    assert {row["stopped_by"] for row in matrix["rows"] if row["kind"] == "honest"} == {""}
    assert "first look" in {row["stopped_by"] for row in matrix["rows"]}
