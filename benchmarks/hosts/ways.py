"""Cost of each way to a host, beside its yardstick in one run: `python benchmarks/hosts/ways.py [--json PATH]`.

A job is a sandboxed `true`, submitted, run and read by the one path that all tools take; the time of an empty
program is in it. Real sshd, dockerd and Slurm on this machine, started and ended here; what is missing is left out and
said. Distance is a proxy with 50 ms to and fro, because kernels without netem have no other.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import asyncssh  # noqa: E402
from line import SlowLine  # noqa: E402

from gpu_mcp_server.backends.contract.host import job, sha256  # noqa: E402
from gpu_mcp_server.services.jobs.job_runner import JobRunner  # noqa: E402
from gpu_mcp_server.services.lab import Lab  # noqa: E402
from gpu_mcp_server.settings.server_settings import BatchHost, LocalHost, Settings  # noqa: E402
from tests.backends.dockerd import DOCKERD, Dockerd  # noqa: E402
from tests.backends.slurm import SlurmCluster, missing  # noqa: E402
from tests.backends.sshd import SSHD, Sshd  # noqa: E402

FAR_S = 0.05
FILES, FILE_BYTES, LARGE_BYTES = 1000, 2000, 100_000_000
Row = dict[str, Any]


async def timed(work: Callable[[], Awaitable[Any]], count: int, space_s: float = 0.0) -> list[float]:
    """Return seconds of each of `count` calls, after one that does not count."""
    await work()
    took: list[float] = []
    for _ in range(count):
        await asyncio.sleep(space_s)
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
    return took


def row(what: str, took: list[float], goal: str = "") -> Row:
    ordered = sorted(took)
    return {
        "what": what, "n": len(took), "p50_ms": 1000 * statistics.median(took),
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], "goal": goal,
    }  # fmt: skip


async def command(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if await process.wait():
        raise RuntimeError(f"{words[0]} failed")


async def one_job(jobs: JobRunner, host: str) -> None:
    done = await jobs.run(job("true"), host=host)
    assert done.record.status == "ok", done


async def near(lab: Lab, hosts: dict[str, str], count: int) -> list[Row]:
    """Jobs on every host, cold where no sandbox waits and warm where one does."""
    rows: list[Row] = []
    for host, goal in hosts.items():
        rows.append(
            row(
                f"job on {host}, one after the other",
                await timed(lambda h=host: one_job(lab.jobs.runner, h), count),
                goal,
            )
        )
        spaced = await timed(lambda h=host: one_job(lab.jobs.runner, h), count // 2, 0.3)
        rows.append(row(f"job on {host}, a third of a second apart", spaced))
    return rows


async def yardsticks(sshd: Sshd, docker: Dockerd | None, slurm: SlurmCluster | None, count: int) -> list[Row]:
    """The same `true` without us."""
    box = sshd.settings()
    rows = [row("raw exec", await timed(lambda: command("true"), count))]
    options = {
        "port": sshd.port,
        "client_keys": [str(sshd.user_key)],
        "known_hosts": str(sshd.known_hosts),
        "config": [],
    }
    async with asyncssh.connect("127.0.0.1", **options) as connection:
        rows.append(row("raw asyncssh exec, connection kept", await timed(lambda: connection.run("true"), count)))
    ssh = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-p", str(sshd.port), "-i", str(sshd.user_key)]
    ssh += ["-o", f"UserKnownHostsFile={box.known_hosts}", "-o", "IdentitiesOnly=yes"]
    rows.append(row("ssh for each command", await timed(lambda: command(*ssh, "127.0.0.1", "true"), count // 5)))
    control = ["-o", f"ControlPath={sshd.folder}/c"]
    await command(*ssh, *control, "-M", "-f", "-N", "127.0.0.1")
    rows.append(row("ssh over ControlMaster", await timed(lambda: command(*ssh, *control, "127.0.0.1", "true"), count)))
    await command(*ssh, *control, "-O", "exit", "127.0.0.1")
    if docker is not None:
        binds = [w for b in docker.settings().mounts for w in ("-v", f"{b}:{b}:ro")]
        words = [
            "docker",
            "-H",
            docker.url,
            "run",
            "--rm",
            "--network",
            "none",
            *binds,
            docker.settings().image,
            "/bin/true",
        ]
        rows.append(row("docker run", await timed(lambda: command(*words), count // 5)))
    if slurm is not None:
        rows.append(row("srun", await timed(lambda: command("srun", "--gres=gpu:1", "true"), count // 5)))
        wait = ["sbatch", "--wait", "--output=/dev/null", "--wrap=true"]
        rows.append(row("sbatch --wait", await timed(lambda: command(*wait), 5)))
    return rows


def _written(folder: str, content: bytes) -> Path:
    source = Path(folder, "large")
    source.write_bytes(content)
    return source


def _folders() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ways-", dir="/var/tmp"))
    folder.chmod(0o711)
    (folder / "sshd").mkdir()
    return folder


async def transfers(lab: Lab, sshd: Sshd, line: SlowLine) -> list[Row]:
    """Files over the far line, and SFTP over the same."""
    goal = 1000 * (1.5 * FAR_S + 0.03)
    rows = [row("job on far", await timed(lambda: one_job(lab.jobs.runner, "far"), 20), f"<= {goal:.0f} ms")]
    small = {f"d{n % 10}/f{n}": os.urandom(8).hex().encode() * (FILE_BYTES // 16) for n in range(FILES)}
    blobs = {sha256(d): d for d in small.values()}

    async def with_files() -> None:
        assert (await lab.jobs.runner.run(job("true", files=small), host="far", blobs=blobs)).record.status == "ok"

    began = time.perf_counter()
    await with_files()
    rows.append(row(f"{FILES} new files of 2 kB and a job on far", [time.perf_counter() - began], "<= 1000 ms"))
    rows.append(row("the same, nothing changed", await timed(with_files, 20, 0.3), "1 round trip"))
    small |= {name: os.urandom(FILE_BYTES) for name in list(small)[:5]}
    blobs |= {sha256(d): d for d in small.values()}
    began = time.perf_counter()
    await with_files()
    rows.append(row("the same, five files changed", [time.perf_counter() - began], "1 round trip"))
    large = os.urandom(LARGE_BYTES)
    spec = job("true", files={"large": large})
    began = time.perf_counter()
    await lab.jobs.runner.run(spec, host="far", blobs={sha256(large): large})
    ours = time.perf_counter() - began
    options = {"port": line.port, "client_keys": [str(sshd.user_key)], "known_hosts": None, "config": []}
    with tempfile.TemporaryDirectory() as folder:
        source = _written(folder, large)
        async with asyncssh.connect("127.0.0.1", **options) as connection, connection.start_sftp_client() as sftp:
            began = time.perf_counter()
            await sftp.put(str(source), f"{folder}/there")
            theirs = time.perf_counter() - began
    rows += [
        row("100 MB and a job on far", [ours], f"<= {1300 * theirs:.0f} ms"),
        row("100 MB by SFTP on far", [theirs]),
    ]
    began = time.perf_counter()
    await asyncio.gather(*(one_job(lab.jobs.runner, "ssh") for _ in range(50)))
    return [*rows, row("50 jobs at once on ssh (MaxSessions 10)", [time.perf_counter() - began], "none fails")]


async def measure(count: int) -> tuple[list[Row], list[str]]:
    """Start everything, measure, end everything."""
    left_out: list[str] = []
    async with AsyncExitStack() as stack:
        folder = _folders()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        sshd = Sshd(folder / "sshd", "Subsystem sftp internal-sftp")
        stack.callback(sshd.stop)
        line = await stack.enter_async_context(SlowLine(sshd.port, FAR_S))
        sshd.known_hosts.write_text(sshd.known_line() + sshd.known_line().replace(f":{sshd.port} ", f":{line.port} "))
        hosts: dict[str, Any] = {
            "local": LocalHost(state_dir=f"{folder}/local"), "ssh": sshd.settings(state_dir=f"{folder}/ssh"),
            "openssh": sshd.openssh(state_dir=f"{folder}/openssh"),
            "far": sshd.settings(port=line.port, state_dir=f"{folder}/far"),
        }  # fmt: skip
        near_hosts = {"local": "25/60, warm 6/12", "ssh": "30/70", "openssh": ""}
        docker = slurm = None
        if DOCKERD and os.geteuid() == 0:
            docker = Dockerd()
            stack.callback(docker.stop)
            if why := docker.started():
                docker, left_out = None, [f"docker: {why}"]
            else:
                hosts["docker"], near_hosts["docker"] = docker.settings(), ""
        if not missing() and os.geteuid() == 0:
            slurm = SlurmCluster()
            stack.callback(slurm.stop)
            os.environ["SLURM_CONF"] = str(slurm.config)
            if why := slurm.start():
                slurm, left_out = None, [*left_out, f"slurm: {why}"]
            else:
                hosts["slurm"], near_hosts["slurm"] = BatchHost(queue_wait_s=60), "30/100"
        lab = await stack.enter_async_context(Lab.open(Settings(data_dir=folder / "data", hosts=hosts)))
        rows = await near(lab, near_hosts, count)
        rows += await yardsticks(sshd, docker, slurm, count)
        return rows + await transfers(lab, sshd, line), left_out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    if not SSHD:
        sys.exit("no sshd here: apt-get install openssh-server")
    rows, left_out = asyncio.run(measure(arguments.count))
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}"
    )
    print("| what | n | p50 ms | p99 ms | goal |\n| --- | --- | --- | --- | --- |")
    for one in rows:
        print(f"| {one['what']} | {one['n']} | {one['p50_ms']:.1f} | {one['p99_ms']:.1f} | {one['goal']} |")
    print("".join(f"\nleft out: {why}" for why in left_out))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
