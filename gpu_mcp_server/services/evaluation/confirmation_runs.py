"""Makes the confirmation runs that are owed, behind everything else, one a host at a time.

A run is a detached job of class background, for the user who submitted the attempt. It outlives this server: the next
one waits for its job.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace

import structlog

from gpu_mcp_server.errors import GpuMcpError, NotFound
from gpu_mcp_server.hostd.protocol import LEVELS
from gpu_mcp_server.models.user import LOCAL, User
from gpu_mcp_server.runtime.current_user import acting_as, as_server
from gpu_mcp_server.services.evaluation.attempt_audit import OF_THE_HOST, Auditor
from gpu_mcp_server.services.evaluation.confirmation_outcomes import ConfirmationOutcomes
from gpu_mcp_server.services.evaluation.host_use import HostUse
from gpu_mcp_server.services.evaluation.judge_results import Verdicts
from gpu_mcp_server.services.jobs.call_context import CallContext, current_call, run_in_call
from gpu_mcp_server.services.jobs.job_runner import JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.services.jobs.server_liveness import ServerLiveness
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.records.confirmations import Confirmation, Confirmations
from gpu_mcp_server.settings.host_settings import BATCH_KINDS
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import owner_of
from gpu_mcp_server.team.users import Users

QUIET_S = 5.0
"""So long nobody was judged on a host before a run begins there."""
REST = 4.0
"""Times a run's length until the next begins on its host: runs take a fifth of the time at most."""
PATIENT_S = 600.0
"""A run that is owed for so long does not give way any more."""
LOOK_S = 15.0
"""Between two looks at the table, which other servers write too."""
YIELD_S = 2.0
"""Between two looks at the queue of a host on which a run is made."""
FAILED_S = 600.0
"""After an error, until the next try."""
GAVE_WAY_S = 30.0
"""After a run gave way to a host's queue, until the next try: each try is a job and a row of the record."""
IN_ALLOCATION_S = 10.0
"""Most seconds of a first look, without waits, whose confirmation run may begin there. The run may take 30 s: its
rounds have 5 s a shape, those of a first look 1.5 to 2 (`judge_job.EFFORTS`)."""
_log = structlog.get_logger()


@dataclass
class _Run:
    confirmation: Confirmation
    task: "asyncio.Task[None]"
    call: CallContext


class ConfirmationRuns:
    """The worker of this server."""

    def __init__(
        self,
        db: Database,
        runner: JobRunner,
        table: JobTable,
        experience: AttemptStore,
        confirmations: Confirmations,
        auditor: Auditor,
        outcomes: ConfirmationOutcomes,
        verdicts: Verdicts,
        use: HostUse,
        server: ServerLiveness,
        least: str,
    ) -> None:
        """Take what runs are made with; `least` is the weakest sandbox level that this server accepts."""
        self._db, self._runner, self._table, self._least = db, runner, table, least
        self._experience, self._confirmations = experience, confirmations
        self._auditor, self._outcomes, self._verdicts = auditor, outcomes, verdicts
        self._use, self._server = use, server
        self._owed = asyncio.Event()
        self._running: dict[str, _Run] = {}
        self._tidying: set[asyncio.Task[None]] = set()
        self._not_before: dict[str, float] = {}
        """Of attempts whose run ended by an error, gave way or cannot be made here, on the monotonic clock."""
        self._worker: asyncio.Task[None] | None = None
        confirmations.on_owed = self._owed.set
        use.on_begin = self.give_way

    def start(self) -> None:
        """Begin to look for what is owed."""
        with as_server():
            self._worker = asyncio.create_task(self._work(), name="confirmations")

    async def close(self) -> None:
        """Leave the runs to themselves: their jobs go on, and the next server finds them."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        runs = [*self._running.values()]
        for run in runs:
            run.call.leaving = True
            run.task.cancel()
        await asyncio.gather(*(run.task for run in runs), return_exceptions=True)
        await asyncio.gather(*self._tidying, return_exceptions=True)

    def give_way(self, host: str) -> None:
        """End the run on a host where somebody else wants to be judged; it is owed again."""
        run = self._running.get(host)
        if run is not None and run.confirmation.waited_s() < PATIENT_S:
            run.task.cancel()

    async def _work(self) -> None:
        while True:
            self._owed.clear()
            soon_s = LOOK_S
            try:
                await self._adopt_orphans()
                for owed in await self._confirmations.list_owed():
                    wait_s = await self._wait_s(owed)
                    if wait_s <= 0:
                        await self._begin(owed)
                    else:
                        soon_s = min(soon_s, wait_s)
            except GpuMcpError as error:
                _log.warning("confirmation runs wait", error=str(error))
            try:
                await asyncio.wait_for(self._owed.wait(), max(soon_s, 0.1))
            except TimeoutError:
                continue

    async def _wait_s(self, owed: Confirmation) -> float:
        """Return for how long an owed run cannot begin; LOOK_S where that is not known."""
        host = owed.host
        if host in self._running or host not in self._runner.hosts.names():
            return LOOK_S
        if self._runner.hosts.kind(host) in BATCH_KINDS and not await self._fits_allocation(owed):
            return LOOK_S
        waits = [self._not_before.get(owed.attempt_id, 0.0) - time.monotonic(), QUIET_S - self._use.idle_s(host)]
        wait_s = max(*waits, await self._confirmations.rest_s(host, REST))
        return wait_s if wait_s > 0 else await self._refused_s(owed)

    async def _refused_s(self, owed: Confirmation) -> float:
        """Return for how long its host takes no run, 0 where it does; a reason that will stay is noted in the row.

        A try would be a job, and after some tries the run would count as failed, which another server can make.
        """
        try:
            level = (await self._runner.probe(owed.host)).level
            if LEVELS.index(level) >= LEVELS.index(self._least):
                crowded = owed.waited_s() < PATIENT_S and await self._others_wait(owed.host, None)
                return LOOK_S if crowded else 0.0
            why = f"host {owed.host} gives sandbox level {level}, and this server's min_level is {self._least}"
        except GpuMcpError as error:
            why = str(error)
        await self._confirmations.note(owed.attempt_id, why)
        self._not_before[owed.attempt_id] = time.monotonic() + FAILED_S
        return FAILED_S

    async def _fits_allocation(self, owed: Confirmation) -> bool:
        """Say whether there is an allocation, and a run short enough for its idle end."""
        if not self._runner.hosts.is_connected(owed.host):
            return False
        evidence = (await self._experience.get(owed.attempt_id)).evidence or {}
        seconds = (evidence.get("first") or evidence).get("judge_s")
        return seconds is not None and seconds <= IN_ALLOCATION_S

    async def _begin(self, owed: Confirmation) -> None:
        began = await self._confirmations.claim(owed.attempt_id, self._server.register(), owed.host)
        if began is not None:
            begun = replace(owed, state="running", started_at=began)
            self._follow(begun, self._made(begun))

    def _follow(self, confirmation: Confirmation, work: Coroutine[None, None, None]) -> None:
        call = CallContext({"judge"})
        with run_in_call(call):
            task = asyncio.create_task(work, name=f"confirmation of {confirmation.attempt_id}")
        run = self._running[confirmation.host] = _Run(confirmation, task, call)

        def ended(_: "asyncio.Task[None]") -> None:
            with as_server():
                tidying = asyncio.create_task(self._tidy(run), name=f"end of {task.get_name()}")
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)

        task.add_done_callback(ended)

    async def _tidy(self, run: _Run) -> None:
        """Forget a run that has ended; one that noted no outcome is owed again.

        A task that is cancelled before its first step never runs, so the task itself cannot note that. Where this
        server ends, a run that has a job stays: the next server waits for it.
        """
        confirmation = run.confirmation
        attempt_id = confirmation.attempt_id
        try:
            since = confirmation.started_at
            if not (run.call.leaving and await self._confirmations.job_of(attempt_id, since)):
                await self._confirmations.release_left(attempt_id, self._server.register(), since)
        except GpuMcpError as error:
            _log.warning("a confirmation run stays as running", attempt=attempt_id, error=str(error))
        finally:
            if self._running.get(confirmation.host) is run:
                del self._running[confirmation.host]
            self._owed.set()

    async def _made(self, owed: Confirmation) -> None:
        """Make a run for its attempt's user."""
        watching = asyncio.create_task(self._watch_queue(owed))
        try:
            with acting_as(await self._user(owed.attempt_id)):
                await self._auditor.confirm_behind(owed.attempt_id, owed.started_at)
        except GpuMcpError as error:
            self._not_before[owed.attempt_id] = time.monotonic() + FAILED_S
            await self._confirmations.release(owed.attempt_id, owed.started_at, str(error), counted=True)
            _log.info("a confirmation run ended", attempt=owed.attempt_id, error=str(error))
        finally:
            watching.cancel()

    async def _watch_queue(self, owed: Confirmation) -> None:
        """Give way to whoever waits in the host's queue, of another server too."""
        while True:
            await asyncio.sleep(YIELD_S)
            run = self._running.get(owed.host)
            own = None if run is None else run.call.job_id
            try:
                if own is None or not await self._others_wait(owed.host, own):
                    continue  # until the submit is answered, the waiting job may be the run's own
            except GpuMcpError:
                continue
            self._not_before[owed.attempt_id] = time.monotonic() + GAVE_WAY_S
            self.give_way(owed.host)

    async def _others_wait(self, host: str, own: str | None) -> bool:
        """Return whether jobs other than an own one wait in a host's queue.

        Raises:
            GpuMcpError: If the host does not answer.
        """
        found, _ = await self._runner.hosts.call(host, "gpus")
        return any(e["job"] != own for e in found["pool"]["broker"].get("waiting", []))

    async def _user(self, attempt_id: str) -> User:
        owner = await owner_of(self._db, attempt_id)
        return LOCAL if owner is None else await Users(self._db).worker(owner)

    async def _adopt_orphans(self) -> None:
        """Take over the runs of servers that are no more: their jobs may go on, or have ended."""
        for one in await self._confirmations.list_running():
            was = one.server or ""
            if was == self._server.register() or self._server.is_alive(was) or one.host in self._running:
                continue
            if await self._confirmations.claim(one.attempt_id, self._server.register(), one.host, was=was):
                self._follow(one, self._settled(one))

    async def _settled(self, one: Confirmation) -> None:
        """Wait for the job of a run that another server began, and note the outcome; without one it is owed again."""
        job_id = await self._confirmations.job_of(one.attempt_id, one.started_at)
        try:
            if job_id is None:
                raise NotFound("job of the run", one.attempt_id, hint="It is made again.")
            row = await self._table.get(job_id)
            done = await self._runner.wait(job_id, row.host)
            assert done is not None
            raise_if_not_run(done.record, row.host)
            evaluation = await self._verdicts.finish(done, row)
        except asyncio.CancelledError:
            call = current_call()
            if job_id is not None and call is not None and not call.leaving:  # it gives way
                await self._runner.end_quietly(job_id, one.host)
            raise
        except GpuMcpError as error:
            counted = job_id is not None and not isinstance(error, OF_THE_HOST)
            said = "" if job_id is None else str(error)
            await self._confirmations.release(one.attempt_id, one.started_at, said, counted=counted)
            return
        attempt, seconds = await self._experience.get(one.attempt_id), done.record.wall_s or 0.0
        await self._outcomes.settle(attempt, evaluation, one.started_at, seconds)
