"""The tutorials that need no GPU and no agent, played command by command."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import ROOT, Commands
from tests.laboratory import Folder
from tests.tutorials import play, server_commands, server_environment, tutorial_blocks


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with Folder() as folder:
        yield folder / "data"


@pytest.mark.timeout(900)  # judging waits for the processor where other tests are timed
@pytest.mark.parametrize(("page", "least"), [("install", 4), ("first-kernel-cpu", 6)])
def test_a_tutorial_does_what_it_says(page: str, least: int, commands: Commands, data_dir: Path, tmp_path: Path):
    run = server_commands(commands, server_environment(tmp_path, data_dir))
    (host,) = json.loads(run(("status", "--json"), tmp_path).stdout)["hosts"]
    if host["level"] not in ("full", "namespaces"):
        pytest.skip(f"jobs cannot run here: sandbox level {host['level']}")

    assert play(page, tmp_path, {"gpu-mcp-server": run}, untimed=True) >= least


def test_every_make_target_of_the_tutorials_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "".join(text for language, _, text in tutorial_blocks("install") if language == "console")

    assert {"demo"} == set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
