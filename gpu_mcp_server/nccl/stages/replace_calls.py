"""Stage B: calls of the host's collectives become calls of generated device kernels with a counted fallback."""

from gpu_mcp_server.nccl.analysis.alltoall_loop import AllToAllLoop, sweep_of
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, CallSite
from gpu_mcp_server.nccl.analysis.feasibility import REPLACED, stage_b
from gpu_mcp_server.nccl.program_model.api_names import plain_collective
from gpu_mcp_server.nccl.program_model.syntax import field
from gpu_mcp_server.nccl.stages.error_macros import ErrorMacros
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles, include


def replace_calls(analysis: Analysis, files: EditedFiles, left_out: frozenset[str] = frozenset()) -> list[str]:
    """Edit a program for stage B, but for some collectives, and return what was done."""
    done: list[str] = []
    swept: set[int] = set()
    for site in analysis.sites:
        if stage_b(analysis, site) or plain_collective(site.call.name) in left_out:
            continue
        sweep = _sweep(analysis, site)
        if sweep is not None:
            if sweep.start.start_byte not in swept:
                swept.add(sweep.start.start_byte)
                _fold(analysis, files, sweep)
                done.append(f"the loop of ncclSend and ncclRecv at {site.call.path}:{site.call.line} to ncclx::Sweep")
            continue
        callee = field(site.call.node, "function")
        if callee is not None:
            name = f"ncclx::{REPLACED[plain_collective(site.call.name)]}"
            files.edits_of(site.call.path).replace(callee, name)
            done.append(f"{site.call.name} at {site.call.path}:{site.call.line} to {name}")
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
