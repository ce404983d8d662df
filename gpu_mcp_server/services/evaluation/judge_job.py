"""The judge's job: what is sent to the host, and what comes back."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from gpu_mcp_server.errors import JobBroken, LimitExceeded, ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, JobRecord, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.evaluation import ShapeVerdict, Timing, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.build_plans import compiling_environment
from gpu_mcp_server.services.commands.command_runner import min_level, roots_of
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.evaluation.judge_files import judge_tree, role_source
from gpu_mcp_server.services.evaluation.time_floors import floors
from gpu_mcp_server.services.hosts.host_connections import HostProbe, JudgePython
from gpu_mcp_server.services.hosts.judge_environments import packages_hint
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import progress_lines
from gpu_mcp_server.services.problems import kernelbench_problems
from gpu_mcp_server.services.problems.shape_expressions import parse_constraint
from gpu_mcp_server.services.problems.tensor_sizes import MAX_SHAPE_BYTES, largest, shape_bytes
from gpu_mcp_server.settings.server_settings import Settings

ROUND_MS = {"cpu": 20.0, "cuda": 10.0}
"""How long a round lasts. On a processor the judge's clock covers a wake-up and two messages besides the calls, which
are few per cent of it on an idle machine; on a GPU the fence tells hidden work from 10 ms on."""


@dataclass(frozen=True)
class TimingBudget:
    """Budget for timing a candidate."""

    half_width: float
    """Of the median's 95 % interval, as a part of the median, at which rounds end."""
    max_rounds: int
    budget_s: float
    """For the rounds of one shape."""
    overhead_s: float
    """What all shapes' rounds may cost together besides candidate and reference."""
    memory_share: float
    """Of a GPU's free memory, for the buffers of a round: more calls make longer rounds, and take longer to check."""
    rehearse_s: float
    """For more empty passes than the nine there always are, while they are uneven or their median is not well known."""


EFFORTS = {
    "quick": TimingBudget(0.02, 30, 2.0, 0.5, 0.3, 0.0),
    "exact": TimingBudget(0.005, 200, 5.0, 200.0, 0.6, 1.0),
}
ROUND_TIMEOUT_S = 20.0
REFERENCE_S = 6 * ROUND_TIMEOUT_S
"""What the judge allows a call of the reference."""
WALL_S = 300.0
TURN_S = 600.0
"""How long to wait for the GPU, or for a turn of the processor."""
PYTHON_WALL_S = 660.0
"""Besides one first call of a Python candidate that lasts as long as it may."""
PYTHON_TMP_BYTES = 1 << 30
"""For nvcc and g++, which a Python candidate may start."""
INTERPRETER_ROUND_S = 120.0
WINDOWED_BYTES = 256 << 20
"""Tensors of the largest shape, up to which evaluations share a GPU outside their windows: reference, candidate and
owner hold some four times as much each, for four jobs."""
SHORT_S = 0.5
"""A wait for a turn that is not worth a word."""
MEMORY_BYTES = 16 << 30
SHM_BYTES = 1 << 30

GENERATION = 1
"""Of harness and sandbox together, noted by the server in a verdict's evidence when it submits the job. Verdicts before
1 have none: a candidate could take over process 1 of its sandbox and forge the file that its verdict was read from."""
TRUSTED = 1
"""The first generation whose verdicts no candidate is known to have been able to forge."""
QUICK = TimingOptions()


def judge_spec(
    problem: Problem,
    probe: HostProbe,
    settings: Settings,
    *,
    host: str,
    device: str,
    candidate: BuiltCandidate | None,
    timing: TimingOptions = QUICK,
    accept_degenerate: bool = False,
    mode: Literal["judge", "writes"] = "judge",
    max_bytes: int | None = None,
    may_share: bool = False,
) -> tuple[JobSpec, dict[str, bytes]]:
    """Describe a judge job: owner, reference and, to judge, the candidate.

    Args:
        problem: What to judge by.
        probe: The host.
        settings: For the sandbox level.
        host: Its name.
        device: `cpu` or `cuda`.
        candidate: None to try a problem before it is registered.
        timing: How it is timed.
        accept_degenerate: Whether a problem may be registered of which an answer without work is right.
        max_bytes: Of a suite's problem that is registered: what a case may take to be kept.
        may_share: Whether it may share a GPU but for its windows: then its verdict may be none, and it is judged again.
        mode: `writes` to see which inputs a candidate writes to, instead of judging it.

    Returns:
        The job and the contents that it names.

    Raises:
        ToolMissing: If the host has no Python that can judge this problem.
        BadRequest: If the device cannot compare the problem's outputs.
    """
    python = _python(problem, probe, host, device, candidate)
    task = _task(problem, device, candidate, timing, probe, max_bytes) | {"accept_degenerate": accept_degenerate}
    task |= {"mode": mode, "pool": False} if mode != "judge" else {}
    own = _own(problem, candidate, task)
    compiles = candidate is not None and candidate.kind != "library"
    compiling = compiling_environment(probe) if compiles else {}
    blobs: dict[str, bytes] = {}
    files = {role: tuple(_ref(name, data, blobs) for name, data in more.items()) for role, more in own.items()}
    windowed = may_share and device == "cuda" and _is_quick(timing) and _is_small(problem)
    spec = JobSpec(
        id=new_job_id(),
        purpose="judge" if candidate is not None else "register",
        processes=tuple(
            ProcessSpec(
                argv=("judge", role),
                role=role,
                trusted=role == "owner",
                workspace=role,
                env=_environment(role, device, compiling, python),
                program=role_program(role, problem, device, candidate),
                python=python.path,
            )
            for role in own
        ),
        links=tuple(("owner", role) for role in own if role != "owner"),
        files=files,
        trees=judge_tree(python.version, blobs, candidate.code if candidate is not None else {}),
        outputs=("verdict.json",),
        roots=(*roots_of(probe, settings.hosts[host].roots), *filter(None, [python.bytecode])),
        gpus=_turn(device, timing.tier, registers=candidate is None, ahead=mode == "judge", windowed=windowed),
        limits=_limits(timing.first_call_s if compiles else None),
        min_level=min_level(settings),
    )
    return spec, blobs


def role_program(role: str, problem: Problem, device: str, candidate: BuiltCandidate | None) -> str:
    """Return the program of a role, which imports ahead of its job what it will need: NumPy, torch, no context."""
    return role_source(*_modules(role, problem, device, candidate))


def _modules(role: str, problem: Problem, device: str, candidate: BuiltCandidate | None) -> list[str]:
    """Return the modules that a role will need, in the order in which it imports them."""
    on_gpu = device == "cuda"
    single = ["single_blas_thread"] if on_gpu else []
    driver = ["devices.cuda_driver"] if on_gpu else []
    if role == "owner":
        modules = [*driver, "devices.nvml", "devices.cuda"] if on_gpu else ["devices.cpu"]
        # np.unique would import numpy.ma within the job, for 60 ms.
        return ["main", "owner.owner_process", "numpy.ma", *modules, *([] if candidate else ["owner.registration"])]
    if role == "reference" and problem.framework != "torch":
        return ["main", "reference.reference_process", "reference.arrays_numpy"]
    if role == "reference":
        module = ["reference.kernelbench_problem"] if problem.kind == "module" else []
        module += ["reference.meta_warmup"] if problem.kind == "module" and candidate is None else []
        return [
            *single,
            "main",
            "reference.reference_process",
            *driver,
            "reference.arrays_torch_cuda" if on_gpu else "reference.arrays_torch",
            *module,
        ]
    kind = candidate.kind if candidate else "library"
    memory = [*driver, "candidate.memory_cuda_client"] if on_gpu else []
    if kind == "library":
        return ["main", "candidate.candidate_process", "candidate.shared_library", *memory]
    # One set that waits serves every kind of Python file. Triton reads at its import whether it is to interpret, which
    # the candidate's process decides later.
    triton = ["triton"] if on_gpu else []
    return [
        *single,
        "main",
        "candidate.candidate_process",
        *memory,
        "torch",
        *triton,
        "candidate.launcher_file",
        "candidate.kernelbench_model",
        "candidate.torch_extensions",
    ]


def _environment(role: str, device: str, compiling: Mapping[str, str], python: JudgePython) -> dict[str, str]:
    common = {"OMP_PROC_BIND": "false"}
    if python.bytecode:
        common |= {"JUDGE_BYTECODE": python.bytecode, "JUDGE_BYTECODE_OF": " ".join(python.uncompiled)}
    if role != "candidate":
        return common
    # libgomp's idle threads spin for milliseconds by default, on the cores that must stop the clock.
    return {**common, **({"GOMP_SPINCOUNT": "10000"} if device == "cpu" else {}), **compiling}


def _python(
    problem: Problem, probe: HostProbe, host: str, device: str, candidate: BuiltCandidate | None
) -> JudgePython:
    """Return the host's interpreter if it has what problem and candidate need, and the problem fits the device."""
    python = probe.judge
    if python is None or not python.numpy:
        raise ToolMissing("a Python with NumPy", host, hint=packages_hint(host, "numpy"))
    if problem.framework == "torch" and not python.torch:
        raise ToolMissing("torch", host, hint=f"{lack_hint(python, host, 'torch')} Or write the reference in NumPy.")
    if candidate is not None and candidate.kind != "library" and not python.torch:
        raise ToolMissing("torch", host, hint=lack_hint(python, host, "torch"))
    if candidate is not None and "triton" in candidate.imports.needed and not python.triton:
        raise ToolMissing("Triton", host, hint=lack_hint(python, host, "triton"))
    if device == "cpu" and problem.outputs and shape_bytes(problem, largest(problem)) > MAX_SHAPE_BYTES:
        raise LimitExceeded(
            f"The problem's tensors take more than {MAX_SHAPE_BYTES >> 30} GiB, too much for the processor.",
            hint="Judge it on a GPU.",
        )
    return python


def lack_hint(python: JudgePython, host: str, package: str) -> str:
    """Return what a person can do about a lacking package, and why the judge's Python is not the one they named."""
    taken = python.why.partition("; ")[0]
    taken = f" The server took it {taken}." if taken.startswith("instead of") else ""
    return f"{python.path} has none.{taken} {packages_hint(host, package)}"


def _own(problem: Problem, candidate: BuiltCandidate | None, task: Mapping[str, Any]) -> dict[str, dict[str, bytes]]:
    """Return the files of each role's workspace."""
    own: dict[str, dict[str, bytes]] = {
        "owner": {"task.json": json.dumps(task).encode()},
        "reference": {"reference.py": problem.reference.encode()},
    }
    beside = {"problem_files.json": json.dumps(problem.files).encode()} if problem.adapter else {}
    own["reference"] |= beside
    if candidate is not None:
        own["candidate"] = {candidate.file: candidate.content}
        own["candidate"] |= candidate.built
        if problem.kind == "module" and candidate.kind == "model":
            own["candidate"] |= {"problem.py": problem.reference.encode(), **beside}
    return own


def _is_quick(timing: TimingOptions) -> bool:
    """Say whether an evaluation is soon over: a first look, or an untimed one, whose first calls are no long ones."""
    first_look = timing.precision == "quick" or timing.tier != "performance"
    return first_look and timing.first_call_s <= QUICK.first_call_s


def _is_small(problem: Problem) -> bool:
    """Say whether a problem leaves room on a GPU for others beside it."""
    return bool(problem.outputs) and shape_bytes(problem, largest(problem)) <= WINDOWED_BYTES


def _turn(device: str, tier: str, *, registers: bool, ahead: bool, windowed: bool) -> GpuRequest:
    """Return what must be held: the GPU, before which processes may start, or the processor where a verdict is due."""
    if device == "cuda":
        return GpuRequest(count=1, mode="windowed" if windowed else "exclusive", wait_s=TURN_S, ahead=ahead)
    return GpuRequest() if registers or not ahead else processor_turn(tier)


def processor_turn(tier: str) -> GpuRequest:
    """Return what an evaluation on the processor must hold: who times has it alone, the others share it."""
    return GpuRequest(mode="exclusive" if tier == "performance" else "shared", wait_s=TURN_S)


def _limits(first_call_s: float | None) -> Limits:
    if first_call_s is not None:
        wall_s = PYTHON_WALL_S + first_call_s
        return Limits(wall_s=wall_s, memory_bytes=MEMORY_BYTES, shm_bytes=SHM_BYTES, tmp_bytes=PYTHON_TMP_BYTES)
    return Limits(wall_s=WALL_S, memory_bytes=MEMORY_BYTES, shm_bytes=SHM_BYTES)


def _task(
    problem: Problem,
    device: str,
    candidate: BuiltCandidate | None,
    timing: TimingOptions,
    probe: HostProbe,
    max_bytes: int | None,
) -> dict[str, Any]:
    """Return what the owner is told."""
    interpreter = candidate.interpreter if candidate is not None and device == "cpu" else ""
    compiles = candidate is not None and candidate.kind != "library"
    effort = EFFORTS[timing.precision]
    return {
        "mode": "judge" if candidate else "register",
        "tier": timing.tier,
        "brief": device == "cuda" and timing.tier == "performance" and timing.precision == "quick",
        "candidate": candidate.kind if candidate else "library",
        "prepare_s": timing.first_call_s if compiles else 0,
        "untimed": interpreter or probe.why_untimed(),
        "interpreted": interpreter,
        **(candidate.needs() if candidate is not None else {}),
        "device": device,
        "framework": problem.framework,
        "entry": problem.entry,
        "symbol": candidate.symbol if candidate else "launch",
        "inputs": [t.model_dump() for t in problem.inputs],
        "outputs": [t.model_dump() for t in problem.outputs],
        "shapes": problem.shapes,
        "rtol": problem.rtol,
        "atol": problem.atol,
        "constraints": [parse_constraint(text, problem.symbols()) for text in problem.constraints],
        "fixed_shapes": problem.fixed_shapes,
        "distributions": problem.distributions,
        "robust": problem.robust,
        "precision": problem.precision,
        "ties": problem.ties,
        "libraries": problem.libraries,
        "backward": problem.backward,
        "blind_to": candidate.blind_spots() if candidate and compiles and problem.libraries == "forbidden" else [],
        "problem": problem.kind,
        "pool": candidate is not None and candidate.kind == "model" and "pool.so" in candidate.code,
        "seed": secrets.token_hex(32),
        "cache": timing.cache,
        "gated": device == "cuda",
        "basis": problem.basis,
        "half_width": timing.half_width or effort.half_width,
        "budget_s": effort.budget_s,
        "overhead_s": effort.overhead_s,
        "memory_share": effort.memory_share,
        "rehearse_s": effort.rehearse_s,
        "round_ms": ROUND_MS[device],
        "max_rounds": effort.max_rounds,
        "round_timeout_s": INTERPRETER_ROUND_S if interpreter else ROUND_TIMEOUT_S,
        **(kernelbench_problems.task_of(problem, max_bytes) if problem.kind == "module" else {}),
        "floors": floors(problem, [str(g["name"]) for g in probe.gpus]) if device == "cuda" and problem.outputs else {},
    }


def is_thorough(timing: TimingOptions) -> bool:
    """Say whether an evaluation is what a confirmation run is: its time needs no other one."""
    exact = EFFORTS["exact"].half_width
    return timing.precision == "exact" and timing.tier == "performance" and (timing.half_width or exact) <= exact


def _ref(name: str, data: bytes, blobs: dict[str, bytes]) -> FileRef:
    sha256 = hashlib.sha256(data).hexdigest()
    blobs[sha256] = data
    return FileRef(name, sha256, len(data))


def output_lines(stream: str, data: bytes) -> list[str]:
    """Return what is to be told of a piece of the judge's output, or of its place in the queue for a GPU."""
    if stream == "queue":
        return [f"queue: {data.decode('utf-8', 'replace')[:200]}"]
    return progress_lines(data) if stream == "stdout" else []


def parse_verdict(data: bytes) -> dict[str, Any]:
    """Read what the owner wrote.

    Raises:
        JobBroken: If it is not a verdict.
    """
    try:
        verdict: Any = json.loads(data)
    except ValueError as error:
        raise JobBroken(f"The judge wrote no verdict: {error}.") from error
    if not isinstance(verdict, dict) or "mode" not in verdict:
        raise JobBroken("The judge wrote something that is no verdict.")
    return cast("dict[str, Any]", verdict)


def seconds_of(record: JobRecord, verdict: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of judging, and those of waits for a turn and for a window that are worth a word."""
    window_s = float(verdict.get("evidence", {}).get("seconds", {}).get("window") or 0.0)
    queue_s = (record.started_at or record.submitted_at) - record.submitted_at
    waits = {name: wait_s for name, wait_s in (("queue", queue_s), ("window", window_s)) if wait_s >= SHORT_S}
    return {**waits, "judge": max(0.0, (record.wall_s or 0.0) - window_s)}


def shape_verdicts(verdict: Mapping[str, Any]) -> list[ShapeVerdict]:
    """Return the verdict of each shape, without its samples."""
    found: list[ShapeVerdict] = []
    for shape in verdict.get("shapes", []):
        fields = {k: v for k, v in shape.items() if k in ShapeVerdict.model_fields and v is not None}
        for side in ("candidate", "reference", "warm"):
            timing = fields.get(side)
            if timing:
                fields[side] = Timing(**{k: v for k, v in timing.items() if k in Timing.model_fields})
        found.append(ShapeVerdict(**fields))
    return found
