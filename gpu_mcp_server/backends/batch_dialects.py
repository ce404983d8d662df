"""The commands of batch systems: what to run, and what comes back. No I/O.

Text formats are parsed, not JSON, whose shape differs from one Slurm to the next.
"""

import json
import math
import re
import shlex
from dataclasses import dataclass
from typing import Any, Protocol, cast

from gpu_mcp_server.backends.batch_states import State, pbs_state, reason_in_words, slurm_state
from gpu_mcp_server.host_settings import BatchHost

END_OF_STDIN = "END_OF_HOSTD"


@dataclass(frozen=True)
class BatchJob:
    """A job of the scheduler."""

    number: str
    state: State
    reason: str = ""
    """Why it waits, in words."""
    node: str = ""
    """Its first node."""


class Dialect(Protocol):
    """What differs from one batch system to the next."""

    system: str

    def submit(self, host: BatchHost, name: str) -> list[str]:
        """Return the command that takes a script on stdin and prints the job's number."""
        ...

    def number(self, printed: str) -> str:
        """Return the number from what it printed."""
        ...

    def list_ours(self, name: str) -> list[str]:
        """Return the one command that lists all jobs of ours with a name."""
        ...

    def jobs(self, printed: str, name: str) -> list[BatchJob]:
        """Return the jobs from what it printed."""
        ...

    def look_back(self, number: str) -> list[str]:
        """Return the command that tells of a job that has ended."""
        ...

    def ended(self, printed: str, number: str) -> BatchJob | None:
        """Return the job from what it printed."""
        ...

    def cancel(self, number: str) -> list[str]:
        """Return the command that ends a job."""
        ...

    def enter(self, job: BatchJob, words: list[str]) -> list[str]:
        """Return the command that runs a program inside a running job, its stdio carried."""
        ...


class Slurm:
    """Slurm 20.11 and later."""

    system = "Slurm"

    def submit(self, host: BatchHost, name: str) -> list[str]:
        """Return sbatch with its options."""
        seconds = math.ceil(host.time_s / 60) * 60
        gres = f"gpu:{host.gpu_type}:{host.gpus}" if host.gpu_type else f"gpu:{host.gpus}"
        options: dict[str, Any] = {
            "job-name": name, "nodes": host.nodes, "ntasks-per-node": 1, "output": "/dev/null", "error": "/dev/null",
            "time": f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:00", "partition": host.partition,
            "account": host.account, "qos": host.qos, "constraint": host.constraint, "reservation": host.reservation,
            "gres": gres if host.gpus else None, "cpus-per-task": host.cpus, "mem": host.memory,
        }  # fmt: skip
        return ["sbatch", "--parsable", "--no-requeue", *(f"--{k}={v}" for k, v in options.items() if v), *host.lines]

    def number(self, printed: str) -> str:
        """Return what --parsable printed, without the cluster."""
        return printed.strip().rpartition("\n")[2].partition(";")[0]

    def list_ours(self, name: str) -> list[str]:
        """Return one squeue."""
        return ["squeue", "--me", "--noheader", f"--name={name}", "--format=%i|%T|%r|%B"]

    def jobs(self, printed: str, name: str) -> list[BatchJob]:
        """Return squeue's lines."""
        found: list[BatchJob] = []
        for line in printed.splitlines():
            parts = line.strip().split("|")
            if len(parts) == 4 and parts[0]:
                found.append(BatchJob(parts[0], slurm_state(parts[1]), reason_in_words(parts[2]), parts[3]))
        return found

    def look_back(self, number: str) -> list[str]:
        """Return scontrol, which remembers for MinJobAge and needs no accounting; then sacct."""
        look = f"scontrol show job -o {number} 2>/dev/null || sacct -P -n -X -j {number} -o JobID,State,NodeList"
        return ["/bin/sh", "-c", look]

    def ended(self, printed: str, number: str) -> BatchJob | None:
        """Return the job from either."""
        if match := re.search(r"\bJobState=(\S+)(?:\s+Reason=(\S+))?", printed):
            return BatchJob(number, slurm_state(match[1]), reason_in_words(match[2] or ""))
        for line in printed.splitlines():
            parts = line.split("|")
            if parts[0] == number and len(parts) >= 2:
                return BatchJob(number, slurm_state(parts[1]))
        return None

    def cancel(self, number: str) -> list[str]:
        """Return scancel."""
        return ["scancel", number]

    def enter(self, job: BatchJob, words: list[str]) -> list[str]:
        """Return a step on the first node that shares everything with the batch script."""
        step = ["srun", f"--jobid={job.number}", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--relative=0"]
        # unbuffered: otherwise slurmstepd holds back what does not end with a newline
        return [*step, "--gres=none", "--export=NONE", "--input=all", "--unbuffered", *words]


class Pbs:
    """OpenPBS and PBS Professional, from one run of OpenPBS 23.06 and ALCF's manuals; never run against a site."""

    system = "PBS"

    def submit(self, host: BatchHost, name: str) -> list[str]:
        """Return qsub with a select statement."""
        seconds = math.ceil(host.time_s / 60) * 60
        select = f"select={host.nodes}" + (f":ncpus={host.cpus}" if host.cpus else "")
        select += f":ngpus={host.gpus}" if host.gpus else ""
        select += f":mem={host.memory.lower()}b" if host.memory else ""
        select += f":{host.constraint}" if host.constraint else ""
        words = ["qsub", "-N", name[:15], "-j", "oe", "-o", "/dev/null", "-r", "n", "-l", select]
        words += ["-l", f"walltime={seconds // 3600:02d}:{seconds % 3600 // 60:02d}:00"]
        words += ["-A", host.account] if host.account else []
        words += ["-q", host.reservation or host.partition or ""] if host.reservation or host.partition else []
        return [*words, *(w for line in host.lines for w in shlex.split(line))]

    def number(self, printed: str) -> str:
        """Return the job's identifier, server included."""
        return printed.strip().rpartition("\n")[2]

    def list_ours(self, name: str) -> list[str]:
        """Return one qstat."""
        return ["qstat", "-f", "-F", "json"]

    def jobs(self, printed: str, name: str) -> list[BatchJob]:
        """Return the jobs of that name."""
        jobs = _pbs_jobs(printed)
        return [_pbs_job(number, job) for number, job in jobs.items() if job.get("Job_Name") == name[:15]]

    def look_back(self, number: str) -> list[str]:
        """Return qstat with history."""
        return ["qstat", "-x", "-f", "-F", "json", number]

    def ended(self, printed: str, number: str) -> BatchJob | None:
        """Return the job."""
        job = _pbs_jobs(printed).get(number)
        return _pbs_job(number, job) if job else None

    def cancel(self, number: str) -> list[str]:
        """Return qdel."""
        return ["qdel", number]

    def enter(self, job: BatchJob, words: list[str]) -> list[str]:
        """Return ssh to the job's first node, which sites open to its owner while it runs."""
        named = f"env PBS_JOBID={shlex.quote(job.number)} {shlex.join(words)}"
        return ["ssh", "-T", "-o", "BatchMode=yes", job.node, named]


def _pbs_jobs(printed: str) -> dict[str, dict[str, Any]]:
    try:
        data: Any = json.loads(printed)
    except ValueError:
        return {}
    jobs = cast("dict[str, Any]", data).get("Jobs") if isinstance(data, dict) else None
    return cast("dict[str, dict[str, Any]]", jobs) if isinstance(jobs, dict) else {}


def _pbs_job(number: str, job: dict[str, Any]) -> BatchJob:
    node = re.match(r"\(?([^:()+/]+)", str(job.get("exec_vnode", "")))
    state = pbs_state(str(job.get("job_state", "")))
    status = job.get("Exit_status")
    if state.phase == "ended" and isinstance(status, int) and status != 0:
        why = {-29: "reached its time limit", 271: "was cancelled"}.get(status, f"has ended with status {status}")
        state = State("ended", why)
    return BatchJob(number, state, str(job.get("comment", "")), node[1] if node else "")


def script(host: BatchHost, start: list[str], stdin: str) -> str:
    """Return the batch script: modules, then the gate, whose program comes on stdin."""
    loads = [f"module load {shlex.quote(name)} || exit 3" for name in host.modules]
    return "\n".join(["#!/bin/bash -l" if host.modules else "#!/bin/sh", *loads,
                      f"exec {shlex.join(start)} <<'{END_OF_STDIN}'", stdin + END_OF_STDIN, ""])  # fmt: skip
