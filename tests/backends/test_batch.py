"""Batch systems: a real Slurm as it goes wrong, and both dialects on recorded shapes."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends import batch
from gpu_mcp_server.backends.batch import BatchBackend
from gpu_mcp_server.backends.contract.escapes import ATTEMPTS, try_escape
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.scheduler_states import PBS, SLURM, pbs_state, reason_in_words, slurm_state
from gpu_mcp_server.backends.schedulers import BatchJob, Pbs, Slurm, script
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostUnavailable, JobBroken, ToolMissing
from gpu_mcp_server.hostd.gpus.nvml import scheduler_gpus
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import BatchHost, Settings
from tests.backends.slurm import SlurmCluster
from tests.backends.sshd import Sshd
from tests.hostd.apptainers import PYTHON, account, surroundings
from tests.hostd.laboratory import processes_with, wrapped
from tests.laboratory import HONEST, PROBLEM


@pytest.fixture
async def given_back(slurm: SlurmCluster) -> AsyncIterator[list[BatchBackend]]:
    """Backends whose allocations are given back after the test."""
    backends: list[BatchBackend] = []
    yield backends
    for one in backends:
        await one.release()


async def refused(backend: BatchBackend) -> GpuMcpError:
    with pytest.raises(GpuMcpError) as caught:
        link = await HostdClient.open(backend)
        await link.close()
    return caught.value


async def gone(slurm: SlurmCluster, number: str) -> None:
    while any(job.startswith(f"{number}|") for job in slurm.jobs()):
        await asyncio.sleep(0.05)


async def test_servers_share_one_allocation_and_it_has_its_gpus(slurm: SlurmCluster, given_back: list[BatchBackend]):
    one, other = (BatchBackend("shared", BatchHost(gpus=2, queue_wait_s=60)) for _ in range(2))
    given_back.append(one)
    async with ContractHost(one) as first, ContractHost(other) as second:
        assert first.link.greeting["allocation"] == second.link.greeting["allocation"]
        spec = first.job("sh", "-c", "echo found", detached=True)
        await first.submit(spec)
        assert (await second.wait_for_end(spec.id)).stdout == b"found\n"
        shown = slurm.say("scontrol", "-d", "show", "job", first.link.greeting["allocation"])
    assert "GRES=gpu:h200:2(IDX:0-1)" in shown


async def test_an_idle_allocation_is_given_back_and_the_next_call_gets_another(
    slurm: SlurmCluster, given_back: list[BatchBackend]
):
    backend = BatchBackend("idle", BatchHost(gpus=1, idle_s=1.5, queue_wait_s=60))
    given_back.append(backend)
    async with ContractHost(backend) as host:
        number = host.link.greeting["allocation"]
        assert (await host.run("true")).record.status == "ok"
        await asyncio.wait_for(gone(slurm, number), 30)
        with pytest.raises(HostUnavailable, match=f"job {number} ended by itself"):
            await host.run("true")
    async with ContractHost(backend) as host:
        assert host.link.greeting["allocation"] != number
    assert not Path(f"/tmp/gpu-mcp-0-{number}").exists()


@pytest.mark.parametrize("kind", ["real", "stand-in"])
async def test_apptainer_confines_jobs_in_an_allocation_where_bubblewrap_cannot_work(
    slurm: SlurmCluster, given_back: list[BatchBackend], state_dir: str, kind: str
):
    uid, as_user = account()
    before, env = surroundings(kind, Path(state_dir))
    home = Path(state_dir) / "home"
    home.mkdir()
    os.chown(home, uid, uid)
    env |= {"HOME": str(home), "GPU_MCP_HOSTD_LEVEL": "apptainer"}
    python = wrapped(Path(state_dir) / "state", env, f"{before} {as_user}", PYTHON)
    given_back.append(BatchBackend(f"apptainer-{kind}", BatchHost(queue_wait_s=60, python=str(python))))
    async with ContractHost(given_back[-1]) as host:
        assert host.level == "apptainer", host.weaker_because
        done = await host.sh("id -u; env | grep -ci slurm; tr '\\0' '\\n' </proc/1/environ; ls /")
        assert done.record.level == "apptainer"
        assert done.record.weaker_because.startswith("Apptainer makes the sandboxes")
        assert done.text.split()[1] == "0" and "SLURM" not in done.text
        found = [await try_escape(host, a) for a in ATTEMPTS if a.row in (1, 2, 4, 8, 10, 17, 34, 35)]
        assert [(o.attempt.row, o.result) for o in found if o.result != "closed"] == []


async def test_an_allocation_that_is_taken_away_leaves_an_honest_record(slurm: SlurmCluster, tmp_path: Path):
    box = BatchHost(gpus=1, queue_wait_s=60, grace_s=30)
    settings = Settings(data_dir=tmp_path, hosts={"box": box}, default_host="box")
    async with Lab.open(settings) as lab:
        running = asyncio.create_task(lab.commands.run(["sh", "-c", "echo started; sleep 100"]))
        while not any(job.endswith("|RUNNING") for job in slurm.jobs()) or not await lab.commands.recent(1):
            await asyncio.sleep(0.05)
        number = (await lab.hosts.link("box")).greeting["allocation"]
        row = (await lab.commands.recent(1))[0]
        slurm.say("scancel", "--full", number)
        with pytest.raises(JobBroken) as broken:
            await running
        assert not [j for j in slurm.jobs() if j.endswith("|PENDING")], "asking for a lost job takes no new allocation"
        later = await lab.commands.status(row.job_id)
        assert later.status == "broken" and "not finished" in (later.note or "")
    assert "was cancelled" in str(broken.value) or "ended the job early" in str(broken.value)


async def test_a_verdict_whose_allocation_ends_meanwhile_comes_from_the_next_one(slurm: SlurmCluster, tmp_path: Path):
    box = BatchHost(gpus=0, queue_wait_s=60, grace_s=30, judge_python=sys.executable)
    async with Lab.open(Settings(data_dir=tmp_path, hosts={"box": box}, default_host="box")) as lab:
        tensors = {key: [TensorSpec(**t) for t in PROBLEM[key]] for key in ("inputs", "outputs")}
        problem = (await lab.evaluation.registry.register(**{**PROBLEM, **tensors})).problem_id
        taken: list[str] = []

        async def progress(said: str) -> None:
            if "judging, job" in said:
                taken.append((await lab.hosts.link("box")).greeting["allocation"])
            elif len(taken) == 1:
                slurm.say("scancel", "--full", taken[0])

        verdict = await lab.evaluation.evaluator.evaluate(
            problem, CandidateSource(HONEST, "c", "twice.c"), progress=progress
        )
        again = (await lab.hosts.link("box")).greeting["allocation"]
        shown = await lab.store.experience.list("recent", problem_id=problem)
        await BatchBackend("box", box).release()
    assert verdict.verdict == "correct" and again != taken[0], verdict
    assert "judged again from the beginning, as its allocation ended" in (verdict.note or "")
    assert [a.verdict for a in shown.attempts] == ["correct"]


async def test_a_job_that_is_killed_at_the_allocation_s_memory_says_whose_limit_it_was(
    slurm: SlurmCluster, given_back: list[BatchBackend]
):
    backend = BatchBackend("small", BatchHost(gpus=0, memory="300M", queue_wait_s=60))
    given_back.append(backend)
    hog = "kept = []\nfor n in range(100):\n    kept.append(bytearray(b'x') * (10 << 20))\nprint('it has a gigabyte')"
    async with ContractHost(backend) as host:
        if "ConstrainRAMSpace=no" in (slurm.base / "cgroup.conf").read_text():
            pytest.skip("no control groups here that Slurm could limit memory by")
        number = host.link.greeting["allocation"]
        done = await host.run("python3", "-c", hog, limits={"memory_bytes": 4 << 30})
        assert (await host.run("true")).record.status == "ok"
    assert done.record.status == "oom" and not done.stdout
    assert "below its own limit of 4294967296" in done.record.note
    assert f"the memory of allocation {number}; raise `memory` of this host" in done.record.note


async def test_a_job_whose_allocation_comes_to_its_time_limit_says_so(slurm: SlurmCluster, tmp_path: Path):
    settings = Settings(data_dir=tmp_path, hosts={"box": BatchHost(gpus=1, queue_wait_s=60)}, default_host="box")
    async with Lab.open(settings) as lab:
        number = (await lab.hosts.link("box")).greeting["allocation"]
        running = asyncio.create_task(lab.commands.run(["sleep", "300"], timeout_s=600))
        while not await lab.commands.recent(1):
            await asyncio.sleep(0.05)
        slurm.say("scontrol", "update", f"JobId={number}", "EndTime=now+2seconds")
        with pytest.raises(JobBroken, match=f"Slurm job {number} reached its time limit. Raise time_s of this host"):
            await running
        (row,) = await lab.commands.recent(1)
        assert (row.state, row.status) == ("finished", "broken")
        await BatchBackend("box", settings.hosts["box"]).release()


async def test_nothing_of_a_job_outlives_its_allocation(slurm: SlurmCluster):
    backend = BatchBackend("taken", BatchHost(gpus=0, queue_wait_s=60))
    marker = "sleep 7" + secrets.token_hex(4).translate(str.maketrans("abcdef", "123456"))
    async with ContractHost(backend) as host:
        spec = host.job("sh", "-c", f"trap '' TERM; setsid {marker} & echo started; {marker}", detached=True)
        await host.submit(spec)
        await host.wait_for_output(spec.id)
        assert processes_with(marker.replace(" ", "\0"))
        slurm.say("scancel", host.link.greeting["allocation"])
        async with asyncio.timeout(30):
            while processes_with(marker.replace(" ", "\0")):
                await asyncio.sleep(0.02)
    await backend.release()


async def test_why_it_waits_is_said_and_it_keeps_its_place(slurm: SlurmCluster, given_back: list[BatchBackend]):
    holder = BatchBackend("holder", BatchHost(gpus=2, nodes=2, queue_wait_s=60))
    waiter = BatchBackend("waiter", BatchHost(gpus=2, nodes=2, queue_wait_s=1))
    given_back += [waiter, holder]
    async with ContractHost(holder):
        error = await refused(waiter)
        assert isinstance(error, HostUnavailable) and error.retryable
        assert "waits in the queue of Slurm as job" in str(error) and "keeps its place" in str(error)
        pending = [j for j in slurm.jobs() if j.endswith("|PENDING")]
        assert len(pending) == 1
        await refused(waiter)
        assert [j for j in slurm.jobs() if j.endswith("|PENDING")] == pending


async def test_who_gives_up_waiting_leaves_nothing_in_the_queue(slurm: SlurmCluster, given_back: list[BatchBackend]):
    holder = BatchBackend("holder", BatchHost(gpus=2, nodes=2, queue_wait_s=60))
    given_back.append(holder)
    async with ContractHost(holder):
        opening = asyncio.create_task(HostdClient.open(BatchBackend("impatient", BatchHost(gpus=2, nodes=2))))
        while not any(j.endswith("|PENDING") for j in slurm.jobs()):
            await asyncio.sleep(0.05)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not [j for j in slurm.jobs() if j.endswith("|PENDING")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partition": "nowhere"}, "invalid partition"),
        ({"gpus": 9}, "not available"),
        ({"gpu_type": "b900"}, "not available"),
        ({"constraint": "nofeature"}, "feature"),
        ({"time_s": 7200, "gpus": 1}, ""),
    ],
)
async def test_what_slurm_refuses_is_said_in_its_words(slurm: SlurmCluster, changes: dict[str, object], words: str):
    backend = BatchBackend("wrong", BatchHost.model_validate({"queue_wait_s": 1, "max_gpu_hours": 100, **changes}))
    error = await refused(backend)
    await backend.release()

    assert isinstance(error, ConfigError if words else HostUnavailable)
    assert words in str(error).lower() and "'wrong'" in str(error)


async def test_a_controller_that_is_down_holds_nobody_up(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "COMMAND_S", 2.0)
    controller = slurm.processes["slurmctld"]
    controller.send_signal(signal.SIGSTOP)
    try:
        error = await refused(BatchBackend("down", BatchHost()))
    finally:
        controller.send_signal(signal.SIGCONT)

    assert isinstance(error, HostUnavailable) and error.retryable
    assert "did not answer within 2 s" in str(error) and "Slurm may be down" in str(error)
    assert slurm._comes(lambda: bool(slurm.say("sinfo", "-h")))


@pytest.mark.parametrize("kind", ["ssh", "openssh"])
async def test_a_cluster_is_used_over_ssh_to_its_login_node(
    slurm: SlurmCluster, start_sshd, given_back: list[BatchBackend], monkeypatch: pytest.MonkeyPatch, kind: str
):
    login: Sshd = start_sshd(f"SetEnv SLURM_CONF={slurm.config}")
    monkeypatch.setenv("SLURM_CONF", "/nowhere")
    settings = login.settings() if kind == "ssh" else login.openssh()
    backend = BatchBackend("far", BatchHost(login=settings, queue_wait_s=60))
    given_back.append(backend)
    async with ContractHost(backend) as host:
        data = bytes(range(256)) * 100
        assert (await host.run("cat", "x", files={"x": data})).stdout == data


async def test_without_slurm_here_the_login_node_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    error = await refused(BatchBackend("none", BatchHost()))
    assert isinstance(error, ToolMissing) and "login" in str(error)


def test_an_allocation_may_not_cost_more_than_was_allowed():
    with pytest.raises(ValueError, match="could cost 32 GPU hours"):
        BatchHost(gpus=8, nodes=4)
    assert BatchHost(gpus=8, nodes=4, max_gpu_hours=32)


def test_options_become_sbatch_s():
    host = BatchHost(partition="gpu", account="a1", qos="short", gpus=4, gpu_type="h200", time_s=5400, memory="64G", cpus=8,
                     constraint="x&y", lines=["--exclusive"], nodes=2, max_gpu_hours=99)  # fmt: skip
    words = Slurm().submit(host, "name")
    assert {"--partition=gpu", "--account=a1", "--qos=short", "--gres=gpu:h200:4", "--time=01:30:00", "--mem=64G", "--nodes=2",
            "--cpus-per-task=8", "--constraint=x&y", "--exclusive", "--job-name=name", "--no-requeue"} <= set(words)  # fmt: skip
    assert Slurm().number("123;cluster\n") == "123"
    assert "module load cuda/13.0 || exit 3\nexec python gate" in script(
        BatchHost(modules=["cuda/13.0"]), ["python", "gate"], ""
    )


def test_slurm_s_listings_are_read():
    printed = "12|PENDING|(Resources)|n/a\n13|RUNNING|None|gpu1\n\nnoise\n"
    waits, runs = Slurm().jobs(printed, "")
    assert (waits.state.phase, runs.state.phase, runs.node) == ("waits", "runs", "gpu1")
    assert waits.reason == "Resources: nothing that fits is free"
    shown = "JobId=12 JobName=x UserId=u(1) JobState=TIMEOUT Reason=TimeLimit Dependency=(null)"
    assert "time limit" in Slurm().parse_ended_job(shown, "12").state.words
    assert (
        Slurm().parse_ended_job("JobID|State|NodeList\n12|CANCELLED by 1000|gpu1\n", "12").state.words
        == "was cancelled"
    )
    assert Slurm().parse_ended_job("", "12") is None


def test_every_state_has_a_phase_and_words_and_an_unknown_one_is_named():
    assert all(s.phase in ("waits", "runs", "ends", "ended") and s.words for s in [*SLURM.values(), *PBS.values()])
    assert slurm_state("CANCELLED by 0").phase == slurm_state("COMPLETED+").phase == "ended"
    assert "NEW_STATE" in slurm_state("NEW_STATE").words and "'?'" in pbs_state("?").words
    assert reason_in_words("(QOSMaxGRESPerUser)").startswith("QOSMaxGRESPerUser: you hold as many")
    assert reason_in_words("") == "None: Slurm has not looked at it yet"


def test_pbs_is_spoken_as_it_was_recorded():
    host = BatchHost(
        kind="pbs", partition="debug", account="PROJ", gpus=4, cpus=8, time_s=1800, lines=["-l filesystems=home:eagle"]
    )
    words = Pbs().submit(host, "gpu-mcp-0123456789")
    assert words[words.index("-N") + 1] == "gpu-mcp-0123456"
    assert "select=1:ncpus=8:ngpus=4" in words and "walltime=00:30:00" in words and "filesystems=home:eagle" in words
    listed = {"Jobs": {
        "7.pbs": {"Job_Name": "gpu-mcp-0123456", "job_state": "R", "exec_vnode": "(x3001c0s1b0n0:ncpus=1:ngpus=1)"},
        "8.pbs": {"Job_Name": "gpu-mcp-0123456", "job_state": "Q", "comment": "Not Running: Insufficient amount of resource: ngpus"},
        "9.pbs": {"Job_Name": "other", "job_state": "R"},
    }}  # fmt: skip
    runs, waits = Pbs().jobs(json.dumps(listed), "gpu-mcp-0123456789")
    assert (runs.number, runs.state.phase, runs.node) == ("7.pbs", "runs", "x3001c0s1b0n0")
    assert waits.state.phase == "waits" and "Insufficient" in waits.reason
    over = {"Jobs": {"7.pbs": {"job_state": "F", "Exit_status": -29}}}
    assert Pbs().parse_ended_job(json.dumps(over), "7.pbs").state.words == "reached its time limit"
    ends = {0: "by itself", 5: "status 5", -27: "its memory", -26: "virtual memory", 271: "cancelled", 265: "signal 9"}
    for status, words in ends.items():
        shown = {"Jobs": {"7.pbs": {"job_state": "F", "Exit_status": status}}}
        assert words in Pbs().parse_ended_job(json.dumps(shown), "7.pbs").state.words
    assert Pbs().jobs("", "x") == []
    entered = Pbs().enter(BatchJob("7.pbs", pbs_state("R"), node="n1"), ["/bin/sh", "-c", "a b"])
    assert entered[-2:] == ["n1", "env PBS_JOBID=7.pbs /bin/sh -c 'a b'"]


def test_only_the_scheduler_s_gpus_are_ours_inside_its_job():
    gpus = [{"index": i, "minor": i, "uuid": f"GPU-{i}"} for i in range(4)]
    inside = {"SLURM_JOB_ID": "1", "SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert [g["minor"] for g in scheduler_gpus(gpus, inside)] == [2, 3]
    assert scheduler_gpus(gpus, {}) == gpus
    confined = [{"index": 0, "minor": 2, "uuid": "GPU-2"}]
    assert scheduler_gpus(confined, {"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "2"}) == confined
    assert scheduler_gpus(gpus, {"SLURM_JOB_ID": "1", "SLURM_CLUSTER_NAME": "lab"}) == []
