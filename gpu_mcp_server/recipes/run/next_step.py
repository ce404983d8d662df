"""Suggest the next step for a run that stands still, in one line."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.models.recipe import NOT_MEASURED, CandidateProfile, Verdict
from gpu_mcp_server.models.run_plan import RunPlan

REASON_CHARACTERS = 160
SAME_PLAN = "`gpu-mcp-server recipe run` of the changed plan starts from this run's best"
STAGE_KEYS = ("compile", "correctness", "performance")
"""Stages at which candidates end, each with a key of [iterations] and of [hints]."""


PROGRAM_NEXT = {
    "faster": "`gpu-mcp-server pull {copy} FOLDER` fetches the program with the kernel; PYTHONPATH=speedup_overlay "
    "before its command switches the kernel on",
    "no_gain": "leave the program as it was, or name another part of it as program.target",
    "unmeasured": "correct what the reason names, then run the plan again",
}


def next_step(run_id: str, plan: RunPlan, journal: Sequence[Mapping[str, Any]], verdicts: Sequence[Verdict]) -> str:
    """Return what whoever reads of a run can do next, from what its journal has."""
    done = {entry["step"]: entry for entry in journal if entry["event"] == "done"}
    end = done.get("end")
    if end is None:
        begun = [str(e["step"]) for e in journal if e["event"] == "begun" and e["step"] not in done]
        at = f"; it goes on with {begun[-1]}" if begun else ""
        return f"if nothing runs it any more, `gpu-mcp-server recipe resume {run_id}`{at}"
    stopped = str(end["stopped"])
    if stopped == "iterations":
        return _after_iterations(plan, verdicts, done)
    return _after(stopped, run_id, plan, done)


def _after(stopped: str, run_id: str, plan: RunPlan, done: Mapping[str, Mapping[str, Any]]) -> str:
    problem = str((done.get("problem") or {}).get("problem_id") or plan.problem)
    export = f"`gpu-mcp-server history {problem} --export-branch NAME` makes a git branch of it"
    kept = f"the best is in recipes/{run_id}/best.txt"
    texts = {
        "target": f"{kept}; {export}",
        "cached": f"{kept}; `fresh = true` in the plan, or a higher target, looks further",
        "tuned": f"{kept}; give [tune] other values around the fastest point, or {export}",
        "unmeasured": "name a host with the GPUs that the reason asks for (nccl.host), and run the plan again",
        "rounds": f"raise population.rounds; {SAME_PLAN}",
        "budget": f"raise the limit in [budget]; {SAME_PLAN}",
        "agent": "see that the agent's command works by itself; its last words stand in the reason",
        "specification": "say in `request` what the role could not know, or raise iterations.specification",
        "refused": "correct what the reason names, then run the plan again",
        "degenerate": "give the problem inputs for which doing nothing is wrong, or `accept_degenerate = true`",
        "compiled": "judge the candidate on a host that has its device: `host` in the plan",
    }  # fmt: skip
    if plan.mode == "project" and stopped in ("target", "compiled"):
        there = "" if stopped == "target" else "; run its tests on a host that has the device: `host` in the plan"
        return f"the files are in recipes/{run_id}/project{there}"
    if plan.mode == "program" and stopped in PROGRAM_NEXT:
        return PROGRAM_NEXT[stopped].format(copy=done.get("apply-001", {}).get("copy", "WORKSPACE"))
    if plan.mode == "nccl" and stopped == "target":
        return "the files are in the folder that the reason names; `gpu-mcp-server nccl verify` of them on GPUs is next"
    return texts.get(stopped, "")


def _after_iterations(plan: RunPlan, verdicts: Sequence[Verdict], done: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what would help at the stage whose iterations were used up: that of the last verdict."""
    last = next((verdict for verdict in reversed(verdicts) if verdict.stage in STAGE_KEYS), None)
    if last is None:
        return f"raise [iterations]; {SAME_PLAN}"
    stage = last.stage
    if stage != "performance":
        reason = " ".join(last.reason.split())[:REASON_CHARACTERS] or "no reason is known"
        return f"give hints.{stage} against what failed last ({reason}), or raise iterations.{stage}"
    profiles = [CandidateProfile.model_validate(entry["profile"]) for entry in done.values() if "profile" in entry]
    told = "and not profiled"
    if profiles and profiles[-1].bound == NOT_MEASURED:
        profiles, told = [], "and no profiler here says what bounds it"
    if profiles:
        told = f"bound by {profiles[-1].bound}" + (f": {profiles[-1].advice}" if profiles[-1].advice else "")
    tune = "" if plan.tune else "; or sweep its parameters with [tune]"
    return f"correct and below the target, {told}; say so in hints.performance and raise iterations.performance{tune}"
