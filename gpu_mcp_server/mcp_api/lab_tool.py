"""A tool as it is called: the one place where our words become MCP's."""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, cast

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import resolve_arguments
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, TextContent
from pydantic import ValidationError

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.mcp_api.lab_lifetime import LabHolder
from gpu_mcp_server.mcp_api.progress import CURRENT_PROGRESS, Progress
from gpu_mcp_server.mcp_api.schemas import describe_bad_arguments, refused_nulls, remove_paths
from gpu_mcp_server.runtime.result_limits import limit_result
from gpu_mcp_server.services.jobs.call_context import current_call

logger = logging.getLogger(__name__)


class LabTool(Tool):
    """A tool whose arguments are strict, whose results are bounded, and whose errors say what to do next."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Run the tool and translate what comes of it."""
        accepted = self._accepted(arguments)
        app: LabHolder = context.request_context.lifespan_context
        progress = Progress(_reporting(context))
        token = CURRENT_PROGRESS.set(progress)
        try:
            async with progress.beating(app.heartbeat_s):
                services = await resolve_arguments(self.resolved_params, self.resolver_plans, accepted, context)
                if not isinstance(services, dict):
                    return services
                data, text = limit_result(await self.fn(**accepted, **services))
        except (MCPError, ToolError):
            raise
        except Exception as error:
            raise ToolError(self._said(error)) from error
        finally:
            CURRENT_PROGRESS.reset(token)
        return CallToolResult(content=[TextContent(text=text)], structured_content=data)

    def _accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        known: dict[str, Any] = self.parameters.get("properties", {})
        unknown = [name for name in arguments if name not in known]
        if unknown:
            inside = [f" {name} is a key of {at}." for name in unknown for at in known if name in _keys_of(known[at])]
            raise ToolError(
                f"{self.name} has no argument {', '.join(map(repr, unknown))}; "
                + (f"it takes: {', '.join(known)}." if known else "it takes none.")
                + "".join(inside)
            )
        given = self.fn_metadata.pre_parse_json(arguments)
        try:
            return self.fn_metadata.validate_arguments(given)
        except ValidationError as error:
            nulls = refused_nulls(error, given, self.fn_metadata.arg_model)
        try:
            return self.fn_metadata.validate_arguments(remove_paths(given, nulls))
        except ValidationError as error:
            raise ToolError(describe_bad_arguments(self.name, error, self.fn_metadata.arg_model, nulls)) from error

    def _said(self, error: Exception) -> str:
        foreseen = _foreseen(error)
        if foreseen is not None:
            again = " The same call may succeed later." if foreseen.retryable else ""
            return f"{foreseen}{again}"
        incident = secrets.token_hex(4)
        logger.error("incident %s: %s broke", incident, self.name, exc_info=error)
        return (
            f"{self.name} broke inside the server (incident {incident}); the fault is not in your arguments. "
            "Try once more; if it stays, tell the user the incident: its traceback is in the server's log (stderr)."
        )


def _keys_of(schema: dict[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = schema.get("properties", {})
    return keys


def _reporting(context: Context[Any, Any]) -> Callable[[float, str], Awaitable[None]]:
    """Return what tells the caller how far a tool is, for as long as it waits; later whoever asks for the task."""
    call_context = current_call()

    async def report(value: float, message: str) -> None:
        if call_context is not None:
            call_context.message = message
        if call_context is not None and call_context.is_task:
            return
        if call_context is not None and call_context.report is not None:
            await call_context.report(value, message)
        else:
            await context.report_progress(value, None, message)

    return report


def _foreseen(error: BaseException) -> GpuMcpError | None:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return next((found for inner in group.exceptions if (found := _foreseen(inner)) is not None), None)
    return error if isinstance(error, GpuMcpError) else None
