"""Setup lines of a host: real shells, and jobs that see what came of them."""

import asyncio
import os
from pathlib import Path

import pytest

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.hostd.probe import setup_lines
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from tests.laboratory import Folder, laboratory

MODULE = (
    'module() { [ "$1" = load ] && [ "$2" != nowhere ] || { echo "no module $2" >&2; return 1; }; export LOADED=$2; }'
)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # a login shell reads what lies there


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


async def test_jobs_get_what_came_of_the_lines_and_never_the_lines():
    with Folder() as folder:
        program(
            folder / "tree" / "bin" / "greet",
            'echo "hello from $PLACE, $LOADED"; type module >/dev/null || echo and no more',
        )
        program(folder / "tree" / "bin" / "gcc", 'exec /usr/bin/gcc -DPLACE=\\"$PLACE\\" "$@"')
        lines = [MODULE, "module load cuda/13.0", f"export PLACE=here PATH={folder}/tree/bin:$PATH"]
        async with laboratory(hosts={"local": {"kind": "local", "setup": lines}}) as lab:
            done = await lab.commands.run(["greet"], timeout_s=60)
            assert done.stdout == "hello from here, cuda/13.0\nand no more\n", done
            probe = await lab.hosts.probe("local")
            assert probe.compilers["gcc"].path == f"{folder}/tree/bin/gcc"
            built = await lab.builds.compiler.compile(CandidateSource("const char *place = PLACE;\n", "c", "a.c"))
            assert built.status == "ok", built


async def test_calls_that_meet_a_host_at_the_same_time_look_at_it_once(tmp_path: Path):
    lines = [f"echo looked >>{tmp_path}/looks"]
    async with laboratory(hosts={"local": {"kind": "local", "setup": lines}}) as lab:
        probes = await asyncio.gather(*(lab.hosts.probe("local") for _ in range(8)))

        assert all(probe is probes[0] for probe in probes)
        assert (tmp_path / "looks").read_text() == "looked\n"


async def test_a_line_that_fails_is_named_and_nothing_runs():
    async with laboratory(hosts={"local": {"kind": "local", "setup": [MODULE, "module load nowhere"]}}) as lab:
        with pytest.raises(ConfigError, match=r"no module nowhere setup line 2 failed"):
            await lab.commands.run(["true"])
        (host,) = (await lab.status.gpus.status()).hosts
        assert not host.reachable and "setup line 2 failed" in (host.problem or "")


def test_only_what_the_lines_changed_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("A_SECRET", "x")
    found = setup_lines.run_setup(["export NEW=1 A_SECRET=x", "export TWO_LINES=$'a\\nb'", "cd /", "echo noise"])
    assert found == {"variables": {"NEW": "1"}, "path": [], "roots": []}
    (tmp_path / "bin").mkdir()
    found = setup_lines.run_setup([f"PATH=$PATH:{tmp_path}/bin:/usr/local/sbin/x:relative"])
    assert found["roots"] == [f"{tmp_path}/bin"], "a home is not shown as a whole"
    assert found["path"] == [f"{tmp_path}/bin", "/usr/local/sbin/x"]


def test_lines_that_hang_print_or_fill_are_ended_in_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(setup_lines, "TIMEOUT_S", 0.2)
    assert "did not end" in setup_lines.run_setup(["sleep 600"])["problem"]
    monkeypatch.setattr(setup_lines, "TIMEOUT_S", 60)
    assert "more than" in setup_lines.run_setup(["export BIG=$(head -c 100000 /dev/zero | tr '\\0' x)"])["problem"]
    assert "syntax" in setup_lines.run_setup(["if true"])["problem"]
    assert setup_lines.run_setup(["exit 3"])["problem"]
    assert os.environ.get("BIG") is None
