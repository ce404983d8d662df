"""Puts the laboratory and the toolsets together into one MCP server, and serves it."""

import difflib
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from gpu_mcp_server import __version__
from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.mcp_api import resources
from gpu_mcp_server.mcp_api.lab_lifetime import LabHolder
from gpu_mcp_server.mcp_api.malformed_messages import serve_lines
from gpu_mcp_server.mcp_api.notifications import Notifications
from gpu_mcp_server.mcp_api.progress import HEARTBEAT_S
from gpu_mcp_server.mcp_api.tasks import TaskExtension
from gpu_mcp_server.mcp_api.toolset import Effect, Toolset, ToolSpec, discover
from gpu_mcp_server.models.user import Scope, User
from gpu_mcp_server.recipes.agents import prompts
from gpu_mcp_server.runtime.current_user import current_user

if TYPE_CHECKING:
    from mcp.types import CallToolResult, InputRequiredResult, Tool

    from gpu_mcp_server.services.lab import Lab
    from gpu_mcp_server.settings.server_settings import Settings

INSTRUCTIONS_LIMIT = 2_000
"""Characters of the instructions, which stand in every conversation; clients cut off what is beyond 2 KB."""
OFF = "Off, until the user starts the server with `--toolsets default,NAME`:"

PREAMBLE = (
    "A GPU laboratory: it compiles, runs, judges and remembers kernels; you think and write. Handles (workspace_id, "
    "job_id, problem_id, attempt_id, artifact_id) outlive calls and restarts. An error says what to do next."
)


@dataclass(frozen=True)
class ToolVisibility:
    """Toolset and scope of a tool, which decide if a user may call it."""

    toolset: str
    effect: Effect

    @property
    def scope(self) -> Scope:
        """The scope that it takes."""
        return "read" if self.effect == "reads" else "run"

    def open_to(self, user: User) -> bool:
        """Say whether a user may call it."""
        return user.may(self.scope) and (user.toolsets is None or self.toolset in user.toolsets)


class LabServer(MCPServer[LabHolder]):
    """The SDK's server, which offers each user what they may call, and names that when they ask for something else.

    Attributes:
        offers: What there is, by name of the tool.
        off: Toolsets that are not switched on, by name of their tools.
        app: What lives as long as the server.
    """

    offers: Mapping[str, ToolVisibility] = MappingProxyType({})
    off: Mapping[str, str] = MappingProxyType({})
    app: LabHolder

    async def list_tools(self) -> "list[Tool]":
        """Return the tools that the current user may call."""
        tools, user = await super().list_tools(), current_user()
        if user.is_local:
            return tools
        return [tool for tool in tools if tool.name not in self.offers or self.offers[tool.name].open_to(user)]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[LabHolder, Any] | None = None
    ) -> "CallToolResult | InputRequiredResult":
        """Call a tool by name."""
        known = [tool.name for tool in await self.list_tools()]
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {near[0]}?" if near and name not in self.offers and name not in self.off else ""
            raise ToolError(self._withheld(name) + (meant or f" You may call: {', '.join(known)}."))
        return await super().call_tool(name, arguments, context)

    def _withheld(self, name: str) -> str:
        """Say why a tool is not to be had, and who can change that."""
        offer, user = self.offers.get(name), current_user()
        if offer is None and name in self.off:
            how = f"the user can start the server with --toolsets default,{self.off[name]}, or set GPU_MCP_TOOLSETS"
            return f"{name} belongs to the toolset {self.off[name]!r}, which is off: {how}."
        if offer is None:
            return f"There is no tool {name!r} here."
        if not user.may(offer.scope):
            how = f"an admin makes one with `gpu-mcp-server token create {user.name} --scope {offer.scope}`"
            return f"{name} needs a token with the scope {offer.scope!r}; yours has {', '.join(user.scopes)}: {how}."
        how = f"an admin can add it with `gpu-mcp-server user set {user.name} --toolsets`"
        return f"{name} belongs to the toolset {offer.toolset!r}, which is not among yours; {how}."


def select_toolsets(
    available: dict[str, Toolset],
    *,
    toolsets: Sequence[str] | None = None,
    read_only: bool = False,
    exclude_tools: Sequence[str] = (),
) -> list[tuple[Toolset, list[ToolSpec]]]:
    """Return the toolsets that are on, each with those of its tools that may be called.

    Args:
        available: Toolsets by id.
        toolsets: Ids to switch on; `default` stands for those that are on anyway, `all` for every one.
        read_only: Leave out all tools but those that only look.
        exclude_tools: Names to leave out; wins over `toolsets`.

    Raises:
        ConfigError: If an id or a name is unknown.
    """
    wanted = list(toolsets) if toolsets is not None else ["default"]
    unknown = [t for t in wanted if t not in available and t not in ("default", "all")]
    if unknown:
        raise ConfigError(
            f"Unknown toolset {', '.join(map(repr, unknown))}.",
            hint=f"There are: {', '.join(available)}, default, all.",
        )
    on = [t for t in available.values() if t.id in wanted or "all" in wanted or ("default" in wanted and t.default)]
    names = {spec.name for toolset in available.values() for spec in toolset.tools}
    wrong = [name for name in exclude_tools if name not in names]
    if wrong:
        raise ConfigError(
            f"Unknown tool {', '.join(map(repr, wrong))} in exclude_tools.",
            hint=f"There are: {', '.join(sorted(names))}.",
        )
    chosen = [
        (t, [s for s in t.tools if s.name not in exclude_tools and (s.effect == "reads" or not read_only)]) for t in on
    ]
    return [(toolset, specs) for toolset, specs in chosen if specs]


def instructions_for(chosen: Sequence[tuple[Toolset, list[ToolSpec]]], off: Sequence[Toolset] = ()) -> str:
    """Return what an agent reads before it sees any tool: how to combine those there are, and what is switched off.

    All of ours fits the limit. Where toolsets of others do not, the answer names those it has no room for.
    """
    guides = [f"{toolset.title}: {toolset.instructions}" for toolset, _ in chosen]
    names = [f"{toolset.id}: {', '.join(spec.name for spec in toolset.tools)}" for toolset in off]
    rest = ["\n".join([OFF, *names])] if names else []
    kept = len(guides)
    while True:
        unsaid = [toolset.id for toolset, _ in chosen[kept:]]
        short = [f"Read the tools of {', '.join(unsaid)} for how to use them."] if unsaid else []
        text = "\n\n".join([PREAMBLE, *guides[:kept], *short, *rest])
        if len(text) <= INSTRUCTIONS_LIMIT or not kept:
            return text[:INSTRUCTIONS_LIMIT]
        kept -= 1


def build_server(
    open_lab: "Callable[[], AbstractAsyncContextManager[Lab]]",
    toolsets: dict[str, Toolset],
    *,
    only: Sequence[str] | None = None,
    read_only: bool = False,
    exclude_tools: Sequence[str] = (),
    local_files: bool = True,
    heartbeat_s: float = HEARTBEAT_S,
) -> LabServer:
    """Return a server that offers `toolsets`; the laboratory is opened by the first call of a tool.

    Args:
        open_lab: Makes the laboratory's context manager.
        toolsets: All that are installed, by id.
        only: See `select_toolsets`, as the next two.
        read_only: See `select_toolsets`.
        exclude_tools: See `select_toolsets`.
        local_files: Whether tools may read files of this machine for the caller.
        heartbeat_s: Longest silence of a running tool.
    """
    chosen = select_toolsets(toolsets, toolsets=only, read_only=read_only, exclude_tools=exclude_tools)
    on = {toolset.id for toolset, _ in chosen}
    app = LabHolder(open_lab, local_files=local_files, heartbeat_s=heartbeat_s)
    tasks = TaskExtension(app)

    @asynccontextmanager
    async def lifespan(_: MCPServer[LabHolder]) -> AsyncGenerator[LabHolder]:
        try:
            yield app
        finally:
            # A cancelled scope cancels every await in it, those below too: without the shield, hostd processes would
            # outlive the server.
            with anyio.CancelScope(shield=True):
                await tasks.close()
                await app.close()

    server = LabServer(
        "gpu-mcp-server",
        title="GPU laboratory",
        version=__version__,
        instructions=instructions_for(chosen, [each for each in toolsets.values() if each.id not in on]),
        tools=[spec.to_mcp() for _, specs in chosen for spec in specs],
        lifespan=lifespan,
        extensions=[tasks],
        subscriptions=Notifications(app),
    )
    resources.offer(server, app, {spec.name for _, specs in chosen for spec in specs})
    server.app = app
    server.offers = {spec.name: ToolVisibility(toolset.id, spec.effect) for toolset, specs in chosen for spec in specs}
    server.off = {spec.name: each.id for each in toolsets.values() if each.id not in on for spec in each.tools}
    prompts.offer(server)
    return server


def server_from_settings(settings: "Settings", *, local_files: bool = True) -> LabServer:
    """Return the server that the settings describe."""

    def open_lab() -> "AbstractAsyncContextManager[Lab]":
        from gpu_mcp_server.services.lab import Lab

        return Lab.open(settings)

    return build_server(
        open_lab,
        discover(),
        only=settings.toolsets,
        read_only=settings.read_only,
        exclude_tools=settings.exclude_tools,
        local_files=local_files and settings.local_files,
    )


def serve_stdio(server: LabServer) -> None:
    """Serve one client over stdin and stdout until it hangs up.

    SIGINT ends the process at once, as SIGTERM does: asyncio's own handler would wait for stdin, which a client keeps
    open. The hosts notice that the channel has ended, and end the attached jobs.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(serve_lines, server)
