"""Nodes of a batch system: one allocation is held while there is work, with hostd inside, and given back when idle.

A call then costs what it costs over SSH, not the second that a job of the scheduler takes. The allocation is found by
its name, so servers of one user share it and a server that comes back finds it. The gate inside it
(`hostd/channel/allocation_server.py`) ends it when it is idle, also when no server is left. Nothing runs on the login
node but the scheduler's commands, each of which is given up after a while: they hang when their server is down.
"""

import asyncio
import base64
import contextlib
import hashlib
import itertools
import re
import shlex
import time
from collections.abc import Sequence
from typing import Protocol

from gpu_mcp_server.backends.base import Channel
from gpu_mcp_server.backends.bundle import hostd_zip
from gpu_mcp_server.backends.child_process import ChildProcess, run_here
from gpu_mcp_server.backends.deploy import LOADER, HostLocation, load, start_words
from gpu_mcp_server.backends.schedulers import DIALECTS, BatchJob, Scheduler, script, sequence
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostUnavailable, ToolMissing
from gpu_mcp_server.settings.host_settings import BatchHost, OpenSshHost

COMMAND_S = 30.0
POLL_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Growing intervals between two looks at the queue."""
ENDING_POLL_S = (0.2, 0.5, 1.0, 2.0, 4.0)
"""The same while an allocation is ending and its last state is not known."""


class LoginNode(Protocol):
    """Machine on which the scheduler's commands run."""

    async def run(self, command: str, stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
        """Run a command to its end."""
        ...

    async def start(self, command: str, address: HostLocation) -> Channel:
        """Run a command that becomes hostd."""
        ...


class LocalLoginNode:
    """This machine as the login node."""

    async def run(self, command: str, stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
        """Run a command to its end."""
        return await run_here(["/bin/sh", "-c", command], stdin)

    async def start(self, command: str, address: HostLocation) -> Channel:
        """Run a command that becomes hostd."""
        child = await ChildProcess.start(["/bin/sh", "-c", f"exec {command}"])
        try:
            await load(child, address)
        except BaseException:
            await child.kill()
            await child.close()
            raise
        return child.channel()


class BatchBackend:
    """Opens channels into a held allocation."""

    def __init__(self, name: str, host: BatchHost) -> None:
        self.name, self.kind = name, host.kind
        self._host = host
        self.dialect: Scheduler = DIALECTS[host.kind]()
        asked = self.dialect.submit(host, "")
        self.job_name = f"gpu-mcp-{hashlib.sha256(repr((name, asked, host.modules)).encode()).hexdigest()[:7]}"
        self._node = self._login_node()

    def _login_node(self) -> LoginNode:
        login = self._host.login
        if login is None:
            return LocalLoginNode()
        if isinstance(login, OpenSshHost):
            from gpu_mcp_server.backends.openssh import OpenSshBackend

            return OpenSshBackend(self.name, login)
        from gpu_mcp_server.backends.ssh import SshBackend

        return SshBackend(self.name, login)

    async def open(self) -> Channel:
        """Find or get an allocation, wait for it, and start a channel into it.

        Raises:
            HostUnavailable: If the scheduler does not answer, or the allocation does not come in time.
            ConfigError: If the scheduler refuses what the settings ask for.
            ToolMissing: If its commands are not there.
        """
        job = await self.allocation()
        where = f"{self.name!r} ({self.dialect.system} job {job.number} on {job.node})"
        address = HostLocation(self.name, where, "srun … echo ok", self._host.python, self._host.state_dir, "relay")
        channel = await self._node.start(shlex.join(self.dialect.enter(job, start_words(self._host.python))), address)
        before = channel.why_ended

        async def why_ended() -> str:
            said = await before()
            orderly = "status 0" in said  # the gate has ended; the scheduler notices that after us
            with contextlib.suppress(GpuMcpError):
                for pause_s in ENDING_POLL_S if orderly else ENDING_POLL_S[:1]:
                    ended = await self.end_of(job.number)
                    if ended is not None:
                        return f"{ended} ({said})"
                    await asyncio.sleep(pause_s)
            return said

        channel.why_ended = why_ended
        return channel

    async def allocation(self) -> BatchJob:
        """Return a running allocation of ours, made if there is none.

        Raises:
            GpuMcpError: As `open` does.
        """
        ours = await self._listed()
        if usable := _usable(ours):
            return await self._awaited(usable[0].number)
        submitting = asyncio.create_task(self._submit())
        try:
            return await self._awaited(await asyncio.shield(submitting))
        except asyncio.CancelledError:
            await self._cancel_quietly(submitting)
            raise

    async def release(self) -> list[str]:
        """Give back every allocation of this host; all that runs in it ends. Returns their numbers."""
        ours = [job.number for job in await self._listed() if job.state.phase in ("waits", "runs")]
        for number in ours:
            await self.command(self.dialect.cancel(number))
        return ours

    async def describe_allocation(self, number: str) -> str:
        """Return how an allocation stands or ended, in words.

        Raises:
            HostUnavailable: If the scheduler does not answer.
        """
        system = self.dialect.system
        _, printed, _ = await self.command(self.dialect.past_job_command(number), check=False)
        job = self.dialect.parse_ended_job(printed, number)
        if job is None:
            return f"{system} does not know job {number} any more"
        said = f"{system} job {number} {job.state.words}"
        return f"{said}. {job.state.hint}".removesuffix(".") if job.state.hint else said

    async def end_of(self, number: str) -> str | None:
        """Return how an allocation ended, in words; `None` while it has not.

        Raises:
            HostUnavailable: If the scheduler does not answer.
        """
        for pause_s in (*ENDING_POLL_S, 0.0):
            job = _of_number(await self._listed(), number)
            if job is not None and job.state.phase in ("waits", "runs"):
                return None
            if job is None:
                break
            await asyncio.sleep(pause_s)
        return await self.describe_allocation(number)

    async def _awaited(self, number: str) -> BatchJob:
        deadline = time.monotonic() + self._host.queue_wait_s
        for pause_s in itertools.chain(POLL_S, itertools.repeat(POLL_S[-1])):
            listed = await self._listed()
            job = next(iter([j for j in [_of_number(listed, number)] if j] or _usable(listed)), None)
            if job is None or job.state.phase in ("ends", "ended"):
                raise HostUnavailable(
                    f"The allocation of host {self.name!r} did not start: {await self.describe_allocation(number)}."
                )
            if job.state.phase == "runs":
                return job
            if time.monotonic() + pause_s > deadline:
                raise HostUnavailable(
                    f"Host {self.name!r} {job.state.words} of {self.dialect.system} as job {number}: {job.reason}.",
                    hint="It keeps its place: call again later; or ask for less (gpus, time_s, partition).",
                )
            await asyncio.sleep(pause_s)
        raise AssertionError("the pauses have no end")

    async def _listed(self) -> list[BatchJob]:
        _, printed, _ = await self.command(self.dialect.list_ours(self.job_name))
        return self.dialect.jobs(printed, self.job_name)

    async def _submit(self) -> str:
        digest, content = hostd_zip()
        state = self._host.state_dir or ""
        gate = f"gate={self._host.idle_s:g}"
        code = (
            f"{LOADER.read_text(encoding='utf-8')}\nimport base64, io\n"
            "content = io.BytesIO(base64.b64decode(f.readline()))\n"
            f"load(content, 'gate', {digest!r}, {len(content)}, {state!r}, {gate!r})\n"
        )
        stdin = f"{code!r}\n{base64.b64encode(content).decode()}\n"
        text = script(self._host, start_words(self._host.python), stdin)
        status, printed, said = await self.command(
            self.dialect.submit(self._host, self.job_name), text.encode(), check=False
        )
        number = self.dialect.number(printed) if status == 0 else ""
        if not number:
            number = self.newest_match(printed, [job.number for job in _usable(await self._listed())])
        if not number:
            raise self.refusal_error(said or printed) if status else self.missing_number_error(printed, self.job_name)
        return number

    def newest_match(self, printed: str, named: Sequence[str]) -> str:
        """Return the newest of the jobs that have the right name, those that an answer may mean first."""
        meant = {sequence(number) for number in self.dialect.numbers(printed)}
        found = [number for number in named if sequence(number) in meant] or named
        return max(found, key=lambda number: int("0" + re.split(r"\D", number)[0]), default="")

    async def search(self, printed: str, name: str) -> str:
        """Return the number of a job that is known by its name alone; empty when the scheduler has none such.

        Raises:
            HostUnavailable: If the scheduler does not answer.
        """
        first, later = self.dialect.searches(name)
        _, listed, _ = await self.command(first)
        number = self.newest_match(printed, self.dialect.numbers_of_name(listed, name))
        if not number:
            with contextlib.suppress(GpuMcpError):  # not every site has accounting or keeps a history
                _, listed, _ = await self.command(later, check=False)
                number = self.newest_match(printed, self.dialect.numbers_of_name(listed, name))
        return number

    def missing_number_error(self, printed: str, name: str) -> GpuMcpError:
        """Say that a request was taken, and that nobody knows what became of it."""
        program = self.dialect.submit(self._host, "")[0]
        return HostUnavailable(
            f"{program} of host {self.name!r} prints no job number that is certain, and {self.dialect.system} has no "
            f"job named {name}: {printed.strip()[-300:]!r}.",
            hint=f"{program} on the login node must print the job's number; a wrapper of the site may swallow it.",
        )

    def refusal_error(self, said: str) -> GpuMcpError:
        """Say what the scheduler has against a request."""
        why = "; ".join(line.rpartition("error: ")[2].strip() for line in said.strip().splitlines()[-3:]) or "no reason"
        return ConfigError(
            f"{self.dialect.system} refuses the allocation of host {self.name!r}: {why}.",
            hint="Correct partition, account, qos, gpus or time_s of this host; `sinfo` shows what there is.",
        )

    async def _cancel_quietly(self, submitting: "asyncio.Task[str]") -> None:
        """Take back what was submitted, also when its number was still on its way."""

        async def take_back() -> None:
            with contextlib.suppress(GpuMcpError):
                await self.command(self.dialect.cancel(await submitting))

        taking = asyncio.create_task(take_back())
        with contextlib.suppress(TimeoutError):
            await asyncio.shield(asyncio.wait_for(taking, COMMAND_S))

    async def command(self, argv: list[str], stdin: bytes = b"", *, check: bool = True) -> tuple[int, str, str]:
        """Run one of the scheduler's commands.

        Raises:
            HostUnavailable: If it is given up, or fails and `check` is set.
            ToolMissing: If it is not there.
        """
        system = self.dialect.system
        try:
            async with asyncio.timeout(COMMAND_S):
                status, out, err = await self._node.run(shlex.join(argv), stdin)
        except TimeoutError:
            raise HostUnavailable(
                f"{argv[0]} of host {self.name!r} did not answer within {COMMAND_S:g} s: {system} may be down.",
                hint=f"`{argv[0]}` on the login node must answer; ask its administrator.",
            ) from None
        said = err.decode("utf-8", "replace").strip()
        if status == 127:
            raise ToolMissing(f"{argv[0]} ({system})", self.name, hint="Set `login` of this host to its login node.")
        if status is None or (check and status != 0):
            raise HostUnavailable(f"{argv[0]} of host {self.name!r} fails: {said[-300:] or f'status {status}'}.")
        return status, out.decode("utf-8", "replace"), said


def _usable(jobs: Sequence[BatchJob]) -> list[BatchJob]:
    """Return the jobs that run; if none does, those that wait."""
    return [j for j in jobs if j.state.phase == "runs"] or [j for j in jobs if j.state.phase == "waits"]


def _of_number(jobs: Sequence[BatchJob], number: str) -> BatchJob | None:
    return next((j for j in jobs if sequence(j.number) == sequence(number)), None)
