"""Runs of a team's server whose agents are called elsewhere: on the machine of each run's user, which attends it.

A run lives where its verdicts are, with its journal. What it asks the agent waits here for the other machine, which
asks for news again and again. The run ends a minute after that machine fell silent, and begins where it stopped when
it is attended again.
"""

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from gpu_mcp_server.errors import BadRequest, GpuMcpError, HostUnavailable, NotFound
from gpu_mcp_server.models.recipe import RunState
from gpu_mcp_server.recipes.agents.agent_jobs import Answer, Interrupted
from gpu_mcp_server.recipes.agents.agent_proxy import OnCall
from gpu_mcp_server.recipes.agents.tool_call_meter import ToolCall
from gpu_mcp_server.recipes.headless_runs import PLAN_FILE, RUN_ID, Runs
from gpu_mcp_server.recipes.run_exchange import AgentQuestion, Heard, HeardCall, RunNews, SentAnswer, SentRun, lay_plan
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.store.ownership import claim, is_own

NEWS_S = 20.0
"""The longest wait for news in one request."""
GRACE_S = 60.0
"""For the other machine to ask again; then the run stops, as calls of a client that is gone do."""
KEPT_LINES = 200
MOST_RUNS = 16
"""Of one user at once."""
logger = logging.getLogger(__name__)


@dataclass
class _Asked:
    question: AgentQuestion
    on_call: OnCall | None
    answer: "asyncio.Future[Answer]"
    heard: set[int] = field(default_factory=set[int])
    """Calls of tools that were told."""
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)


class AttendedRun:
    """One run that goes on; as its agent it asks the other machine."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.task: asyncio.Task[RunState] | None = None
        self.asked: dict[str, _Asked] = {}
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._said = 0
        self._news = asyncio.Event()
        self._visitor, self._former = "", set[str]()
        self._waiting = 0
        self._ending: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """The other machine has checked it."""

    async def call(self, job_id: str, step: str, prompt: str, on_call: OnCall | None = None) -> Answer:
        """Ask the other machine, and wait for its answer.

        Raises:
            Interrupted: If the call ended there for a reason that is not the agent's.
        """
        question = AgentQuestion(job_id=job_id, step=step, prompt=prompt, tools=on_call is not None)
        asked = self.asked[job_id] = _Asked(question, on_call, asyncio.get_running_loop().create_future())
        self.wake()
        try:
            return await asked.answer
        finally:
            self.asked.pop(job_id, None)

    async def tell(self, message: str) -> None:
        """Keep a line for the other machine."""
        self._lines.append(message[:2000])
        self._said += 1
        self.wake()

    def wake(self) -> None:
        """Let requests that wait look again."""
        self._news.set()
        self._news = asyncio.Event()

    def admit(self, visitor: str) -> None:
        """Let the process that came last attend the run.

        Raises:
            BadRequest: If another one came after it.
        """
        if visitor in self._former:
            raise BadRequest("Another process goes on with this run since.", hint="Wait for it, or end it.")
        if self._visitor not in ("", visitor):
            self._former.add(self._visitor)
            self.wake()
        self._visitor = visitor

    @asynccontextmanager
    async def hold_attendance(self, end: Callable[[], None]) -> AsyncGenerator[None]:
        """Count as attended for the block and a minute longer; then `end` is called."""
        self._waiting += 1
        if self._ending is not None:
            self._ending.cancel()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._ending = asyncio.get_running_loop().call_later(GRACE_S, end)

    async def news(self, heard: Heard) -> RunNews:
        """Return what the other machine does not know yet; waits a while where that is nothing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NEWS_S):
                while not self._fresh(heard):
                    await self._news.wait()
        self.admit(heard.visitor)
        missed = min(max(self._said - heard.said, 0), len(self._lines))
        lines = [*self._lines][len(self._lines) - missed :]
        return RunNews(questions=self._open(heard), lines=lines, said=self._said)

    def _fresh(self, heard: Heard) -> bool:
        assert self.task is not None
        return self.task.done() or self._said != heard.said or bool(self._open(heard)) or heard.visitor in self._former

    def _open(self, heard: Heard) -> list[AgentQuestion]:
        waits = [a.question for a in self.asked.values() if not a.answer.done()]
        return [question for question in waits if question.job_id not in heard.working]


class AttendedRuns:
    """Runs of all users of a server that go on now."""

    def __init__(self, lab: Callable[[], Awaitable[Lab]]) -> None:
        self._lab = lab
        self._runs: dict[str, AttendedRun] = {}

    async def begin(self, run_id: str, sent: SentRun) -> None:
        """Note a run of the current user; one that is theirs already stays as it is.

        Raises:
            BadRequest: If the name is another's, or the plan names what is not here.
        """
        lab = await self._lab()
        if not RUN_ID.match(run_id):
            raise BadRequest(f"{run_id[:100]!r} is no name of a run.", hint="r- and up to 80 letters, digits, . _ -.")
        folder = lab.settings.data_dir / "recipes" / run_id
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if not await is_own(lab.store.db, run_id):
                raise BadRequest(
                    f"The name {run_id!r} is taken at this server.", hint="Give --name or --run-id."
                ) from None
            if (folder / PLAN_FILE).is_file():
                return
        else:
            await claim(lab.store.db, run_id)
        try:
            plan = await asyncio.to_thread(lay_plan, sent, folder)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        Runs(lab).create(plan, run_id)

    async def attend(self, run_id: str, heard: Heard) -> RunNews:
        """Let a run go on, and return its news.

        Raises:
            NotFound: If the current user has no such run.
            BadRequest: If another process attends it since, or too many of the user's go on.
            HostUnavailable: If the server is being ended.
        """
        lab = await self._lab()
        await self._require_own(lab, run_id)
        run = self._runs.get(run_id)
        if run is None:
            state = await asyncio.to_thread(Runs(lab).state, run_id)
            if state.state == "finished":
                return RunNews(state=state, said=heard.said)
            # Looked at again: another request may have started it meanwhile, and two would be in each other's way.
            run = self._runs.get(run_id) or self._start(lab, run_id, heard.jobs)
        run.admit(heard.visitor)
        started = run
        async with run.hold_attendance(lambda: self._end(run_id, started)):
            news = await run.news(heard)
        task = run.task
        assert task is not None
        if not task.done():
            return news
        if self._runs.get(run_id) is run:
            del self._runs[run_id]
        if task.cancelled():
            raise HostUnavailable("The run was stopped here, as the server ends or the run was left.")
        error = task.exception()
        if error is None:
            return news.model_copy(update={"state": task.result()})
        if not isinstance(error, GpuMcpError):
            logger.error("run %s failed", run_id, exc_info=error)
        said = str(error) if isinstance(error, GpuMcpError) else f"The server failed: {type(error).__name__}."
        return news.model_copy(update={"error": said, "refused": isinstance(error, BadRequest)})

    async def leave(self, run_id: str) -> None:
        """Stop a run whose user ended the command."""
        await self._require_own(await self._lab(), run_id)
        if (run := self._runs.get(run_id)) is not None:
            self._end(run_id, run)

    async def answer(self, run_id: str, job_id: str, sent: SentAnswer) -> bool:
        """Take an agent's answer; say whether the run waited for it."""
        asked = await self._asked(run_id, job_id)
        if asked is None or asked.answer.done():
            return False
        if sent.interrupted:
            asked.answer.set_exception(Interrupted(sent.why or "The agent's call was interrupted."))
        else:
            asked.answer.set_result(sent.answer())
        return True

    async def hear_call(self, run_id: str, job_id: str, call: HeardCall) -> bool:
        """Take note of a call of tools, once; say whether the run waits for its agent."""
        asked = await self._asked(run_id, job_id)
        if asked is None or asked.on_call is None:
            return False
        async with asked.telling:
            if call.number not in asked.heard:
                asked.heard.add(call.number)
                await asked.on_call(ToolCall(**call.model_dump()))
        return True

    async def close(self) -> None:
        """Stop all: they go on when they are attended at the next server."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, lab: Lab, run_id: str, jobs: int) -> AttendedRun:
        owner = current_user().name
        if sum(run.owner == owner for run in self._runs.values()) >= MOST_RUNS:
            raise BadRequest(f"{MOST_RUNS} runs of yours go on here already.", hint="Wait for one of them.")
        run = self._runs[run_id] = AttendedRun(owner)
        runs = Runs(lab, lambda command: run)
        run.task = asyncio.create_task(runs.go(run_id, run.tell, jobs), name=f"run {run_id}")
        run.task.add_done_callback(lambda _: run.wake())
        return run

    def _end(self, run_id: str, run: AttendedRun) -> None:
        assert run.task is not None
        run.task.cancel()
        if self._runs.get(run_id) is run:
            del self._runs[run_id]

    async def _asked(self, run_id: str, job_id: str) -> _Asked | None:
        await self._require_own(await self._lab(), run_id)
        run = self._runs.get(run_id)
        return run.asked.get(job_id) if run is not None else None

    async def _require_own(self, lab: Lab, run_id: str) -> None:
        if not RUN_ID.match(run_id) or not await is_own(lab.store.db, run_id):
            raise NotFound("run", run_id[:100], hint="`gpu-mcp-server recipe list` shows yours.")
