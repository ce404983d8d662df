"""All stages of one program in order: each step recorded with time and reason, none done twice for the same inputs."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from gpu_mcp_server import __version__
from gpu_mcp_server.errors import DiskFull, PathRefused
from gpu_mcp_server.models.nccl_check import NcclRunOptions, NcclVerification
from gpu_mcp_server.models.nccl_pipeline import NcclPipeline, NcclPipelineOptions, NcclStep, StepStatus
from gpu_mcp_server.models.transform import Api, Stage, TransformResult
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.program_model.api_names import GIN_FIRST
from gpu_mcp_server.nccl.stages.transformation import STAGES, transform
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.nccl.host_support import NcclHost, supported_stages
from gpu_mcp_server.services.nccl.trial_programs import OriginalRun
from gpu_mcp_server.services.nccl.verifier import NcclVerifier, read_program
from gpu_mcp_server.services.records.attempts import AttemptStore

RECORD = "pipeline.json"
FIRST: tuple[Stage, ...] = ("infrastructure",)
REASON_CHARACTERS = 300
STAGE_A, STAGE_B = "stage_a", "stage_b"
Texts = Mapping[str, str]


@dataclass
class StepResult:
    """Result of a step."""

    status: StepStatus
    reason: str
    files: dict[str, str] = field(default_factory=dict[str, str])
    attempt_id: str | None = None
    stop: bool = False
    """Nothing that follows makes sense."""


@dataclass
class PipelineRun:
    """One run of the pipeline."""

    files: dict[str, str]
    main: str
    folder: Path
    options: NcclPipelineOptions
    host: NcclHost
    earlier: dict[str, NcclStep]
    steps: list[NcclStep] = field(default_factory=list[NcclStep])
    transformed: TransformResult | None = None
    stopped: str = ""
    original_run: OriginalRun = field(default_factory=OriginalRun)

    @property
    def last_main(self) -> str | None:
        """The program of the last stage that was made."""
        made = [f for s in self.steps if s.status == "done" for f in s.files if f.endswith(".cu") or ".device." in f]
        return made[-1] if made else None


class Pipeline:
    """Takes programs to the device."""

    def __init__(self, verifier: NcclVerifier, experience: AttemptStore) -> None:
        self._verifier, self._experience = verifier, experience

    async def run(
        self,
        files: Texts,
        main: str,
        folder: Path,
        options: NcclPipelineOptions | None = None,
        *,
        progress: Progress | None = None,
    ) -> NcclPipeline:
        """Do all steps that were not done yet; what is made goes to `folder`, the given files stay as they are.

        Args:
            files: Text by path.
            main: The file with the collectives.
            folder: For new files, diffs and the record of steps; another run with it goes on where this one ended.
            options: How the program is started, and how far it is taken.
            progress: Told each step.

        Raises:
            BadRequest: If `main` is no source among the files.
            PathRefused: If the folder holds something that is not ours.
            ToolMissing: If the host has no nvcc.
        """
        options = options or NcclPipelineOptions()
        read_program(files, main)
        host = await self._verifier.hosts.describe_host(options.host)
        earlier = {} if options.again else await asyncio.to_thread(_recorded, folder)
        course = PipelineRun(dict(files), main, folder, options, host, earlier)
        for name, work in self._work(course, progress):
            if progress is not None:
                await progress(name)
            await self._step(course, name, work)
            if course.stopped:
                break
        return _result(course)

    def _work(
        self, course: PipelineRun, progress: Progress | None
    ) -> list[tuple[str, Callable[[], Awaitable[StepResult]]]]:
        """Return the steps in their order."""

        async def analyze() -> StepResult:
            return await asyncio.to_thread(_analyzed, course)

        async def original() -> StepResult:
            until = "static" if course.options.until == "static" else "build"
            return await self._verified(course, course.main, course.files, None, until, progress)

        def transform_stage(name: str, stages: Sequence[Stage]) -> Callable[[], Awaitable[StepResult]]:
            return lambda: asyncio.to_thread(_transformed, course, name, stages)

        def verify_stage(name: str) -> Callable[[], Awaitable[StepResult]]:
            async def work() -> StepResult:
                texts, new_main = _stage(course, name)
                if new_main is None:
                    return StepResult("skipped", "there is nothing of this stage to verify")
                until = course.options.until
                interim = name == STAGE_A and await asyncio.to_thread(_has_kernels, course)
                return await self._verified(course, new_main, texts, course.main, until, progress, interim=interim)

            return work

        first = (
            []
            if course.options.together
            else [
                ("windows and device communicator", transform_stage(STAGE_A, FIRST)),
                ("verify stage A", verify_stage(STAGE_A)),
            ]
        )
        return [
            ("analyze", analyze),
            ("original", original),
            *first,
            ("kernels", transform_stage(STAGE_B, STAGES)),
            ("verify stage B", verify_stage(STAGE_B)),
        ]

    async def _step(self, course: PipelineRun, name: str, work: Callable[[], Awaitable[StepResult]]) -> None:
        """Do one step, or take it over from an earlier run with the same inputs."""
        key = _key(course, name)
        known = course.earlier.get(name)
        if known is not None and known.key == key and known.status != "failed" and _there(course, known):
            course.steps.append(known.model_copy(update={"reused": True}))
            course.stopped = known.reason if name == "analyze" and known.status == "skipped" else ""
            return
        began, parent = time.monotonic(), next((s.attempt_id for s in reversed(course.steps) if s.attempt_id), None)
        attempt_id = await self._experience.start(
            "nccl", parent_id=parent, host=course.host.host, language="cuda", note=f"{course.main}: {name}"
        )
        try:
            done = await work()
            await asyncio.to_thread(_written, course.folder, done.files)
        except BaseException as error:
            reason = f"broken off: {type(error).__name__}: {error}"[:REASON_CHARACTERS]
            await self._experience.finish(attempt_id, status="broken", reason=reason)
            raise
        seconds = time.monotonic() - began
        status = {"done": "ok", "failed": "failed"}.get(done.status, "judged")
        await self._experience.finish(
            attempt_id,
            status=status,
            verdict=None if status in ("ok", "failed") else done.status,
            reason=done.reason,
            evidence={"step": name, "seconds": seconds, "key": key, "verification": done.attempt_id},
        )
        course.steps.append(
            NcclStep(
                name=name,
                status=done.status,
                reason=done.reason,
                seconds=seconds,
                attempt_id=done.attempt_id or attempt_id,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
                key=key,
                files=sorted(done.files),
            )
        )
        course.stopped = done.reason if done.stop else ""
        await asyncio.to_thread(_record, course)

    async def _verified(
        self,
        course: PipelineRun,
        main: str,
        files: Texts,
        original: str | None,
        until: str,
        progress: Progress | None,
        *,
        interim: bool = False,
    ) -> StepResult:
        options = NcclRunOptions.model_validate(
            {**course.options.model_dump(include=set(NcclRunOptions.model_fields)), "until": until}
        )
        every = {**course.files, **files}
        said = await self._verifier.verify(
            every,
            main,
            original=original,
            options=options,
            original_run=course.original_run,
            interim=interim,
            progress=progress,
        )
        failed = [c for c in said.checks if c.status == "failed"]
        if original is None:
            return _about_original(said)
        if failed:
            reason = "; ".join(f"{c.name}: {c.evidence}" for c in failed)[:REASON_CHARACTERS]
            return StepResult("failed", reason, attempt_id=said.attempt_id, stop=True)
        if said.missing:
            told = len(said.checks) - len(said.missing)
            reason = f"{told} checks passed or noted; not run: {', '.join(said.missing)}"
            return StepResult("incomplete", reason, attempt_id=said.attempt_id)
        return StepResult("done", f"verified by {len(said.checks)} checks", attempt_id=said.attempt_id)


def _about_original(said: NcclVerification) -> StepResult:
    """The original is only built: its collectives are on the host, rules for device code say nothing of it."""
    build = next(c for c in said.checks if c.name == "build")
    if build.status == "failed":
        return StepResult("failed", f"it does not compile today: {build.evidence}"[:REASON_CHARACTERS], stop=True)
    if build.status == "skipped":
        return StepResult("incomplete", build.evidence, attempt_id=said.attempt_id)
    return StepResult("done", f"it compiles: {build.evidence}", attempt_id=said.attempt_id)


def _analyzed(course: PipelineRun) -> StepResult:
    analysis = Analysis(course.files, course.main)
    if not analysis.sites:
        return StepResult(
            "skipped", "nothing to transform: no host call of NCCL communicates in these files", stop=True
        )
    names = [s.call.name for s in analysis.sites]
    counted = ", ".join(f"{names.count(n)} {n}" for n in dict.fromkeys(names))
    return StepResult("done", f"{len(names)} sites: {counted}")


def _has_kernels(course: PipelineRun) -> bool:
    """Say whether a stage with generated kernels follows, which gets the checks that stage A then leaves to it."""
    result, _ = _transform(course, STAGES)
    return result.main is not None and bool(result.done.get("replace"))


def _transform(course: PipelineRun, stages: Sequence[Stage]) -> tuple[TransformResult, dict[str, str]]:
    install = course.host.install
    version = install.version if install is not None else None
    return transform(
        course.files, course.main, stages=stages, api=chosen_api(course.options, course.host), nccl_version=version
    )


def _transformed(course: PipelineRun, name: str, stages: Sequence[Stage]) -> StepResult:
    result, made = _transform(course, stages)
    course.transformed = result
    files = {f"{name}/{path}": text for path, text in made.items()}
    if result.diff:
        files[f"{name}.diff"] = result.diff
    left = f"; left to the agent: {len(result.needs_agent)}" if result.needs_agent else ""
    if result.main is None or not made:
        return StepResult("skipped", f"{result.headline}{left}"[:REASON_CHARACTERS])
    gin = (
        "; GIN, as the ranks' GPUs do not all share NVLink there"
        if (chosen_api(course.options, course.host), course.options.api) == ("gin", "auto")
        else ""
    )
    return StepResult("done", f"{result.headline}{left}{gin}"[:REASON_CHARACTERS], files)


def chosen_api(options: NcclPipelineOptions, host: NcclHost) -> Api:
    """Return what generated kernels use: GIN where the host's GPUs are enough and do not all share NVLink, else LSA."""
    has_gin = host.install is not None and host.install.version >= GIN_FIRST
    unlinked = host.gpus >= options.ranks > host.nvlink_group_size
    return "gin" if options.api == "auto" and unlinked and has_gin else options.api


def _stage(course: PipelineRun, name: str) -> tuple[dict[str, str], str | None]:
    """Return the files of a stage, read from the folder, and its main file."""
    step = next((s for s in reversed(course.steps) if any(f.startswith(f"{name}/") for f in s.files)), None)
    paths = [f for f in (step.files if step else []) if f.startswith(f"{name}/")]
    texts = {p[len(name) + 1 :]: (course.folder / p).read_text(encoding="utf-8") for p in paths}
    stem = course.main.rpartition(".")[0]
    return texts, next((p for p in texts if p.startswith(stem)), None)


def _key(course: PipelineRun, name: str) -> str:
    """Return the address of a step: files, options, host, version of ours, and what came before it."""
    install = course.host.install
    parts: list[Any] = [
        *(__version__, name, course.main, sorted(course.files.items())),
        course.options.model_dump(exclude={"again"}),
        *(course.host.host, supported_stages(course.host), install.header if install else None),
        [(s.name, s.status, s.key) for s in course.steps],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _there(course: PipelineRun, step: NcclStep) -> bool:
    """Say whether everything that a step made is still in the folder."""
    return all((course.folder / path).is_file() for path in step.files)


def _recorded(folder: Path) -> dict[str, NcclStep]:
    """Return the steps of earlier runs; a record that cannot be read counts as none."""
    try:
        listed: Any = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        steps = [NcclStep.model_validate(s) for s in cast("list[Any]", listed["steps"])]
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return {}
    return {s.name: s for s in steps}


def _record(course: PipelineRun) -> None:
    """Write the record at once, so that whatever interrupts this run, the next one goes on from here."""
    done = [s.model_dump(mode="json") for s in course.steps]
    _written(course.folder, {RECORD: json.dumps({"main": course.main, "steps": done}, indent=1) + "\n"})


def _written(folder: Path, files: Texts) -> None:
    for path, text in files.items():
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()) or target.is_symlink():
            raise PathRefused(f"{path} leaves {folder}.", hint="Name another folder with --out.")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            new = target.with_name(target.name + ".new")
            new.write_text(text, encoding="utf-8")
            new.replace(target)
        except OSError as error:
            raise DiskFull(f"{target} cannot be written: {error.strerror}.", hint="Name another folder.") from error


def _result(course: PipelineRun) -> NcclPipeline:
    steps, transformed = course.steps, course.transformed
    failed = next((s for s in steps if s.status == "failed"), None)
    last = steps[-1]
    if last.name == "analyze" and last.status == "skipped":
        status, headline = "nothing to transform", last.reason
    elif failed is not None:
        status, headline = "failed", f"{failed.name}: {failed.reason}"
    elif last.status == "done":
        left = len(transformed.needs_agent) if transformed is not None else 0
        more = f"; {left} things are left to you: see needs_agent" if left else ""
        status, headline = "verified", "every step is done and verified" + more
    else:
        open_steps = [s.name for s in steps if s.status in ("incomplete", "skipped")]
        status, headline = "incomplete", f"nothing failed; not proved: {', '.join(open_steps)}"
    return NcclPipeline(
        status=status,
        headline=headline,
        steps=steps,
        folder=str(course.folder),
        main=course.last_main,
        possible=supported_stages(course.host),
        needs_agent=transformed.needs_agent if transformed is not None else [],
        advice=transformed.advice if transformed is not None else [],
    )
