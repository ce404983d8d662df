"""The judge's job for a program: owner, reference, and a sandbox for each run of the candidate."""

import hashlib
import json
import secrets
from typing import Any

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.judge.programs.program_process import KEPT
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program import ProgramProblem
from gpu_mcp_server.services.builds.program_builds import file_refs
from gpu_mcp_server.services.commands.command_runner import environment_of, min_level, roots_of
from gpu_mcp_server.services.evaluation.candidate_device import VENDOR_OF, check_device
from gpu_mcp_server.services.evaluation.judge_files import judge_tree, role_source
from gpu_mcp_server.services.evaluation.judge_job import TURN_S, processor_turn
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.hosts.judge_environments import packages_hint
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.workspaces.file_archive import ArchiveFile, Tree
from gpu_mcp_server.settings.server_settings import Settings

SANDBOXES = 40
"""A job may have 64 processes."""
MOST_RUNS = 9
"""Of one case; the first is not timed."""
BUDGET_S = 10.0
WALL_S = 1200.0
FILE_BYTES = 256 << 20
"""Of any file that a program writes, its stdout among them."""
MEMORY_BYTES = 16 << 30


def program_spec(
    problem: Problem,
    program: ProgramProblem,
    probe: HostProbe,
    settings: Settings,
    *,
    host: str,
    device: str,
    reference: Tree,
    candidate: Tree | None,
    tier: str = "performance",
) -> tuple[JobSpec, dict[str, bytes]]:
    """Describe a judge job for a program.

    Args:
        problem: For the tolerances.
        program: What to judge by.
        probe: The host.
        settings: For the sandbox level.
        host: Its name.
        device: `cpu`, `cuda` or `hip`.
        reference: The reference's project, built.
        candidate: The candidate's, built; none to try a problem before it is registered.
        tier: smoke, correctness or performance.

    Returns:
        The job and the contents that it names.

    Raises:
        ToolMissing: If the host has no Python that can judge, or not the GPU.
    """
    check_device(device, probe, host)
    python = probe.judge
    if python is None or not python.numpy:
        raise ToolMissing("a Python with NumPy", host, hint=packages_hint(host, "numpy"))
    runs = 0 if candidate is None else sandboxes(program, tier)
    roles = [f"candidate_{number}" for number in range(runs)]
    about = _task(problem, program, roles, device, tier, judge=candidate is not None)
    task = json.dumps({**about, "untimed": probe.why_untimed()}).encode()
    trees = _trees(task, reference, candidate or {}, roles)
    blobs = {hashlib.sha256(file.data).hexdigest(): file.data for tree in trees.values() for file in tree.values()}
    refs = {id(tree): file_refs(tree) for tree in trees.values()}
    programs = {
        "owner": role_source("main", "owner.owner_process", "owner.program_owner"),
        "program": role_source("main", "programs.program_process"),
    }
    environment = environment_of(probe, {"OMP_PROC_BIND": "false"})
    spec = JobSpec(
        id=new_job_id(),
        purpose="judge" if candidate is not None else "register",
        processes=tuple(
            ProcessSpec(
                argv=("judge", plays), role=role, trusted=role == "owner", workspace=role, env=environment,
                program=programs[plays], python=python.path, account="candidate" if role in roles else "",
            )
            for role, plays in ((role, "owner" if role == "owner" else "program") for role in trees)
        ),
        links=tuple(("owner", role) for role in trees if role != "owner"),
        files={role: refs[id(tree)] for role, tree in trees.items()},
        trees=judge_tree(python.version, blobs),
        outputs=("verdict.json",),
        roots=roots_of(probe, settings.hosts[host].roots),
        gpus=_turn(device, tier, judge=candidate is not None),
        limits=Limits(wall_s=WALL_S, memory_bytes=MEMORY_BYTES, shm_bytes=1 << 30),
        min_level=min_level(settings),
    )  # fmt: skip
    return spec, blobs


def _trees(task: bytes, reference: Tree, candidate: Tree, roles: list[str]) -> dict[str, dict[str, ArchiveFile]]:
    """Return what lies in the workspace of each role; all runs of the candidate share theirs."""
    each = prefix_paths(candidate)
    return {
        "owner": {"task.json": ArchiveFile(task)},
        "reference": prefix_paths(reference),
        **{role: each for role in roles},  # noqa: C420 - RUF024 wants it so
    }


def prefix_paths(tree: Tree) -> dict[str, ArchiveFile]:
    """Return a tree where a player looks for it."""
    return {f"{KEPT}/project/{path}": file for path, file in tree.items()}


def sandboxes(program: ProgramProblem, tier: str) -> int:
    """Return how many runs of a candidate there can be."""
    cases = len(program.cases)
    if tier == "smoke":
        return 1
    return cases * (2 if tier == "correctness" else min(MOST_RUNS, SANDBOXES // cases))


def _turn(device: str, tier: str, *, judge: bool) -> GpuRequest:
    if device in VENDOR_OF:
        return GpuRequest(count=1, mode="exclusive", wait_s=TURN_S, vendor=VENDOR_OF[device])
    return processor_turn(tier) if judge else GpuRequest()


def _task(
    problem: Problem, program: ProgramProblem, roles: list[str], device: str, tier: str, *, judge: bool
) -> dict[str, Any]:
    return {
        "mode": "judge" if judge else "register",
        "kind": "program",
        "device": device,
        "tier": tier,
        "sandboxes": roles,
        "run": program.run,
        "generator": program.generator or None,
        "inputs": program.inputs,
        "stdin": program.stdin or "",
        "cases": program.cases,
        "rules": [rule.model_dump() for rule in program.outputs],
        "said": program.said,
        "rtol": problem.rtol,
        "atol": problem.atol,
        "seed": secrets.token_hex(32),
        "file_bytes": FILE_BYTES,
        "run_timeout_s": program.run_timeout_s,
        "budget_s": BUDGET_S,
    }
