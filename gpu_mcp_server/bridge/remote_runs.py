"""Headless runs of a team's server whose agents are called in sandboxes of this machine."""

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from gpu_mcp_server.bridge.command_session import CommandSession
from gpu_mcp_server.errors import BadRequest, GpuMcpError, HostUnavailable, NotFound
from gpu_mcp_server.models.recipe import RunState
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.agents.agent_jobs import Agents, Interrupted
from gpu_mcp_server.recipes.agents.tool_call_meter import ToolCall
from gpu_mcp_server.recipes.headless_runs import RUN_ID, Tell, silent
from gpu_mcp_server.recipes.run_exchange import AgentQuestion, Heard, RunNews, SentAnswer, sent_run
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.workspaces.local_files import IN_WORKSPACE

PLANS = "at-servers"
"""Folder beside this machine's own runs, with the plans of those at servers: how their agents are called stays here."""
TAKEN_S = 120.0
"""For a server that was started again to ask for what it asked before."""
PAUSE_S = 0.5


class RemoteRuns:
    """Looks as `Runs` does to a command; the server has journals and verdicts."""

    elsewhere = True

    def __init__(self, session: CommandSession, lab: Lab) -> None:
        """Keep both ends.

        Args:
            session: With the server.
            lab: Of this machine, for the agents.
        """
        self._session, self._lab = session, lab
        self._address = session.server.address
        self._visitor = uuid4().hex
        self._answers: dict[str, SentAnswer] = {}

    def check_agent(self, plan: RunPlan) -> None:
        """Refuse an agent that cannot be called on this machine.

        Raises:
            BadRequest: If it cannot.
        """
        if plan.mode != "tune":
            self._agents(plan).check()
        if plan.mode == "agent" and plan.agent.toolsets != ["default"]:
            raise BadRequest(
                f"agent.toolsets does not choose tools of {self._address}: the agent gets those of your token.",
                hint="Leave it out, or say --local.",
            )

    async def begin(self, plan: RunPlan, run_id: str | None = None) -> str:
        """Note a new run at the server, with its problem and the files that its plan names.

        One of this name that is noted there stays as it is.

        Raises:
            GpuMcpError: If the server or a file refuses.
        """
        run_id = run_id or f"r-{plan.name}-{secrets.token_hex(3)}"
        if not RUN_ID.match(run_id):
            raise BadRequest(f"{run_id!r} is no name of a run.", hint="r- and up to 80 letters, digits, . _ -.")
        self._keep_plan(run_id, plan)
        if await self.look(run_id) is None:
            sent = await asyncio.to_thread(sent_run, plan, await self._sent_problem(plan))
            await self._send("PUT", _at(run_id), sent)
        return run_id

    async def look(self, run_id: str) -> RunState | None:
        """Return a run that anything was done of; None of any other."""
        with suppress(NotFound):
            found = await self._session.server.send("GET", _at(run_id))
            return RunState.model_validate(found["state"]) if found["begun"] else None
        return None

    async def state(self, run_id: str) -> RunState:
        """Return a run as its journal has it.

        Raises:
            NotFound: If the server has none that the user may see.
        """
        return RunState.model_validate((await self._session.server.send("GET", _at(run_id)))["state"])

    async def states(self) -> list[RunState]:
        """Return the user's newest runs at the server."""
        found = await self._session.server.send("GET", "/recipes")
        return [RunState.model_validate(each) for each in found["runs"]]

    async def gpu_seconds(self, run_id: str) -> float:
        """Return the seconds times GPUs that a run's jobs took so far."""
        return float((await self._session.server.send("GET", _at(run_id)))["gpu_s"])

    async def read_journal(self, run_id: str) -> list[dict[str, Any]]:
        """Return what a run's journal says so far."""
        return (await self._session.server.send("GET", f"{_at(run_id)}/journal"))["journal"]

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Return what a run left."""
        return await self._session.whole(artifact_id)

    async def report(self, run_id: str) -> str:
        """Return a run as one HTML page."""
        return (await self._session.server.send("GET", f"{_at(run_id)}/report"))["html"]

    async def go(self, run_id: str, tell: Tell = silent, jobs: int = 1) -> RunState:
        """Attend a run to its end: the server works, and this machine calls the agent.

        Args:
            run_id: The run.
            tell: Told what happens.
            jobs: Calls of the agent at once.

        Raises:
            NotFound: If the server has no such run of the user's.
            BadRequest: If another process attends it since, or this machine does not know how its agent is called.
            HostUnavailable: If the server stays away; the run goes on when it is resumed.
            GpuMcpError: If the run cannot go on there.
        """
        plan = self._kept_plan(run_id)
        self.check_agent(plan)
        attending = _Attending(self, run_id, self._agents(plan), tell, jobs)
        try:
            return await attending.run()
        except asyncio.CancelledError:
            await self._session.server.try_once("DELETE", f"{_at(run_id)}/attend")
            raise

    async def ask_news(self, run_id: str, said: int, working: list[str], jobs: int) -> RunNews:
        """Ask what goes on; the answer comes once there is news, or after a while."""
        heard = Heard(visitor=self._visitor, said=said, working=working, jobs=jobs)
        return RunNews.model_validate(await self._send("POST", f"{_at(run_id)}/attend", heard))

    async def answer(self, run_id: str, agents: Agents, question: AgentQuestion) -> None:
        """Call the agent once, and send its answer; an answer that was not taken is sent again when it is asked for."""
        job_id = question.job_id
        if job_id not in self._answers:
            self._answers[job_id] = await self._called(run_id, agents, question)
        await self._send("POST", f"{_at(run_id)}/answers/{quote(job_id, safe='')}", self._answers[job_id])

    async def _called(self, run_id: str, agents: Agents, question: AgentQuestion) -> SentAnswer:
        async def hear(call: ToolCall) -> None:
            path, began = f"{_at(run_id)}/calls/{quote(question.job_id, safe='')}", time.monotonic()
            content = json.dumps(asdict(call)).encode()
            while not (await self._session.server.send("POST", path, content=content))["taken"]:
                if time.monotonic() > began + TAKEN_S:
                    raise HostUnavailable(f"{self._address} does not go on with run {run_id}.", hint="Resume it.")
                await asyncio.sleep(PAUSE_S)

        try:
            found = await agents.call(question.job_id, question.step, question.prompt, hear if question.tools else None)
        except Interrupted as error:
            return SentAnswer(status="interrupted", why=str(error)[:2000], interrupted=True)
        return SentAnswer.model_validate({**asdict(found), "why": found.why[:2000]})

    async def _sent_problem(self, plan: RunPlan) -> str:
        """Send the problem's file with what goes with it; return the plan's problem as the server has it."""
        if not plan.problem or plan.names_known_problem():
            return plan.problem

        async def says(text: str) -> None:
            return

        if plan.mode == "program":
            return (await self._session.push(Path(plan.problem), None, says)).workspace_id
        with_headers = "transform_nccl" if plan.mode == "nccl" else "import_problem"
        workspace_id, path = await self._session.push_named(with_headers, Path(plan.problem), says)
        return f"{IN_WORKSPACE}{workspace_id}/{path}"

    def _agents(self, plan: RunPlan) -> Agents:
        return Agents(self._lab, plan.agent, self._address)

    def _plan_file(self, run_id: str) -> Path:
        return self._lab.settings.data_dir / "recipes" / PLANS / f"{run_id}.json"

    def _keep_plan(self, run_id: str, plan: RunPlan) -> None:
        path = self._plan_file(run_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        kept = {"address": self._address, "plan": plan.model_dump(mode="json")}
        new.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        new.replace(path)

    def _kept_plan(self, run_id: str) -> RunPlan:
        try:
            if not RUN_ID.match(run_id):
                raise FileNotFoundError
            kept: Mapping[str, Any] = json.loads(self._plan_file(run_id).read_text(encoding="utf-8"))
            if kept["address"] != self._address:
                raise BadRequest(
                    f"Run {run_id} is at {kept['address']}, and you are logged in to {self._address}.",
                    hint=f"gpu-mcp-server login {kept['address']}",
                )
            return RunPlan.model_validate(kept["plan"])
        except (FileNotFoundError, ValueError, KeyError, ValidationError) as error:
            raise BadRequest(
                f"This machine does not know how the agent of run {run_id} is called.",
                hint=f"`recipe run PLAN.toml --run-id {run_id}` goes on with it.",
            ) from error

    async def _send(self, method: str, path: str, model: BaseModel) -> Any:
        return await self._session.server.send(method, path, content=model.model_dump_json().encode())


class _Attending:
    """One command's attendance of one run."""

    def __init__(self, runs: RemoteRuns, run_id: str, agents: Agents, tell: Tell, jobs: int) -> None:
        self._runs, self._run_id, self._agents = runs, run_id, agents
        self._tell, self._jobs = tell, jobs
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._said = 0

    async def run(self) -> RunState:
        """Ask and answer until the run has ended."""
        asking: asyncio.Task[RunNews] | None = None
        try:
            while True:
                if asking is None:
                    working = [*self._answering]
                    asking = asyncio.create_task(self._runs.ask_news(self._run_id, self._said, working, self._jobs))
                await asyncio.wait({asking, *self._answering.values()}, return_when=asyncio.FIRST_COMPLETED)
                for job_id in [job_id for job_id, task in self._answering.items() if task.done()]:
                    self._answering.pop(job_id).result()
                if asking.done():
                    news, asking = asking.result(), None
                    if (state := await self._take(news)) is not None:
                        return state
        finally:
            tasks: list[asyncio.Task[Any]] = [*self._answering.values(), *([asking] if asking is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, news: RunNews) -> RunState | None:
        for line in news.lines:
            await self._tell(line)
        self._said = news.said
        if news.error:
            raise BadRequest(news.error) if news.refused else GpuMcpError(news.error)
        if news.state is not None:
            return news.state
        for question in news.questions:
            if question.job_id not in self._answering:
                work = self._runs.answer(self._run_id, self._agents, question)
                self._answering[question.job_id] = asyncio.create_task(work)
        return None


def _at(run_id: str) -> str:
    return f"/recipes/{quote(run_id, safe='')}"
