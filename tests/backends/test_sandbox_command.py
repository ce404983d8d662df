"""`sandbox check`, and commands that stream."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract.attempt import ANY, COLD
from gpu_mcp_server.backends.contract.escapes import TRIES, try_escapes
from gpu_mcp_server.backends.local import LocalBackend
from tests.hostd.laboratory import wrapped

BY_GROUP = {123, 124, 125}
"""Rows that a control group closes alone, so that a weaker level promises none of them."""


async def results(state_dir: str, level: str) -> dict[tuple[int, str], str]:
    python = wrapped(Path(state_dir) / "state", {"GPU_MCP_HOSTD_LEVEL": level})
    backend = LocalBackend("tested", python=str(python), state_dir=f"{state_dir}/state")
    return {(outcome.attempt.row, outcome.sandbox): outcome.result async for outcome in try_escapes(backend)}


@pytest.mark.parametrize("level", ["namespaces", "landlock"])  # the strongest one is tried with the contract
async def test_no_way_out_is_open_and_what_a_level_does_not_promise_is_said(state_dir: str, level: str):
    found = await results(state_dir, level)

    assert [row for row, result in found.items() if result in ("open", "not tried")] == []
    weaker = {row for (row, _), result in found.items() if result == "not closed here"}
    assert weaker >= {123, 125}
    assert bool(weaker - BY_GROUP) == (level == "landlock")
    assert {row for row, _ in found} == {
        attempt.row for attempt, kind in TRIES if level == "namespaces" or kind in (ANY, COLD)
    }
    assert len(found) >= (90 if level == "landlock" else 160)


async def test_ways_out_are_found_open_where_nothing_confines(state_dir: str):
    found = await results(state_dir, "unconfined")

    assert {row for (row, _), result in found.items() if result == "open"} >= {2 if os.geteuid() else 34, 35}
    weaker = {row for (row, _), result in found.items() if result == "not closed here"}
    assert weaker >= {100, 107, 109, 115, 123, 125}


def command(tmp_path: Path, state_dir: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpu_mcp_server", *arguments]


def environment(tmp_path: Path, state_dir: str) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPU_MCP_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "GPU_MCP_HOSTS": json.dumps({"local": {"state_dir": state_dir}}),
    }  # fmt: skip


def test_run_shows_output_while_the_program_runs(tmp_path: Path, state_dir: str):
    words = command(tmp_path, state_dir, "run", "--", "sh", "-c", "echo first; cat; sleep 600")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(tmp_path, state_dir), text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "first\n"
        process.terminate()
        assert process.wait() == 130


def test_logs_follow_a_job_to_its_end(tmp_path: Path, state_dir: str):
    env = environment(tmp_path, state_dir)
    run = command(
        tmp_path, state_dir, "run", "--detach", "--json", "--", "sh", "-c", "echo one; sleep 1; echo two; exit 3"
    )
    job = json.loads(subprocess.run(run, capture_output=True, text=True, env=env, check=True).stdout)["job_id"]

    followed = subprocess.run(
        command(tmp_path, state_dir, "logs", "-f", job), capture_output=True, text=True, env=env, check=True
    )

    assert followed.stdout == "one\ntwo\n"
    assert followed.stderr.strip().endswith("failed")
