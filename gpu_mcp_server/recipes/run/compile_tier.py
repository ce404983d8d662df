"""Runs of tier compile: what can be said of a candidate where its device is not."""

import hashlib
from pathlib import Path

from gpu_mcp_server.errors import ProblemRefused
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import CompileResult
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.recipe import Candidate, Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.evaluation.program_candidates import files_of_candidate
from gpu_mcp_server.services.experience.experience_search import signature
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.detect import read_compile_only, source_at

COMPILES = "compiles"
DIAGNOSTICS = 8
DETAILS = 2500
PROBLEM_FILE = "problem.json"


def source_for(problem: Problem, candidate: Candidate, plan: RunPlan) -> CandidateSource:
    """Return a candidate as the source that it is: one file of a program, or a kernel."""
    language = "program" if problem.program is not None else plan.language
    return CandidateSource(candidate.source, language, NAMES[language])


async def unjudged(lab: Lab, plan: RunPlan, folder: Path) -> Problem:
    """Return the problem of a run of tier compile: read once, kept with the run, registered nowhere.

    Raises:
        ProblemRefused: If its own project does not compile here.
        NotFound, BadRequest: If its file is not there, or is none.
    """
    kept = folder / PROBLEM_FILE
    if kept.is_file():
        return Problem.model_validate_json(kept.read_text(encoding="utf-8"))
    if plan.problem.startswith("p-"):
        return await lab.store.problems.get(plan.problem)
    problem = await read_compile_only(await source_at(Path(plan.problem)))
    if problem.program is not None:
        own = await lab.evaluation.programs.build(problem.program, {}, plan.flags, lab.hosts.choose(plan.host))
        if own.status != "ok":
            raise ProblemRefused(f"Its own project does not compile here: {said(own)}", hint="Correct its build.")
    new = kept.with_suffix(".new")
    new.write_text(problem.model_dump_json(), encoding="utf-8")
    new.replace(kept)
    return problem


async def compiled(
    lab: Lab, plan: RunPlan, problem: Problem, candidate: Candidate, batch_id: str, note: str
) -> Verdict:
    """Compile a candidate once, whoever began it; the attempt is of kind compile."""
    experience = lab.store.experience
    for attempt, _ in await experience.of_batch(batch_id):
        if attempt.status != "running":
            return verdict_of_build(attempt, attempt.reason or "")
        await experience.finish(attempt.attempt_id, status="abandoned", reason="its run was killed")
    source, host = source_for(problem, candidate, plan), lab.hosts.choose(plan.host)
    data, media_type = source.stored_form()
    attempt_id = await experience.start(
        "compile",
        problem_hash=problem.content_hash,
        source_hash=hashlib.sha256(data).hexdigest(),
        source_artifact_id=await lab.store.artifacts.put(data, name=source.name, media_type=media_type),
        language=source.language,
        host=host,
        note=note,
        batch_id=batch_id,
    )
    try:
        if problem.program is not None:
            files = files_of_candidate(problem.program, source.text, source.name)
            built = await lab.evaluation.programs.build(problem.program, files, plan.flags, host)
        else:
            built = await lab.builds.compiler.build(source, host=host, flags=plan.flags)
    except BaseException as error:
        await experience.finish(attempt_id, status="error", reason=str(error)[:500])
        raise
    reason = "" if built.status == "ok" else said(built)
    await experience.finish(attempt_id, status=built.status, reason=reason or None)
    details = "\n".join(found.line_text() for found in built.diagnostics[:DIAGNOSTICS])[:DETAILS]
    verdict = verdict_of_build(await experience.get(attempt_id), reason)
    return verdict.model_copy(update={"details": details})


def verdict_of_build(attempt: Attempt, reason: str) -> Verdict:
    """Return what a build means for the loop: one that succeeds is all that can be had here."""
    if attempt.status == "ok":
        why = "it compiles; it is not judged: no device for it here"
        return Verdict(attempt_id=attempt.attempt_id, stage="target", outcome=COMPILES, reason=why)
    return Verdict(
        attempt_id=attempt.attempt_id, stage="compile", outcome="compile_failed", reason=reason,
        signature=signature(reason),
    )  # fmt: skip


def said(built: CompileResult) -> str:
    """Return the first thing that a failed build said."""
    return built.diagnostics[0].line_text().partition("\n")[0] if built.diagnostics else built.note or built.status
