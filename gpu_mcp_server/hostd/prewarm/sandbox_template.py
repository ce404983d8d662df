"""Describes a sandbox that is made ahead of its job: all that cannot be changed any more.

What its job will wait for is done once for nothing. Memory that two processes share since a fork is copied page by
page when one of them first writes to it, and Python writes wherever it reads: the count of references. hostd and a
supervisor come to 300 pages each for a job, some microseconds a page.
"""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..gpus.gpu_matching import matching_gpus
from ..jobs import launch
from ..jobs.spec_validation import validate_spec
from ..protocol import (
    FileRef,
    JobRecord,
    JobSpec,
    Limits,
    ProcessRecord,
    ProcessSpec,
    job_spec_from_json,
    pack,
    to_json,
)

LEAST_MEMORY_BYTES = 64 << 20
MOST_PARTS = 4
"""Processes of a job that are all made ahead; a judge of programs has forty."""


class TemplateProcess(NamedTuple):
    """One process of it; nothing is known of a plain command."""

    workspace: str = "main"
    program: str = ""
    python: str = ""
    env: Tuple[Tuple[str, str], ...] = ()
    """What its interpreter is started with, where it is one of its own; others get theirs with the job."""
    gpu: bool = False


class SandboxTemplate(NamedTuple):
    """Shape that prewarmed sandboxes have in common. Sandboxes of equal shapes can take each other's jobs."""

    parts: Tuple[TemplateProcess, ...]
    roots: Tuple[str, ...]
    sizes: Tuple[int, int]
    """Bytes of /tmp and of /dev/shm."""
    trees: Tuple[Tuple[str, Tuple[FileRef, ...]], ...] = ()
    """Read-only trees that are shown."""
    gpus: Tuple[str, ...] = ()
    """Those whose devices are shown: a job that asks for so many, where no others fit it, gets these and no others."""

    @property
    def kind(self) -> str:
        """Return whether it is for plain commands, for one program, or for several."""
        first = next(iter(self.parts))
        if len(self.parts) > 1 or first.python:
            return "several"
        return "program" if first.program else "plain"

    def names(self) -> List[str]:
        """Return the workspaces."""
        return [part.workspace for part in self.parts]


def template_for(spec: JobSpec, gpus: List[Dict[str, Any]]) -> Optional[SandboxTemplate]:
    """Return the shape in which a job could be run, None where it must be started by itself.

    Args:
        spec: The job.
        gpus: All that the host has, if the job wants any.
    """
    limits, first = spec.limits, spec.processes[0]
    # A seccomp filter cannot be widened once installed, so such jobs need a sandbox of their own.
    filtered_otherwise = any(p.profiled or p.counted for p in spec.processes)
    if spec.network or limits.memory_bytes < LEAST_MEMORY_BYTES or filtered_otherwise:
        return None
    roots, sizes = tuple(launch.roots_of(spec)), (limits.tmp_bytes, limits.shm_bytes)
    if len(spec.processes) > 1 or first.python:
        return _several(spec, gpus, roots, sizes)
    usual = Limits()
    # Rare shapes are not made ahead: each waiting sandbox costs memory.
    if first.trusted or spec.gpus.count or spec.links or sizes != (usual.tmp_bytes, usual.shm_bytes):
        return None
    return SandboxTemplate((TemplateProcess(program=first.program),), roots, sizes, _trees(spec))


def _several(
    spec: JobSpec, gpus: List[Dict[str, Any]], roots: Tuple[str, ...], sizes: Tuple[int, int]
) -> Optional[SandboxTemplate]:
    """Return the shape of a job of several processes, each of which is a program with a workspace of its own."""
    processes = spec.processes
    apart = len({p.workspace for p in processes}) == len(processes) <= MOST_PARTS
    if not apart or not all(p.program and not p.account for p in processes):
        return None
    fitting = [str(g["uuid"]) for g in matching_gpus(gpus, spec.gpus)] if spec.gpus.count else []
    # With a choice of GPUs nobody knows ahead which nodes the sandbox must show.
    if len(fitting) != spec.gpus.count:
        return None
    return SandboxTemplate(tuple(_part(p) for p in processes), roots, sizes, _trees(spec), tuple(sorted(fitting)))


def _part(process: ProcessSpec) -> TemplateProcess:
    # Sorted, so that equal environments make equal shapes whatever their order.
    env = tuple(sorted(process.env.items())) if process.python else ()
    return TemplateProcess(process.workspace, process.program, process.python, env, process.gpu)


def _trees(spec: JobSpec) -> Tuple[Tuple[str, Tuple[FileRef, ...]], ...]:
    return tuple(sorted((name, tuple(refs)) for name, refs in spec.trees.items()))


def rehearse_claim(programs: Sequence[str] = ("",)) -> JobSpec:
    """Take a specification apart, check it and put it together again, as hostd does for each job; return it.

    Args:
        programs: One for each process, empty where it is a plain command.
    """
    processes = (
        ProcessSpec(argv=("true",), role="r%d" % number, program=program, env={"NAME": "value"})
        for number, program in enumerate(programs)
    )
    spec = JobSpec(id="rehearsal", processes=tuple(processes))
    text = pack({"id": 0, "verb": "submit", "spec": to_json(spec), "blobs": []}).partition(b"{")
    return validate_spec(job_spec_from_json(json.loads(b"".join(text[1:]).decode("ascii"))["spec"]))


def rehearse_record(spec: JobSpec) -> None:
    """Make a record and put it into words, as a supervisor does at the end."""
    stats = tuple(ProcessRecord(p.role, 0, None, 1, 0) for p in spec.processes)
    record = JobRecord(id=spec.id, state="finished", status="ok", processes=stats, started_at=0.0, ended_at=0.0)
    json.dumps(to_json(record)).encode()
