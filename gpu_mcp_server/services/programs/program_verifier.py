"""Measures a whole program alternately with and without a kernel, and compares its outputs."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.judge.numerics.stats import median, median_interval
from gpu_mcp_server.models.program_speed import PlacedKernel, VerifyOptions, VerifyReport
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.profiles.profile_targets import FOLDER as OURS
from gpu_mcp_server.services.profiles.profile_targets import Targets
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob, ToolJob, ToolJobs
from gpu_mcp_server.services.programs.hotspot_finder import ignores_environment, split_command, without_driver
from gpu_mcp_server.services.programs.output_comparison import compare_outputs
from gpu_mcp_server.services.programs.overlay_builder import FOLDER as OVERLAY
from gpu_mcp_server.services.programs.overlay_builder import PLAN, PLAN_BYTES, OverlayFile, parse_overlay
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces

PURPOSE = "verify"
FOLDER = f"{OURS}/verify"
ABOUT = f"{FOLDER}/about.json"
SIDES = ("before", "after")
MOST_OUTPUTS = 8
NOT_PROTECTED = (
    "program and kernel share one sandbox: a hostile kernel could fool this measurement; "
    "the judge's verdict is the proof"
)
SHOWS_NOTHING = "the outputs show nothing of the kernel's answers: print a loss, or name a file that holds numbers"
UNSTEADY = (
    "the program as it was writes something else in each run, so that nothing can be compared: seed it; leave times "
    "out, or have them left out by options.skip_unsteady; or name another output"
)
Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Run = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MOST_OUTPUTS)]


class KernelCounts(BaseModel):
    """Calls of a run."""

    model_config = ConfigDict(strict=True)
    calls: int = Field(ge=0, le=10**15)
    passed_on: int = Field(ge=0, le=10**15)


class RunRecord(BaseModel):
    """Record that the worker writes; the program could write it too."""

    model_config = ConfigDict(strict=True)
    before_s: list[Seconds] = Field(max_length=60)
    after_s: list[Seconds] = Field(max_length=60)
    counts: list[list[KernelCounts]] = Field(max_length=61)
    """Of each run, those of each kernel."""
    texts: list[str] = Field(max_length=2 * 61 * MOST_OUTPUTS)
    """Outputs that differ, in base64."""
    before_outputs: list[Run] = Field(max_length=61)
    """Of each run, which text each output is."""
    after_outputs: list[Run] = Field(max_length=61)
    failed: str = Field(max_length=1000)
    side: str = Field(max_length=10)
    said: str = Field(max_length=5000)

    def check(self, pairs: int, names: int, kernels: int) -> None:
        """Check that each pair is there, or the run that failed is named.

        Raises:
            ValueError: If not.
        """
        if self.failed:
            return
        if not len(self.before_s) == len(self.after_s) == pairs:
            raise ValueError(f"{len(self.before_s)} and {len(self.after_s)} runs are timed, {pairs} were asked for")
        runs = [*self.before_outputs, *self.after_outputs]
        if not len(self.counts) == len(self.before_outputs) == len(self.after_outputs) == pairs + 1:
            raise ValueError("counts or outputs are not those of each run")
        if any(len(each) != kernels for each in self.counts):
            raise ValueError("a run's counts are not those of each kernel")
        if any(len(run) != names or max(run) >= len(self.texts) for run in runs):
            raise ValueError("an output of a run is missing")
        for text in self.texts:
            base64.b64decode(text, validate=True)


class ProgramVerifier:
    """Patched copies in, speed-ups of the whole out."""

    def __init__(self, tools: ToolJobs, targets: Targets) -> None:
        self._tools, self._targets = tools, targets
        self._workspaces: Workspaces = targets.workspaces

    async def verify(
        self,
        command: Sequence[str],
        workspace_id: str,
        host: str | None = None,
        outputs: Sequence[str] = (),
        options: VerifyOptions | None = None,
        *,
        progress: Progress | None = None,
        wait_s: float | None = None,
    ) -> VerifyReport:
        """Run a program alternately without and with the kernel that apply_attempt put in.

        Args:
            command: The program's benchmark: a Python interpreter, its options, and a script, -m or -c.
            workspace_id: The copy that apply_attempt made.
            host: Where; the default host unless given.
            outputs: Files whose numbers are compared, by path, or `stdout`; stdout alone unless given.
            options: How often, and how exact.
            progress: Told what happens meanwhile.
            wait_s: Seconds to wait for the end; options.wait_s unless given.

        Raises:
            BadRequest: If the workspace has no overlay, or the interpreter would not see it.
            NotFound: If a handle names nothing.
        """
        options = options or VerifyOptions()
        python, _ = split_command(command)
        if ignores_environment(python):
            raise BadRequest(
                "The interpreter's options -E and -I ignore PYTHONPATH, which switches the kernel on.",
                hint="Remove them from the command.",
            )
        names = _checked_names(outputs)
        overlay = await self._overlay(workspace_id)
        target = await self._targets.program(command, workspace_id, host)
        files = await self._sides(overlay.of, workspace_id)
        blobs = {ref.sha256: self._tools.artifacts.blob_path(ref.sha256) for ref in files}
        target = target.with_files(files, blobs)
        job = ToolJob(
            kind="run",
            purpose=PURPOSE,
            worker="verify_runs",
            plan={
                "argv": list(command), "folder": FOLDER, "before": "before", "after": "after", "overlay": OVERLAY,
                "kernels": len(overlay.kernels), "pairs": options.pairs, "run_s": options.run_s, "files": names,
            },
            outputs=(ABOUT,),
            limit_s=options.timeout_s,
            env={},
            tool=None,
            extra_files={},
            context={
                "options": options.model_dump(), "names": names, "copy": workspace_id,
                "kernels": [[each.attempt_id, f"{each.kind} {each.target}"] for each in overlay.kernels],
            },
            gpus=min(1, len(target.probe.gpus)),
        )  # fmt: skip
        job_id, _ = await self._tools.start(job, target)
        if progress is not None:
            await progress(f"program with and without the kernel, job {job_id} on {target.host}")
        done = await self._tools.wait(job_id, target.host, options.wait_s if wait_s is None else wait_s, progress)
        if done is None:
            return VerifyReport(status="running", host=target.host, workspace_id=workspace_id, job_id=job_id)
        return await self.finish(done, await self._tools.row(job_id))

    async def _overlay(self, workspace_id: str) -> OverlayFile:
        try:
            data = await self._workspaces.read_bytes(workspace_id, PLAN, PLAN_BYTES)
        except NotFound as error:
            raise BadRequest(
                f"Workspace {workspace_id} has no kernel put in: {PLAN} is missing.",
                hint="Give the workspace_id that apply_attempt returned.",
            ) from error
        return parse_overlay(data, workspace_id)

    async def _sides(self, before: str, after: str) -> list[FileRef]:
        """Return both workspaces' files, each in a folder of its own."""
        return [
            FileRef(f"{side}/{ref.path}", ref.sha256, ref.size, ref.mode)
            for side, workspace in zip(SIDES, (before, after), strict=True)
            for ref in await self._workspaces.manifest(workspace)
        ]

    async def finish_and_describe(self, done: FinishedJob, row: JobRow) -> str:
        """Settle a finished job; return its report as text."""
        return (await self.finish(done, row)).summary()

    async def finish(self, done: FinishedJob, row: JobRow) -> VerifyReport:
        """Turn a finished job into its report; may be done twice."""
        ended = await self._tools.fetch_results(done, row, ABOUT)
        report = VerifyReport(status="failed", host=done.host, workspace_id=row.context["copy"], job_id=row.job_id)
        options = VerifyOptions(**row.context["options"])
        placed = [await self._placed(attempt_id, replaces) for attempt_id, replaces in row.context["kernels"]]
        update = await asyncio.to_thread(_measured, ended, options, row.context["names"], placed)
        unknown = [f"the speed-up of {one.attempt_id} alone is unknown here" for one in placed if not one.speedup]
        report = report.model_copy(update=update | {"notes": [*update.get("notes", []), *unknown]})
        reason = report.summary().partition("\n")[0][:300]
        evidence = {name: getattr(report, name) for name in ("speedup", "speedup_low", "speedup_high")}
        await self._tools.experience.finish(
            row.attempt_id or "",
            status="ok" if report.speedup is not None else report.status,
            reason=reason,
            evidence={**evidence, "kernels": [[each.attempt_id, each.calls] for each in report.kernels]},
            median_us=None,
        )
        return report

    async def _placed(self, attempt_id: str, replaces: str) -> PlacedKernel:
        """Return a kernel with its own speed-up, where its attempt is on record."""
        try:
            speedup = (await self._tools.experience.get(attempt_id)).speedup
        except NotFound:
            speedup = None
        return PlacedKernel(attempt_id=attempt_id, replaces=replaces, speedup=speedup)


def _checked_names(outputs: Sequence[str]) -> list[str]:
    if len(outputs) > MOST_OUTPUTS:
        raise BadRequest(f"{len(outputs)} outputs are named; the limit is {MOST_OUTPUTS}.", hint="Name fewer.")
    for name in outputs:
        if name.startswith("/") or ".." in name.split("/"):
            raise BadRequest(f"{name!r} is outside the program's folder.", hint="Give a path inside of it.")
    return list(dict.fromkeys(outputs)) or ["stdout"]


def _measured(
    ended: FinishedToolJob, options: VerifyOptions, names: Sequence[str], placed: Sequence[PlacedKernel]
) -> dict[str, Any]:
    found = measured_runs(ended.status, ended.about, names, options, placed)
    return found if ended.status == "ok" else found | {"output": ended.output}


def why_unused(kernel: PlacedKernel) -> str:
    """Return why a run's time says nothing of a kernel, by the calls that went to the program's own code."""
    name = f"the kernel {kernel.attempt_id}"
    if kernel.passed_on:
        return (
            f"{name} never ran: all {kernel.passed_on} calls of a run have other types, sizes, steps or values than it "
            "was judged at, or modules of other attributes (training mode is one): capture with the command that you "
            "measure"
        )
    return (
        f"{name} never ran, and the program never called what it replaces: another script or part of it ran than "
        "was captured, or the interpreter reads no PYTHONPATH"
    )


def measured_runs(
    status: str,
    record: Mapping[str, Any],
    names: Sequence[str],
    options: VerifyOptions,
    placed: Sequence[PlacedKernel],
) -> dict[str, Any]:
    """Return what a job's runs say, as fields of a report; what the record says counts only if the job ended well.

    Args:
        status: How the job ended.
        record: What its worker wrote down, or the program in its place.
        names: The outputs.
        options: Pairs that were asked for, tolerances.
        placed: The kernels in the copy.
    """
    if status != "ok":
        return {
            "status": status,
            "notes": ["not all pairs were run: raise timeout_s, or lower pairs or the program's steps"],
        }
    try:
        about = RunRecord.model_validate(record)
        about.check(options.pairs, len(names), len(placed))
    except ValueError as error:  # ValidationError is one
        why = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(map(str, why["loc"])) or "lengths"
        return {"notes": [f"{ABOUT} is not as it was written ({where[:80]}: {why['msg'][:200]}), so it says nothing"]}
    if about.failed:
        side = "the program as it was" if about.side == "before" else "the program with the kernel"
        notes = [f"{side} {about.failed[:300]}", *without_driver(about.said)]
        return {"notes": notes, "output": about.said[-1200:]}
    before, after = about.before_s, about.after_s
    middle, low, high = median_interval([b / a for b, a in zip(before, after, strict=True)])
    texts = [base64.b64decode(text) for text in about.texts]
    one, other = ([[texts[at] for at in run] for run in side] for side in (about.before_outputs, about.after_outputs))
    compared = compare_outputs(names, one, other, options)
    found: dict[str, Any] = {
        "before_s": median(before), "after_s": median(after), "pairs": len(before),
        "kernels": counted_kernels(placed, about.counts),
        "compared": compared.wrong or compared.unsteady or compared.said,
    }  # fmt: skip
    if unused := [why_unused(each) for each in found["kernels"] if not each.calls]:
        return found | {"status": "unused", "notes": unused}
    if compared.unsteady:
        return found | {"notes": [UNSTEADY]}
    if compared.wrong:
        return found | {"status": "wrong"}
    status = "faster" if low > 1 else "slower" if high < 1 else "same"
    notes = [NOT_PROTECTED, *([SHOWS_NOTHING] if compared.empty else [])]
    return found | {
        "status": status, "speedup": middle, "speedup_low": low, "speedup_high": high, "notes": notes,
    }  # fmt: skip


def counted_kernels(placed: Sequence[PlacedKernel], counts: Sequence[Sequence[KernelCounts]]) -> list[PlacedKernel]:
    """Return the kernels with the fewest calls that each answered in a run, and the most that went past it."""
    return [
        kernel.model_copy(
            update={"calls": min(each.calls for each in runs), "passed_on": max(each.passed_on for each in runs)}
        )
        for kernel, runs in zip(placed, zip(*counts, strict=True), strict=True)
    ]
