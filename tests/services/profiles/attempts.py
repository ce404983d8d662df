"""Attempts to profile and check, noted without a judgement, which is not the matter and takes most of the time."""

import hashlib
from collections.abc import Mapping
from typing import Any

from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.problem_table import Problems


async def noted_attempt(
    lab: Lab,
    problem: Mapping[str, Any],
    text: str,
    language: str = "c",
    compiler: str | None = None,
    *,
    name: str = "kernel",
) -> str:
    """Note an evaluation of a source, by another compiler than the host's best where one is named; return its id."""
    tensors: dict[str, Any] = {
        side: [TensorSpec.model_validate(t) for t in problem[side]] for side in ("inputs", "outputs")
    }
    given: dict[str, Any] = {"description": "", "framework": "numpy", "entry": "reference", **problem, **tensors}
    made = Problems.make_problem(**given)
    await lab.store.problems.add(made)
    return await lab.store.experience.start(
        "evaluate",
        status="judged",
        problem_id=made.problem_id,
        source_hash=hashlib.sha256(text.encode()).hexdigest(),
        source_artifact_id=await lab.store.artifacts.put(text.encode(), name=name, media_type="text/plain"),
        language=language,
        host="local",
        versions={"compiler": compiler} if compiler else None,
    )
