"""Fixtures of recipes: a cheap problem for the processor, and a run with the scripted agent."""

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource

HERE = Path(__file__).parent
AGENT = {"command": ["/usr/bin/python3", "agent.py"], "files": {"agent.py": "agent.py"}, "timeout_s": 60}
TWICE = """
name = "twice plus one"
reference = "def reference(x):\\n    return 2 * x + 1\\n"
rtol = 1e-5
atol = 1e-6
inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
shapes = [{ n = 400_000 }]
trials = { fixed_shapes = true, distributions = "declared" }
"""
Begun = Callable[..., Awaitable[str]]


@pytest.fixture
def registered(lab: Lab) -> Callable[[], Awaitable[str]]:
    """Registers the problem once a test: what another test had judged is not remembered."""
    known: list[str] = []

    async def register() -> str:
        if not known:
            known.append(await register_anew(lab))
        return known[0]

    return register


async def register_anew(lab: Lab) -> str:
    """Register a problem that nobody tried: a name is no part of what it is, its reference's text is; return its id."""
    text = TWICE.replace("+ 1\\n", f"+ 1  # {secrets.token_hex(4)}\\n")
    assert text != TWICE
    return (await lab.evaluation.registry.import_file(ProblemSource("p.toml", text))).problem_id


@pytest.fixture
def begun(lab: Lab, registered: Callable[[], Awaitable[str]]) -> Begun:
    """Notes a run of the scripted agent, and returns its id."""

    async def begin(scenario: str, agent: dict[str, Any] | None = None, **more: Any) -> str:
        given = {"SCENARIO": scenario, "OUTSIDE": str(lab.settings.data_dir / "out")}
        agent = {**AGENT, "environment": given, **(agent or {})}
        values = {"name": scenario, "problem": await registered(), "language": "c", "agent": agent, "tier": "smoke"}
        values["accept_provisional"] = True  # what a confirmation run changes has tests of its own
        return Runs(lab).create(plan_of({**values, **more}, HERE))

    return begin
