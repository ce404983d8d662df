"""A real Slurm cluster of several nodes with GPUs that are only device nodes, all on this machine."""

import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

SBIN = "/usr/sbin:/usr/bin:/usr/local/sbin:/sbin"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
START_S = 40.0
NVIDIA_MAJOR = 195


def missing() -> list[str]:
    return [name for name in PROGRAMS if not shutil.which(name, path=SBIN)]


class SlurmCluster:
    """Munge, a controller and one slurmd for each node, as children of ours in the foreground."""

    def __init__(self, nodes: int = 2, gpus: int = 2, *, node: str = "gpu", more: Sequence[str] = ()) -> None:
        """Lay out a cluster.

        Args:
            nodes: How many there are.
            gpus: Of each.
            node: How their names begin: control groups are named after them, for all clusters of the machine.
            more: Lines of slurm.conf in place of ours of the same name; `{base}` is the cluster's folder.
        """
        self.base = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
        self.base.chmod(0o755)
        self.nodes, self.gpus, self.node, self.more = nodes, gpus, node, more
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("log", "state", "dev", "munge", "socket"):
            (self.base / name).mkdir()
        (self.base / "munge").chmod(0o700)
        key = self.base / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        self.config = self.base / "slurm.conf"
        self._write()

    def _write(self) -> None:
        ports = _free_ports(self.nodes + 1)
        host = socket.gethostname().partition(".")[0]
        cores, memory = (os.cpu_count() or 1) * 8, 16_000
        grouped = os.access("/sys/fs/cgroup/freezer", os.W_OK)
        lines = [
            "ClusterName=lab", f"SlurmctldHost={host}(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge",
            f"AuthInfo=socket={self.base}/socket/munge", f"SlurmctldPort={ports[0]}", f"StateSaveLocation={self.base}/state/ctld",
            f"SlurmdSpoolDir={self.base}/state/%n", f"SlurmctldPidFile={self.base}/ctld.pid", f"SlurmdPidFile={self.base}/%n.pid",
            f"ProctrackType=proctrack/{'cgroup' if grouped else 'linuxproc'}", f"TaskPlugin=task/{'cgroup' if grouped else 'none'}",
            "MpiDefault=none", "ReturnToService=2", "SwitchType=switch/none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory", "GresTypes=gpu", "DefMemPerNode=6000", "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_min_interval=10000,batch_sched_delay=0,bf_interval=1", "KillWait=2", "InactiveLimit=0",
            "AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none", "OverTimeLimit=0",
            "SlurmdParameters=config_overrides",
        ]  # fmt: skip
        gres = []
        for n in range(1, self.nodes + 1):
            (self.base / "state" / f"{self.node}{n}").mkdir()
            for g in range(self.gpus):
                node = self.base / "dev" / f"n{n}_nvidia{g}"
                os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, 100 + n * 16 + g))
                node.chmod(0o666)
            lines.append(
                f"NodeName={self.node}{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[n]} CPUs={cores} Boards=1 SocketsPerBoard=1 "
                f"CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={memory} Gres=gpu:h200:{self.gpus} State=UNKNOWN"
            )
            gres.append(
                f"NodeName={self.node}{n} Name=gpu Type=h200 File={self.base}/dev/n{n}_nvidia[0-{self.gpus - 1}]"
            )
        (self.base / "state" / "ctld").mkdir()
        lines.append(f"PartitionName=gpu Nodes={self.node}[1-{self.nodes}] Default=YES MaxTime=01:00:00 State=UP")
        replaced = {line.partition("=")[0] for line in self.more}
        kept = [line for line in lines if line.partition("=")[0] not in replaced]
        self.config.write_text("\n".join([*kept, *(line.format(base=self.base) for line in self.more)]) + "\n")
        (self.base / "gres.conf").write_text("\n".join(gres) + "\n")
        confine = "yes" if grouped else "no"
        (self.base / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainDevices={confine}\nConstrainRAMSpace={confine}\nConstrainCores=no\n"
        )

    def start(self) -> str:
        """Start it; return why it does not come up."""
        munge = self.base / "munge"
        self._run("munged", "--foreground", f"--key-file={munge}/key", f"--socket={self.base}/socket/munge", "--force",
                  f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log")  # fmt: skip
        if not self._comes(lambda: (self.base / "socket" / "munge").exists()):
            return "munged does not start"
        if why := self.before_controller():
            return why
        self.controller()
        for n in range(1, self.nodes + 1):
            self._run("slurmd", "-D", "-f", str(self.config), "-N", f"{self.node}{n}")
        if not self._comes(self._up):
            tails = [p.read_text(errors="replace")[-300:] for p in sorted((self.base / "log").iterdir())]
            return "the nodes do not come up: " + " | ".join(tails)
        return ""

    def before_controller(self) -> str:
        """Start what the controller needs besides munge; return why that fails."""
        return ""

    def controller(self) -> None:
        self._run("slurmctld", "-D", "-f", str(self.config))

    def _run(self, program: str, *arguments: str) -> None:
        name = f"{program}{arguments[-1] if program == 'slurmd' else ''}"
        with (self.base / "log" / name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [shutil.which(program, path=SBIN) or program, *arguments], env=self.env(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=self.base,
            )  # fmt: skip

    def env(self) -> dict[str, str]:
        return {"PATH": SBIN, "SLURM_CONF": str(self.config)}

    def _up(self) -> bool:
        return self.say("sinfo", "-h", "-N", "-o", "%t").split().count("idle") == self.nodes

    def _comes(self, check) -> bool:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if check():
                return True
            time.sleep(0.05)
        return False

    def say(self, *command: str) -> str:
        """Run one of its commands and return what it prints."""
        try:
            return subprocess.run(
                command, env=self.env(), capture_output=True, text=True, timeout=20, check=False
            ).stdout
        except subprocess.TimeoutExpired:
            return ""

    def jobs(self) -> list[str]:
        return self.say("squeue", "-h", "-o", "%i|%T").split()

    def stop(self) -> None:
        """End jobs, then the daemons by their pids, then remove what they made."""
        for job in self.jobs():
            self.say("scancel", "--full", job.partition("|")[0])
        self._comes(lambda: not self.jobs())
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for controller in ("freezer", "devices", "memory", "cpuset", "cpuacct"):
            for n in range(1, self.nodes + 1):
                top = Path(f"/sys/fs/cgroup/{controller}/slurm_{self.node}{n}")
                self._comes(lambda top=top: _removed(top))
        shutil.rmtree(self.base, ignore_errors=True)


def _removed(top: Path) -> bool:
    """Remove control groups; those of processes that are still dying stay."""
    for folder in [*sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True), top] if top.exists() else ():
        try:
            folder.rmdir()
        except OSError:
            return False
    return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


Cluster = TypeVar("Cluster", bound=SlurmCluster)


@contextmanager
def found_by_environment(cluster: Cluster) -> Iterator[Cluster]:
    """Start a cluster, which Slurm's commands find meanwhile; skip with its reason if it does not start."""
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.config)
    try:
        why = cluster.start()
        if why:
            pytest.skip(f"Slurm does not start here: {why}")
        yield cluster
    finally:
        cluster.stop()
        os.environ.pop("SLURM_CONF")
        os.environ.update({"SLURM_CONF": before} if before else {})
