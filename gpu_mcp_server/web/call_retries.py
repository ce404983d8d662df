"""A call that comes again, as its line was lost, joins the one that runs or gets its answer: its job runs once.

A client names a call by the header Idempotency-Key. Such a call does not end with its connection: it waits a while for
its client to come back. DELETE /calls/KEY ends it. Where the server was killed meanwhile the call's job goes on by
itself, and the answer is what job_status says of it.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult, TextContent
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.mcp_api.lab_lifetime import LabHolder
from gpu_mcp_server.mcp_api.server import ToolVisibility
from gpu_mcp_server.mcp_api.tasks import LASTING, PURPOSES
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.runtime.result_limits import limit_result
from gpu_mcp_server.services.jobs.call_context import CallContext, run_in_call
from gpu_mcp_server.web.limits import REFUSED_CODE

if TYPE_CHECKING:
    from gpu_mcp_server.services.lab import Lab

HEADER = "idempotency-key"
KEY = re.compile(r"[A-Za-z0-9_-]{16,64}")
GRACE_S = 60.0
"""For a client to come back to a call whose connection ended; then it ends as one without a key does at once."""
RESUMED_S = 240.0
"""How long a call that another server began waits for its job, as the tools' own wait_s."""
MOST_RUNNING = 64
"""Calls of one user, with those whose clients are away: as many as requests at once."""
LOST_CODE = -32050
"""Of a call that did not get to its end here; with the same key it may come again."""
Ctx = ServerRequestContext[Any, Any]
logger = logging.getLogger(__name__)


@dataclass
class RunningCall:
    """A call that runs, for as many requests as wait for it."""

    context: CallContext
    task: "asyncio.Task[Any] | None" = None
    waiting: int = 0
    ending: asyncio.TimerHandle | None = field(default=None, repr=False)


class RetriedCalls:
    """Middleware of MCP that runs each call with a key once."""

    def __init__(self, app: LabHolder, offers: Mapping[str, ToolVisibility]) -> None:
        self._app, self._offers = app, offers
        self._running: dict[tuple[str, str], RunningCall] = {}

    def route(self) -> Route:
        """Return the route that ends a call."""
        return Route("/calls/{key}", self._cancel, methods=["DELETE"])

    async def __call__(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """Run a call, or join it."""
        key = ctx.request.headers.get(HEADER) if ctx.request is not None else None
        tool = str((ctx.params or {}).get("name", ""))
        offer = self._offers.get(tool)
        if key is None or ctx.method != "tools/call" or offer is None or offer.effect == "reads":
            return await call_next(ctx)
        if not KEY.fullmatch(key):
            raise MCPError(INVALID_PARAMS, "Idempotency-Key: 16 to 64 letters, digits, - or _.")
        at = current_user().name, key
        call = self._running.get(at)
        if call is None:
            if sum(name == at[0] for name, _ in self._running) >= MOST_RUNNING:
                raise MCPError(REFUSED_CODE, f"{MOST_RUNNING} calls of yours run here already: wait for one of them.")
            call = self._running[at] = RunningCall(CallContext(PURPOSES if tool in LASTING else ()))
            call.task = asyncio.create_task(self._work(key, call, ctx, call_next), name=f"call {key}")
            call.task.add_done_callback(lambda task: self._done(at, task))
        call.context.report = lambda value, said: ctx.session.report_progress(value, None, said)
        return await self._joined(call)

    async def close(self) -> None:
        """Leave the jobs to themselves: the next server finds them."""
        running = [(call.context, call.task) for call in self._running.values() if call.task is not None]
        for context, task in running:
            context.leaving = True
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def _joined(self, call: RunningCall) -> HandlerResult:
        task = call.task
        assert task is not None
        call.waiting += 1
        if call.ending is not None:
            call.ending.cancel()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise MCPError(LOST_CODE, "The call was ended, or the server ends.") from None
            raise
        finally:
            call.waiting -= 1
            if not call.waiting and not task.done():
                call.ending = asyncio.get_running_loop().call_later(GRACE_S, task.cancel)

    async def _work(self, key: str, call: RunningCall, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        lab = await self._app.lab()
        params = ctx.params or {}
        try:
            known = await lab.jobs.keyed.begin(key, str(params.get("name")), params.get("arguments") or {})
        except BadRequest as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        if known.outcome is not None:
            return known.outcome
        try:
            result = await self._resumed(lab, known.job_id, call) if known.job_id else None
            if result is None:
                call.context.before_job = lambda job_id: lab.jobs.keyed.note_job(key, job_id)
                with run_in_call(call.context):
                    result = await call_next(ctx)
        except BaseException:
            if not call.context.leaving:
                with contextlib.suppress(Exception):
                    await lab.jobs.keyed.forget(key)
            raise
        await lab.jobs.keyed.finish(key, _wire(result))
        return result

    async def _resumed(self, lab: "Lab", job_id: str, call: RunningCall) -> CallToolResult | None:
        """Wait for the job of a call whose server is no more; None if it never got to its host."""
        if call.context.report is not None:
            await call.context.report(0.001, f"the server was started again; waiting for job {job_id}")
        for pause_s in (1.0, 0.0):  # what was sent at the last moment may be on its way to its host
            try:
                result = await lab.commands.status(job_id, wait_s=RESUMED_S)
            except NotFound:
                await asyncio.sleep(pause_s)
            else:
                data, text = limit_result(result)
                return CallToolResult(content=[TextContent(text=text)], structured_content=data)
        return None

    def _done(self, at: tuple[str, str], task: "asyncio.Task[Any]") -> None:
        call = self._running.pop(at)
        if call.ending is not None:
            call.ending.cancel()
        if not task.cancelled() and task.exception() is not None:
            logger.debug("call %s failed", at[1], exc_info=task.exception())

    async def _cancel(self, request: Request) -> Response:
        call = self._running.get((request.state.user.name, request.path_params["key"]))
        if call is not None and call.task is not None:
            call.task.cancel()
        return JSONResponse({"ended": call is not None})


def _wire(result: HandlerResult) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})
