"""Long jobs: sbatch's own, of one node and several, as they end and as they are ended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends import batch_jobs
from gpu_mcp_server.backends.batch_jobs import HostBatchJobs
from gpu_mcp_server.backends.schedulers import LongJob, Pbs, Slurm, long_script
from gpu_mcp_server.errors import BadRequest, ConfigError
from gpu_mcp_server.hostd.jobs import batch_task
from gpu_mcp_server.models.job import BatchRequest, JobResult
from gpu_mcp_server.services.jobs.batch_jobs import indices
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import BatchHost, Settings
from tests.backends.slurm import SlurmCluster


@pytest.fixture
async def lab(
    slurm: SlurmCluster, tmp_path: Path, state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lab]:
    monkeypatch.setattr(batch_jobs, "LOOK_S", (0.1, 0.2))
    box = BatchHost(gpus=0, queue_wait_s=60, state_dir=state_dir, ranks_network=True)
    async with Lab.open(Settings(data_dir=tmp_path, hosts={"box": box}, default_host="box")) as opened:
        yield opened


async def ended(lab: Lab, job_id: str) -> JobResult:
    async with asyncio.timeout(60):
        while (result := await lab.commands.status(job_id, wait_s=20)).state != "finished":
            pass
    return result


def request(*argv: str, **more: object) -> BatchRequest:
    return BatchRequest.model_validate({"argv": argv, "time_s": 60, **more})


async def test_a_long_job_needs_no_server_and_its_files_come_back(lab: Lab, slurm: SlurmCluster):
    workspace = (await lab.store.workspaces.write(None, {"in.txt": "six"})).workspace_id
    program = "cat in.txt > out.txt; echo said; echo wrong >&2; exit 3"
    submitted = await lab.jobs.long.submit(request("sh", "-c", program, workspace_id=workspace))
    await lab.hosts.close()
    async with Lab.open(lab.settings) as later:
        result = await ended(later, submitted.job_ids[0])
        assert (result.status, result.exit_code, result.stdout, result.stderr) == ("failed", 3, "said\n", "wrong\n")
        assert [o.path for o in result.outputs] == ["out.txt"]
        again = await later.commands.status(submitted.job_ids[0])
        assert again.stdout == "said\n" and again.status == "failed"


async def test_an_array_is_a_job_for_each_index(lab: Lab):
    submitted = await lab.jobs.long.submit(request("sh", "-c", "echo $ARRAY_TASK; exit $ARRAY_TASK", array="0-1,4"))
    results = [await ended(lab, job_id) for job_id in submitted.job_ids]
    assert [(r.stdout, r.exit_code) for r in results] == [("0\n", 0), ("1\n", 1), ("4\n", 4)]
    assert len({r.job_id for r in results}) == 3


TALK = """
import os, socket
rank, size, port = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("127.0.0.1", port)) as server:
        said = [server.accept()[0].recv(9).decode() for _ in range(size - 1)]
    print("heard", *sorted(said))
else:
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 20) as end:
                end.sendall(b"%d" % rank)
            break
        except ConnectionRefusedError:
            pass
open("me", "w").write(str(rank))
"""


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
async def test_ranks_of_several_nodes_talk_and_each_leaves_its_files(lab: Lab, launcher: str):
    asked = request("python3", "-c", TALK, nodes=2, tasks_per_node=2, launcher=launcher, outputs=["me"])
    submitted = await lab.jobs.long.submit(asked)
    result = await ended(lab, submitted.job_ids[0])
    assert (result.status, result.stdout) == ("ok", "heard 1 2 3\n"), result.note
    assert sorted(o.path for o in result.outputs) == ["me", "rank-1/me", "rank-2/me", "rank-3/me"]
    assert submitted.note and "network" in submitted.note


async def test_a_rank_that_fails_is_named(lab: Lab):
    submitted = await lab.jobs.long.submit(request("sh", "-c", "echo of $RANK; exit $((RANK * 7))", nodes=2))
    result = await ended(lab, submitted.job_ids[0])
    assert (result.status, result.exit_code, result.stdout) == ("failed", 7, "of 0\n")
    assert "rank 1: failed with exit code 7" in (result.note or "")


async def test_it_is_cancelled_as_any_job(lab: Lab, slurm: SlurmCluster):
    submitted = await lab.jobs.long.submit(request("sh", "-c", "echo up; sleep 1000"))
    job_id = submitted.job_ids[0]
    while (await lab.commands.status(job_id)).stdout != "up\n":
        await asyncio.sleep(0.05)
    await lab.jobs.runner.cancel(job_id, "box")
    assert (await ended(lab, job_id)).status == "cancelled"
    assert not any(job.startswith(submitted.number) and job.endswith("|RUNNING") for job in slurm.jobs())


async def test_what_the_scheduler_takes_away_was_not_finished(lab: Lab, slurm: SlurmCluster):
    submitted = await lab.jobs.long.submit(request("sh", "-c", "trap '' TERM; echo up; sleep 1000"))
    job_id = submitted.job_ids[0]
    while (await lab.commands.status(job_id)).stdout != "up\n":
        await asyncio.sleep(0.05)
    slurm.say("scancel", submitted.number)
    result = await ended(lab, job_id)
    assert result.status == "broken" and "not finished" in (result.note or "")
    assert result.stdout == "up\n", "what it wrote until then is kept"


async def test_what_slurm_refuses_leaves_nothing_and_what_costs_too_much_is_not_asked(lab: Lab, state_dir: str):
    with pytest.raises(ConfigError, match="not available"):
        await lab.jobs.long.submit(request("true", gpus=9))
    assert not list((Path(state_dir) / "batch").iterdir())
    with pytest.raises(BadRequest, match="could cost 32 GPU hours"):
        await lab.jobs.long.submit(request("true", gpus=2, time_s=3600, array="0-15"))


async def test_a_submit_that_is_sent_twice_is_one_job(lab: Lab, slurm: SlurmCluster):
    box = lab.settings.hosts["box"]
    assert isinstance(box, BatchHost)
    spec = lab.jobs.long.specification(request("true"), box, [])
    jobs = HostBatchJobs("box", box)
    first, second = [await jobs.submit(spec, LongJob("twice"), {}) for _ in range(2)]
    assert first == second


def test_indices_are_read():
    assert indices("") == [] and indices("0-2,7") == [0, 1, 2, 7]
    for wrong in ("x", "3-1", "1,1", "0-5000", "-1"):
        with pytest.raises(BadRequest):
            indices(wrong)


def test_a_task_learns_who_it_is_from_whoever_started_it():
    slurm = {"SLURM_ARRAY_TASK_ID": "4", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "0"}
    assert batch_task.task_folder(slurm) == (
        "4.2",
        {"ARRAY_TASK": "4", "RANK": "2", "WORLD_SIZE": "8", "LOCAL_RANK": "0"},
    )
    name, env = batch_task.task_folder({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
    assert (name, env["RANK"], env["WORLD_SIZE"]) == ("0.3", "3", "4")


def test_a_long_job_becomes_the_scheduler_s_options():
    host = BatchHost(partition="gpu", account="a1", gpus=4, nodes=2, cpus=8, modules=["cuda/13"], lines=["--exclusive"])
    job = LongJob("name", "0-7", 4)
    words = Slurm().submit_long(host, job)
    assert {"--partition=gpu", "--account=a1", "--nodes=2", "--array=0-7", "--exclusive", "--gres=gpu:4"} <= set(words)
    assert words[-1] == "script" and words.index("--ntasks-per-node=4") > words.index("--ntasks-per-node=1")
    text = long_script(host, Slurm().launch(host, job), ["python3"], "hostd.pyz")
    assert "module load cuda/13 || exit 3" in text and "srun --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8" in text
    assert "--map-by ppr:4:node" in Slurm().launch(host, LongJob("n", "", 4, "mpirun"))
    assert Slurm().element("12", 3) == "12_3"
    pbs = Pbs().submit_long(BatchHost(kind="pbs"), job)
    assert pbs[pbs.index("-J") + 1] == "0-7" and pbs[-1] == "script" and Pbs().element("7[].pbs", 3) == "7[3].pbs"
