"""Several candidates of a run judged in one call on the pool, once, whoever began it."""

from collections.abc import Sequence
from typing import Any, Literal

from gpu_mcp_server.models.comparison import Comparison
from gpu_mcp_server.models.recipe import Candidate, Verdict
from gpu_mcp_server.recipes.run.compile_tier import source_for
from gpu_mcp_server.recipes.run.prompt_verdict import worth
from gpu_mcp_server.recipes.run.run_candidates import recorded_verdict
from gpu_mcp_server.recipes.run.run_context import JUDGE_WAIT_S, Ground
from gpu_mcp_server.services.evaluation.candidate_batches import NamedCandidate
from gpu_mcp_server.services.experience.experience_search import signature
from gpu_mcp_server.services.records.trust import as_first_judged

Named = Sequence[tuple[str, Candidate]]


async def judge_batch(
    ground: Ground,
    step: str,
    children: Named,
    parent_id: str | None,
    *,
    kind: Literal["judge", "tune"] = "judge",
    half_width: float | None = None,
    **begun: Any,
) -> list[Verdict]:
    """Judge candidates in one call, and keep each prompt with its attempt.

    Args:
        ground: The run.
        step: Of the journal; its attempts are found again by it.
        children: Each with a name of its own.
        parent_id: Attempt that all come from.
        kind: Of the step.
        half_width: Half the width of the interval at which rounds may end, as a part of the median.
        begun: What the journal has with the step's beginning.
    """
    if not children:
        return []
    batch_id = f"{ground.run_id}.{step}"
    noted = {name: f"{ground.run_id} {name}:" for name, _ in children}

    async def work() -> dict[str, Any]:
        known: dict[str, Verdict] = {}
        for attempt in await ground.earlier(batch_id):
            name = next((n for n, begins in noted.items() if (attempt.note or "").startswith(begins)), None)
            if name is not None:
                known[name] = await recorded_verdict(ground.lab, as_first_judged(attempt), ground.plan)
        rest = [(name, candidate) for name, candidate in children if name not in known]
        if rest:
            entrants = [_entrant(ground, name, candidate, noted[name], parent_id) for name, candidate in rest]
            table = await _compared(ground, batch_id, entrants, half_width)
            known |= {name: await _verdict(ground, table, name) for name, _ in rest}
        for name, _ in children:
            attempt_id = known[name].attempt_id
            if attempt_id is not None and name in ground.prompts:
                await ground.lab.store.experience.keep_prompt(attempt_id, ground.run_id, name, ground.prompts[name])
        return _told([_coarse(known[name]) if half_width else known[name] for name, _ in children])

    done = await ground.step(step, kind, work, **begun)
    verdicts = await _with_target([Verdict.model_validate(found) for found in done["verdicts"]], ground)
    for (_, candidate), verdict in zip(children, verdicts, strict=True):
        ground.consider(verdict, candidate.source)
    return verdicts


async def _with_target(verdicts: Sequence[Verdict], ground: Ground) -> list[Verdict]:
    """Return verdicts after those that reach the target were confirmed: the best first, until one stays."""
    found = list(verdicts)
    for number in sorted(range(len(found)), key=lambda one: worth(found[one]), reverse=True):
        if any(verdict.stage == "target" for verdict in found):
            break
        found[number] = await ground.confirm_target(found[number])
    return found


def _coarse(verdict: Verdict) -> Verdict:
    stage = "performance" if verdict.stage == "target" else verdict.stage
    return verdict.model_copy(update={"coarse": True, "stage": stage})


def _told(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    best = max((v.speedup or 0.0 for v in verdicts if v.outcome == "correct"), default=0.0)
    correct = sum(v.outcome == "correct" for v in verdicts)
    outcome = f"{correct} of {len(verdicts)} correct"
    return {
        "outcome": outcome, "speedup": best or None, "verdicts": [v.model_dump(mode="json") for v in verdicts],
    }  # fmt: skip


def _entrant(ground: Ground, name: str, candidate: Candidate, noted: str, parent_id: str | None) -> NamedCandidate:
    plan = ground.plan
    return NamedCandidate(
        name,
        source_for(ground.problem, candidate, plan),
        tuple(plan.flags),
        plan.entry,
        note=f"{noted} {' '.join(candidate.idea.split())}"[:500],
        parent_id=parent_id,
        fresh=plan.fresh,
    )


async def _compared(
    ground: Ground, batch_id: str, entrants: Sequence[NamedCandidate], half_width: float | None
) -> Comparison:
    plan = ground.plan
    assert plan.tier != "compile"
    return await ground.lab.evaluation.batches.compare(
        ground.problem.problem_id, entrants, tier=plan.tier, host=plan.host, wait_s=JUDGE_WAIT_S,
        progress=ground.tell, batch_id=batch_id, half_width=half_width,
    )  # fmt: skip


async def _verdict(ground: Ground, table: Comparison, name: str) -> Verdict:
    row = next(row for row in table.rows if row.name == name)
    if row.attempt_id is None or row.status not in ("judged", "compile_failed"):
        return Verdict(stage="code", outcome=row.status, reason=row.reason, signature=signature(row.reason))
    attempt = as_first_judged(await ground.lab.store.experience.get(row.attempt_id))
    return await recorded_verdict(ground.lab, attempt, ground.plan)
