"""Targets of profilers and checkers: a program of a workspace, or an attempt at one shape of its problem."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.services.builds.candidate_source import judged_kind, source_of_attempt
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.command_checks import check_command, job_files
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains.base import source_name
from gpu_mcp_server.toolchains.torch_bindings import FOLDER as EXTENSION
from gpu_mcp_server.toolchains.torch_bindings import binding_of, is_extension

FOLDER = ".gpu-mcp"
GPUS = 1
"""That a profiler or checker holds."""
SOURCES = (".cu", ".cuh", ".py", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hip", ".inl")
MAX_SOURCES, MAX_SOURCE_BYTES = 60, 1 << 20
PYTHON = re.compile(r"python[0-9.]*$")
DEVICE_NCCL = re.compile(r"\bncclDevComm|\bncclGetLsaPointer|\bncclGin\b|\bncclLsa")
"""NCCL's device interface: kernels that wait for peers."""
WITHOUT_GPU = (
    "gpu_status shows hosts with one. Without one, profile_kernel takes programs and attempts in C, C++ and Python "
    "(not in Triton alone, which is interpreted there), check_memory those in C and C++; compile_kernel says a "
    "kernel's registers, spills and occupancy."
)


@dataclass(frozen=True)
class ProfileTarget:
    """Something to run under a tool."""

    argv: tuple[str, ...]
    host: str
    probe: HostProbe
    workspace_id: str | None = None
    attempt: Attempt | None = None
    shape: Mapping[str, int] | None = None
    files: Sequence[FileRef] = ()
    blobs: Mapping[str, bytes | Path] = field(default_factory=dict[str, "bytes | Path"])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    vendor: str = "nvidia"
    """Whose GPU it runs on."""

    def with_files(self, files: Sequence[FileRef], blobs: Mapping[str, bytes | Path]) -> "ProfileTarget":
        """Return the same program with other files."""
        return replace(self, files=files, blobs=blobs)

    @property
    def is_python(self) -> bool:
        """Return whether the command is a Python interpreter with something to run."""
        return len(self.argv) > 1 and bool(PYTHON.match(self.argv[0].rpartition("/")[2]))

    @property
    def waits_for_peers(self) -> bool:
        """Return whether its sources use NCCL's device interface."""
        return any(DEVICE_NCCL.search(text) for text in self.sources.values())


class Targets:
    """Finds and prepares targets."""

    def __init__(
        self,
        jobs: JobRunner,
        workspaces: Workspaces,
        artifacts: Artifacts,
        experience: AttemptStore,
        problems: Problems,
        compiler: Compiler,
    ) -> None:
        self._jobs, self.workspaces, self._artifacts = jobs, workspaces, artifacts
        self._experience, self._problems, self._compiler = experience, problems, compiler

    async def resolve(self, what: RunTarget, calls: int = 1, *, amd: bool = False) -> ProfileTarget:
        """Return what to run.

        Args:
            what: As it was asked for.
            calls: How often our driver calls the launcher of an attempt.
            amd: Whether an AMD GPU will do, where the host has none of NVIDIA's.

        Raises:
            BadRequest: If there is neither command nor attempt, or the attempt cannot be called.
            NotFound: If a handle names nothing.
            ToolMissing: If the host has no such GPU.
        """
        command, workspace_id, attempt_id, shape = what.command, what.workspace_id, what.attempt_id, what.shape
        if (command is None) == (attempt_id is None):
            raise BadRequest("Give either command or attempt_id.", hint="A command runs in workspace_id.")
        attempt = await self._experience.get(attempt_id) if attempt_id else None
        where = self._jobs.hosts.choose(what.host or (attempt.host if attempt else None))
        probe = await self._jobs.probe(where)
        vendor = "amd" if amd and probe.amd_gpus and not probe.gpus else "nvidia"
        if vendor == "nvidia" and len(probe.gpus) < GPUS:
            named = "A GPU" if amd and attempt is None else "An NVIDIA GPU"
            raise ToolMissing(named, where, hint=WITHOUT_GPU)
        if attempt is not None and vendor == "amd":
            raise BadRequest(
                "Attempts are called alone on NVIDIA GPUs.",
                hint="Give command and workspace_id of a program that runs it.",
            )
        if attempt is not None:
            return await self._attempt(attempt, shape, where, probe, calls)
        return replace(await self.program(command or (), workspace_id, where), vendor=vendor)

    async def program(self, command: Sequence[str], workspace_id: str | None, host: str | None) -> ProfileTarget:
        """Return a program of a workspace, on a host with or without a GPU.

        Raises:
            BadRequest: If the command is empty or too long.
            NotFound: If a handle names nothing.
        """
        check_command(command, {}, 1.0, "")
        where = self._jobs.hosts.choose(host)
        files = await self.workspaces.manifest(workspace_id) if workspace_id else []
        blobs: dict[str, bytes | Path] = {f.sha256: self._artifacts.blob_path(f.sha256) for f in files}
        sources = await self.sources(workspace_id) if workspace_id else {}
        probe = await self._jobs.probe(where)
        return ProfileTarget(tuple(command), where, probe, workspace_id, None, None, files, blobs, sources)

    async def python_attempt(
        self, attempt: Attempt, shape: Mapping[str, int] | None, where: ProfileTarget
    ) -> ProfileTarget:
        """Return a Python attempt, called on the processor.

        Raises:
            BadRequest: If it cannot be called alone.
        """
        return await self._attempt(attempt, shape, where.host, where.probe, 1, "cpu")

    async def problem_of(self, attempt: Attempt) -> Problem:
        """Return the problem that an attempt was made for."""
        return await self._problems.get(attempt.problem_id or "")

    async def sources(self, workspace_id: str) -> dict[str, str]:
        """Return the texts of a workspace's sources, to show lines of."""
        found: dict[str, str] = {}
        for file in await self.workspaces.manifest(workspace_id):
            if file.path.endswith(SOURCES) and file.size <= MAX_SOURCE_BYTES and len(found) < MAX_SOURCES:
                found[file.path] = (await self.workspaces.read_bytes(workspace_id, file.path)).decode(
                    "utf-8", "replace"
                )
        return found

    async def _problem_to_call(self, attempt: Attempt) -> Problem:
        """Return an attempt's problem, if our player can call it alone.

        Raises:
            BadRequest: If it cannot.
        """
        if attempt.kind != "evaluate" or not attempt.source_artifact_id or not attempt.problem_id:
            raise BadRequest(f"{attempt.attempt_id} is no evaluation with a source.", hint="list_attempts shows them.")
        called = {name for name, facts in LANGUAGES.items() if facts.called_alone}
        if attempt.language not in called:
            raise BadRequest(
                f"An attempt in {attempt.language} cannot be called alone here; {' and '.join(sorted(called))} can.",
                hint="Write a program that calls it into a workspace, and give command and workspace_id.",
            )
        problem = await self._problems.get(attempt.problem_id)
        if any(layout.strides is not None for layout in problem.layouts.values()):
            raise BadRequest(
                "Inputs of this problem have strides; an attempt that is called alone gets row-major ones.",
                hint="Write a program that calls it into a workspace, and give command and workspace_id.",
            )
        return problem

    async def _attempt(
        self,
        attempt: Attempt,
        shape: Mapping[str, int] | None,
        host: str,
        probe: HostProbe,
        calls: int,
        device: str = "cuda",
    ) -> ProfileTarget:
        problem = await self._problem_to_call(attempt)
        dims = dims_of(problem, shape)
        source = await source_of_attempt(self._artifacts, attempt)
        text, language = source.text, source.language
        name = source_name(source.name, language)
        if language == "cuda":
            built = await self._compiler.build(source, host=host, flags=json.loads(attempt.flags or "[]"))
            if not built.artifact_id:
                raise BadRequest(f"{attempt.attempt_id} does not compile on {host!r}.", hint="compile_kernel says why.")
            library, data = "candidate.so", await self._artifacts.read(built.artifact_id)
        else:
            library, data = "kernel.py" if name == "problem.py" else name, text.encode()
        kind = judged_kind(text, language, problem)
        given: dict[str, bytes] = {}
        if language == "cuda" and is_extension(text):
            sizes = len(problem.inputs), len(problem.outputs), len(problem.symbols())
            binding = binding_of(text, attempt.entry or "launch", *sizes)
            given[f"{EXTENSION}/{binding.module}.so"] = data
            kind, library, data = binding.kind, "kernel.py", binding.text.encode()
        task = {
            "kind": kind,
            "library": library,
            "symbol": attempt.entry or "launch",
            "inputs": [tensor_of(t, dims) for t in problem.inputs],
            "outputs": [tensor_of(t, dims) for t in problem.outputs],
            "dims": list(dims.values()),
            "calls": calls,
            "device": device,
        }
        player = (WORKERS / "run_attempt.py").read_bytes()
        given |= {f"{FOLDER}/player.py": player, f"{FOLDER}/task.json": json.dumps(task).encode(), library: data}
        if language == "python" and problem.kind == "module":
            given["problem.py"] = problem.reference.encode()
        files, blobs = job_files(given)
        python = probe.judge.path if probe.judge else "/usr/bin/python3"
        argv = (python, f"{FOLDER}/player.py", f"{FOLDER}/task.json")
        return ProfileTarget(argv, host, probe, None, attempt, dims, files, blobs, {name: text})


def dims_of(problem: Problem, shape: Mapping[str, int] | None) -> dict[str, int]:
    """Return a size for each symbol of a problem, by default the last declared shape's."""
    symbols = problem.symbols()
    chosen = cast("Mapping[str, int]", shape or problem.shapes[-1])
    missing = [s for s in symbols if s not in chosen]
    if missing or any(s not in symbols for s in chosen):
        raise BadRequest(f"The shape needs a size for each of {', '.join(symbols)}, and no other.")
    if any(not 0 < size < 1 << 31 for size in chosen.values()):
        raise BadRequest("Sizes of a shape are whole numbers above 0.")
    return {s: int(chosen[s]) for s in symbols}


def tensor_of(spec: TensorSpec, dims: Mapping[str, int]) -> dict[str, object]:
    """Return a tensor as `workers/run_attempt.py` wants it."""
    shape = [dims[d] if isinstance(d, str) else d for d in spec.shape]
    count = 1
    for size in shape:
        count *= size
    return {"dtype": spec.dtype, "shape": shape, "count": count}
