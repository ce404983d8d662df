"""Agents as jobs: a command in a sandbox of its own, a prompt in, an answer out."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gpu_mcp_server.errors import BadRequest, HostError, NotFound
from gpu_mcp_server.hostd.protocol import LEVELS, JobRecord, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.run_plan import AgentCommand
from gpu_mcp_server.recipes.agents.agent_clis import GATE, INSIDE, Around, call_of
from gpu_mcp_server.recipes.agents.agent_proxy import Address, OnCall, Tools, door
from gpu_mcp_server.recipes.agents.reported_usage import parse_report
from gpu_mcp_server.recipes.agents.tool_call_meter import Meter
from gpu_mcp_server.services.commands.command_runner import environment_of, min_level, roots_of
from gpu_mcp_server.services.jobs.command_checks import job_files
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, raise_if_not_run
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.workspaces.local_files import read_local

PROMPT_FILE = "prompt.md"
HANDOFF_FILE = "handoff.json"
HOST = "local"
"""Agents run beside the server: their program and their key are here."""
MAX_FILE_BYTES = 8 << 20
STDIN_BYTES = 1 << 20
"""What a job can be given there; a longer prompt is in its file."""
SAID = 1500
AGAIN = ("cancelled", "caller_lost", "broken", "refused", "no_gpu")
"""Ends of a job that are not the agent's doing: the call is made again."""
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Answer:
    """Answer of an agent, with its cost and calls."""

    status: str
    """ok, or what went wrong: failed, timeout, oom, disk_quota, output_limit."""
    why: str = ""
    text: str = ""
    handoff: str | None = None
    """Content of handoff.json."""
    cost_usd: float | None = None
    tokens: int | None = None
    """That its model read and wrote, as it reports them."""
    calls: int | None = None
    """Of our tools, where it had them."""
    characters: int | None = None
    """That these calls put before its model."""


class AgentCalls(Protocol):
    """Calls of a run's agent, which is on this machine or on its user's."""

    def check(self) -> None:
        """Refuse an agent that cannot be called, before anything is begun."""
        ...

    async def call(self, job_id: str, step: str, prompt: str, on_call: OnCall | None = None) -> Answer:
        """Call it once and wait; see `Agents.call`."""
        ...


class Agents:
    """Calls the agent of a run in a sandbox of this machine."""

    def __init__(self, lab: Lab, command: AgentCommand, server: str = "") -> None:
        """Keep what is called.

        Args:
            lab: Of this machine.
            command: How the agent is called.
            server: Address of the team's server whose tools it gets; empty for those of this machine.
        """
        self._lab, self._command, self._server = lab, command, server

    def check(self) -> None:
        """Refuse a template that cannot be used here, before anything is begun.

        Raises:
            BadRequest: If it wants the network and may not have it, shows a home, or passes on what is not set.
        """
        command = self._command
        address = Address.of(command.address) if command.address else None
        for one in (command, *(command.for_step(name) for name in command.steps)):
            call_of(one, Around("", "", False, address.inside if address else ""))
        if command.network and not self._lab.settings.allow_fetch:
            raise BadRequest("The agent wants the network.", hint="A person can set allow_fetch = true.")
        for root in command.roots:
            at = Path(root).resolve()
            for kept in (Path.home().resolve(), self._lab.settings.data_dir.resolve()):
                if kept.is_relative_to(at):
                    raise BadRequest(f"The root {root} holds {kept}.", hint="Show the agent's own folder alone.")
        absent = [name for name in command.pass_environment if name not in os.environ]
        if absent:
            raise BadRequest(f"{', '.join(absent)} is not set.", hint="Set it, or take it out of pass_environment.")

    async def call(self, job_id: str, step: str, prompt: str, on_call: OnCall | None = None) -> Answer:
        """Call it once and wait; a call that an earlier process made under this id is taken up.

        One that reaches its model or our tools through this process ends with it, and is made again.

        Args:
            job_id: Of the call.
            step: For `{step}`.
            prompt: What it is asked.
            on_call: It gets our tools, and each call of one is told here before its answer goes back.

        Raises:
            Interrupted: If that job ended for a reason that is not the agent's.
            NotFound: If a file of the template is not there.
            SandboxTooWeak, HostError: If it could not be started.
        """
        jobs, command = self._lab.jobs.runner, self._command.for_step(step)
        address = Address.of(command.address) if command.address else None
        meter = Meter(command.turns)
        tools = Tools(self._lab.settings, command.toolsets, meter, on_call, self._server) if on_call else None
        leans = address is not None or tools is not None
        orphan = False
        async with AsyncExitStack() as stack:
            try:
                try:
                    await jobs.poll(job_id, HOST)
                    if leans:
                        orphan = True  # what it leant on went with the server that called it
                        await jobs.end_quietly(job_id, HOST)
                except NotFound:
                    folder = str(await stack.enter_async_context(door(address, tools))) if leans else ""
                    spec, blobs = await self._spec(job_id, step, prompt, folder, on_call is not None)
                    await jobs.submit(spec, host=HOST, blobs=blobs, context={"recipe_step": step})
                done = await jobs.wait(job_id, HOST)
            except asyncio.CancelledError:
                await jobs.end_quietly(job_id, HOST)
                raise
        assert done is not None
        if done.record.status in AGAIN or (orphan and done.record.status != "ok"):
            raise_if_not_run(done.record, HOST)
            raise Interrupted(f"The agent's call ended as {done.record.status}: {done.record.note}.")
        answer = await self._answer(done)
        return replace(answer, calls=meter.answered, characters=meter.characters) if tools else answer

    async def _spec(
        self, job_id: str, step: str, prompt: str, folder: str, tools: bool
    ) -> tuple[JobSpec, Mapping[str, bytes | Path]]:
        command, settings = self._command.for_step(step), self._lab.settings
        probe = await self._lab.jobs.runner.probe(HOST)
        address = Address.of(command.address) if command.address else None
        python = probe.judge.path if probe.judge else "/usr/bin/python3"
        around = Around(python, folder, tools, address.inside if address else "")
        call = call_of(command, around)
        values = {
            **{name: str(value) for name, value in command.decoding.items()},
            "prompt": prompt, "prompt_file": f"/job/{PROMPT_FILE}", "address": around.address, "python": python,
            "gate": f"/job/{GATE}", "model": command.model, "turns": str(command.turns), "step": step,
        }  # fmt: skip
        own = {path: await _content(name) for path, name in command.files.items()}
        made = {path: text.encode() for path, text in call.files.items()}
        if folder:
            made[GATE] = await _content(str(INSIDE / "sandbox_proxy.py"))
        refs, blobs = job_files({**made, **own, PROMPT_FILE: prompt.encode()})
        passed = {name: os.environ[name] for name in command.pass_environment if name in os.environ}
        given = {**call.environment, **(address.environment if address else {}), **command.environment}
        environment = {name: filled(value, values) for name, value in given.items()}
        stdin = filled(command.stdin, values)
        way = [python, f"/job/{GATE}", "run", folder, *([str(address)] if address else []), "--"] if folder else []
        process = ProcessSpec(
            argv=(*way, *(filled(part, values) for part in call.command)),
            env=environment_of(probe, {**passed, **environment}),
            gpu=False,
        )
        spec = JobSpec(
            id=job_id,
            purpose="fetch" if command.network else "run",
            processes=(process,),
            files={"main": tuple(refs)},
            outputs=(HANDOFF_FILE,),
            roots=roots_of(probe, [*command.roots, *([folder] if folder else [])]),
            limits=Limits(
                wall_s=command.timeout_s, output_bytes=command.output_bytes, memory_bytes=command.memory_bytes
            ),
            min_level=max(min_level(settings), "namespaces" if folder else "", key=_strength),
            network=command.network,
            detached=not folder,
            stdin=stdin if len(stdin.encode()) <= STDIN_BYTES else f"Read {values['prompt_file']}.",
        )
        return spec, blobs

    async def _answer(self, done: FinishedJob) -> Answer:
        record = done.record
        left = [output for output in record.outputs if output.path == HANDOFF_FILE and output.size <= MAX_FILE_BYTES]
        handoff = (await self._lab.jobs.runner.fetch(HOST, left[0].sha256)).decode("utf-8", "replace") if left else None
        said = [printed.decode("utf-8", "replace") for printed in (done.stdout, done.stderr)]
        text, cost, tokens = parse_report(*said)
        if record.stdout_bytes > record.stdout_kept and handoff is None:
            limit = f"it wrote {record.stdout_bytes} bytes; {self._command.output_bytes} are kept (agent.output_bytes)"
            return Answer("output_limit", limit, text, handoff, cost, tokens)
        if record.status == "ok":
            return Answer("ok", "", text, handoff, cost, tokens)
        return Answer(record.status or "failed", _why(record, safe_text(done.stderr)), text, handoff, cost, tokens)


class Interrupted(HostError):
    """A call ended for a reason that is not the agent's; it can be made again."""


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its known placeholders filled; other braces stay."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


def _strength(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else -1


def _why(record: JobRecord, stderr: str) -> str:
    leader = record.leader
    code = f"exit code {leader.exit_code}" if leader and leader.exit_code is not None else ""
    parts: Sequence[str] = (record.note, code if record.status == "failed" else "", stderr.strip()[-SAID:])
    return "; ".join(part for part in parts if part)


async def _content(path: str) -> bytes:
    return await asyncio.to_thread(read_local, Path(path), MAX_FILE_BYTES)
