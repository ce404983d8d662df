"""Calls that may be answered before their end: by the id of the job that does their work."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class InputRequests:
    """Questions of a call to its caller, who has gone with its task and comes back to answer."""

    def __init__(self) -> None:
        self._rounds = 0
        self._pending: dict[str, Any] = {}
        self._answers: dict[str, Any] = {}
        self._all = asyncio.Event()

    async def ask(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until all is answered; return the answers by the names of the requests."""
        self._rounds += 1
        names = {f"{self._rounds}.{name}": name for name in requests}
        self._pending = {key: requests[name] for key, name in names.items()}
        self._answers = {}
        self._all.clear()
        if self._pending:
            await self._all.wait()
        return {names[key]: answer for key, answer in self._answers.items()}

    def pending(self) -> dict[str, Any]:
        """Return what is not answered yet, by keys that no other question of this call has."""
        return dict(self._pending)

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take answers, some or all; those to nothing that is asked count for nothing."""
        for key in self._pending.keys() & responses.keys():
            del self._pending[key]
            self._answers[key] = responses[key]
        if not self._pending:
            self._all.set()


class CallContext:
    """A call, what its job is, and who waits for it.

    Attributes:
        job_id: Once the job is on its host.
        message: What the tool said last of how far it is.
        is_task: Whether the caller was given the job's id and has gone: then no wait of the call's own ends it early.
        leaving: Whether the server ends, which must not end the job.
        questions: What the call asks once it is a task.
        before_job: Told the job's id before there is such a job.
        report: Sends how far the tool is, where another request than the first may wait for the call.
    """

    def __init__(self, purposes: Collection[str]) -> None:
        """Wait for a job of one of the purposes; what is compiled or probed before is not what was asked for."""
        self._purposes = purposes
        self.started = asyncio.Event()
        self.job_id: str | None = None
        self.message: str | None = None
        self.is_task = False
        self.leaving = False
        self.questions = InputRequests()
        self.before_job: Callable[[str], Awaitable[None]] | None = None
        self.report: Callable[[float, str], Awaitable[None]] | None = None

    def wants(self, purpose: str) -> bool:
        """Say whether a job that is about to start is the call's own: such a job outlives this server."""
        return self.job_id is None and purpose in self._purposes

    def note(self, job_id: str) -> None:
        """Hear that the call's job is on its host."""
        self.job_id = job_id
        self.started.set()


_CURRENT: ContextVar[CallContext | None] = ContextVar("call_context", default=None)


def current_call() -> CallContext | None:
    """Return the call that the work at hand is part of; tasks inherit it from who started them."""
    return _CURRENT.get()


def is_left_running() -> bool:
    """Say whether the server ends while the job of the call at hand goes on."""
    call_context = current_call()
    return call_context is not None and call_context.leaving and call_context.job_id is not None


@contextmanager
def run_in_call(call_context: CallContext) -> Generator[None]:
    """Do what the block does as part of a call."""
    token = _CURRENT.set(call_context)
    try:
        yield
    finally:
        _CURRENT.reset(token)
