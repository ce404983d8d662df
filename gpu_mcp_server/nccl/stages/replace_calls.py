"""Stage B: calls of the host's collectives become calls of generated device kernels with a counted fallback."""

from gpu_mcp_server.nccl.analysis.alltoall_loop import AllToAllLoop, sweep_of
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, CallSite
from gpu_mcp_server.nccl.analysis.exchange_groups import group_bounds
from gpu_mcp_server.nccl.analysis.feasibility import REPLACED, stage_b
from gpu_mcp_server.nccl.program_model.api_names import plain_collective
from gpu_mcp_server.nccl.program_model.program import FunctionCall
from gpu_mcp_server.nccl.program_model.syntax import field
from gpu_mcp_server.nccl.stages.error_macros import ErrorMacros
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles, include

WITH_GIN = frozenset(
    {"ncclAlltoAll", "ncclAllGather", "ncclBroadcast", "ncclBcast", "ncclGather", "ncclScatter", "ncclAlltoAllv"}
)
"""Collectives with a kernel in `kernels_gin.cuh`, beside groups of sends and receives; it has no reduction."""


def has_kernel(analysis: Analysis, site: CallSite, api: str) -> bool:
    """Say whether the chosen interface has a kernel for a site."""
    pattern = analysis.pattern_of(site)
    return api != "gin" or plain_collective(site.call.name) in WITH_GIN or (pattern is not None and pattern.grouped)


def replace_calls(analysis: Analysis, files: EditedFiles, api: str = "lsa") -> list[str]:
    """Edit a program for stage B, but for what an interface has no kernel for, and return what was done."""
    done: list[str] = []
    swept: set[int] = set()
    groups: list[FunctionCall] = []
    for site in analysis.sites:
        if stage_b(analysis, site) or not has_kernel(analysis, site, api):
            continue
        sweep = _sweep(analysis, site)
        if sweep is not None:
            if sweep.start.start_byte not in swept:
                swept.add(sweep.start.start_byte)
                _fold(analysis, files, sweep)
                done.append(f"the loop of ncclSend and ncclRecv at {site.call.path}:{site.call.line} to ncclx::Sweep")
            continue
        callee = field(site.call.node, "function")
        pattern = analysis.pattern_of(site)
        if pattern is not None:
            groups += group_bounds(analysis, pattern)
        if callee is not None:
            plain = plain_collective(site.call.name)
            name = f"ncclx::{plain.removeprefix('nccl') if pattern is not None else REPLACED[plain]}"
            files.edits_of(site.call.path).replace(callee, name)
            done.append(f"{site.call.name} at {site.call.path}:{site.call.line} to {name}")
    for call in {(c.path, c.node.start_byte): c for c in groups}.values():
        callee = field(call.node, "function")
        if callee is not None:
            files.edits_of(call.path).replace(callee, f"ncclx::{call.name.removeprefix('nccl')}")
    for path in sorted(files.changed_texts()):
        include(analysis, files, path)
    return done


def _sweep(analysis: Analysis, site: CallSite) -> AllToAllLoop | None:
    pattern = analysis.pattern_of(site)
    return sweep_of(pattern) if pattern is not None else None


def _fold(analysis: Analysis, files: EditedFiles, sweep: AllToAllLoop) -> None:
    """Put one call in the place of group start, loop and group end."""
    edits = files.edits_of(sweep.source.path)
    given = f"{sweep.send}, {sweep.recv}, {sweep.count}, {sweep.type}, {sweep.peers}, {sweep.comm}, {sweep.stream}"
    text = ErrorMacros(analysis.program, sweep.source.path).statement(f"ncclx::Sweep({given})")
    edits.replace_range(sweep.start, sweep.end, text)
