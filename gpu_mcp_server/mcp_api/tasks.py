"""The extension io.modelcontextprotocol/tasks: a call that lasts is answered by a task, whose id is its job's.

A call that ends soon is answered as ever. One that does not becomes a task when its job is on its host: such a job
outlives this server, and any server on the same store tells how it stands. Where the server that waited for it is gone,
the result is what job_status says of the job, verdict included.

A tool that asks its caller something once it is a task waits in `input_required` for the answers, and is called again
with them; no tool of ours does so by now. Only the server that waits for the call can take the answers.

Source: the specification of 2026-07-28, https://github.com/modelcontextprotocol/ext-tasks.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    RequestParams,
    TextContent,
)
from pydantic import BaseModel, Field, ValidationError

from gpu_mcp_server.errors import GpuMcpError, NotFound
from gpu_mcp_server.mcp_api.lab_lifetime import LabHolder
from gpu_mcp_server.runtime.result_limits import limit_result
from gpu_mcp_server.services.jobs.call_context import CallContext, current_call, run_in_call

if TYPE_CHECKING:
    from gpu_mcp_server.services.jobs.task_table import TaskRow

IDENTIFIER = "io.modelcontextprotocol/tasks"
ERA = frozenset({"2026-07-28"})
LASTING = frozenset(
    {"run_command", "evaluate_kernel", "audit_attempt", "check_memory", "profile_kernel", "find_hotspots"}
)
"""Tools whose work is one job."""
PURPOSES = frozenset({"run", "fetch", "judge", "check", "profile", "hotspots"})
"""Of those jobs."""
AFTER_S = 2.0
"""How long a call may still end by itself once its job has started, before it becomes a task."""
POLL_MS = 1000
HEADER_MISMATCH = -32020
"""Source: SEP-2243, Server Validation."""

Ctx = ServerRequestContext[Any, Any]
logger = logging.getLogger(__name__)


class TaskParams(RequestParams):
    """Parameters that name a task."""

    task_id: str = Field(alias="taskId", max_length=200)


class UpdateParams(TaskParams):
    """Answers to what a task asked, some or all."""

    input_responses: dict[str, Any] = Field(alias="inputResponses", default_factory=dict[str, Any])


class TaskExtension(Extension):
    """Makes tasks of calls that last, for clients that say that they know them."""

    identifier = IDENTIFIER

    def __init__(self, app: LabHolder, *, lasting: Collection[str] | None = None, after_s: float | None = None) -> None:
        self._app, self._lasting = app, LASTING if lasting is None else lasting
        self._after_s = AFTER_S if after_s is None else after_s
        self._running: dict[str, tuple[asyncio.Task[Any], CallContext]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def methods(self) -> Sequence[MethodBinding]:
        """Return the extension's methods."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get, ERA),
            MethodBinding("tasks/update", UpdateParams, self._update, ERA),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, ERA),
        ]

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Ctx, call_next: CallNext) -> Any:
        """Answer a call by its result, or by a task if that takes long."""
        capabilities = ctx.session.client_capabilities
        declared = IDENTIFIER in ((capabilities.extensions if capabilities else None) or {})
        if not declared or params.name not in self._lasting or ctx.protocol_version not in ERA:
            return await call_next(ctx)
        call_context = current_call() or CallContext(PURPOSES)
        call = asyncio.create_task(_called(call_context, params, ctx, call_next), name=f"call of {params.name}")
        try:
            await self._soon(call, call_context)
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            raise
        if call.done() or call_context.job_id is None:
            return await call
        return await self._handed_over(call_context.job_id, params.name, call, call_context)

    async def _soon(self, call: "asyncio.Task[Any]", call_context: CallContext) -> None:
        """Wait until the call has ended, or its job has run for a moment."""
        started = asyncio.create_task(call_context.started.wait())
        try:
            await asyncio.wait({call, started}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                await asyncio.wait({call}, timeout=self._after_s)
        finally:
            started.cancel()

    async def _handed_over(
        self, task_id: str, tool: str, call: "asyncio.Task[Any]", call_context: CallContext
    ) -> dict[str, Any]:
        """Keep what becomes of a call, and return what the caller is told instead."""
        call_context.is_task = True
        lab = await self._app.lab()
        row = await lab.jobs.tasks.add(task_id, tool)
        self._running[task_id] = call, call_context
        ending = asyncio.create_task(self._ended(task_id, call, call_context), name=f"task {task_id}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return {"resultType": "task", **self._shown(row)}

    async def _ended(self, task_id: str, call: "asyncio.Task[Any]", call_context: CallContext) -> None:
        """Wait for the call's end and keep what came of it."""
        lab = await self._app.lab()
        await asyncio.wait({call})
        try:
            if call.cancelled():
                if not call_context.leaving:
                    await lab.jobs.tasks.finish(task_id, "cancelled")
                    await lab.commands.cancel(task_id)  # keeps how the job ended, and tells who subscribed
            elif (error := call.exception()) is None:
                await lab.jobs.tasks.finish(task_id, "completed", _wire(call.result()))
            elif isinstance(error, MCPError):
                await lab.jobs.tasks.finish(task_id, "failed", error.error.model_dump(mode="json", exclude_none=True))
            else:
                logger.error("task %s broke", task_id, exc_info=error)
                await lab.jobs.tasks.finish(task_id, "failed", {"code": INTERNAL_ERROR, "message": "Internal error"})
        except Exception:
            logger.exception("the end of task %s could not be kept", task_id)
        finally:
            self._running.pop(task_id, None)

    async def close(self) -> None:
        """Leave the jobs to themselves: the next server finds them."""
        for call, call_context in self._running.values():
            call_context.leaving = True
            call.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _get(self, ctx: Ctx, params: TaskParams) -> dict[str, Any]:
        row = await self._found(ctx, params)
        if row.status == "working" and row.task_id not in self._running:
            row = await self._taken_over(row)
        return {"resultType": "complete", **self._shown(row)}

    async def _update(self, ctx: Ctx, params: UpdateParams) -> dict[str, Any]:
        row = await self._found(ctx, params)
        await self._require_own(row, "answer")
        known = self._running.get(row.task_id)
        if known is not None:
            known[1].questions.answer(params.input_responses)
        return {"resultType": "complete"}

    async def _require_own(self, row: "TaskRow", what: str) -> None:
        if not await (await self._app.lab()).jobs.tasks.is_own(row.task_id):
            raise MCPError(INVALID_PARAMS, f"Task {row.task_id!r} is not yours to {what}.")

    async def _cancel(self, ctx: Ctx, params: TaskParams) -> dict[str, Any]:
        row = await self._found(ctx, params)
        lab = await self._app.lab()
        await self._require_own(row, "cancel")
        if row.status == "working" and await lab.jobs.tasks.finish(row.task_id, "cancelled"):
            known = self._running.get(row.task_id)
            if known is not None:
                known[0].cancel()
            else:
                await lab.commands.cancel(row.task_id)
        return {"resultType": "complete"}

    async def _found(self, ctx: Ctx, params: TaskParams) -> "TaskRow":
        require_client_extension(ctx, IDENTIFIER)
        named = ctx.request.headers.get("mcp-name") if ctx.request is not None else None
        if named is not None and named.strip() != params.task_id:
            raise MCPError(HEADER_MISMATCH, f"The header Mcp-Name says {named!r}, the body {params.task_id!r}.")
        try:
            return await (await self._app.lab()).jobs.tasks.get(params.task_id)
        except NotFound as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error

    async def _taken_over(self, row: "TaskRow") -> "TaskRow":
        """Return a task as it is now whose server may be gone, and keep its job's end as its own."""
        lab = await self._app.lab()
        if not lab.jobs.tasks.is_orphan(row):
            return await lab.jobs.tasks.get(row.task_id)
        try:
            result = await lab.commands.status(row.task_id)
            if result.state != "finished":
                return row
            data, text = limit_result(result)
            await lab.jobs.tasks.finish(
                row.task_id,
                "completed",
                _wire(CallToolResult(content=[TextContent(text=text)], structured_content=data)),
            )
        except GpuMcpError as error:
            if error.retryable:
                return row
            await lab.jobs.tasks.finish(row.task_id, "failed", {"code": INTERNAL_ERROR, "message": str(error)})
        return await lab.jobs.tasks.get(row.task_id)

    def _shown(self, row: "TaskRow") -> dict[str, Any]:
        shown: dict[str, Any] = {
            "taskId": row.task_id,
            "status": row.status,
            "createdAt": row.created_at,
            "lastUpdatedAt": row.updated_at,
            "ttlMs": None,
            "pollIntervalMs": POLL_MS,
        }
        known = self._running.get(row.task_id)
        if row.status == "working" and known is not None:
            if known[1].message:
                shown["statusMessage"] = known[1].message
            if asked := known[1].questions.pending():
                shown |= {"status": "input_required", "inputRequests": asked}
        if row.status in ("completed", "failed"):
            shown["result" if row.status == "completed" else "error"] = row.outcome
        return shown


async def _called(call_context: CallContext, params: CallToolRequestParams, ctx: Ctx, call_next: CallNext) -> Any:
    """Call a tool, and once it is a task again with the answers to what it asks.

    The tool gets them in `params`, which is what the handler below is called with whatever the context says.
    """
    with run_in_call(call_context):
        while True:
            result = await call_next(ctx)
            if not call_context.is_task or not isinstance(result, InputRequiredResult):
                return result
            given = await call_context.questions.ask(_wire(result).get("inputRequests") or {})
            try:
                answered = CallToolRequestParams.model_validate({"name": params.name, "inputResponses": given})
            except ValidationError as error:
                raise MCPError(INVALID_PARAMS, f"The answers to {params.name} are none: {error}") from error
            params.input_responses, params.request_state = answered.input_responses, result.request_state


def _wire(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result)
