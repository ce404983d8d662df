"""Registers problems: a problem is kept only after its reference ran and trivial answers failed."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_mcp_server.errors import HostError, JobBroken, ProblemRefused
from gpu_mcp_server.models.build import JudgedKind
from gpu_mcp_server.models.evaluation import format_range
from gpu_mcp_server.models.problem import ImportOverrides, Problem, ProblemInfo, ProblemList, TensorSpec
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.baselines import Baselines
from gpu_mcp_server.services.evaluation.concurrency import gather_or_cancel
from gpu_mcp_server.services.evaluation.judge_binaries import judge_code
from gpu_mcp_server.services.evaluation.judge_job import REFERENCE_S, judge_spec
from gpu_mcp_server.services.evaluation.judge_results import Verdicts, describe_end
from gpu_mcp_server.services.evaluation.missing_equipment import error_of
from gpu_mcp_server.services.evaluation.prewarming import Prewarming
from gpu_mcp_server.services.evaluation.program_candidates import Programs
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner
from gpu_mcp_server.services.problems import reference_source
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.detect import read_problem
from gpu_mcp_server.services.problems.formats.torch_call import CALLED_ALONE, torch_problem
from gpu_mcp_server.services.problems.kernelbench_problems import resolved_problem
from gpu_mcp_server.services.problems.problem_table import Problems, degenerate_problem
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.time_format import format_time

LISTED = 10
MEND = "Correct the problem and register it again."
FASTER = "Declare smaller shapes, or a faster reference."
SMALLER = (
    "Import it again with the wish max_bytes, which leaves larger cases out; or on a host with a GPU or more memory."
)
LATE = "did not return from its calls"
TOO_MUCH = ("did not answer", LATE, "ran out of memory", "the problem is too large", "of the wish max_bytes")
OUT_OF_BOUNDS = re.compile(r"IndexError|out of (?:bounds|range)")
"""As NumPy and torch say it of an index."""
TRACEBACK = "Traceback (most recent call last)"
INDICES = ("int32", "int64")
OTHER_NUMBERS = ("full", "zeros", "made", "weights")
"""Distributions of whole numbers that are not 0 to 99."""
ACCEPT = "accept_degenerate, which marks its verdicts and leaves them out of scores"


class Registry:
    """The way in for problems, and the list of them."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        problems: Problems,
        experience: AttemptStore,
        verdicts: Verdicts,
        programs: Programs,
        compiler: Compiler,
        artifacts: Artifacts,
        baselines: Baselines,
    ) -> None:
        self._baselines = baselines
        self._compiler, self._artifacts = compiler, artifacts
        self._settings, self._jobs, self._problems, self._programs = settings, jobs, problems, programs
        self._experience, self._verdicts = experience, verdicts
        self._announcements = Prewarming(settings, jobs)

    async def register(
        self,
        *,
        name: str,
        reference: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shapes: Sequence[Mapping[str, int]],
        rtol: float,
        atol: float,
        framework: str | None = None,
        entry: str | None = None,
        description: str | None = None,
        constraints: Sequence[str] = (),
        fixed_shapes: bool = False,
        distributions: str = "all",
        robust: str = "reported",
        precision: str = "tolerance",
        ties: str = "any",
        libraries: str = "allowed",
        requires: Sequence[str] = (),
        backward: bool = False,
        flops: str | None = None,
        bytes: str | None = None,
        basis: str = "device",
        accept_degenerate: bool = False,
        host: str | None = None,
        progress: Progress | None = None,
    ) -> ProblemInfo:
        """Register a problem; what is not said of the reference is read from its text.

        Raises:
            ProblemRefused: If the reference raises or is not what it says, or a trivial answer passes.
            BadRequest: If the description contradicts itself.
        """
        if framework is None or entry is None or description is None:
            told = reference_source.read(reference)
            framework, entry = framework or told.framework, entry or told.entry
            description = told.description if description is None else description
        problem = Problems.make_problem(
            name, description, framework, entry, inputs, outputs, shapes, rtol, atol, reference, constraints,
            fixed_shapes, distributions, precision, libraries, backward, flops, bytes,
            robust=robust, basis=basis, requires=requires, ties=ties,
        )  # fmt: skip
        return await self.keep(problem, accept_degenerate=accept_degenerate, host=host, progress=progress)

    async def import_file(
        self, source: ProblemSource, *, host: str | None = None, progress: Progress | None = None
    ) -> ProblemInfo:
        """Register the problem that a file describes, of whatever format it is.

        Raises:
            ProblemRefused, BadRequest: As `register` does.
        """
        problem, wish = await read_problem(source), source.wish
        return await self.keep(
            problem, accept_degenerate=wish.accept_degenerate, max_bytes=wish.max_bytes, host=host, progress=progress
        )

    async def import_torch(
        self,
        name: str,
        shapes: Sequence[Any],
        dtype: str,
        wish: ImportOverrides | None = None,
        *,
        host: str | None = None,
        progress: Progress | None = None,
    ) -> ProblemInfo:
        """Register a function of torch as a problem.

        Raises:
            ProblemRefused, BadRequest: As `register` does, and as `torch_problem` does.
        """
        wish = wish or ImportOverrides()
        problem = torch_problem(name, shapes, dtype, wish)
        accept, most = wish.accept_degenerate, wish.max_bytes
        try:
            return await self.keep(problem, accept_degenerate=accept, max_bytes=most, host=host, progress=progress)
        except ProblemRefused as error:
            if "the reference failed" in str(error):
                error.hint = CALLED_ALONE
            raise

    async def keep(
        self,
        problem: Problem,
        *,
        accept_degenerate: bool = False,
        max_bytes: int | None = None,
        host: str | None = None,
        progress: Progress | None = None,
    ) -> ProblemInfo:
        """Try a problem on a host, and keep it if it is sound, or degenerate and accepted as that.

        Raises:
            ProblemRefused: If the reference raises or is not what it says, or a trivial answer passes.
            JobBroken: If it could not be tried for a reason that is not the problem's.
        """
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        if progress is not None:
            most_s = problem.program.run_timeout_s if problem.program else REFERENCE_S
            await progress(f"running the reference (at most {most_s:.0f} s a call) and the trivial answers")
        if problem.program is not None:
            spec, blobs = await self._programs.registration(problem, problem.program, where)
        else:
            device = "cuda" if problem.kind == "module" and "cuda" in probe.devices() else "cpu"
            spec, blobs = judge_spec(
                problem, probe, self._settings,
                host=where, device=device, candidate=None, accept_degenerate=accept_degenerate, max_bytes=max_bytes,
            )  # fmt: skip
        _, done = await gather_or_cancel(
            self._announced(problem, probe, where), self._jobs.run(spec, host=where, blobs=blobs)
        )
        verdict = await self._verdicts.read(done)
        if verdict is None:
            raise _not_tried(done)
        if verdict.get("lacks"):
            raise error_of(verdict["lacks"], where, probe.judge)
        if verdict.get("status") != "ok":
            raise refusal_of(problem, verdict)
        notes: list[str] = list(verdict.get("notes", []))
        if problem.kind == "module":
            found = cast("dict[str, Any]", verdict.get("described") or {})
            problem, notes = resolved_problem(problem, found), [*found.get("notes", []), *notes]
        if verdict.get("degenerate"):
            problem = degenerate_problem(problem, str(verdict["degenerate"]))
        registered = await self._problems.add(problem)
        problem = await self._problems.get(problem.problem_id)  # as it was named first, with all its implementations
        tried = list(verdict.get("tried", []))
        notes = [*_what_the_reference_sees(problem), *notes][:8]
        seen = {"registered": registered, "trivial_answers_tried": tried, "notes": notes}
        return Problems.info(problem).model_copy(update=seen)

    async def _announced(self, problem: Problem, probe: HostProbe, host: str) -> None:
        """Have the judge's processes made for what may come next; of a PyTorch problem on a GPU, Python files too."""
        on_gpu = "cuda" in probe.devices()
        kinds: list[JudgedKind] = ["library", "model"] if on_gpu and problem.framework == "torch" else ["library"]
        device = "cuda" if on_gpu else "cpu"
        for kind in kinds if problem.program is None else []:
            code = judge_code(self._compiler, self._artifacts, host, device, kind)
            await self._announcements.judge(problem, probe, host, device, kind, code)

    async def problems(self, problem_id: str | None = None, offset: int = 0) -> ProblemList:
        """Return one problem with its best attempt, or the newest behind the first `offset`."""
        if problem_id is not None:
            return ProblemList(problems=[await self._with_best(await self._problems.get(problem_id), compiled=True)])
        problems = await self._problems.list(limit=LISTED, offset=offset)
        shown = [await self._with_best(problem) for problem in problems]
        return ProblemList(problems=shown, offset=offset or None, total=await self._problems.count())

    async def _with_best(self, problem: Problem, *, compiled: bool = False) -> ProblemInfo:
        best = await self._experience.list("best", problem_id=problem.problem_id, limit=1)
        recent = await self._experience.list("recent", problem_id=problem.problem_id, limit=1)
        update: dict[str, Any] = {"attempts": len(recent.attempts) + (recent.left_out or 0)}
        if best.attempts and best.attempts[0].trust:  # an attempt without a time ranks nowhere
            a = best.attempts[0]
            time = f" {format_time(a.median_us / 1e6)} on {a.device}" if a.median_us else ""
            speed = f" speed-up {a.speedup:.3g}{format_range(a.speedup_range)} on {a.device}" if a.speedup else ""
            update["best"] = a.attempt_id + (speed or time) + f", {a.trust}"
            whole = (
                await self._baselines.attempt_with_compiled(await self._experience.get(a.attempt_id)) if compiled else a
            )
            if said := (whole.evidence or {}).get("torch_compile"):
                update["best"] += f"; torch.compile: {said}"
        return Problems.info(problem).model_copy(update=update)


BITS = {
    "bfloat16": "uint16 bits (value = bits << 16 as float32)",
    "float8_e4m3fn": "uint8 codes (OCP E4M3)",
    "float8_e5m2": "uint8 codes (OCP E5M2)",
    "float4_e2m1fn_x2": "uint8, two codes each (OCP E2M1, the first in the low half)",
}
"""Types that NumPy does not have, and as what its functions get them."""


def _what_the_reference_sees(problem: Problem) -> list[str]:
    if problem.framework != "numpy":
        return []
    names = {kind: [t.name for t in problem.inputs if t.dtype == kind] for kind in BITS}
    return [
        f"NumPy has no {kind}: the reference gets {', '.join(names[kind])} as {how}"
        for kind, how in BITS.items()
        if names[kind]
    ]


def refusal_of(problem: Problem, verdict: Mapping[str, Any]) -> ProblemRefused:
    """Say why a problem is refused; of what may be done only what would help."""
    reason, trivial = f"Refused: {verdict.get('reason')}", bool(verdict.get("trivial"))
    if not trivial:
        too_much = problem.cases and any(t in reason for t in TOO_MUCH)
        otherwise = FASTER if LATE in reason else _too_small_an_axis(problem, reason) or MEND
        if otherwise == MEND and TRACEBACK in reason:  # the reference's own words: what it got may not suit it
            otherwise += _loose_indices(problem)
        return ProblemRefused(reason, hint=SMALLER if too_much else otherwise)
    helps = cast("Mapping[str, Any]", verdict.get("helps") or {})
    narrower = ", ".join(f"{name} {helps[name]:g}" for name in ("atol", "rtol") if name in helps)
    ways = [f"distribution {helps['distribution']}"] if "distribution" in helps else []
    module = problem.kind == "module"
    ways = [*ways, *([narrower] if narrower else []), ACCEPT if module else f"trials {ACCEPT}"]
    how = "Import it again with a wish" if module else "Register it again with"
    how = how if module or len(problem.shapes) == 1 else f"Leave out that shape if others are sound, or {how.lower()}"
    return ProblemRefused(reason, hint=f"{how}: {'; or '.join(ways)}; or correct the problem", degenerate=True)


def _too_small_an_axis(problem: Problem, reason: str) -> str:
    """Say what helps where an input that holds indices leads out of what it indexes; empty where it is not that."""
    names = _indices(problem)
    if not names or not OUT_OF_BOUNDS.search(reason):
        return ""
    whose = f"{', '.join(names)} hold{'s' * (len(names) == 1)} whole numbers from 0 to 99"
    return f"{whose}: declare 100 or more for the size that they index, or take them modulo that size in the reference."


def _loose_indices(problem: Problem) -> str:
    """Say which whole numbers are drawn each by itself, and how to make such as fit each other; empty if none is."""
    names, way = _indices(problem), "let get_inputs of a KernelBench file make them"
    if problem.adapter.get("kind") == "trace":
        inputs = json.loads(problem.files["definition.json"])["inputs"]
        drawn = {name for case in problem.cases for name, how in case["inputs"].items() if how.get("type") == "random"}
        names = [name for name, spec in inputs.items() if name in drawn and spec.get("dtype") in INDICES]
        way = "give them as safetensors, or by custom_inputs_entrypoint"
    if not names:
        return ""
    each = "is drawn by itself" if len(names) == 1 else "are drawn each by itself"
    return f" {', '.join(names)} {each}, from 0 to 99: if that is the fault, {way}."


def _indices(problem: Problem) -> list[str]:
    """Return the inputs that are drawn from 0 to 99."""
    drawn = [each for each in problem.inputs if each.dtype in INDICES]
    return [each.name for each in drawn if each.distribution not in OTHER_NUMBERS]


def _not_tried(done: FinishedJob) -> ProblemRefused | HostError:
    """Say why a problem was not tried, and whose turn it is."""
    how = f"The problem could not be tried: {describe_end(done)}."
    match done.record.status:
        case "oom":
            return ProblemRefused(how, hint="Declare smaller shapes, or have the reference take less memory.")
        case "timeout":
            return ProblemRefused(how, hint=FASTER)
        case "cancelled" | "caller_lost":
            return JobBroken(how, hint="Nothing is wrong with the problem: register it again.")
        case _ if "No module named 'numpy'" in how:
            return HostError(
                f"The judge's Python on host {done.host!r} finds no NumPy inside the sandbox.",
                hint="A folder of its packages is not shown there: `gpu-mcp-server hosts set "
                f"{done.host} 'roots=[\"FOLDER\"]'` shows it, and `gpu-mcp-server doctor` tries it.",
            )
        case _:
            return JobBroken(
                how,
                hint="This is no failure of the problem: `gpu-mcp-server doctor` checks the judge's Python there.",
                retryable=False,
            )
