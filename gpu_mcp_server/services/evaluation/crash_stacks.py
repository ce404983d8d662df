"""Stacks of crashed or hung candidates: each is called once more, apart from the judge, and looked at there.

What a second run says is the candidate's own word, shortened and stripped: it stands beside a verdict and changes none.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.package_files import WORKERS, worker_source
from gpu_mcp_server.services.builds.build_plans import compiling_environment
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.builds.python_siblings import with_own_places
from gpu_mcp_server.services.commands.command_runner import min_level, roots_of
from gpu_mcp_server.services.evaluation.judge_files import JUDGE
from gpu_mcp_server.services.evaluation.trial import BuildState, JudgeRequest
from gpu_mcp_server.services.jobs.command_checks import job_files
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.profiles.profile_targets import FOLDER, dims_of, tensor_of
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.toolchains.base import source_name

CRASHED = re.compile(r"\bcrashed with SIG(?:SEGV|BUS|ILL|FPE|ABRT|TRAP|SYS)\b")
HUNG = re.compile(r"\b(?:was not loaded|did not end its first call|did not return from its calls)\b.{0,60}was killed")
PURPOSE = "diagnose"
HANG_S: Mapping[str, float] = {"c": 10.0, "cpp": 10.0, "cuda": 15.0, "triton": 40.0, "launcher": 40.0, "python": 40.0}
"""After so long a second run counts as hung; torch is imported in it, and extensions may be built."""
BESIDE_S = 30.0
"""For gdb to read symbols, and for a second try without it."""
TURN_S = 120.0
"""For a GPU."""
MEMORY_BYTES = 16 << 30
MOST_LINES, MOST_FRAMES, LINE_CHARACTERS = 40, 8, 200
NATIVE = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<frame>.+)$")
OURS = re.compile(
    r"\b(?:ffi_\w+|_?Py[A-Z_]\w*|_PyEval\w*|_ctypes\w*|cfunction_\w+|pymain_\w+|__libc_start\w*)\b"
    r"|\?\? \(\) from \S*libffi"
)
"""Python's own frames, and what calls a launcher: a stack ends there, Python tells its own."""
ENDS = re.compile(
    r"^(?:__pthread_kill|(?:__GI_)?(?:raise|abort)\b|std::terminate|__cxa_|\?\? \(\) from \S*libstdc\+\+)"
)
"""What ends a process that threw an exception or aborted: above the frames that tell why."""
WAITS = re.compile(r"futex|nanosleep|sem_wait|cond_wait|epoll|\bpoll\b|\bselect\b")
THEIRS = re.compile(r"\b(?:kernel|candidate)\.\w+|\blaunch\b")
"""A frame of the candidate's."""
LOADS = re.compile(r"\bdl_main \(")
"""A frame of a program that is still being loaded, on a busy machine: it stands nowhere yet."""
HEAD = re.compile(r"^(?:Thread \d+ |(?:Current t|T)hread 0x|Program received signal|thread \d+ \(|Fatal Python error)")
PYTHON = re.compile(r'^\s+File "(?P<file>[^"]{1,300})", line (?P<line>\d+) in (?P<name>.+)$')
PLAYER = f"{FOLDER}/player.py"


@dataclass(frozen=True)
class Stack:
    """Stack that a second run showed."""

    by: str
    """gdb, or what stood for it."""
    late: bool
    lines: Sequence[str]


class CrashStacks:
    """Runs candidates that crashed or hung once more."""

    def __init__(self, settings: Settings, jobs: JobRunner, compiler: Compiler) -> None:
        self._settings, self._jobs, self._compiler = settings, jobs, compiler

    async def explain(
        self,
        evaluation: Evaluation,
        trial: JudgeRequest,
        ready: BuildState,
        dims: Mapping[str, int] | None,
        left_s: float,
    ) -> Evaluation:
        """Return an evaluation with where each thread stood, as far as a second run shows it; the verdict stays."""
        wanted = CRASHED.search(evaluation.reason) or HUNG.search(evaluation.reason)
        limit_s = HANG_S.get(trial.language)
        if evaluation.verdict != "incorrect" or not wanted or limit_s is None:
            return evaluation
        if left_s < limit_s + BESIDE_S:
            return with_stack(evaluation, None, "not run: no time was left")
        await trial.tell(f"attempt {trial.attempt_id}: once more, for the stack")
        try:
            spec, blobs = await self._spec(trial, ready, dims, limit_s)
            done = await self._jobs.run(spec, host=trial.host, blobs=blobs)
        except GpuMcpError as error:
            return with_stack(evaluation, None, f"not run: {error}"[:300])
        name = source_name(trial.source.name, trial.language)
        found = stack_of(done.stdout, name)
        if found is None:
            return with_stack(evaluation, None, f"unknown: the second run ended with {done.record.status}")
        own = [with_own_places(line, trial.source.text, name) for line in found.lines]
        return with_stack(evaluation, replace(found, lines=own), "unknown: a second run with other data did not end so")

    async def _spec(
        self, trial: JudgeRequest, ready: BuildState, dims: Mapping[str, int] | None, limit_s: float
    ) -> tuple[JobSpec, dict[str, Any]]:
        probe, python = trial.probe, trial.probe.judge
        given = {PLAYER: (WORKERS / "run_attempt.py").read_bytes(), **await self._candidate(trial, ready)}
        sizes = dims_of(trial.problem, dims)
        library = "candidate.so" if "candidate.so" in given else "candidate.py"
        task = {
            "kind": _kind(trial, ready),
            "device": trial.device,
            "library": library,
            "symbol": trial.entry,
            "inputs": [tensor_of(t, sizes) for t in trial.problem.inputs],
            "outputs": [tensor_of(t, sizes) for t in trial.problem.outputs],
            "dims": list(sizes.values()),
            "calls": 3,
            "hang_s": limit_s,
        }
        files, blobs = job_files({**given, f"{FOLDER}/task.json": json.dumps(task).encode()})
        command = [python.path if python else "/usr/bin/python3", PLAYER, f"{FOLDER}/task.json"]
        process = ProcessSpec(
            argv=("{python}", json.dumps({"command": command, "limit_s": limit_s})),
            program=worker_source("run_crash"),
            env=compiling_environment(probe),
            profiled=True,
        )
        spec = JobSpec(
            id=new_job_id(),
            purpose=PURPOSE,
            processes=(process,),
            files={"main": tuple(files)},
            roots=tuple(dict.fromkeys((*roots_of(probe, self._settings.hosts[trial.host].roots), *_roots(trial)))),
            gpus=GpuRequest(1, "exclusive", wait_s=TURN_S) if trial.device == "cuda" else GpuRequest(),
            limits=Limits(wall_s=2 * limit_s + BESIDE_S, memory_bytes=MEMORY_BYTES, tmp_bytes=1 << 30),
            min_level=min_level(self._settings),
        )
        return spec, blobs

    async def _candidate(self, trial: JudgeRequest, ready: BuildState) -> dict[str, bytes]:
        """Return the files of the candidate; a compiled one with the lines of its source."""
        if ready.candidate is not None and ready.candidate.kind != "library":
            files = {"candidate.py": ready.candidate.content}
            if trial.problem.kind == "module":
                files["problem.py"] = trial.problem.reference.encode()
            built = ready.candidate.built
            if built:
                files["judge_extensions.py"] = (JUDGE / "candidate/torch_extensions.py").read_bytes()
            return {**files, **built}
        result = await self._compiler.build(trial.source, host=trial.host, flags=(*trial.flags, "-g"))
        binary = result.artifact_id or (ready.built.artifact_id if ready.built else None)
        return {"candidate.so": await self._compiler.binary(binary or "")}


def _kind(trial: JudgeRequest, ready: BuildState) -> str:
    kind = ready.candidate.kind if ready.candidate is not None else "library"
    return "processor" if kind == "library" and trial.language in ("c", "cpp") else kind


def _roots(trial: JudgeRequest) -> Sequence[str]:
    return trial.probe.judge.roots if trial.probe.judge else ()


def stack_of(stdout: bytes, name: str = "") -> Stack | None:
    """Read what the worker wrote last; `None` where it is nothing of the kind, or tells nothing of the candidate."""
    try:
        told: Any = json.loads(stdout.strip().rpartition(b"\n")[2])
        by, late, text = str(told["by"])[:80], told["late"] is True, str(told["text"])
    except (ValueError, KeyError, TypeError):
        return None
    if LOADS.search(text):
        return None
    return Stack(by, late, frames_in(safe_text(text.encode("utf-8", "replace")), name))


def frames_in(text: str, name: str = "") -> list[str]:
    """Return the heads and frames of a second run's text, each thread's until Python's own begin.

    Args:
        text: What the second run told.
        name: Of the candidate's file.
    """
    lines: list[str] = []
    taken, whole = 0, False
    for line in text.splitlines():
        native, python = NATIVE.match(line), PYTHON.match(line)
        if native or python:
            whole = whole or bool(native and OURS.search(native["frame"]))
            if native and not taken and ENDS.match(native["frame"]):
                continue
            if whole or taken == MOST_FRAMES or (python and python["file"].endswith(PLAYER)):
                continue
            taken += 1
            said = (
                native["frame"]
                if native
                else f"{python['name']} at {python['file']}:{python['line']}"
                if python
                else ""
            )
            lines.append(f"  {said}".replace("/job/", "")[:LINE_CHARACTERS])
        elif HEAD.match(line):
            taken, whole = 0, False
            lines.append(line[:LINE_CHARACTERS])
    heads = [n for n, line in enumerate(lines) if not line.startswith("  ")]
    bare = {n for n in heads if lines[n].startswith(("Thread", "Current")) and (n + 1 >= len(lines) or n + 1 in heads)}
    return _without_waiting([line for n, line in enumerate(lines) if n not in bare], name)[:MOST_LINES]


def _without_waiting(lines: Sequence[str], name: str) -> list[str]:
    """Return the candidate's own threads first, and none that only waits where another does something."""
    threads: list[list[str]] = []
    for line in lines:
        if not line.startswith("  ") or not threads:
            threads.append([])
        threads[-1].append(line)

    def is_theirs(thread: Sequence[str]) -> bool:
        return any(THEIRS.search(line) or (name and f" {name}:" in line) for line in thread)

    threads.sort(key=is_theirs, reverse=True)
    busy = [t for t in threads if len(t) == 1 or not WAITS.search(t[1]) or is_theirs(t)]
    shown = busy if any(len(thread) > 1 for thread in busy) else threads
    left = [f"(and {len(threads) - len(shown)} that only wait)"] if len(shown) < len(threads) else []
    return [line for thread in shown for line in thread] + left


def with_stack(evaluation: Evaluation, stack: Stack | None, otherwise: str) -> Evaluation:
    """Return an evaluation with a stack, or with why there is none."""
    if stack is None or not stack.lines:
        return evaluation.model_copy(update={"evidence": {**evaluation.evidence, "stack": otherwise}})
    what = "hung too" if stack.late else "ended"
    said = f"seen by {stack.by} in a second run with other data, which {what}"
    evidence = {**evaluation.evidence, "stack": said}
    return evaluation.model_copy(update={"evidence": evidence, "stack": list(stack.lines)})
