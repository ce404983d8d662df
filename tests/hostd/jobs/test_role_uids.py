"""Roles are strangers: where hostd is root each workspace has a uid of its own, unless roles name a common account."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.gpus import login_policy
from gpu_mcp_server.hostd.jobs.host_resources import Host
from gpu_mcp_server.hostd.protocol import ProcessSpec
from gpu_mcp_server.hostd.sandbox import processes
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import Laboratory, supervisor_of, workspaces


def roles(*about: tuple[str, str, str]) -> tuple[ProcessSpec, ...]:
    """Return processes that stay, each given by role, workspace and account."""
    return tuple(
        ProcessSpec(("/bin/sh", "-c", "echo ready; sleep 1000"), role=role, workspace=workspace, account=account)
        for role, workspace, account in about
    )


async def uids(lab: Laboratory, *about: tuple[str, str, str]) -> list[int]:
    """Return the uid of each role as the host sees it, after the owners of the workspaces were seen to be the same."""
    job = await lab.start("", until=b"ready", processes=roles(*about))
    supervisor = supervisor_of(lab.state, job)
    assert supervisor
    found: dict[str, int] = {}
    deadline = time.monotonic() + 10
    while len(found) < len(about) and time.monotonic() < deadline:
        for pid in processes.descendants_of(supervisor):  # others' jobs sleep as well
            try:
                text, shown = Path(f"/proc/{pid}/status").read_text(), Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"sleep\x001000" in shown:
                found[str(pid)] = int(re.findall(r"Uid:\s+(\d+)", text)[0])
    owners = sorted(Path(workdir).stat().st_uid for workdir in workspaces(lab.state, job))
    await lab.link.call("cancel", job=job)
    await lab.wait(job)
    assert set(owners) == set(found.values())
    return sorted(found.values())


@needs_root
@pytest.mark.parametrize("level", ["full", "namespaces", "landlock"])
async def test_each_workspace_has_a_uid_of_its_own(open_lab, level):
    lab = await open_lab(level)
    found = await uids(lab, ("owner", "a", ""), ("reference", "b", ""), ("candidate", "c", ""))
    assert len(set(found)) == 3


@needs_root
async def test_those_of_one_account_or_of_one_workspace_share_a_uid(open_lab):
    lab = await open_lab()
    found = await uids(lab, ("owner", "a", ""), ("run_0", "b", "runs"), ("run_1", "c", "runs"), ("beside", "a", ""))
    assert sorted(found.count(uid) for uid in set(found)) == [2, 2]


async def test_a_workspace_of_two_accounts_is_refused(full):
    with pytest.raises(Exception, match="two accounts"):
        await full.submit(full.spec("", processes=roles(("a", "main", "one"), ("b", "main", "two"))))


@needs_root
async def test_a_role_that_is_handed_a_folder_of_another_can_do_nothing_in_it(open_lab):
    """A role cannot open another's folder that it holds: tried with the path itself, at a level that shows it."""
    lab = await open_lab("unconfined")
    look = "import os, sys, time\nprint(os.getcwd(), flush=True)\ntime.sleep(1000)"
    other = await lab.start("{python}", "-c", look, until=b"/")
    (theirs,) = workspaces(lab.state, other)
    script = (
        "import os, sys\n"
        "for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):\n"
        "  try: os.open(sys.argv[1] + '/f', flags); print('opened')\n"
        "  except OSError as error: print(error.strerror)"
    )
    done = await lab.python(script, theirs)
    assert done.text.splitlines() == ["Permission denied"] * 2
    await lab.link.call("cancel", job=other)


def use_range(state: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    file = state.parent / "pool.json"
    file.write_text(json.dumps({"job_uids": [first, last]}))
    monkeypatch.setenv(login_policy.ELSEWHERE, str(file))


@needs_root
def test_a_uid_that_something_still_runs_as_is_not_given_away(state, monkeypatch):
    """Supervisor and keepers were killed: their lock is free, and the note in it says to look."""
    use_range(state, monkeypatch, 64100, 64120)
    monkeypatch.setenv("GPU_MCP_HOSTD_UIDS", "1")
    host = Host(str(state), str(state.parent / "locks"))
    (account,) = host.accounts(1)
    pid = os.fork()
    if pid == 0:
        os.setresuid(account.uid, account.uid, account.uid)
        time.sleep(1000)
    try:
        os.close(account.lock)  # as their death would
        while Path(f"/proc/{pid}").stat().st_uid != account.uid:
            time.sleep(0.001)
        assert host.accounts(1) == []
        assert host.free_uids() == (0, len(host.job_uids) - 1)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    (again,) = host.accounts(1)
    assert again.uid == account.uid
    again.vacate()
    os.close(again.lock)


@needs_root
def test_the_range_of_uids_is_a_setting_of_the_host(state, monkeypatch):
    use_range(state, monkeypatch, 64000, 64020)
    host = Host(str(state), str(state.parent / "locks"))
    taken = host.accounts(20)
    assert sorted(a.uid for a in taken) == list(range(64000, 64020))
    assert host.accounts(1) == []
    assert host.free_uids() == (0, 20)
    for account in taken:
        account.vacate()
        os.close(account.lock)


@pytest.mark.parametrize(
    "said", [[0, 100], [61000, 61002], [5, 4], ["a", "b"], [1, 2, 3], [True, 100], 61000, None, [61000, 1 << 40]]
)
def test_a_range_that_is_none_is_not_used(tmp_path, said):
    file = tmp_path / "pool.json"
    file.write_text(json.dumps({"job_uids": said}))
    assert login_policy.job_uids(str(file)) == login_policy.JOB_UIDS
