"""Compiled code of the judge's own: built once a host like any other source, kernels for GPUs with the package."""

import asyncio
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.models.build import CandidateLanguage, JudgedKind
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.evaluation.judge_files import JUDGE
from gpu_mcp_server.store.artifacts import Artifacts


class JudgeBinary(NamedTuple):
    """One piece."""

    file: str
    source: str
    language: CandidateLanguage


CALLS = JudgeBinary("calls.so", "candidate/calls.c", "c")
"""Makes the calls of a library's launcher; without it Python does, and the evidence says so (`candidate_calls_by`)."""
POOL = JudgeBinary("pool.so", "candidate/pool.cu", "cuda")
"""Lets a model's results lie in the judge's memory; without it they are copied."""
ELEMENTS = JudgeBinary("elements.so", "numerics/elements.c", "c")
"""Fills and checks on the processor; without it NumPy does (`elements_by`)."""
KERNELS = "devices/cubins"
"""Folder with what fills and checks on a GPU, by architecture; for others the driver compiles the PTX in every
evaluation (`kernels_compiled_by`)."""


async def judge_code(
    compiler: Compiler, artifacts: Artifacts, host: str, device: str, kind: JudgedKind
) -> dict[str, bytes]:
    """Return by file what a candidate of this kind is judged with; what the host cannot build is left out.

    All Python files are judged with the same, as one set of processes that were made ahead serves each of them.
    """
    wanted = [ELEMENTS] if device == "cpu" else []
    if kind == "library" and device in ("cpu", "cuda"):
        wanted.append(CALLS)
    if kind != "library" and device == "cuda":
        wanted.append(POOL)
    made = await asyncio.gather(*(_built(compiler, artifacts, host, part) for part in wanted))
    kernels = await asyncio.to_thread(_kernels) if device == "cuda" else {}
    return {**kernels, **{part.file: code for part, code in zip(wanted, made, strict=True) if code is not None}}


@cache
def _kernels() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((JUDGE / KERNELS).iterdir())}


async def _built(compiler: Compiler, artifacts: Artifacts, host: str, part: JudgeBinary) -> bytes | None:
    name = PurePosixPath(part.source).name
    source = CandidateSource((JUDGE / part.source).read_text(encoding="utf-8"), part.language, name)
    try:
        built = await compiler.build(source, host=host)
    except (ToolMissing, BadRequest):
        return None
    return await artifacts.read(built.artifact_id) if built.status == "ok" and built.artifact_id else None
