"""Hosts that are added, changed and refused, and jobs as people run, list and end them, on the command line."""

import json
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends.ssh import SshBackend
from gpu_mcp_server.cli.jobs import jobs_table
from gpu_mcp_server.services.commands.job_listing import JobListing
from gpu_mcp_server.settings.host_settings import SshHost
from tests.commands import Commands, Done

Run = Callable[..., Done]


@pytest.fixture
def run(commands: Commands, tmp_path: Path) -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "GPU_MCP_DATA_DIR": f"{folder}/data",
            "GPU_MCP_INDEX_DOCUMENTATION": "false",
        }
        yield lambda *arguments: commands.run(*arguments, env=environment, cwd=tmp_path)


@pytest.fixture
def sandboxed(run: Run) -> Run:
    hosts = json.loads(run("status", "--json").stdout)["hosts"]
    if not hosts or hosts[0].get("level") not in ("full", "namespaces"):
        pytest.skip("jobs cannot run here")
    return run


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listed(run: Run) -> list[str]:
    return list(json.loads(run("hosts", "list", "--json").stdout)["hosts"])


def test_a_host_that_does_not_answer_is_not_kept_and_the_error_names_the_way_there(run: Run, closed_port: int):
    done = run("hosts", "add", "box", f"ada@127.0.0.1:{closed_port}")

    assert done.returncode == 1
    assert "box was not saved" in done.stdout
    assert f"'box' (ada@127.0.0.1:{closed_port}) cannot be reached" in done.stdout
    assert f"ssh -p {closed_port} -l ada 127.0.0.1 echo ok" in done.stdout
    assert done.stderr == ""  # what it does meanwhile is said at a terminal alone
    assert "box" not in listed(run)


def test_a_host_is_kept_unchecked_replaced_and_changed(run: Run, tmp_path: Path):
    assert run("hosts", "add", "box", "ada@first", "--no-check").returncode == 0
    again = run("hosts", "add", "box", "bo@second", "--no-check")
    assert again.returncode == 2 and "--replace" in again.stderr
    assert run("hosts", "add", "box", "bo@second:2222", "--no-check", "--replace").returncode == 0
    assert run("hosts", "set", "box", "port=22", "judge_python=/opt/torch/bin/python", "user=").returncode == 0

    box = json.loads(run("hosts", "list", "--json").stdout)["hosts"]["box"]
    assert (box["host"], box["port"], box["judge_python"]) == ("second", 22, "/opt/torch/bin/python")
    assert "user" not in box


def test_a_python_that_cannot_be_started_or_checked_is_told_when_it_is_set(run: Run, closed_port: int, tmp_path: Path):
    assert run("hosts", "add", "box", f"127.0.0.1:{closed_port}", "--no-check").returncode == 0
    (there := tmp_path / "python").touch(0o755)
    faults = {str(tmp_path / "gone"): "does not exist", str(there): "does not start"}
    told = {path: run("hosts", "set", "local", f"judge_python={path}").stdout for path in faults}
    unchecked = json.loads(run("hosts", "set", "box", f"judge_python={there}", "--json").stdout)

    for path, fault in faults.items():
        assert f"(instead of judge_python {path}, which {fault}; " in " ".join(told[path].split())
    assert unchecked["judge"].startswith("judge_python was not checked: box: does not answer: ")
    assert unchecked["settings"]["judge_python"] == str(there)


def test_a_refused_change_leaves_the_settings_as_they_were(run: Run, closed_port: int, tmp_path: Path):
    run("hosts", "add", "box", "ada@first", "--no-check")
    file = tmp_path / "config" / "gpu-mcp-server" / "config.toml"
    before = file.read_text()

    assert run("hosts", "set", "box", "port=none").returncode == 2
    assert run("hosts", "set", "box", "prot=22").returncode == 2
    assert run("hosts", "set", "box", "port").returncode == 2
    told = " ".join(run("hosts", "set", "box", "roots=/opt/tools").stderr.split())
    assert told.endswith("""The settings stay as they were. A list is written as JSON: 'roots=["/opt/tools"]'.""")
    assert "There is no host 'bix'" in run("hosts", "set", "bix", "port=22").stderr
    assert run("hosts", "add", "box", f"127.0.0.1:{closed_port}", "--replace").returncode == 1
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("name", "host", "where", "line"),
    [
        ("gpu-box", SshHost(host="gpu-box"), "'gpu-box'", "ssh gpu-box echo ok"),
        ("box", SshHost(host="gpu-box"), "'box' (gpu-box)", "ssh gpu-box echo ok"),
        (
            "six",
            SshHost(host="::1", user="ada", port=22, identity_file=Path("/k y")),
            "'six' (ada@[::1]:22)",
            "ssh -i '/k y' -p 22 -l ada ::1 echo ok",
        ),
    ],
)
def test_errors_name_user_address_and_port(name: str, host: SshHost, where: str, line: str):
    address = SshBackend(name, host).address

    assert (address.where, address.try_line) == (where, line)


def test_a_job_s_row_has_command_user_age_duration_and_host():
    job = JobListing("j-1", "box", "run", "make -j4 all " * 9, "ada", "finished", "ok", "x", 7200.0, 0.0387)
    waits = JobListing("j-2", "local", "judge", "judge", None, "running", None, "x", 3.0, None)
    heading, first, second = jobs_table([job, waits]).splitlines()

    assert heading.split() == ["JOB", "COMMAND", "USER", "STATUS", "AGE", "TOOK", "HOST"]
    assert first.endswith("ada   ok       2 h  38.7 ms  box") and "…" in first
    assert second.split() == ["j-2", "judge", "-", "running", "3", "s", "-", "local"]


def test_run_takes_a_folder_along_and_its_job_is_listed_by_its_command(sandboxed: Run, tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hello.txt").write_text("from the folder\n")
    done = sandboxed("run", "--push", str(tmp_path / "work"), "--", "cat", "hello.txt")

    assert (done.returncode, done.stdout) == (0, "from the folder\n")
    assert "pull w-" in done.stderr and "copying" not in done.stderr  # stderr is no terminal
    (job,) = json.loads(sandboxed("jobs", "--json").stdout)["jobs"]
    assert (job["command"], job["status"], job["purpose"]) == ("cat hello.txt", "ok", "run")
    assert job["age_s"] >= job["duration_s"] > 0
    assert sandboxed("run", "--push", str(tmp_path / "gone"), "--", "true").returncode == 2


def test_a_detached_job_prints_its_id_alone_lasts_a_day_and_is_cancelled_in_one_line(sandboxed: Run):
    done = sandboxed("run", "--detach", "--", "sleep", "600")
    job_id = done.stdout.strip()
    try:
        assert (done.returncode, done.stdout) == (0, f"{job_id}\n") and job_id.startswith("j-")
        seen = json.loads(sandboxed("call", "job_status", "--args", json.dumps({"job_id": job_id}), "--json").stdout)
        assert seen["state"] in ("queued", "running")
    finally:
        ended = sandboxed("cancel", job_id)
    assert ended.stdout == f"{job_id}: finished cancelled\n"
