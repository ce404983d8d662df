"""NCCL mode: the program takes both stages, the agent does what is left; what verify_nccl refuses does not count."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_mcp_server.models.nccl_check import NcclRunOptions, NcclVerification
from gpu_mcp_server.models.nccl_pipeline import NcclPipeline
from gpu_mcp_server.models.recipe import Edit, ProgramEdit, Stage, StopReason, Verdict
from gpu_mcp_server.nccl.analysis.communication_graph import OURS, Analysis
from gpu_mcp_server.nccl.program_model.markers import MarkerFault
from gpu_mcp_server.nccl.stages.evolve_markers import add_markers
from gpu_mcp_server.nccl.stages.infrastructure import EditedFiles
from gpu_mcp_server.recipes.agents.agent_output import handed_over
from gpu_mcp_server.recipes.agents.prompt_builder import (
    FILE_CHARS,
    HEADLESS,
    Findings,
    answer_form,
    findings_text,
    given_files,
    hints,
)
from gpu_mcp_server.recipes.agents.recipe_loader import recipe
from gpu_mcp_server.recipes.modes.nccl_speed import measure_speed
from gpu_mcp_server.recipes.modes.structured_mode import SILENT
from gpu_mcp_server.recipes.run.failure_response import FailureResponse
from gpu_mcp_server.recipes.run.run_context import Ending, Ground
from gpu_mcp_server.runtime.result_limits import cut_text
from gpu_mcp_server.services.experience.experience_search import signature
from gpu_mcp_server.services.nccl.pipeline import STAGE_A, STAGE_B, Pipeline
from gpu_mcp_server.services.nccl.transform import local_program

STAGES_FOLDER, PROGRAM_FOLDER = "stages", "program"
REASON_CHARACTERS = 1500
BUILDS = ("build", "versions")


@dataclass(frozen=True)
class Program:
    """A program on its way to the device."""

    files: Mapping[str, str]
    main: str
    original: str
    frozen: bool
    """Whether lines outside the EVOLVE-BLOCKs must stay."""
    left: tuple[str, ...]
    """Host calls that still communicate."""


async def nccl(ground: Ground) -> Ending:
    """Run both stages, then the agent on what they left."""
    program = await _fast_path(ground)
    if isinstance(program, Ending):
        return program
    failed: Counter[Stage] = Counter()
    last: Verdict | None = None
    response, found = FailureResponse(("compile", "correctness")), Findings()
    number, silent = 0, 0
    while True:
        if (over := ground.over()) is not None:
            return over
        number += 1
        edited, verdict = await _turn(ground, program, number, last, found)
        last, program = verdict, edited or program
        await response.score(ground, f"{number:03}", [verdict])
        silent = silent + 1 if verdict.stage == "code" else 0
        if verdict.stage == "target":
            ending, last = await _speed(ground, program, number, verdict)
            if ending is not None:
                return ending
            verdict = last
        failed[verdict.stage] += 1
        if silent >= SILENT:
            return Ending("agent", f"{SILENT} calls in a row gave no edit; the last: {verdict.reason}"[:500])
        limits = ground.plan.iterations
        most = {"compile": limits.compile, "performance": limits.performance}.get(verdict.stage, limits.correctness)
        if failed[verdict.stage] >= most:
            where = _kept(ground, program, number)
            reason = f"{most} edits ended at stage {verdict.stage}; left: {'; '.join(program.left)}; files: {where}"
            return Ending("iterations", reason[:500])
        found = await response.respond(ground, f"{number:03}", [verdict], about_program(ground, program))


async def _speed(ground: Ground, program: Program, number: int, verdict: Verdict) -> tuple[Ending | None, Verdict]:
    """Return how the run ends with a program that has no host call left; no ending where it is to become faster."""
    where = _kept(ground, program, number)
    said = f"{verdict.outcome}: no host call is left; {verdict.reason}"
    if ground.plan.target.speedup is None:
        return Ending("target", f"{said}; files: {where}"[:500]), verdict
    speed = await measure_speed(ground, f"{number:03}", await _original(ground), (program.files, program.main))
    if not speed.measured or speed.reached:
        stopped: StopReason = "target" if speed.reached else "unmeasured"
        return Ending(stopped, f"{said}; {speed.said}; files: {where}"[:500]), verdict
    return None, verdict.model_copy(update={"stage": "performance", "reason": f"no host call is left; {speed.said}"})


async def _original(ground: Ground) -> tuple[Mapping[str, str], str]:
    path = Path(ground.plan.problem)
    files, _ = await asyncio.to_thread(local_program, path)
    return files, path.name


async def _fast_path(ground: Ground) -> Program | Ending:
    """Do what needs no agent; return what it left, or how the run ends without one."""
    path, folder = Path(ground.plan.problem), ground.folder / STAGES_FOLDER
    files, _ = await asyncio.to_thread(local_program, path)
    lab, options = ground.lab, ground.plan.nccl

    async def work() -> dict[str, Any]:
        pipeline = Pipeline(lab.nccl.verifier, lab.store.experience)
        done = await pipeline.run(files, path.name, folder, options, progress=ground.tell)
        return {"outcome": done.status, "result": done.model_dump(mode="json")}

    noted = await ground.step("pipeline-001", "pipeline", work)
    done = NcclPipeline.model_validate(noted["result"])
    failed = next((step for step in done.steps if step.status == "failed"), None)
    if done.status == "nothing to transform" or (failed is not None and failed.name == "original"):
        return Ending("refused", done.headline[:500])
    program = await asyncio.to_thread(_begun, files, path.name, folder, done)
    if done.needs_agent or failed is not None:
        return program
    said = f"{done.status} without the agent: {done.headline}"
    if ground.plan.target.speedup is None:
        return Ending("target", f"{said}; files: {folder}"[:500])
    speed = await measure_speed(ground, "000", (files, path.name), (program.files, program.main))
    stopped: StopReason = "target" if speed.reached else "iterations" if speed.measured else "unmeasured"
    return Ending(stopped, f"{said}; {speed.said}; files: {folder}"[:500])


def _begun(files: Mapping[str, str], original: str, folder: Path, done: NcclPipeline) -> Program:
    """Return the last stage that was not refused, with markers around the host calls that it left."""
    refused = {step.name for step in done.steps if step.status == "failed"}
    base, main = dict(files), original
    for stage, check in ((STAGE_B, "verify stage B"), (STAGE_A, "verify stage A")):
        made = [f for step in done.steps for f in step.files if f.startswith(f"{stage}/")]
        if made and check not in refused:
            texts = {f[len(stage) + 1 :]: (folder / f).read_text(encoding="utf-8") for f in made}
            base |= texts
            main = next((f for f in texts if f.startswith(original.rpartition(".")[0])), original)
            break
    analysis = Analysis(base, main)
    edits = EditedFiles(analysis)
    frozen = main != original
    if frozen:
        try:
            add_markers(analysis, edits, [site.call for site in analysis.sites])
            base |= edits.changed_texts()
        except MarkerFault:
            frozen = False
    return Program(base, main, original, frozen, _left(base, main))


def _left(files: Mapping[str, str], main: str) -> tuple[str, ...]:
    return tuple(f"{site.call.name} {site.call.path}:{site.call.line}" for site in Analysis(files, main).sites)


async def _turn(
    ground: Ground, program: Program, number: int, last: Verdict | None, found: Findings
) -> tuple[Program | None, Verdict]:
    """Ask for an edit and have it verified; returns the program with it, if it may stay."""
    step = f"code-{number:03}"
    answer = await ground.ask(step, "code", program_prompt(ground, program, number, last, found))
    edit, why = handed_over(answer, ProgramEdit)
    if answer.status != "ok":
        edit, why = None, f"the agent's call ended as {answer.status}: {answer.why}"
    texts, why = _applied(program.files, edit.edits) if edit is not None else (None, why)
    if edit is None or texts is None:
        return None, Verdict(stage="code", outcome="no_candidate", reason=why[:REASON_CHARACTERS])
    ground.hand_off(step, edit)

    async def work() -> dict[str, Any]:
        verdict = await _verified(ground, program, texts)
        ground.hand_off(f"verify-{number:03}", verdict)
        return {"outcome": verdict.outcome, "verdict": verdict.model_dump(mode="json")}

    done = await ground.step(f"verify-{number:03}", "verify", work)
    verdict = Verdict.model_validate(done["verdict"])
    if verdict.stage not in ("target", "performance"):
        return None, verdict
    edited = Program(texts, program.main, program.original, program.frozen, _left(texts, program.main))
    ground.best, ground.best_source = verdict, texts[program.main]
    return edited, verdict


async def _verified(ground: Ground, program: Program, texts: Mapping[str, str]) -> Verdict:
    options = NcclRunOptions.model_validate(ground.plan.nccl.model_dump(include=set(NcclRunOptions.model_fields)))
    original = program.original if program.original != program.main else None
    before = {p: t for p, t in program.files.items() if p != program.original} if program.frozen else None
    said = await ground.lab.nccl.verifier.verify(
        texts, program.main, original=original, before=before, options=options, progress=ground.tell
    )
    return _verdict(said, program.left, await asyncio.to_thread(_left, texts, program.main))


def _verdict(said: NcclVerification, before: tuple[str, ...], left: tuple[str, ...]) -> Verdict:
    failed = [check for check in said.checks if check.status == "failed"]
    reason = "; ".join(f"{check.name}: {check.evidence}" for check in failed)
    stage: Stage = "compile" if failed and failed[0].name in BUILDS else "correctness"
    outcome = said.verdict
    if not failed:
        proved = f"not run: {', '.join(said.missing)}" if said.missing else f"{len(said.checks)} checks"
        stage = "performance" if left else "target"
        reason = f"{proved}; left: {'; '.join(left)}" if left else proved
        if left and len(left) >= len(before):
            stage, reason = "correctness", f"as many host calls are left as before: {'; '.join(left)}"
    return Verdict(
        attempt_id=said.attempt_id, stage=stage, outcome=outcome, reason=reason[:REASON_CHARACTERS],
        signature=signature(reason),
    )  # fmt: skip


def _applied(files: Mapping[str, str], edits: list[Edit]) -> tuple[dict[str, str] | None, str]:
    """Return the files with the edits, or why they cannot be made."""
    texts = dict(files)
    for number, edit in enumerate(edits, 1):
        if edit.path not in texts:
            return None, f"edit {number}: there is no file {edit.path}; there are: {', '.join(texts)}"
        times = texts[edit.path].count(edit.old)
        if times != 1:
            return None, f"edit {number}: `old` stands {times} times in {edit.path}, it must stand there once"
        texts[edit.path] = texts[edit.path].replace(edit.old, edit.new)
    return texts, ""


def _kept(ground: Ground, program: Program, number: int) -> Path:
    """Write the program as it stands, and say where."""
    folder = ground.folder / f"{PROGRAM_FOLDER}-{number:03}"
    for path, text in program.files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def about_program(ground: Ground, program: Program) -> str:
    """Return what is wanted of a program, and which host calls are left."""
    wanted = [f"Wanted: {ground.plan.request}"] if ground.plan.request else []
    if not program.left and ground.plan.target.speedup is not None:
        times = f"{ground.plan.target.speedup:g} times as fast as the original"
        return "\n\n".join([*wanted, f"No host call is left. Make the whole program {times}."])
    head = "Both stages are done as far as the program could. These host calls are left to you:"
    left = "\n".join(f"- {left}" for left in program.left) or "- none; the last stage was refused, see below"
    return "\n\n".join([*wanted, head, left])


def program_prompt(ground: Ground, program: Program, number: int, last: Verdict | None, found: Findings) -> str:
    """Return what the agent is told: the procedure, what is left, the last refusal, the files."""
    plan = ground.plan
    named = [program.main, *(p for p in program.files if p.endswith((".cu", ".cuh", ".h")) and p != program.main)]
    shown = [p for p in dict.fromkeys(named) if p != program.original or p == program.main]
    parts = [HEADLESS, recipe(plan.procedure).body.strip()]
    parts.append(about_program(ground, program))
    parts += [given_files(plan)] if number == 1 else []
    if program.frozen:
        parts.append("Only lines between EVOLVE-BLOCK-START and EVOLVE-BLOCK-END may change; the calls stand in such.")
    if last is not None:
        route = "It was refused:" if last.stage != "performance" else "It was accepted, and this is left:"
        parts.append(f"Your last edit. {route}\n\n{last.reason}")
    parts += [*findings_text(found, plan), *hints(plan, "correctness", "performance")]
    parts += [f"{p}:\n\n```cuda\n{cut_text(program.files[p], FILE_CHARS)}\n```" for p in shown if _is_shown(p)]
    parts += [f"This is edit {number}.", answer_form(ProgramEdit, "cuda")]
    return "\n\n".join(part for part in parts if part) + "\n"


def _is_shown(path: str) -> bool:
    return Path(path).name not in OURS or path.endswith("kernels.cuh")
