"""`gpu-mcp-server backend check`, and that the suite can find fault."""

import functools
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract import BEHAVIOURS, Behaviour, DoesNotApply, check
from gpu_mcp_server.backends.contract.check import check_behaviour
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.errors import HostUnavailable
from tests.commands import Commands, Done


@pytest.fixture
def run(commands: Commands, tmp_path: Path, state_dir: str) -> Callable[..., Done]:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPU_MCP_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "GPU_MCP_HOSTS": json.dumps({"local": {"state_dir": state_dir}, "gone": {"kind": "ssh", "host": "127.0.0.1", "port": 1}}),
    }  # fmt: skip
    return functools.partial(commands.run, "backend", "check", env=environment, cwd=tmp_path)


def test_the_command_prints_a_line_for_each_behaviour(run: Callable[..., Done]):
    done = run("local", "--only", "exit_code")

    assert done.returncode == 0, done.stderr
    line, last = done.stdout.splitlines()
    assert line.startswith("ok ") and line.endswith("Another exit code is failed, and comes back")
    assert last == "host local: 1 met, 0 not met, 0 skipped"


def test_the_command_prints_json(run: Callable[..., Done]):
    done = json.loads(run("local", "--only", "output", "--json").stdout)

    assert done["counts"]["met"] == len(done["behaviours"]) > 5
    assert {row["room"] for row in done["behaviours"]} == {"output"}


def test_a_host_that_does_not_answer_is_an_error(run: Callable[..., Done]):
    done = run("gone", "--only", "exit_code")

    assert done.returncode == 2
    assert re.search(r"'gone' \(\S*127\.0\.0\.1:\d+\) cannot be reached", done.stderr)
    assert run("local", "--only", "nonsense").returncode == 2


class Liar(ContractHost):
    """A host that says that everything is ok."""

    async def wait_for_end(self, job_id: str):
        done = await super().wait_for_end(job_id)
        return type(done)(type(done.record)(id=job_id, state="finished", status="ok"), b"", b"")


async def test_a_host_that_says_ok_to_everything_is_found_out(state_dir: str):
    met: set[str] = set()
    async with Liar(LocalBackend("liar", state_dir=state_dir)) as host:
        for behaviour in BEHAVIOURS:
            if behaviour.room in ("programs", "limits"):
                with suppress(AssertionError, ValueError):
                    await behaviour.check(host)
                    met.add(behaviour.name)

    assert met <= {"greets", "empty_stdin", "fork_bomb", "no_leaked_environment"}


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "met"),
        (AssertionError("other"), "unmet"),
        (DoesNotApply("no"), "skipped"),
        (HostUnavailable("gone"), "unmet"),
    ],
)
async def test_what_a_behaviour_raises_is_its_finding(state_dir: str, error: Exception | None, result: str):
    async def prove(host: ContractHost) -> None:
        if error is not None:
            raise error

    found = await check_behaviour(
        LocalBackend("tested", state_dir=state_dir), Behaviour("room", "name", "A sentence", "unconfined", prove)
    )
    assert found.result == result
    assert error is None or str(error) in found.why


async def test_only_what_is_asked_for_is_checked(state_dir: str):
    findings: AsyncIterator = check(LocalBackend("tested", state_dir=state_dir), only="a_signal")

    assert [f.behaviour.name async for f in findings] == ["a_signal"]
