"""The recipes: Markdown files of the plugin, read once."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from gpu_mcp_server.errors import ConfigError, NotFound
from gpu_mcp_server.package_files import content_path

Kind = Literal["agent", "skill"]

FRONT = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)
"""Front matter as Claude Code's plugins and the Agent Skills standard have it: YAML between two lines of dashes."""


@dataclass(frozen=True)
class Argument:
    """One thing that a recipe is told."""

    name: str
    required: bool


@dataclass(frozen=True)
class Recipe:
    """A role (`agent`) or a procedure (`skill`)."""

    kind: Kind
    name: str
    description: str
    arguments: tuple[Argument, ...]
    body: str
    """Markdown without its front matter."""

    def prompt(self, given: Mapping[str, str]) -> str:
        """Return the text for an agent, with what it is given at its end."""
        told = [f"- {name}: {value}" for name, value in given.items() if value]
        return self.body.strip() + ("\n\nGiven:\n\n" + "\n".join(told) if told else "") + "\n"


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    """Return all recipes by name, roles first.

    Raises:
        ConfigError: If one has no front matter, no name or no description.
    """
    folder = content_path("agent_recipes")
    found = [read("agent", path) for path in sorted((folder / "agents").glob("*.md"))]
    found += [read("skill", path) for path in sorted((folder / "skills").glob("*/SKILL.md"))]
    return {recipe.name: recipe for recipe in found}


def recipe(name: str) -> Recipe:
    """Return one recipe.

    Raises:
        NotFound: If there is none of that name.
    """
    known = recipes()
    if name not in known:
        raise NotFound("recipe", name, hint=f"There are: {', '.join(known)}.")
    return known[name]


def read(kind: Kind, path: Path) -> Recipe:
    """Read one file.

    Raises:
        ConfigError: If it is not what a recipe is.
    """
    import yaml

    match = FRONT.match(path.read_text(encoding="utf-8"))
    if match is None:
        raise ConfigError(f"{path} has no front matter.", hint="Begin it with ---, name, description, ---.")
    try:
        front = cast("dict[str, Any]", yaml.safe_load(match[1]) or {})
        name, description = str(front["name"]), str(front["description"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"The front matter of {path} cannot be used: {error}.") from error
    wanted = str(front.get("metadata", {}).get("arguments", "")).split()
    arguments = tuple(Argument(word.removesuffix("?"), not word.endswith("?")) for word in wanted)
    return Recipe(kind, name, description, arguments, match[2])
