"""Declaration of a group of tools, and discovery of the installed ones."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Literal, TypeVar

from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.mcp_api.lab_tool import LabTool
from gpu_mcp_server.mcp_api.schemas import lean_schema
from gpu_mcp_server.models._base import ResultModel

F = TypeVar("F", bound=Callable[..., Awaitable[ResultModel]])

Effect = Literal["reads", "runs", "changes"]
"""`reads` looks only; `runs` works in the sandbox or adds to the agent's own; `changes` ends or alters what exists."""


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
