"""The compiled loop that makes a candidate's calls, built once a host like any other source."""

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.services.compiler import Compiler
from gpu_mcp_server.services.judge_files import JUDGE
from gpu_mcp_server.services.sources import Source
from gpu_mcp_server.store.artifacts import Artifacts


async def call_loop(compiler: Compiler, artifacts: Artifacts, host: str) -> bytes | None:
    """Return the library of judge/calls.c for a host, `None` where no C compiler makes it: Python's loop serves then.

    The evidence says which of them made the calls (`candidate_calls_by`).
    """
    return await _built(compiler, artifacts, host, "calls.c", "c")


async def elements(compiler: Compiler, artifacts: Artifacts, host: str) -> bytes | None:
    """Return the library of judge/elements.c for a host, with which the owner fills and checks on the processor.

    `None` where no C compiler makes it: NumPy serves then, and the evidence says so (`elements_by`).
    """
    return await _built(compiler, artifacts, host, "elements.c", "c")


async def allocator(compiler: Compiler, artifacts: Artifacts, host: str) -> bytes | None:
    """Return the library of judge/pool.cu for a host, `None` where nvcc does not make it: results are copied then."""
    return await _built(compiler, artifacts, host, "pool.cu", "cuda")


async def _built(
    compiler: Compiler, artifacts: Artifacts, host: str, name: str, language: CandidateLanguage
) -> bytes | None:
    source = Source((JUDGE / name).read_text(encoding="utf-8"), language, name)
    try:
        built = await compiler.build(source, host=host)
    except ToolMissing:
        return None
    return await artifacts.read(built.artifact_id) if built.status == "ok" and built.artifact_id else None
