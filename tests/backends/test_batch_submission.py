"""The number of a job that was submitted through a site's wrapper of sbatch or qsub, which prints lines of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpu_mcp_server.backends import batch_jobs
from gpu_mcp_server.backends.batch import BatchBackend
from gpu_mcp_server.backends.batch_jobs import HostBatchJobs, Task
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.schedulers import LongJob, Pbs, Slurm
from gpu_mcp_server.errors import ConfigError, HostUnavailable, JobBroken
from gpu_mcp_server.models.job import BatchRequest
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import BatchHost, Settings
from tests.backends.slurm import SlurmCluster

REAL = "/usr/bin/sbatch"
WRAPPERS = {
    "before": f'echo; echo "*** Cluster of the site ***"; echo "2 checks passed"; {REAL} "$@"',
    "after": f'{REAL} "$@"; s=$?; [ $s != 0 ] || echo "NOTE: 42% of your budget is used."; exit $s',
    "number alone": f'echo 999999; {REAL} "$@"; s=$?; echo 4711; exit $s',
    "sentence": f'for a; do shift; [ "$a" = --parsable ] || set -- "$@" "$a"; done; {REAL} "$@"',
    "sentence in a banner": f'echo "You will see: Submitted batch job 12345"; {REAL} "$@"',
    "swallowed": f'{REAL} "$@" >/dev/null && echo "Your job is on its way. Have a nice day."',
    "silent": f'exec {REAL} "$@" >/dev/null',
    "fails later": f'{REAL} "$@" && echo "mail could not be sent" && exit 9',
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return what puts a program of a name before all others in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def put(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return put


@pytest.fixture
async def long_jobs(
    slurm: SlurmCluster, state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HostBatchJobs]:
    monkeypatch.setattr(batch_jobs, "LOOK_S", (0.1, 0.2))
    yield HostBatchJobs("site", BatchHost(gpus=0, queue_wait_s=60, state_dir=state_dir))
    for job in slurm.jobs():
        slurm.say("scancel", "--full", job.partition("|")[0])
    while slurm.jobs():
        await asyncio.sleep(0.05)


async def submitted(jobs: HostBatchJobs, lab: Lab, job: LongJob) -> str:
    box = jobs._host
    spec = lab.jobs.long.specification(BatchRequest.model_validate({"argv": ["sleep", "60"], "time_s": 60}), box, [])
    return await jobs.submit(spec, job, {})


@pytest.fixture
async def lab(tmp_path: Path, state_dir: str) -> AsyncIterator[Lab]:
    box = BatchHost(gpus=0, queue_wait_s=60, state_dir=state_dir)
    async with Lab.open(Settings(data_dir=tmp_path / "data", hosts={"site": box}, default_host="site")) as opened:
        yield opened


@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_an_allocation_is_found_whatever_the_wrapper_prints(
    slurm: SlurmCluster, program: Callable[[str, str], Path], wrapper: str
):
    program("sbatch", WRAPPERS[wrapper])
    backend = BatchBackend(f"site-{wrapper}", BatchHost(gpus=1, queue_wait_s=60))
    try:
        link = await HostdClient.open(backend)
        try:
            assert [f"{link.greeting['allocation']}|RUNNING"] == [j for j in slurm.jobs() if j.endswith("RUNNING")]
        finally:
            await link.close()
    finally:
        await backend.release()
        while slurm.jobs():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_a_long_job_has_its_number_and_can_be_cancelled_whatever_the_wrapper_prints(
    slurm: SlurmCluster, long_jobs: HostBatchJobs, lab: Lab, program: Callable[[str, str], Path], wrapper: str
):
    program("sbatch", WRAPPERS[wrapper])
    number = await submitted(long_jobs, lab, LongJob("gpu-mcp-0000aaaa"))
    (listed,) = slurm.jobs()
    assert number == listed.partition("|")[0]
    await long_jobs.cancel(Task("none", number, 0, 1))
    while slurm.jobs():
        await asyncio.sleep(0.05)


async def test_an_array_s_number_is_found_by_its_name(
    slurm: SlurmCluster, long_jobs: HostBatchJobs, lab: Lab, program: Callable[[str, str], Path]
):
    program("sbatch", WRAPPERS["silent"])
    number = await submitted(long_jobs, lab, LongJob("gpu-mcp-0000bbbb", array="0-2"))
    listed = slurm.say("squeue", "-h", "-o", "%F").split()
    assert number in listed and len(set(listed)) == 1


async def test_a_job_that_broke_off_on_its_way_is_looked_for_before_it_is_called_lost(
    slurm: SlurmCluster, long_jobs: HostBatchJobs, lab: Lab, program: Callable[[str, str], Path], state_dir: str
):
    box = long_jobs._host
    spec = lab.jobs.long.specification(BatchRequest.model_validate({"argv": ["sleep", "60"], "time_s": 60}), box, [])
    program("sbatch", f'{REAL} "$@" >/dev/null; kill -9 $PPID')
    number = await long_jobs.submit(spec, LongJob("gpu-mcp-0000cccc"), {})
    assert await long_jobs.submit(spec, LongJob("gpu-mcp-0000cccc"), {}) == number
    assert len(slurm.jobs()) == 1
    with pytest.raises(JobBroken, match="broke off"):
        await long_jobs.submit(spec, LongJob("gpu-mcp-0000dddd"), {})


async def test_an_answer_without_a_job_is_quoted_and_a_refusal_leaves_nothing(
    slurm: SlurmCluster, long_jobs: HostBatchJobs, lab: Lab, program: Callable[[str, str], Path], state_dir: str
):
    program("sbatch", 'cat >/dev/null; echo "Queued for approval as request 7."')
    for asking in (submitted(long_jobs, lab, LongJob("gpu-mcp-0000eeee")), BatchBackend("a", BatchHost()).open()):
        with pytest.raises(HostUnavailable, match="Queued for approval as request 7") as caught:
            await asking
        assert "no job number that is certain" in str(caught.value)
    program("sbatch", 'cat >/dev/null; echo "42"; echo "sbatch: error: no budget left" >&2; exit 1')
    before = sorted((Path(state_dir) / "batch").iterdir())
    with pytest.raises(ConfigError, match="no budget left"):
        await submitted(long_jobs, lab, LongJob("gpu-mcp-0000ffff"))
    assert sorted((Path(state_dir) / "batch").iterdir()) == before


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("7\n", "7"),
        ("7;cluster\n", "7"),
        ("\x1b[32m7\x1b[0m\r\n", "7"),
        ("Submitted batch job 7\n", "7"),
        ("Submitted batch job 7 on cluster big\n", "7"),
        ("hello\nSubmitted batch job 7\n42% used\n", "7"),
        ("Submitted batch job 5\nSubmitted batch job 7\n", ""),
        ("as in: Submitted batch job 5\n7\n", ""),
        ("12\n7\n", ""),
        ("hello\n7\n", ""),
        ("NOTE: 42 left\n", ""),
        ("7.5\n", ""),
        ("", ""),
    ],
)
def test_only_a_number_of_slurm_s_that_is_certain_counts(printed: str, number: str):
    assert Slurm().number(printed) == number


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("7.pbs01\n", "7.pbs01"),
        ("7.pbs01.site.org\n", "7.pbs01.site.org"),
        ("7[].pbs01\n", "7[].pbs01"),
        ("7\n", "7"),
        ("PBS 2022.1\n7.pbs01\n", ""),
        ("2022.1\n7.pbs01\n", ""),
        ("job 7.pbs01 was taken\n", ""),
        ("", ""),
    ],
)
def test_only_a_number_of_pbs_s_that_is_certain_counts(printed: str, number: str):
    assert Pbs().number(printed) == number


def test_what_slurm_refused_is_no_job_of_that_name():
    printed = "4|n|FAILED|\n5|n|FAILED|gpu1\n6|n|CANCELLED|\n7_2|n|RUNNING|gpu1\n7_[3-4]|n|PENDING|\n8|other|RUNNING|gpu1\n9\n"
    assert Slurm().numbers_of_name(printed, "n") == ["5", "6", "7"]
    assert Slurm().numbers_of_name("4|n|FAILED|None assigned\n", "n") == []


def test_of_several_jobs_of_the_name_the_one_that_the_answer_may_mean_is_taken_and_else_the_newest():
    slurm, pbs = (BatchBackend("a", BatchHost(kind=kind)) for kind in ("slurm", "pbs"))
    assert slurm.newest_match("99\n8;big\nnote\n", ["9", "8", "10"]) == "8"
    assert slurm.newest_match("99\n", ["9", "8", "10"]) == "10" and slurm.newest_match("99\n", []) == ""
    assert pbs.newest_match("hello\n8[].pbs.site.org\n", ["9.pbs", "8[].pbs"]) == "8[].pbs"


QSUB = """cat >/dev/null
echo 'Welcome to PBS 2022.1'
echo '1234'
echo '31.pbs.site.org'
echo 'Remember: the cluster is down on the 24.'"""
HELD = {"Job_Name": "gpu-mcp-0000000", "job_state": "Q", "comment": "Not Running"}


async def test_pbs_is_asked_for_the_name_when_qsub_speaks(program: Callable[[str, str], Path], tmp_path: Path):
    jobs = HostBatchJobs("site", BatchHost(kind="pbs", gpus=0, state_dir=str(tmp_path / "state")))
    others = {"30.pbs": {**HELD, "Job_Name": "other"}, "31.pbs": HELD}
    (tmp_path / "listed").write_text(f"Notice: maintenance\n{json.dumps({'Jobs': others}, indent=1)}\nBye\n")
    program("qsub", QSUB)
    program("qstat", f"cat {tmp_path}/listed")
    async with Lab.open(Settings(data_dir=tmp_path / "data")) as lab:
        number = await submitted(jobs, lab, LongJob("gpu-mcp-00000000"))
    assert number == "31.pbs"
    for named in ("31.pbs", "31.pbs.site.org"):
        state = await jobs.state(Task("none", named, 0, 1))
        assert state is not None and state.state.phase == "waits"
        assert "waits in the queue" in await jobs._backend.describe_allocation(named)
    program("qstat", "echo 'qstat: license expired'")
    with pytest.raises(HostUnavailable, match="license expired"):
        await BatchBackend("site", BatchHost(kind="pbs")).open()
