"""How a group of tools is declared, and the one place where our words become MCP's."""

import asyncio
import contextvars
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from mcp.server.mcpserver import Context, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import resolve_arguments
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from gpu_mcp_server.errors import ConfigError, GpuMcpError
from gpu_mcp_server.mcp_api.progress import HEARTBEAT_S, Progress
from gpu_mcp_server.mcp_api.schemas import lean_schema, refused_nulls, said_of_arguments, without
from gpu_mcp_server.mcp_api.tool_sources import Sources
from gpu_mcp_server.models._base import ResultModel
from gpu_mcp_server.runtime.result_limits import bounded
from gpu_mcp_server.services.jobs.call_context import current_errand

if TYPE_CHECKING:
    from gpu_mcp_server.services.builds.compiler import Compiler
    from gpu_mcp_server.services.builds.disassembly import Inspector
    from gpu_mcp_server.services.builds.porting import Porter
    from gpu_mcp_server.services.builds.project_builds import Projects
    from gpu_mcp_server.services.commands.command_runner import Runner
    from gpu_mcp_server.services.documentation.doc_search import Documents
    from gpu_mcp_server.services.evaluation.attempt_audit import Auditor
    from gpu_mcp_server.services.evaluation.candidate_batches import Batches
    from gpu_mcp_server.services.evaluation.evaluator import Evaluator
    from gpu_mcp_server.services.evaluation.problem_registry import Registry
    from gpu_mcp_server.services.experience.experience_search import Memory
    from gpu_mcp_server.services.jobs.batch_jobs import Long
    from gpu_mcp_server.services.jobs.gpu_scheduler import Pool
    from gpu_mcp_server.services.lab import Lab
    from gpu_mcp_server.services.nccl.transform import Collectives
    from gpu_mcp_server.services.nccl.verifier import NcclVerifier
    from gpu_mcp_server.services.profiles.memory_checker import Checker
    from gpu_mcp_server.services.profiles.profile_queries import Profiles
    from gpu_mcp_server.services.profiles.profiler import Profiler
    from gpu_mcp_server.services.records.attempts import Experience
    from gpu_mcp_server.services.status.lab_status import Gpus
    from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
    from gpu_mcp_server.store.artifacts import Artifacts
    from gpu_mcp_server.team.sharing import Sharing
else:  # services bring asyncssh and the store; `tools/list` must not wait for them
    Artifacts = Auditor = Batches = Checker = Compiler = Documents = Evaluator = Experience = Gpus = Inspector = Any
    Lab = Long = Memory = NcclVerifier = Pool = Porter = Profiler = Profiles = Projects = Registry = Runner = Any
    Collectives = Sharing = Workspaces = Any

F = TypeVar("F", bound=Callable[..., Awaitable[ResultModel]])
OpenLab = Callable[[], "AbstractAsyncContextManager[Lab]"]

Effect = Literal["reads", "runs", "changes"]
"""`reads` looks only; `runs` works in the sandbox or adds to the agent's own; `changes` ends or alters what exists."""

CLOSING_S = 5.0
"""Longest wait for the laboratory to close; clients kill a server that lingers."""

logger = logging.getLogger(__name__)


class App:
    """What lives as long as the server: the laboratory, opened by the first call that needs it."""

    def __init__(self, open_lab: OpenLab, *, local_files: bool = True, heartbeat_s: float = HEARTBEAT_S) -> None:
        """Keep how to open the laboratory.

        Args:
            open_lab: Makes the context manager of the laboratory.
            local_files: Whether tools may read files of this machine: only when the caller is on it.
            heartbeat_s: Longest silence of a running tool.
        """
        self.local_files = local_files
        self.heartbeat_s = heartbeat_s
        self._open_lab = open_lab
        self._closing = asyncio.Event()
        self._used: asyncio.Event = asyncio.Event()
        self._opened: asyncio.Future[Lab] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def lab(self) -> Lab:
        """Return the laboratory; a failure to open it is raised, and the next call tries again."""
        if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
            self._opened = asyncio.get_running_loop().create_future()
            # What the laboratory does by itself it does for nobody: not for whoever happened to call first.
            self._keeper = asyncio.create_task(self._keep(self._opened), name="lab", context=contextvars.Context())
        return await asyncio.shield(self._opened)

    async def opened(self) -> Lab:
        """Wait until somebody has needed the laboratory, and return it."""
        await self._used.wait()
        return await self.lab()

    async def _keep(self, opened: "asyncio.Future[Lab]") -> None:
        # One task opens and closes: cancel scopes inside must not wander between the tasks of requests.
        try:
            async with self._open_lab() as lab:
                opened.set_result(lab)
                self._used.set()
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                logger.exception("the laboratory did not close cleanly")
            else:
                opened.set_exception(error)
                opened.exception()  # the callers raise it; nobody left is no reason for a warning

    async def close(self) -> None:
        """Close the laboratory, if it was opened; a host that does not let go is left to itself."""
        self._closing.set()
        if self._keeper is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._keeper, CLOSING_S)


_PROGRESS: ContextVar[Progress] = ContextVar("progress")


async def _lab(ctx: Context[App]) -> Any:
    return await ctx.request_context.lifespan_context.lab()


async def _sources(ctx: Context[App], lab: Annotated[Any, Resolve(_lab)]) -> Any:
    return Sources(lab.workspaces, local_files=ctx.request_context.lifespan_context.local_files)


async def _progress() -> Any:
    return _PROGRESS.get()


def _service(name: str) -> Resolve:
    async def pick(lab: Annotated[Any, Resolve(_lab)]) -> Any:
        return getattr(lab, name)

    return Resolve(pick)


# Give a tool a parameter of one of these types and it gets the service; the agent never sees it.
ArtifactsDep = Annotated[Artifacts, _service("artifacts")]
CheckerDep = Annotated[Checker, _service("checker")]
ProfilerDep = Annotated[Profiler, _service("profiler")]
ProfilesDep = Annotated[Profiles, _service("profiles")]
CollectivesDep = Annotated[Collectives, _service("collectives")]
CompilerDep = Annotated[Compiler, _service("compiler")]
AuditorDep = Annotated[Auditor, _service("auditor")]
BatchesDep = Annotated[Batches, _service("batches")]
NcclVerifierDep = Annotated[NcclVerifier, _service("nccl_verifier")]
InspectorDep = Annotated[Inspector, _service("inspector")]
PorterDep = Annotated[Porter, _service("porter")]
ProjectsDep = Annotated[Projects, _service("projects")]
DocumentsDep = Annotated[Documents, _service("documents")]
EvaluatorDep = Annotated[Evaluator, _service("evaluator")]
PoolDep = Annotated[Pool, _service("pool")]
LongDep = Annotated[Long, _service("long")]
RegistryDep = Annotated[Registry, _service("registry")]
MemoryDep = Annotated[Memory, _service("memory")]
ExperienceDep = Annotated[Experience, _service("experience")]
GpusDep = Annotated[Gpus, _service("gpus")]
SharingDep = Annotated[Sharing, _service("sharing")]
RunnerDep = Annotated[Runner, _service("runner")]
WorkspacesDep = Annotated[Workspaces, _service("workspaces")]
ProgressDep = Annotated[Progress, Resolve(_progress)]
SourcesDep = Annotated[Sources, Resolve(_sources)]


class LabTool(Tool):
    """A tool whose arguments are strict, whose results are bounded, and whose errors say what to do next."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Run the tool and translate what comes of it."""
        accepted = self._accepted(arguments)
        app: App = context.request_context.lifespan_context
        progress = Progress(_reporting(context))
        token = _PROGRESS.set(progress)
        try:
            async with progress.beating(app.heartbeat_s):
                services = await resolve_arguments(self.resolved_params, self.resolver_plans, accepted, context)
                if not isinstance(services, dict):
                    return services
                data, text = bounded(await self.fn(**accepted, **services))
        except (MCPError, ToolError):
            raise
        except Exception as error:
            raise ToolError(self._said(error)) from error
        finally:
            _PROGRESS.reset(token)
        return CallToolResult(content=[TextContent(text=text)], structured_content=data)

    def _accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        known = list(self.parameters.get("properties", {}))
        unknown = [name for name in arguments if name not in known]
        if unknown:
            raise ToolError(
                f"{self.name} has no argument {', '.join(map(repr, unknown))}; "
                + (f"it takes: {', '.join(known)}." if known else "it takes none.")
            )
        given = self.fn_metadata.pre_parse_json(arguments)
        try:
            return self.fn_metadata.validate_arguments(given)
        except ValidationError as error:
            nulls = refused_nulls(error, given, self.fn_metadata.arg_model)
        try:
            return self.fn_metadata.validate_arguments(without(given, nulls))
        except ValidationError as error:
            raise ToolError(said_of_arguments(self.name, error, known, nulls)) from error

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


def _reporting(context: Context[Any, Any]) -> Callable[[float, str], Awaitable[None]]:
    """Return what tells the caller how far a tool is, for as long as it waits; later whoever asks for the task."""
    errand = current_errand()

    async def report(value: float, message: str) -> None:
        if errand is not None:
            errand.message = message
        if errand is None or not errand.is_task:
            await context.report_progress(value, None, message)

    return report


def _foreseen(error: BaseException) -> GpuMcpError | None:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return next((found for inner in group.exceptions if (found := _foreseen(inner)) is not None), None)
    return error if isinstance(error, GpuMcpError) else None


@dataclass(frozen=True)
class ToolSpec:
    """One declared tool."""

    function: Callable[..., Awaitable[ResultModel]]
    title: str
    effect: Effect

    @property
    def name(self) -> str:
        """The name that agents call."""
        return self.function.__name__

    def to_mcp(self) -> Tool:
        """Return the tool as the SDK serves it, without what costs every conversation and says nothing.

        That is titles, the output schema, and hints that have no meaning for the tool: whether it destroys is asked of
        tools that change something only, and so is whether it may be repeated, where the default, "no", is ours.
        Source: MCP's schema, ToolAnnotations.
        """
        tool = LabTool.from_function(
            self.function,
            title=self.title,
            description=inspect.getdoc(self.function),
            annotations=ToolAnnotations(
                read_only_hint=self.effect == "reads",
                destructive_hint=None if self.effect == "reads" else self.effect == "changes",
                open_world_hint=False,
            ),
            structured_output=False,
        )
        tool.parameters = lean_schema(tool.parameters)
        return tool


@dataclass(frozen=True)
class Toolset:
    """A named group of tools that is switched on and off as one."""

    id: str
    """Name in `--toolsets` and in the settings: lower case, one word."""
    title: str
    """For people."""
    instructions: str
    """How an agent should use these tools together, in order of use; sent only when the toolset is on."""
    default: bool = True
    """On unless the settings say otherwise."""
    tools: list[ToolSpec] = field(default_factory=list[ToolSpec])
    """Filled by `tool`."""

    def tool(self, title: str, *, effect: Effect) -> Callable[[F], F]:
        """Add the function below to this toolset; its docstring is what the agent reads."""

        def add(function: F) -> F:
            self.tools.append(ToolSpec(function, title, effect))
            return function

        return add


def discover() -> dict[str, Toolset]:
    """Return every installed toolset by its id: ours and those of other packages.

    Raises:
        ConfigError: If two packages offer the same id.
    """
    found: dict[str, Toolset] = {}
    for entry in entry_points(group="gpu_mcp_server.toolsets"):
        loaded: Toolset | Sequence[Toolset] = entry.load()
        for toolset in [loaded] if isinstance(loaded, Toolset) else loaded:
            if toolset.id in found:
                raise ConfigError(f"Two packages offer the toolset {toolset.id!r}: see {entry.value}.")
            found[toolset.id] = toolset
    return found
