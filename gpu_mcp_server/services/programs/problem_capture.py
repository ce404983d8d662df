"""Makes a problem of the calls that a user's program makes: of an operator, a function or a module."""

import difflib
import json
import re
from collections.abc import Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest, GpuMcpError, LimitExceeded, ProblemRefused
from gpu_mcp_server.models.problem import ProblemInfo
from gpu_mcp_server.models.program_speed import CaptureOptions, CaptureReport
from gpu_mcp_server.package_files import CALL_FILES, WORKERS
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.problem_registry import MEND, Registry
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.problems.suite_problems import MAX_FILES_BYTES
from gpu_mcp_server.services.profiles.profile_targets import FOLDER as OURS
from gpu_mcp_server.services.profiles.profile_targets import Targets
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob, ToolJob, ToolJobs
from gpu_mcp_server.services.programs.capture_content import (
    GRID,
    MAIN,
    CallRecording,
    NoTorch,
    RecordedSet,
    Target,
    captured_problem,
    chosen_sets,
    parse_calls,
    reads_script,
    replayable_inputs,
    told_set,
)
from gpu_mcp_server.services.programs.hotspot_finder import (
    last_words,
    split_command,
    torch_python,
    without_driver,
    without_interpreter,
    without_module,
    without_network,
    without_torch,
)
from gpu_mcp_server.services.programs.program_text import decode_source, definitions_of, module_files
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces

PURPOSE = "capture"
FOLDER = f"{OURS}/capture"
ABOUT = f"{FOLDER}/about.json"
CALLS, SAMPLES = f"{FOLDER}/calls.json", f"{FOLDER}/inputs.safetensors"
SAMPLE_BYTES, EACH_BYTES = 2 << 20, 1 << 20
"""Bytes of all recorded values, and of one tensor. Of larger float tensors only quantiles are kept."""
MOST_SETS = 48
"""Sets of inputs that the worker records at most; `options.sets` of them become cases."""
UNDEFINED = re.compile(r"NameError: name '(\w{1,100})' is not defined")
OPERATOR = re.compile(r"[a-z_]\w*(?:::|\.)\w+(?:\.\w+)?")
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
LAUNCH = re.compile(FUNCTION.pattern + re.escape(GRID))
MODULE = re.compile(r"[A-Za-z_]\w*(?:\.(?:\w+|\*))*")
TEXT_BYTES = 1 << 20
NO_OPERATOR = "'_OpNamespace' "
"""Word of torch's error where an operator is not registered."""
SAME_INPUTS = "the inputs are the same for every seed"
"""Words by which the judge refuses a problem of indices and masks alone, which come as they were recorded."""
UNSTEADY = "answers the same inputs differently"
"""Words by which the judge refuses a reference that draws random numbers."""


class ProblemCapture:
    """Programs in, problems out."""

    def __init__(self, tools: ToolJobs, targets: Targets, registry: Registry) -> None:
        self._tools, self._targets, self._registry = tools, targets, registry
        self._workspaces: Workspaces = targets.workspaces

    async def capture(
        self,
        command: Sequence[str],
        target: str,
        workspace_id: str | None = None,
        host: str | None = None,
        options: CaptureOptions | None = None,
        *,
        progress: Progress | None = None,
        wait_s: float | None = None,
    ) -> CaptureReport:
        """Run a program, record the calls of one target, and register the problem that they are.

        Args:
            command: A Python interpreter, its options, and a script, -m or -c.
            target: `aten::mm`, `package.module:function`, or a module's path such as `Net.blocks.*.mlp`.
            workspace_id: The program's files.
            host: Where; the default host unless given.
            options: Which calls, and tolerances.
            progress: Told what happens meanwhile.
            wait_s: Seconds to wait for the end; options.wait_s unless given.

        Raises:
            BadRequest: If the command is no Python program, or the target names nothing of these.
            NotFound: If a handle names nothing.
        """
        options = options or CaptureOptions()
        python, rest = split_command(command)
        kind = kind_of(target)
        if kind in ("function", "launch") and target.startswith("__main__:") and rest[0].startswith("-"):
            raise BadRequest(
                f"{target} names a function of the script, but the command runs {rest[0]}.",
                hint="Name the function by its module: package.module:function.",
            )
        run_at = await self._targets.program(command, workspace_id, host)
        plan = {
            "kind": kind, "target": target.removesuffix(GRID), "record_s": options.record_s, "sets": MOST_SETS,
            "sample_bytes": SAMPLE_BYTES, "each_bytes": EACH_BYTES,
        }  # fmt: skip
        argv = [*python, f"{OURS}/capture_calls.py", json.dumps(plan), FOLDER, *rest]
        modules = [WORKERS / "capture_calls.py", WORKERS / "python_profile.py", *CALL_FILES]
        job = ToolJob(
            kind="run",
            purpose=PURPOSE,
            worker="run_profiler",
            plan={"argv": argv, "folder": FOLDER},
            outputs=(ABOUT, CALLS, SAMPLES),
            limit_s=options.timeout_s,
            env={},
            tool=None,
            extra_files={f"{OURS}/{path.name}": path.read_bytes() for path in modules},
            context={
                "target": target, "kind": kind, "script": rest[0], "options": options.model_dump(),
                "torch_python": torch_python(run_at.probe),
            },
            gpus=min(1, len(run_at.probe.gpus)),
        )  # fmt: skip
        job_id, attempt_id = await self._tools.start(job, run_at)
        if progress is not None:
            await progress(f"program whose calls are recorded, job {job_id} on {run_at.host}")
        done = await self._tools.wait(job_id, run_at.host, options.wait_s if wait_s is None else wait_s, progress)
        if done is None:
            return CaptureReport(
                status="running", host=run_at.host, target=target, job_id=job_id, attempt_id=attempt_id
            )
        return await self.finish(done, await self._tools.row(job_id))

    async def finish_and_describe(self, done: FinishedJob, row: JobRow) -> str:
        """Return the report of a job that a later call asks about."""
        return (await self.finish(done, row)).summary()

    async def finish(self, done: FinishedJob, row: JobRow) -> CaptureReport:
        """Register the problem of a finished job; may be done twice, as equal problems are one."""
        ended = await self._tools.fetch_results(done, row, ABOUT)
        found = parse_calls(ended.files.get(CALLS, b""))
        report = CaptureReport(
            status="ok", host=done.host, target=row.context["target"], job_id=row.job_id, attempt_id=row.attempt_id
        )
        if isinstance(found, CallRecording):
            report = report.model_copy(update=await self._captured(found, ended, row))
        else:
            report = report.model_copy(update=_not_recorded(found, ended, row))
        evidence = {"target": report.target, "problem": report.problem.problem_id if report.problem else None}
        await self._tools.experience.finish(
            row.attempt_id or "",
            status=report.status,
            reason=report.summary().partition("\n")[0][:300],
            evidence=evidence,
            median_us=None,
        )
        return report

    async def _captured(self, found: CallRecording, ended: FinishedToolJob, row: JobRow) -> dict[str, Any]:
        options, target = CaptureOptions(**row.context["options"]), str(row.context["target"])
        kind: Target = row.context["kind"]
        sets, notes = chosen_sets(found, options.sets)
        notes += _notes(found, ended)
        if found.cut:
            notes.append(
                f"the program was ended {options.record_s:g} s after the first call (record_s); calls until then"
            )
        if not sets:
            unreached = ended.about.get("code") and kind in ("function", "launch") and not found.wrong
            why = [] if unreached else _why_nothing(target, kind, found)
            said = {"notes": [*notes, *why], "output": ended.output}
            return {"status": "failed" if ended.about.get("code") else "nothing", **said}
        if kind == "module" and not found.modules:
            return {"status": "failed", "notes": [*notes, "the record of calls describes no module"]}
        told = {
            "sets": [told_set(s) for s in sets],
            "replayable": replayable_inputs(sets),
            "samples": await self._tools.keep(ended.done, SAMPLES, "inputs.safetensors"),
        }
        try:
            info = await self._registered(target, kind, found, sets, ended, row, options)
        except GpuMcpError as error:
            notes += refusal_notes(error)
            return {"status": "refused" if isinstance(error, ProblemRefused) else "failed", "notes": notes, **told}
        return {"problem": info, "notes": notes, **told}

    async def _registered(
        self,
        target: str,
        kind: Target,
        found: CallRecording,
        sets: Sequence[RecordedSet],
        ended: FinishedToolJob,
        row: JobRow,
        options: CaptureOptions,
    ) -> ProblemInfo:
        files: dict[str, str] = {}
        if kind != "operator" and (workspace_id := row.context["workspace_id"]):
            files = await self.program_files(workspace_id, found)
            if reads_script(target, kind, found, sets[0].module):
                files |= await self._script_files(workspace_id, str(row.context["script"]).removeprefix("./"))
        samples = ended.files.get(SAMPLES, b"")
        problem = captured_problem(target, kind, found, sets, samples, files, str(row.context["script"]), options)
        return await self._registry.keep(problem, host=row.host)

    async def program_files(self, workspace_id: str, found: CallRecording) -> dict[str, str]:
        """Return the texts of the modules that the program had loaded."""
        there = [file.path for file in await self._workspaces.manifest(workspace_id)]
        named = module_files(found.loaded, there)
        known: dict[str, str] = {}
        texts: dict[str, str] = {}
        size = 0
        for name, path in named.items():
            if path not in known:
                known[path] = await self._text(workspace_id, path)
            size += len(name) + len(known[path])
            if size > MAX_FILES_BYTES:
                raise LimitExceeded(
                    f"The modules that the program loaded have more than {MAX_FILES_BYTES} bytes.",
                    hint="Capture an operator, or run the function from a smaller script.",
                )
            texts[name] = known[path]
        return texts

    async def _script_files(self, workspace_id: str, script: str) -> dict[str, str]:
        """Return the script's definitions; nothing if the command names none of the workspace."""
        if all(file.path != script for file in await self._workspaces.manifest(workspace_id)):
            return {}
        return {f"{MAIN}.py": definitions_of(await self._text(workspace_id, script))}

    async def _text(self, workspace_id: str, path: str) -> str:
        return decode_source(await self._workspaces.read_bytes(workspace_id, path, TEXT_BYTES), path)


def refusal_notes(error: GpuMcpError) -> list[str]:
    """Return why no problem was made, with advice where the captured code is the cause."""
    said = str(error)
    if isinstance(error, ProblemRefused) and (error.degenerate or error.hint == MEND):  # no wish goes with a capture
        other = (
            "a larger part of the program around it" if SAME_INPUTS not in said else "a part of it that takes floats"
        )
        said = str(GpuMcpError(str(error.args[0]), hint=f"Capture {other}" if error.degenerate else ""))
    notes = [f"no problem: {said}"]
    if name := UNDEFINED.search(said):
        notes.append(
            f"{name[1]} may be a value that the script computes when it runs, which the reference leaves out: compute "
            "it in the function, pass it in, or move it into a module that the script imports"
        )
    if NO_OPERATOR in said:
        notes.append(
            "the operator is defined by the program or a package, which the reference of an operator does not import: "
            "capture the Python function that is it or calls it, as package.module:function"
        )
    if UNSTEADY in said:
        notes.append(
            "the captured code draws random numbers, as dropout does in training, or sums in another order each time: "
            "run the program without dropout, or capture a part that has none"
        )
    return notes


def kind_of(target: str) -> Target:
    """Return the kind of a target.

    Raises:
        BadRequest: If it is neither an operator, a function, a Triton kernel nor a module.
    """
    if len(target) <= 200:
        if FUNCTION.fullmatch(target):
            return "function"
        if LAUNCH.fullmatch(target):
            return "launch"
        if "::" in target and OPERATOR.fullmatch(target):
            return "operator"
        if target.startswith("aten.") and OPERATOR.fullmatch(target):
            return "operator"
        if MODULE.fullmatch(target):
            return "module"
    raise BadRequest(
        f"{target[:100]!r} names no operator, function, Triton kernel or module.",
        hint="An operator is aten::mm, a function package.module:function, a Triton kernel "
        "package.module:kernel[grid], a module Net.blocks.*.mlp.",
    )


def _notes(found: CallRecording, ended: FinishedToolJob) -> list[str]:
    notes: list[str] = []
    if found.others:
        notes.append(f"{found.others} calls with further shapes or values were not recorded")
    if found.wrong and found.sets:
        notes.append(f"other calls were not recorded: {found.wrong}")
    if found.differing:
        notes.append(f"{found.differing} calls of another overload, or of modules of a fifth build, are left out")
    if found.compiled:
        notes.append("torch.compile was off in this run, so that calls could be recorded: compare with its own kernels")
    if updated := set(found.written) - set(found.pure):
        said = "argument of the kernel is" if len(updated) == 1 else "arguments of the kernel are"
        notes.append(
            f"{len(updated)} {said} read and written: the problem's reference launches on a copy, which is part of its "
            "time; a kernel in its place pays for a copy, too"
        )
    if found.forks:
        notes.append(f"calls in {found.forks} child processes (workers that load data) were not recorded")
    if found.graphs:
        notes.append(f"calls recorded into CUDA graphs: {found.graphs}; replays of these are not counted")
    if code := ended.about.get("code"):
        notes.append(f"the program ended with {code}; calls until then count. {last_words(ended)}")
    return notes + without_module(ended) + without_network(ended) + without_driver(ended.output)


def _why_nothing(target: str, kind: Target, found: CallRecording) -> list[str]:
    """Return why no call could be recorded, with names like the target's."""
    is_method = kind == "function" and "." in target.partition(":")[2]
    instead = "; a method takes its object: name the module by its path, as find_hotspots shows it" * is_method
    if found.wrong:
        return [f"{target} cannot be captured: {found.wrong}{instead}"]
    if found.sets:
        return []
    if found.graphs:
        return [f"every call of {target} went into a CUDA graph: run the program without graphs to capture it"]
    target = target.removesuffix(GRID)
    where = target.partition(":")[0]
    by_name = kind in ("function", "launch")
    if by_name and target in found.seen:
        how = "launched by [grid]" if kind == "launch" else "called"
        return [f"{target} was never {how} after {where} was imported"]
    if by_name and where in found.seen:
        return [f"{where} has no function {target.partition(':')[2]}"]
    if by_name and where != "__main__":
        return [f"the program never imported {where}"]
    if by_name:
        return [f"the script defines no {target.partition(':')[2]} at its top level, or never calls it{instead}"]
    near = difflib.get_close_matches(target, found.seen, n=5, cutoff=0.3)
    near = near or sorted(found.seen, key=lambda n: -found.seen[n])[:5]
    ran = f"; it ran {', '.join(near)}" if near else f"; it ran no {kind} at all"
    return [f"the program never ran {target}{ran}"]


def _not_recorded(found: NoTorch | str, ended: FinishedToolJob, row: JobRow) -> dict[str, Any]:
    if isinstance(found, NoTorch):
        return {
            "status": "failed",
            "notes": [without_torch(found.python, found.missing, row.context.get("torch_python"))],
        }
    status = ended.status if ended.status != "ok" else "failed"
    notes = [n for n in (found, ended.done.record.note) if n]
    if status == "timeout":
        notes.append("the program was ended before a call was seen, or within options.record_s: raise timeout_s")
    notes += without_interpreter(ended) + without_network(ended) + without_driver(ended.output)
    return {"status": status, "notes": notes, "output": ended.output}
