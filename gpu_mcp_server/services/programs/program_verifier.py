"""Measures a whole program alternately with and without a kernel, and compares its outputs."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.judge.numerics.stats import median, median_interval
from gpu_mcp_server.models.program_speed import VerifyOptions, VerifyReport
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.profiles.profile_targets import FOLDER as OURS
from gpu_mcp_server.services.profiles.profile_targets import Targets
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob, ToolJob, ToolJobs
from gpu_mcp_server.services.programs.hotspot_finder import ignores_environment, split_command
from gpu_mcp_server.services.programs.overlay_builder import FOLDER as OVERLAY
from gpu_mcp_server.services.programs.overlay_builder import PLAN
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces

PURPOSE = "verify"
FOLDER = f"{OURS}/verify"
ABOUT = f"{FOLDER}/about.json"
SIDES = ("before", "after")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])|\b(?:nan|inf)\b")
"""Numbers in a program's text output."""
MOST_OUTPUTS = 8


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
    ) -> VerifyReport:
        """Run a program alternately without and with the kernel that apply_attempt put in.

        Args:
            command: The program's benchmark: a Python interpreter, its options, and a script, -m or -c.
            workspace_id: The copy that apply_attempt made.
            host: Where; the default host unless given.
            outputs: Files whose numbers are compared, by path, or `stdout`; stdout alone unless given.
            options: How often, and how exact.
            progress: Told what happens meanwhile.

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
        plan = await self._plan(workspace_id)
        target = await self._targets.program(command, workspace_id, host)
        files = await self._sides(str(plan.get("of")), workspace_id)
        blobs = {ref.sha256: self._tools.artifacts.blob_path(ref.sha256) for ref in files}
        target = target.with_files(files, blobs)
        kept = tuple(f"{FOLDER}/{side}-{at}.out" for side in SIDES for at in range(len(names)))
        job = ToolJob(
            kind="run",
            purpose=PURPOSE,
            worker="verify_runs",
            plan={
                "argv": list(command), "folder": FOLDER, "before": "before", "after": "after", "overlay": OVERLAY,
                "pairs": options.pairs, "run_s": options.run_s, "files": names,
            },
            outputs=(ABOUT, *kept),
            limit_s=options.timeout_s,
            env={},
            tool=None,
            extra_files={},
            context={
                "options": options.model_dump(), "names": names, "copy": workspace_id,
                "kernel": plan.get("attempt_id"),
            },
            gpus=min(1, len(target.probe.gpus)),
        )  # fmt: skip
        job_id, _ = await self._tools.start(job, target)
        if progress is not None:
            await progress(f"program with and without the kernel, job {job_id} on {target.host}")
        done = await self._tools.wait(job_id, target.host, options.wait_s, progress)
        if done is None:
            return VerifyReport(status="running", host=target.host, workspace_id=workspace_id, job_id=job_id)
        return await self.finish(done, await self._tools.row(job_id))

    async def _plan(self, workspace_id: str) -> dict[str, Any]:
        try:
            found = json.loads(await self._workspaces.read_bytes(workspace_id, PLAN))
        except (NotFound, ValueError) as error:
            raise BadRequest(
                f"Workspace {workspace_id} has no kernel put in: {PLAN} is missing or no JSON.",
                hint="Give the workspace_id that apply_attempt returned.",
            ) from error
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    async def _sides(self, before: str, after: str) -> list[FileRef]:
        """Return both workspaces' files, each in a folder of its own."""
        return [
            FileRef(f"{side}/{ref.path}", ref.sha256, ref.size, ref.mode)
            for side, workspace in zip(SIDES, (before, after), strict=True)
            for ref in await self._workspaces.manifest(workspace)
        ]

    async def finish_and_describe(self, done: FinishedJob, row: JobRow) -> str:
        """Return the report of a job that a later call asks about."""
        return (await self.finish(done, row)).summary()

    async def finish(self, done: FinishedJob, row: JobRow) -> VerifyReport:
        """Turn a finished job into its report; may be done twice."""
        ended = await self._tools.fetch_results(done, row, ABOUT)
        kernel = str(row.context["kernel"] or "")
        report = VerifyReport(
            status="failed", host=done.host, workspace_id=row.context["copy"], job_id=row.job_id, attempt_id=kernel
        )
        report = report.model_copy(update=_measured(ended, VerifyOptions(**row.context["options"]), row.context))
        try:
            report = report.model_copy(
                update={"kernel_speedup": (await self._tools.experience.get(kernel)).speedup if kernel else None}
            )
        except NotFound:
            report.notes.append(f"the attempt {kernel} is unknown here: its own speed-up is left out")
        reason = report.summary().partition("\n")[0][:300]
        evidence = {name: getattr(report, name) for name in ("speedup", "speedup_low", "speedup_high", "kernel_calls")}
        await self._tools.experience.finish(
            row.attempt_id or "",
            status="ok" if report.speedup is not None else report.status,
            reason=reason,
            evidence={**evidence, "kernel": kernel},
            median_us=None,
        )
        return report


def _checked_names(outputs: Sequence[str]) -> list[str]:
    if len(outputs) > MOST_OUTPUTS:
        raise BadRequest(f"{len(outputs)} outputs are named; the limit is {MOST_OUTPUTS}.", hint="Name fewer.")
    for name in outputs:
        if name.startswith("/") or ".." in name.split("/"):
            raise BadRequest(f"{name!r} is outside the program's folder.", hint="Give a path inside of it.")
    return list(dict.fromkeys(outputs)) or ["stdout"]


def _measured(ended: FinishedToolJob, options: VerifyOptions, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report's fields from the runs that ended."""
    about = ended.about
    if about.get("failed"):
        side = "the program as it was" if about.get("side") == "before" else "the program with the kernel"
        return {"notes": [f"{side} {str(about['failed'])[:300]}"], "output": str(about.get("said") or "")[-1200:]}
    before, after = (_seconds(about.get(f"{side}_s")) for side in SIDES)
    if not before or len(before) != len(after) or len(before) < options.pairs:
        status = ended.status if ended.status != "ok" else "failed"
        return {
            "status": status,
            "notes": ["not all pairs were run: raise timeout_s, or lower pairs or the program's steps"],
        }
    middle, low, high = median_interval([b / a for b, a in zip(before, after, strict=True)])
    counts = cast("list[dict[str, int]]", about.get("counts") or [])  # our worker's own
    calls = min((c["calls"] for c in counts), default=0)
    passed = max((c["passed_on"] for c in counts), default=0)
    found: dict[str, Any] = {
        "before_s": median(before), "after_s": median(after), "pairs": len(before), "kernel_calls": calls,
        "passed_on": passed,
    }  # fmt: skip
    wrong, compared = _compared(ended.files, options, context)
    found["compared"] = compared
    if not calls:
        return found | {
            "status": "unused",
            "notes": [
                "the kernel never ran, so there is no speed-up: capture_problem with this command records its calls"
            ],
        }
    if wrong:
        return found | {"status": "wrong"}
    status = "faster" if low > 1 else "slower" if high < 1 else "same"
    return found | {"status": status, "speedup": middle, "speedup_low": low, "speedup_high": high}


def _seconds(found: Any) -> list[float]:
    listed: list[Any] = list(found) if isinstance(found, list) else []  # pyright: ignore[reportUnknownArgumentType]
    return [float(s) for s in listed if isinstance(s, (int, float)) and s > 0]


def _compared(files: Mapping[str, bytes], options: VerifyOptions, context: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the outputs of both sides differ, and the first place."""
    said: list[str] = []
    for at, name in enumerate(context["names"]):
        before, after = (files.get(f"{FOLDER}/{side}-{at}.out", b"") for side in SIDES)
        if before == after:
            said.append(f"{name}: the same bytes" if before else f"{name}: empty")
            continue
        if b"\0" in before + after:
            return True, f"{name}: bytes differ, and it is no text"
        numbers = printed_numbers(before)
        if wrong := difference(numbers, printed_numbers(after), options):
            return True, f"{name}: {wrong}"
        said.append(f"{name}: {len(numbers)} numbers agree")
    return False, "; ".join(said)


def printed_numbers(data: bytes) -> list[float]:
    """Return the numbers in a text that a program wrote."""
    return [float(word) for word in NUMBER.findall(data.decode("utf-8", "replace"))]


def difference(before: Sequence[float], after: Sequence[float], options: VerifyOptions) -> str:
    """Say where two rows of numbers differ by more than the tolerance; nothing if they do not."""
    if len(before) != len(after):
        return f"{len(before)} before, {len(after)} after"
    for at, (one, other) in enumerate(zip(before, after, strict=True)):
        same = one == other or (one != one and other != other)
        if not same and not abs(one - other) <= options.atol + options.rtol * abs(one):
            return f"number {at + 1} is {one:g} before and {other:g} after"
    return ""
