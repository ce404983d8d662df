"""Program mode: from a user's command to a kernel in it that makes the whole faster, or the proof that none does.

Hot spots are measured, the agent chooses what one kernel shall replace, its calls become a problem. The structured
loop wins there; the winner goes into a copy of the program, and the whole is measured with and without it.
"""

import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import BadRequest, MachineLacks
from gpu_mcp_server.models.profile import HotspotOptions
from gpu_mcp_server.models.program_speed import CaptureOptions, KernelTarget, VerifyOptions
from gpu_mcp_server.models.recipe import StopReason
from gpu_mcp_server.recipes.agents.agent_output import handed_over
from gpu_mcp_server.recipes.agents.prompt_builder import HEADLESS, answer_form, given_files
from gpu_mcp_server.recipes.agents.recipe_loader import recipe
from gpu_mcp_server.recipes.modes.structured_mode import structured
from gpu_mcp_server.recipes.run.run_context import JUDGE_WAIT_S, PROBLEM, Ending, Ground
from gpu_mcp_server.recipes.run.run_memory import recall
from gpu_mcp_server.runtime.result_limits import cut_text

PROCEDURE = "speed-up-my-program"
WORKSPACE = "workspace"
"""Step that notes where the program's files are."""
PROOFS = 2
"""Measurements in a row that must be `faster`: one of 40 is by chance where nothing changed."""
SAID_CHARACTERS = 6000
WHY_CHARACTERS = 500


async def program(ground: Ground) -> Ending:
    """Go from the command to the measured whole."""
    workspace_id = await _workspace(ground)
    captured = await _capture(ground, workspace_id)
    if captured is not None:
        return captured
    ending = await recall(ground) or await structured(ground)
    if (over := ground.time_over()) is not None:
        return over
    await ground.confirm_best()
    return await _measure(ground, workspace_id) if ground.best is not None else ending


async def _workspace(ground: Ground) -> str:
    """Return the workspace with the program, a copy of the user's folder unless the plan names one."""
    done = ground.journal.done(WORKSPACE)
    if done is None:
        named, workspaces = ground.plan.problem, ground.lab.store.workspaces
        known = ground.plan.names_known_problem()
        listing = await (workspaces.listing(named) if known else workspaces.write_local(None, Path(named)))
        ground.journal.finish(WORKSPACE, workspace_id=listing.workspace_id)
        return listing.workspace_id
    return str(done["workspace_id"])


async def _capture(ground: Ground, workspace_id: str) -> Ending | None:
    """Make a problem of the calls of the plan's target, or of one that the agent chooses; an ending where none is."""
    if (known := ground.journal.done(PROBLEM)) is not None:
        ground.registered = await ground.lab.store.problems.get(known["problem_id"])
    hot = await _hot_spots(ground, workspace_id)
    named, refused = ground.plan.program.target, ""
    if not named and hot.get("status") != "ok":
        return Ending("refused", str(hot["said"])[:WHY_CHARACTERS])  # an agent would choose by nothing
    for number in range(1, 2 if named else ground.plan.iterations.specification + 1):
        target = named
        if not named:
            if (over := ground.over()) is not None:
                return over
            before = refused
            target, refused = await _chosen(ground, f"target-{number:03}", str(hot["said"]), before)
            if not target and not refused:
                why = "the agent chose no target: nothing here is worth a kernel; see hotspots-001"
                return Ending(
                    "no_gain", f"{why}; its last one was refused: {before}"[:WHY_CHARACTERS] if before else why
                )
        if target:
            refused = await _recorded(ground, f"capture-{number:03}", workspace_id, target)
        if not refused:
            return None
    stopped: StopReason = "refused" if named else "specification"
    return Ending(stopped, refused[:WHY_CHARACTERS])


async def _hot_spots(ground: Ground, workspace_id: str) -> Mapping[str, Any]:
    plan = ground.plan

    async def work() -> dict[str, Any]:
        options = HotspotOptions(warm_s=plan.program.warm_s)
        found = await ground.lab.programs.hotspots.find(
            plan.program.command, workspace_id, plan.host, options, progress=ground.tell, wait_s=JUDGE_WAIT_S
        )
        said = found.summary()
        return {"outcome": said.partition("\n")[0][:300], "said": said, "status": found.status}

    return await ground.step("hotspots-001", "profile", _answered(work))


async def _chosen(ground: Ground, step: str, hot: str, refused: str) -> tuple[str, str]:
    """Return the target that the agent chose, empty for none, and why its answer cannot be used."""
    answer = await ground.ask(step, "specification", target_prompt(ground, hot, refused))
    found, why = handed_over(answer, KernelTarget)
    if answer.status != "ok":
        return "", f"the agent's call ended as {answer.status}: {answer.why}"
    if found is None:
        return "", why
    ground.hand_off(step, found)
    return found.target.strip(), ""


async def _recorded(ground: Ground, step: str, workspace_id: str, target: str) -> str:
    """Make the problem of a target's calls; return why there is none, empty if there is one."""
    plan = ground.plan

    async def work() -> dict[str, Any]:
        found = await ground.lab.programs.capture.capture(
            plan.program.command, target, workspace_id, plan.host, CaptureOptions(sets=plan.program.sets),
            progress=ground.tell, wait_s=JUDGE_WAIT_S,
        )  # fmt: skip
        said = found.summary()
        problem_id = found.problem.problem_id if found.problem else None
        return {"outcome": said.partition("\n")[0][:300], "said": said, "problem_id": problem_id}

    done = await ground.step(step, "pipeline", _answered(work))
    problem_id = done.get("problem_id")
    if problem_id is None:
        return str(done["said"])
    ground.registered = await ground.lab.store.problems.get(problem_id)
    if ground.journal.done(PROBLEM) is None:
        ground.journal.finish(PROBLEM, problem_id=problem_id, degenerate=bool(ground.registered.degenerate))
    return ""


async def _measure(ground: Ground, workspace_id: str) -> Ending:
    """Put the best into a copy of the program, and measure the whole until it is `faster` twice, or is not once."""
    assert ground.best is not None
    attempt_id, programs, wish = str(ground.best.attempt_id), ground.lab.programs, ground.plan.program

    async def put_in() -> dict[str, Any]:
        made = await programs.overlays.apply(attempt_id, workspace_id)
        return {"outcome": made.summary().partition("\n")[0], "copy": made.workspace_id, "patch": made.patch}

    applied = await ground.step("apply-001", "pipeline", _answered(put_in))
    if "copy" not in applied:
        return Ending("unmeasured", f"{attempt_id} cannot be put in: {applied['said']}"[:WHY_CHARACTERS])
    options = VerifyOptions(**wish.model_dump(include={"pairs", "run_s", "rtol", "atol", "skip_unsteady"}))

    async def measure() -> dict[str, Any]:
        found = await programs.verifier.verify(
            wish.command, applied["copy"], ground.plan.host, wish.outputs, options,
            progress=ground.tell, wait_s=JUDGE_WAIT_S,
        )  # fmt: skip
        said = found.summary()
        return {"outcome": said.partition("\n")[0][:300], "said": said, "status": found.status}

    done: Any = {}
    for number in range(1, PROOFS + 1):
        done = await ground.step(f"measure-{number:03}", "measure", _answered(measure))
        if done.get("status") != "faster":
            break
    # What is said of the whole must stay whole: the notes behind it are in the journal.
    said = f"{done['outcome']}; workspace {applied['copy']} has the kernel, patch {applied['patch']}"
    known: dict[str, StopReason] = {
        "faster": "faster", "slower": "no_gain", "same": "no_gain", "wrong": "no_gain", "unused": "no_gain",
    }  # fmt: skip
    return Ending(known.get(str(done.get("status")), "unmeasured"), said[:WHY_CHARACTERS])


def _answered(work: Callable[[], Awaitable[dict[str, Any]]]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Let a refusal be a step's result: asked again, the answer would be the same."""

    async def answer() -> dict[str, Any]:
        try:
            return await work()
        except (BadRequest, MachineLacks) as error:
            said = f"{error} {error.hint}".strip()
            return {"outcome": f"refused: {said}"[:300], "said": said}

    return answer


def target_prompt(ground: Ground, hot: str, refused: str) -> str:
    """Return what the agent is told when it chooses what one kernel shall replace."""
    plan = ground.plan
    parts = [
        HEADLESS,
        recipe(PROCEDURE).body.strip(),
        f"This is step 2: choose the target. The program is run as: {shlex.join(plan.program.command)}",
        f"Language of the kernel: {plan.language}." + (f"\n\nWanted: {plan.request}" if plan.request else ""),
        f"find_hotspots says:\n\n{cut_text(hot, SAID_CHARACTERS)}",
        given_files(plan),
        f"Your last target could not be used:\n\n{cut_text(refused, SAID_CHARACTERS)}" if refused else "",
        answer_form(KernelTarget, "json"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
