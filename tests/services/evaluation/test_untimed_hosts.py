"""Hosts whose jobs can stop each other give no time, and say why; right and wrong stand."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client

from gpu_mcp_server.backends.bundle import HOSTD
from gpu_mcp_server.hostd.sandbox import landlock
from gpu_mcp_server.hostd.sandbox.mounts import can_access
from gpu_mcp_server.settings.server_settings import LocalHost
from tests.hostd.laboratory import wrapped
from tests.hostd.test_ordinary_user import AS_USER, UID
from tests.judge.program_harness import PROGRAM
from tests.judge.programs.test_program_runs import program
from tests.laboratory import HONEST, PROBLEM, Folder, called, client_of
from tests.services.problems.formats.test_program_formats import TOML

WHY = "jobs can stop each other on this host, and the judge's clock with them"


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    """Return a client whose host is an ordinary user's, on a kernel whose Landlock keeps no signals."""
    needed = landlock.SCOPES - 1
    if os.geteuid() != 0 or landlock.abi() < needed or not can_access(str(HOSTD), UID, 0o5):
        pytest.skip(f"needs root to become an ordinary user, and Landlock {needed}")
    with Folder() as folder:
        state = folder / "user" / "state"
        state.mkdir(parents=True)
        os.chown(state, UID, UID)
        env = {"GPU_MCP_HOSTD_LEVEL": "landlock", landlock.OLDER: str(needed), "HOME": "/nonexistent"}
        python = str(wrapped(state, env, AS_USER))
        host = LocalHost(python=python, state_dir=str(state), judge_python=sys.executable)
        async with client_of(folder, hosts={"local": host}, min_level="landlock") as client:
            yield client


async def test_its_status_says_what_lifts_its_level(client: Client):
    (host,) = (await called(client, "gpu_status", host="local"))["hosts"]

    assert host["fix_hint"].startswith("apt-get install bubblewrap")


async def test_a_kernel_is_judged_and_not_timed(client: Client):
    problem_id = (await called(client, "register_problem", **PROBLEM))["problem_id"]
    wrong = HONEST.replace("+ 1", "+ 1.001f")
    found = [
        await called(client, "evaluate_kernel", problem_id=problem_id, source=text, language="c")
        for text in (HONEST, wrong)
    ]

    assert [each["verdict"] for each in found] == ["correct", "incorrect"]
    right = found[0]
    assert right["level"] == "landlock" and "nothing is timed here" in right["weaker_because"]
    assert "speedup" not in right and not any(shape.get("candidate") for shape in right["shapes"])
    assert right["note"] == f"correct; not timed: {WHY}"
    listed = (await called(client, "list_problems", problem_id=problem_id))["problems"][0]
    assert right["attempt_id"] not in str(listed.get("best")), "without a time it is nobody's best"


async def test_a_program_is_judged_and_not_timed(client: Client, tmp_path: Path):
    (tmp_path / "program.toml").write_text(TOML)
    (tmp_path / "app.c").write_text(PROGRAM)
    problem_id = (await called(client, "import_problem", path=str(tmp_path)))["problem_id"]
    text = program('work(n, s, "out.bin"); puts("PASS"); return 0;')
    found = await called(client, "evaluate_kernel", problem_id=problem_id, source=text, language="program")

    assert found["verdict"] == "correct" and "speedup" not in found
    assert f"not timed: {WHY}" in found["weaker"]
    assert not any(shape.get("candidate") for shape in found["shapes"])
