"""Recipes as MCP prompts: the same text that Claude Code's plugin has."""

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import PromptArgument

from gpu_mcp_server.recipes.agents.recipe_loader import Recipe, recipes

EXPLAINED = {
    "problem_id": "From list_problems.",
    "attempt_id": "From list_attempts.",
    "parent": "attempt_id to start from.",
    "host": "From gpu_status.",
    "target": "When to stop: a time or a speed-up.",
    "hint": "What to try.",
    "arch": "gfx90a, gfx942 ...",
}
"""What clients show beside an argument; those not named here explain themselves."""


def offer(server: MCPServer[Any]) -> None:
    """Add every recipe to the server as a prompt."""
    for recipe in recipes().values():
        server.add_prompt(
            Prompt(
                name=recipe.name,
                title=recipe.name.replace("-", " ").capitalize(),
                description=recipe.description,
                arguments=[
                    PromptArgument(name=a.name, description=EXPLAINED.get(a.name), required=a.required)
                    for a in recipe.arguments
                ],
                fn=_told(recipe),
                context_kwarg=None,
            )
        )


def _told(recipe: Recipe) -> Callable[..., str]:
    known = {argument.name for argument in recipe.arguments}

    def tell(**given: str) -> str:
        return recipe.prompt({name: value for name, value in given.items() if name in known})

    return tell
