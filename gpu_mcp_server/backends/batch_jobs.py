"""Long jobs on a batch system: each is a job of the scheduler's own, and stays when the server and its login are gone.

What it needs and what it leaves lie in one folder that the login node and the nodes share. Every question is one
command on the login node, and the scheduler is asked about all jobs at once, at growing intervals.
"""

import asyncio
import base64
import io
import json
import shlex
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.backends.batch import BatchBackend
from gpu_mcp_server.backends.bundle import hostd_zip
from gpu_mcp_server.backends.deploy import python_words, shell_word
from gpu_mcp_server.backends.schedulers import BatchJob, LongJob, long_script, sequence
from gpu_mcp_server.errors import HostUnavailable, JobBroken
from gpu_mcp_server.hostd.protocol import JobRecord, JobSpec, job_record_from_json, to_json
from gpu_mcp_server.settings.host_settings import BatchHost

LOOK_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Growing intervals between two questions to the scheduler; a change begins them anew."""
KEPT_DAYS = 14
READ_BYTES = 1 << 20
GONE = 76
THERE_ALREADY = 75


@dataclass(frozen=True)
class Task:
    """One job of an array, or the only one, as its row in the store names it."""

    folder: str
    """Name of the folder: the id of the job that was submitted."""
    number: str
    """The scheduler's number of it."""
    index: int
    ranks: int


@dataclass(frozen=True)
class TaskFiles:
    """Files in a task's folder."""

    records: dict[int, JobRecord]
    """By rank, those that are final."""
    stdout: bytes
    stderr: bytes
    """Of rank 0, from the offsets."""


class HostBatchJobs:
    """The long jobs of one host."""

    def __init__(self, name: str, host: BatchHost) -> None:
        self._name, self._host = name, host
        self._backend = BatchBackend(name, host)
        self.dialect = self._backend.dialect
        self._listed: dict[str, BatchJob] = {}
        self._asked_at, self._step = 0.0, 0
        self._asking = asyncio.Lock()

    async def submit(self, spec: JobSpec, job: LongJob, blobs: Mapping[str, bytes | Path]) -> str:
        """Hand a job to the scheduler and return its number; a submit that is sent twice is one job.

        Raises:
            ConfigError: If the scheduler refuses it.
            HostUnavailable: If the login node or the scheduler does not answer, or not with a job's number.
        """
        content = await asyncio.to_thread(self._packed, spec, job, blobs)
        words = shlex.join(self.dialect.submit_long(self._host, job))
        line = (
            f'{self._base()}; d="$b/{spec.id}"; umask 077; mkdir -p "$b" && chmod 711 "$b" && '
            f'find "$b" -mindepth 1 -maxdepth 1 -mtime +{KEPT_DAYS} -exec rm -rf {{}} + ; '
            f'if ! mkdir "$d"; then cat "$d/number" || exit {THERE_ALREADY}; exit 0; fi; '
            f'if chmod 711 "$d" && cd "$d" && tar -xf - && {words} >number.new && mv number.new number; then '
            f"cat number; else s=$?; cat number.new 2>/dev/null; exit $s; fi"
        )
        status, printed, said = await self._backend.command(["/bin/sh", "-c", line], content, check=False)
        number = self.dialect.number(printed) if status == 0 else ""
        if not number:
            number = await self._backend.search(printed, job.name)
        self._asked_at, self._step = 0.0, 0
        if number:
            return number
        if status == THERE_ALREADY:
            raise JobBroken(f"Job {spec.id} was sent to host {self._name!r} before, and broke off on its way there.")
        if status == 0:
            raise self._backend.missing_number_error(printed, job.name)
        forget = f'{self._base()}; rm -rf "$b/{spec.id}"'
        await self._backend.command(["/bin/sh", "-c", forget], check=False)
        raise self._backend.refusal_error(said or printed)

    def _packed(self, spec: JobSpec, job: LongJob, blobs: Mapping[str, bytes | Path]) -> bytes:
        digest, hostd = hostd_zip()
        program = f"hostd-{digest}.pyz"
        launch = self.dialect.launch(self._host, job)
        files = {
            program: hostd, "spec.json": json.dumps(to_json(spec)).encode(),
            "script": long_script(self._host, launch, python_words(self._host.python), program).encode(),
        }  # fmt: skip
        for sha256 in spec.contents():
            blob = blobs[sha256]
            files[f"blobs/{sha256}"] = blob if isinstance(blob, bytes) else blob.read_bytes()
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(text), 0o600
                archive.addfile(info, io.BytesIO(text))
        return data.getvalue()

    def _base(self) -> str:
        """Return shell words that put the folder of all long jobs into b."""
        if self._host.state_dir:
            return f"b={shell_word(self._host.state_dir)}/batch"
        home = 'b="${XDG_STATE_HOME:-$HOME/.local/state}/gpu-mcp-server/batch"'
        return f'if [ "$(id -u)" = 0 ]; then b=/var/lib/gpu-mcp-server/batch; else {home}; fi'

    async def read(self, task: Task, stdout_at: int = 0, stderr_at: int = 0) -> TaskFiles:
        """Return what a task has left so far.

        Raises:
            HostUnavailable: If the login node does not answer.
            JobBroken: If the folder is gone.
        """
        first = f"{task.index}.0/jobs/*/main"
        part = f'| head -c {READ_BYTES} | base64 | tr -d "[:space:]"; echo'
        shown = 'test -f "$r" && echo "$r" && cat "$r" && echo'
        line = (
            f'{self._base()}; cd "$b/{task.folder}" || exit {GONE}; '
            f"for r in {task.index}.*/jobs/*/record.json; do {shown}; done; "
            f"echo =; tail -c +{stdout_at + 1} {first}.stdout 2>/dev/null {part}; "
            f"tail -c +{stderr_at + 1} {first}.stderr 2>/dev/null {part}"
        )
        status, printed, said = await self._backend.command(["/bin/sh", "-c", line], check=False)
        if status == GONE:
            raise JobBroken(f"The folder of job {task.folder} is gone from host {self._name!r}: {said[-200:]}.")
        try:
            return _seen(printed)
        except (ValueError, IndexError) as error:
            raise HostUnavailable(
                f"What host {self._name!r} shows of job {task.folder} is damaged: {error}; {said[-200:]}."
            ) from error

    async def state(self, task: Task) -> BatchJob | None:
        """Return how the scheduler sees a task that it still has; `None` for one that has ended, or that it forgot."""
        async with self._asking:
            if time.monotonic() >= self._asked_at + LOOK_S[self._step]:
                _, printed, _ = await self._backend.command(self.dialect.list_all())
                listed = {sequence(job.number): job for job in self.dialect.jobs(printed, "")}
                same = listed == self._listed
                self._listed, self._asked_at = listed, time.monotonic()
                self._step = min(self._step + 1, len(LOOK_S) - 1) if same else 0
        job = self._listed.get(sequence(task.number))
        return None if job is None or job.state.phase == "ended" else job

    async def story(self, task: Task) -> str:
        """Return how a task ended, in the scheduler's words, and the end of what its script printed."""
        story = await self._backend.describe_allocation(task.number)
        logs = f"{shlex.quote('log.' + task.number)} log"
        line = f'{self._base()}; cd "$b/{task.folder}" && cat {logs} 2>/dev/null | tail -c 300'
        _, printed, _ = await self._backend.command(["/bin/sh", "-c", line], check=False)
        said = " ".join(printed.split())
        return f"{story}; its script printed {said!r}" if said else story

    async def cancel(self, task: Task) -> None:
        """End a task; its record says that this was wanted."""
        mark = f"for r in {task.index}.*/jobs/*; do : >$r/cancelled; done"
        await self._backend.command(["/bin/sh", "-c", f'{self._base()}; cd "$b/{task.folder}" && {mark}'], check=False)
        await self._backend.command(self.dialect.cancel(task.number), check=False)

    async def fetch(self, task: Task, sha256: str) -> bytes:
        """Return the content of an output.

        Raises:
            JobBroken: If it is gone.
        """
        where = f"{task.index}.*/blobs/{sha256[:2]}/{sha256}"
        line = f'{self._base()}; cd "$b/{task.folder}" && for f in {where}; do exec base64 "$f"; done'
        status, printed, said = await self._backend.command(["/bin/sh", "-c", line], check=False)
        if status != 0:
            raise JobBroken(f"An output of job {task.folder} is gone from host {self._name!r}: {said[-200:]}.")
        return base64.b64decode(printed)


def _seen(printed: str) -> TaskFiles:
    """Read what a look printed: path and record by turns, a line with =, stdout and stderr in base 64."""
    lines = printed.split("\n")
    end = lines.index("=")
    ranks = [int(path.partition("/")[0].partition(".")[2]) for path in lines[:end:2]]
    records = [job_record_from_json(json.loads(text)) for text in lines[1:end:2]]
    return TaskFiles(
        dict(zip(ranks, records, strict=True)), base64.b64decode(lines[end + 1]), base64.b64decode(lines[end + 2])
    )
