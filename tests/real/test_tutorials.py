"""The tutorials that need a GPU or Claude Code, played command by command."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import ROOT, Commands, Done
from tests.laboratory import Folder
from tests.real.clients import installer
from tests.tutorials import play, server_commands, server_environment

OURS = {"PROBLEM_ID": r"p-[0-9a-f]{12}", "ATTEMPT_ID": r"a-[0-9a-z]{12,}"}


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with Folder() as folder:
        yield folder / "data"


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_the_tutorial_for_a_gpu_does_what_it_says(commands: Commands, data_dir: Path, tmp_path: Path):
    if not shutil.which("nvidia-smi"):
        pytest.skip("no NVIDIA driver here")
    run = server_commands(commands, server_environment(tmp_path, data_dir))

    def installed(words: tuple[str, ...], folder: Path) -> Done:
        """Leave out what downloads torch, where the judge has a Python that imports it."""
        return Done(words, 0, "", "") if words[:2] == ("hosts", "set") else run(words, folder)

    assert play("first-kernel-gpu", tmp_path, {"gpu-mcp-server": installed}, values=OURS) >= 5


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_the_tutorial_from_claude_code_does_what_it_says(commands: Commands, data_dir: Path, tmp_path: Path):
    program = installer.claude()
    server = tmp_path / ".local" / "bin" / "gpu-mcp-server"
    server.parent.mkdir(parents=True)
    server.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/toolsets exec {sys.executable} -m gpu_mcp_server "$@"\n')
    server.chmod(0o755)
    environment = server_environment(tmp_path, data_dir)
    quiet = {
        "TERM": "dumb",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ANTHROPIC_API_KEY": "dummy-key",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "PATH": f"{server.parent}:/usr/bin:/bin",
    }

    def claude(words: tuple[str, ...], folder: Path) -> Done:
        given = [os.fspath(ROOT) if word == "PATH_OF_YOUR_CHECKOUT" else word for word in words]
        return subprocess.run(
            [program, *given], capture_output=True, text=True, env={**environment, **quiet}, cwd=folder, timeout=120
        )

    run = server_commands(commands, environment)
    assert play("claude-code", tmp_path, {"claude": claude, "gpu-mcp-server": run}) >= 6
