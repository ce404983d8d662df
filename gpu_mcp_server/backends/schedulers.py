"""The commands of batch systems: what to run, and what comes back. No I/O.

Text formats are parsed, not JSON, whose shape differs from one Slurm to the next.
"""

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from gpu_mcp_server.backends.scheduler_states import State, pbs_end, pbs_state, reason_in_words, slurm_state
from gpu_mcp_server.errors import HostUnavailable
from gpu_mcp_server.settings.host_settings import BatchHost

SLURM_SENTENCE = re.compile(r"\bSubmitted batch job (\d{1,10})\b")
SLURM_NUMBER = re.compile(r"(\d{1,10})(?:;[\w.-]{1,80})?")
"""Source: sbatch(1), --parsable; and its message without it."""
PBS_NUMBER = re.compile(r"\d{1,12}(?:\[\])?(?:\.[\w.-]{1,200})?")
"""Source: qsub(1B): sequence_number.server_name, of an array sequence_number[].server_name."""
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


@dataclass(frozen=True)
class LongJob:
    """A job of the scheduler that runs one program, on nodes of its own."""

    name: str
    array: str = ""
    """Indices such as 0-7, or nothing."""
    tasks_per_node: int = 1
    launcher: str = "srun"
    """What starts the tasks: srun or mpirun."""


class Scheduler(Protocol):
    """Interface to one batch system: its commands, and how their output is parsed."""

    system: str

    def submit(self, host: BatchHost, name: str) -> list[str]:
        """Return the command that takes a script on stdin and prints the job's number."""
        ...

    def submit_long(self, host: BatchHost, job: LongJob) -> list[str]:
        """Return the same for a job that runs one program, whose script is the file `script`."""
        ...

    def launch(self, host: BatchHost, job: LongJob) -> str:
        """Return the shell words that start a program on every node, before its own words."""
        ...

    def number(self, printed: str) -> str:
        """Return the number from what it printed; empty where that may be another number, or none."""
        ...

    def numbers(self, printed: str) -> list[str]:
        """Return what may be the number, in what it printed with lines of a site's own around it."""
        ...

    def searches(self, name: str) -> list[list[str]]:
        """Return commands that look for a job by its name, ended ones too; the next where one finds none."""
        ...

    def numbers_of_name(self, printed: str, name: str) -> list[str]:
        """Return the numbers from what such a command printed; of an array, that of the whole."""
        ...

    def element(self, number: str, index: int) -> str:
        """Return the number of one job of an array."""
        ...

    def list_all(self) -> list[str]:
        """Return the one command that lists all jobs of this user, those of arrays one by one."""
        ...

    def list_ours(self, name: str) -> list[str]:
        """Return the one command that lists all jobs of ours with a name."""
        ...

    def jobs(self, printed: str, name: str) -> list[BatchJob]:
        """Return the jobs from what it printed; without a name all of them."""
        ...

    def past_job_command(self, number: str) -> list[str]:
        """Return the command that tells of a job that has ended."""
        ...

    def parse_ended_job(self, printed: str, number: str) -> BatchJob | None:
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
        return [*self._options(host, name), *host.lines]

    def _options(self, host: BatchHost, name: str) -> list[str]:
        seconds = math.ceil(host.time_s / 60) * 60
        gres = f"gpu:{host.gpu_type}:{host.gpus}" if host.gpu_type else f"gpu:{host.gpus}"
        options: dict[str, Any] = {
            "job-name": name, "nodes": host.nodes, "ntasks-per-node": 1, "output": "/dev/null", "error": "/dev/null",
            "time": f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:00", "partition": host.partition,
            "account": host.account, "qos": host.qos, "constraint": host.constraint, "reservation": host.reservation,
            "gres": gres if host.gpus else None, "cpus-per-task": host.cpus, "mem": host.memory,
        }  # fmt: skip
        return ["sbatch", "--parsable", "--no-requeue", *(f"--{k}={v}" for k, v in options.items() if v)]

    def submit_long(self, host: BatchHost, job: LongJob) -> list[str]:
        """Return sbatch; the last of two equal options counts."""
        log = "log.%A_%a" if job.array else "log.%j"
        more = [f"--ntasks-per-node={job.tasks_per_node}", f"--output={log}", f"--error={log}"]
        more += [f"--array={job.array}"] if job.array else []
        return [*self._options(host, job.name), *more, *host.lines, "script"]

    def launch(self, host: BatchHost, job: LongJob) -> str:
        """Return srun, or mpirun, for all tasks; a task that fails does not end the others."""
        count = host.nodes * job.tasks_per_node
        if job.launcher == "mpirun":
            return f"mpirun -n {count} --map-by ppr:{job.tasks_per_node}:node --oversubscribe"
        each = f" --cpus-per-task={host.cpus}" if host.cpus else ""
        return f"srun --ntasks={count} --ntasks-per-node={job.tasks_per_node}{each} --kill-on-bad-exit=0 --quiet"

    def element(self, number: str, index: int) -> str:
        """Return NUMBER_INDEX."""
        return f"{number}_{index}"

    def list_all(self) -> list[str]:
        """Return one squeue."""
        return ["squeue", "--me", "--noheader", "--array", "--format=%i|%T|%r|%B"]

    def number(self, printed: str) -> str:
        """Return what --parsable printed, without the cluster, or the number in Slurm's own sentence."""
        said, alone = SLURM_SENTENCE.findall(printed), self.numbers(printed)
        if said and not alone:
            return said[0] if len(said) == 1 else ""
        return alone[0] if alone and len(printed.split()) == 1 else ""

    def numbers(self, printed: str) -> list[str]:
        """Return the lines that are a number, or number and cluster."""
        return [m[1] for line in printed.splitlines() if (m := SLURM_NUMBER.fullmatch(_plain(line)))]

    def searches(self, name: str) -> list[list[str]]:
        """Return squeue, which remembers for MinJobAge, then sacct."""
        queue = ["squeue", "--me", "--noheader", "--states=all", f"--name={name}", "--format=%F|%j|%T|%N"]
        columns = "JobID,JobName,State,NodeList"
        return [queue, ["sacct", "-n", "-P", "-X", "-S", "now-1days", f"--name={name}", "-o", columns]]

    def numbers_of_name(self, printed: str, name: str) -> list[str]:
        """Return the numbers of either, but for what Slurm refused: it keeps that as failed, without a node."""
        rows = [parts for line in printed.splitlines() if len(parts := line.strip().split("|")) == 4]
        kept = [r for r in rows if r[1] == name and (r[2] != "FAILED" or r[3] not in ("", "(null)", "None assigned"))]
        return list(dict.fromkeys(n for n in (r[0].partition("_")[0] for r in kept) if n.isdecimal()))

    def list_ours(self, name: str) -> list[str]:
        """Return one squeue."""
        return ["squeue", "--me", "--noheader", f"--name={name}", "--format=%i|%T|%r|%B"]

    def jobs(self, printed: str, name: str) -> list[BatchJob]:
        """Return squeue's lines."""
        found: list[BatchJob] = []
        for line in printed.splitlines():
            parts = line.strip().split("|")
            if len(parts) == 4 and parts[0][:1].isdecimal():
                found.append(BatchJob(parts[0], slurm_state(parts[1]), reason_in_words(parts[2]), parts[3]))
        return found

    def past_job_command(self, number: str) -> list[str]:
        """Return scontrol, which remembers for MinJobAge and needs no accounting; then sacct."""
        look = f"scontrol show job -o {number} 2>/dev/null || sacct -P -n -X -j {number} -o JobID,State,NodeList"
        return ["/bin/sh", "-c", look]

    def parse_ended_job(self, printed: str, number: str) -> BatchJob | None:
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

    def submit_long(self, host: BatchHost, job: LongJob) -> list[str]:
        """Return qsub; the array is -J."""
        words = self.submit(host, job.name)
        words[words.index("/dev/null")] = "log"
        return [*words, *(["-J", job.array] if job.array else []), "script"]

    def launch(self, host: BatchHost, job: LongJob) -> str:
        """Return mpiexec, which PBS sites have."""
        each = f" --ppn {job.tasks_per_node}" if host.nodes > 1 else ""
        return f"mpiexec -n {host.nodes * job.tasks_per_node}{each}"

    def element(self, number: str, index: int) -> str:
        """Return NUMBER[INDEX].SERVER."""
        return number.replace("[]", f"[{index}]")

    def list_all(self) -> list[str]:
        """Return one qstat with the jobs of arrays."""
        return ["qstat", "-t", "-f", "-F", "json"]

    def number(self, printed: str) -> str:
        """Return the job's identifier, server included."""
        found = self.numbers(printed)
        return found[0] if len(found) == 1 and len(printed.split()) == 1 else ""

    def numbers(self, printed: str) -> list[str]:
        """Return the lines that are an identifier."""
        return [word for line in printed.splitlines() if PBS_NUMBER.fullmatch(word := _plain(line))]

    def searches(self, name: str) -> list[list[str]]:
        """Return qstat, then the same with what has ended, which sites may have switched off."""
        return [self.list_ours(name), ["qstat", "-x", "-f", "-F", "json"]]

    def numbers_of_name(self, printed: str, name: str) -> list[str]:
        """Return the identifiers of either."""
        return [job.number for job in self.jobs(printed, name)]

    def list_ours(self, name: str) -> list[str]:
        """Return one qstat."""
        return ["qstat", "-f", "-F", "json"]

    def jobs(self, printed: str, name: str) -> list[BatchJob]:
        """Return the jobs of that name."""
        jobs = _pbs_jobs(printed)
        ours = (pair for pair in jobs.items() if not name or pair[1].get("Job_Name") == name[:15])
        return [_pbs_job(number, job) for number, job in ours]

    def past_job_command(self, number: str) -> list[str]:
        """Return qstat with history."""
        return ["qstat", "-x", "-f", "-F", "json", number]

    def parse_ended_job(self, printed: str, number: str) -> BatchJob | None:
        """Return the job."""
        jobs = _pbs_jobs(printed).items()
        return next((_pbs_job(number, job) for found, job in jobs if sequence(found) == sequence(number)), None)

    def cancel(self, number: str) -> list[str]:
        """Return qdel."""
        return ["qdel", number]

    def enter(self, job: BatchJob, words: list[str]) -> list[str]:
        """Return ssh to the job's first node, which sites open to its owner while it runs."""
        named = f"env PBS_JOBID={shlex.quote(job.number)} {shlex.join(words)}"
        return ["ssh", "-T", "-o", "BatchMode=yes", job.node, named]


def sequence(number: str) -> str:
    """Return a job's number without its server: qsub may name that in full, and qstat not."""
    return number.partition(".")[0]


def _plain(line: str) -> str:
    """Return a line without colours and the space around it."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line).strip()


def _pbs_jobs(printed: str) -> dict[str, dict[str, Any]]:
    """Read qstat's JSON, whatever a site prints around it.

    Raises:
        HostUnavailable: If there is an answer and none that can be read: that is not the same as no job.
    """
    start = re.search(r"^\s*\{", printed, re.MULTILINE)
    try:
        data: Any = json.JSONDecoder().raw_decode(printed, start.end() - 1)[0] if start else None
    except (ValueError, RecursionError):
        start = data = None
    if start is None and printed.strip():
        raise HostUnavailable(
            f"What qstat prints cannot be read as JSON: {printed.strip()[:200]!r}.",
            hint="`qstat -f -F json` on the login node must print JSON: OpenPBS 19 and later do.",
        )
    jobs = cast("dict[str, Any]", data).get("Jobs") if isinstance(data, dict) else None
    return cast("dict[str, dict[str, Any]]", jobs) if isinstance(jobs, dict) else {}


def _pbs_job(number: str, job: dict[str, Any]) -> BatchJob:
    node = re.match(r"\(?([^:()+/]+)", str(job.get("exec_vnode", "")))
    state = pbs_state(str(job.get("job_state", "")))
    status = job.get("Exit_status")
    if state.phase == "ended" and isinstance(status, int):
        state = pbs_end(status)
    return BatchJob(number, state, str(job.get("comment", "")), node[1] if node else "")


def script(host: BatchHost, start: list[str], stdin: str) -> str:
    """Return the batch script: modules, then the gate, whose program comes on stdin."""
    loads = [f"module load {shlex.quote(name)} || exit 3" for name in host.modules]
    return "\n".join(["#!/bin/bash -l" if host.modules else "#!/bin/sh", *loads,
                      f"exec {shlex.join(start)} <<'{END_OF_STDIN}'", stdin + END_OF_STDIN, ""])  # fmt: skip


def long_script(host: BatchHost, launch: str, pythons: list[str], program: str) -> str:
    """Return the script of a long job: modules, then hostd for each task.

    Args:
        host: Whose modules are loaded.
        launch: What starts tasks.
        pythons: Where a Python may be, as shell words.
        program: File of hostd in the current folder.
    """
    loads = [f"module load {shlex.quote(name)} || exit 3" for name in host.modules]
    test = '"$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1'
    return "\n".join([
        "#!/bin/bash -l" if host.modules else "#!/bin/sh", 'cd "${SLURM_SUBMIT_DIR:-$PBS_O_WORKDIR}" || exit 4', *loads,
        "export MASTER_ADDR=${SLURMD_NODENAME:-$(hostname)}", "n=${SLURM_JOB_ID:-${PBS_JOBID%%[.[]*}}",
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",  # it starts hostd; jobs are never root
        "export MASTER_PORT=$((20000 + ${n:-0} % 20000))",
        f"for p in {' '.join(pythons)}; do",
        f'  if {test}; then {launch} "$p" -I "$PWD/{program}" once "$PWD"; exit $?; fi',
        "done", 'echo "no Python 3.8" >&2; exit 77', "",
    ])  # fmt: skip


DIALECTS: Mapping[str, type[Slurm] | type[Pbs]] = {"slurm": Slurm, "pbs": Pbs}
"""The dialect of each kind of batch host."""
