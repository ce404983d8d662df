"""Plays a tutorial: writes its files, runs its commands in order, and compares verdicts with those that it shows."""

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.commands import ROOT, Commands, Done

BLOCK = re.compile(r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = ("git clone ", "cd ", "mkdir -p ", "sudo apt-get install ", "make demo", "ln -sf ")
"""Commands that are not the program's. Of make, a test sees that the target is there; CI runs it."""
Program = Callable[[tuple[str, ...], Path], Done]


def tutorial_blocks(page: str) -> list[tuple[str, str, str]]:
    """Return language, title and text of each block of a tutorial."""
    return BLOCK.findall((ROOT / "docs" / "tutorial" / f"{page}.md").read_text(encoding="utf-8"))


def play(
    page: str,
    folder: Path,
    programs: Mapping[str, Program],
    *,
    values: Mapping[str, str] | None = None,
    untimed: bool = False,
) -> int:
    """Run every command of a tutorial; return how many were the programs'.

    Args:
        page: Name of the tutorial.
        folder: Where its first command is typed.
        programs: What runs a command, by its first word.
        values: Words of the page that stand for ids, and the pattern that finds each in an output.
        untimed: Whether candidates are judged by one call instead of by timed rounds, which take a minute.
    """
    played, known = 0, dict[str, str]()
    for language, title, text in tutorial_blocks(page):
        if title:
            (folder / title).write_text(text, encoding="utf-8")
        if language != "console":
            continue
        for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            words = shlex.split(command, comments=True)
            if words[0] == "mkdir" and "/" not in words[-1]:
                (folder / words[-1]).mkdir(exist_ok=True)
            elif words[0] == "cd" and (folder / words[1]).is_dir():
                folder = folder / words[1]
            if words[0] not in programs:
                assert command.startswith(SETUP), f"{page}: {command!r} is neither played nor known"
                continue
            for name, value in known.items():
                words = [word.replace(name, value) for word in words]
            if untimed and "evaluate_kernel" in words:
                words[-1] = json.dumps({**json.loads(words[-1]), "timing": {"tier": "smoke"}})
            done = programs[words[0]](tuple(words[1:]), folder)
            said = re.sub(r" +", " ", done.stdout + done.stderr)
            assert done.returncode == 0 or words[1] == "doctor", f"{page}: {command}\n{said}"
            for name, pattern in (values or {}).items():
                if found := re.search(pattern, said):
                    known.setdefault(name, found[0])
            for line in shown.splitlines():
                expected = re.escape(re.sub(r"^(verdict: \w+|problem \S+).*", r"\1", line))
                for name, value in known.items():
                    expected = expected.replace(name, value)
                if expected.startswith("speed"):
                    continue  # a machine may be too busy for a time
                shown_as = expected.replace("verdict:", "verdict:?")  # without a colon where the call's time was over
                assert re.search(shown_as, said), f"{page}: {command} should say {expected!r}\n{said}"
            played += 1
    return played


def server_environment(home: Path, data: Path) -> dict[str, str]:
    """Return the variables of a person's shell who has just installed the server."""
    given = {name: value for name, value in os.environ.items() if name.startswith("GPU_MCP_HOSTS__LOCAL__")}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "GPU_MCP_DATA_DIR": str(data),
        "GPU_MCP_INDEX_DOCUMENTATION": "false",
        **given,
    }


def server_commands(commands: Commands, environment: Mapping[str, str]) -> Program:
    """Return what runs `gpu-mcp-server`."""
    return lambda words, folder: commands.run(*words, env=environment, cwd=folder)
