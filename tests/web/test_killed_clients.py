"""Confirmation runs go on when the process of the client that caused them is killed."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.services.evaluation import confirmation_runs
from gpu_mcp_server.services.evaluation.confirmation_runs import ConfirmationRuns
from tests.hostd.laboratory import wrapped
from tests.services.evaluation import test_confirmation_runs as runs_tests
from tests.services.evaluation.test_confirmation_runs import RIGHT, SLOW_AND_WRONG, job_of, recorded, register, until
from tests.web.site import Served, lab_of, served

believing_judge, pytestmark = runs_tests.believing_judge, runs_tests.pytestmark
CLIENT = """
import sys, time
from gpu_mcp_server.client import Client

_, address, tool, handle, source = sys.argv
with Client(address) as gpu:
    if tool == "audit_attempt":
        gpu.audit_attempt(attempt_id=handle)
    else:
        found = gpu.evaluate(handle, source, language="c", timing={"confirm": True})
        print(found["attempt_id"], found["trust"], flush=True)
    time.sleep(600)
"""


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A server whose confirmation runs wait for no quiet moment, and whose jobs wait for no other test's."""
    monkeypatch.setattr(confirmation_runs, "QUIET_S", 0.0)
    monkeypatch.setattr(ConfirmationRuns, "_others_wait", runs_tests.nobody_waits)
    python = wrapped(tmp_path / "state", {LOCKS: str(tmp_path / "locks")})
    async with served(tokens=False, hosts={"local": {"kind": "local", "python": str(python)}}) as site:
        yield site


def begin_client(site: Served, tool: str, handle: str, source: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLIENT, site.url, tool, handle, source]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


async def test_a_confirmation_run_goes_on_when_the_clients_process_is_killed(believing_judge: None, site: Served):
    lab = await lab_of(site)
    client = begin_client(site, "evaluate", await register(lab, "400_000"), RIGHT)
    try:
        assert client.stdout is not None
        attempt_id, trust = (await asyncio.to_thread(client.stdout.readline)).split()
        assert trust == "provisional"
        job_id = await job_of(lab, attempt_id)
    finally:
        client.kill()
        await asyncio.to_thread(client.communicate)

    ended = await until(lab, attempt_id, lambda one: one.state not in ("owed", "running"))
    assert (ended.why, ended.state) == ("asked", "done"), ended.said
    assert await lab.evaluation.confirmations.job_of(attempt_id, None) == job_id, "it was not made twice"
    assert (await lab.store.experience.get(attempt_id)).trust == "confirmed"


async def test_an_audit_whose_clients_process_is_killed_is_made_by_the_server(site: Served):
    lab = await lab_of(site)
    cheat = await recorded(lab, await register(lab), SLOW_AND_WRONG, 900.0)
    client = begin_client(site, "audit_attempt", cheat.attempt_id)
    try:
        await job_of(lab, cheat.attempt_id)
    finally:
        client.kill()
        await asyncio.to_thread(client.communicate)

    ended = await until(lab, cheat.attempt_id, lambda one: one.state not in ("owed", "running"))
    assert (ended.why, ended.state) == ("audit", "void"), ended.said
