"""Population mode: ancestors in the prompt, offspring a round, all judged in one call on the pool.

Source:
    GEAK (AMD, 2025): `ancestor_num` references in ascending latency with their analysis, `descendant_num` offspring a
    round. EVOLVE-BLOCKs are AlphaEvolve's markers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpu_mcp_server.models.recipe import Candidate, CandidateProfile, Verdict
from gpu_mcp_server.nccl.program_model.markers import MarkerFault, blocks, frozen_text
from gpu_mcp_server.recipes.agents.agent_output import candidate_of
from gpu_mcp_server.recipes.agents.prompt_builder import Findings, Turn, about, offspring_prompt
from gpu_mcp_server.recipes.run.batch_judging import judge_batch
from gpu_mcp_server.recipes.run.bounded_calls import run_bounded
from gpu_mcp_server.recipes.run.candidate_profile import profile_candidate, profile_text, score_advice
from gpu_mcp_server.recipes.run.failure_response import FailureResponse
from gpu_mcp_server.recipes.run.prompt_verdict import worth
from gpu_mcp_server.recipes.run.run_context import Ending, Ground
from gpu_mcp_server.services.builds.candidate_source import MAX_SOURCE_BYTES
from gpu_mcp_server.services.workspaces.local_files import read_local


@dataclass(frozen=True)
class Member:
    """A judged candidate of the population."""

    candidate: Candidate
    verdict: Verdict


async def population(ground: Ground) -> Ending:
    """Run the rounds to their end."""
    rounds, seed = ground.plan.population.rounds, await _seed(ground)
    frozen = _frozen(seed.source) if seed else None
    members = await _founders(ground, seed, frozen)
    course = RoundFindings(FailureResponse(), Findings(memory=ground.memory))
    for number in range(1, rounds + 1):
        if _reached(members):
            return Ending("target", "a member of the population reached it")
        born = await _offspring(ground, number, members, frozen, course.found)
        if isinstance(born, Ending):
            return born
        offspring = [(name, child) for name, child in born if isinstance(child, Candidate)]
        silent = [child for _, child in born if isinstance(child, Verdict)]
        members += [Member(Candidate(source=" ", idea="no candidate"), verdict) for verdict in silent]
        if not offspring:
            return Ending("agent", f"round {number} has no candidate: {members[-1].verdict.reason}"[:500])
        parent = ancestors(members, 1)
        verdicts = await judge_batch(
            ground, f"judge-{number:03}", offspring, parent[0].verdict.attempt_id if parent else None
        )
        members += [Member(candidate, verdict) for (_, candidate), verdict in zip(offspring, verdicts, strict=True)]
        await course.score(ground, f"{number:03}", verdicts)
        if number < rounds and not _reached(members):
            await course.find_out(ground, f"{number:03}", members, verdicts)
    if _reached(members):
        return Ending("target", "a member of the population reached it")
    return Ending("rounds", f"{rounds} rounds are done")


@dataclass
class RoundFindings:
    """Findings of the run for the next round."""

    response: FailureResponse
    found: Findings
    profile: CandidateProfile | None = None
    profiled: Verdict | None = None

    async def score(self, ground: Ground, label: str, verdicts: Sequence[Verdict]) -> None:
        """Keep what the advice and the hint that a round was told of brought."""
        fastest = max((v for v in verdicts if v.outcome == "correct"), key=worth, default=verdicts[0])
        if self.profiled is not None and self.found.profile:
            await score_advice(ground, self.profile, self.profiled, fastest)
        await self.response.score(ground, label, verdicts)

    async def find_out(
        self, ground: Ground, label: str, members: Sequence[Member], verdicts: Sequence[Verdict]
    ) -> None:
        """Answer the failures of a round, and profile the fastest if it is a new one."""
        found = await self.response.respond(ground, label, verdicts, about(ground.problem, ground.plan))
        best = ancestors(members, 1)
        if best and (self.profiled is None or self.profiled.attempt_id != best[0].verdict.attempt_id):
            self.profiled = best[0].verdict
            self.profile = await profile_candidate(ground, f"profile-{label}", self.profiled)
        self.found = replace(found, profile=profile_text(self.profile), memory=ground.memory)


def _reached(members: Sequence[Member]) -> bool:
    return any(member.verdict.stage == "target" for member in members)


async def _founders(ground: Ground, seed: Candidate | None, frozen: str | None) -> list[Member]:
    """Return the seed, judged, or without one the best of earlier runs."""
    if seed is not None:
        return [Member(seed, verdict) for verdict in await judge_batch(ground, "judge-000", [("seed", seed)], None)]
    if ground.best is None or refusal(ground.best_source, frozen):
        return []
    return [Member(Candidate(source=ground.best_source, idea="the best of earlier runs"), ground.best)]


async def _offspring(
    ground: Ground, number: int, members: Sequence[Member], frozen: str | None, found: Findings
) -> list[tuple[str, Candidate | Verdict]] | Ending:
    """Ask for the children of a round, `ground.jobs` at once; each is told of the members before the round."""
    count = ground.plan.population.descendant_num

    async def child(rank: int) -> tuple[str, Candidate | Verdict] | Ending:
        if (over := ground.over()) is not None:
            return over
        name = f"code-{number:03}-{rank:02}"
        return name, await _born(ground, name, members, (number - 1) * count + rank - 1, frozen, found)

    born = await run_bounded(ground.jobs, [partial(child, rank) for rank in range(1, count + 1)])
    over = next((one for one in born if isinstance(one, Ending)), None)
    return over or [one for one in born if not isinstance(one, Ending)]


def ancestors(members: Sequence[Member], count: int) -> list[Member]:
    """Return the fastest correct ones in ascending latency; while none is correct, the last that were judged."""
    correct = [member for member in members if member.verdict.outcome == "correct"]
    if not correct:
        return [member for member in members if member.verdict.attempt_id is not None][-count:]
    fastest = sorted(correct, key=lambda member: worth(member.verdict)[1:], reverse=True)
    return fastest[:count]


def refusal(source: str, frozen: str | None) -> str:
    """Say why a source may not be judged: it changes lines outside the blocks; empty if it may."""
    if frozen is None:
        return ""
    try:
        if frozen_text(source).rstrip() == frozen.rstrip():
            return ""
    except MarkerFault as fault:
        return f"its EVOLVE-BLOCK markers are damaged: {fault}"
    return "it changes lines outside the EVOLVE-BLOCKs; only those within may change"


def _frozen(source: str) -> str | None:
    return frozen_text(source) if blocks(source) else None


async def _seed(ground: Ground) -> Candidate | None:
    path = ground.plan.population.seed
    if path is None:
        return None
    text = (await asyncio.to_thread(read_local, Path(path), MAX_SOURCE_BYTES)).decode()
    return Candidate(source=text, idea="the seed")


async def _born(
    ground: Ground, step: str, members: Sequence[Member], number: int, frozen: str | None, found: Findings
) -> Candidate | Verdict:
    """Ask for one child; a verdict where it cannot be judged."""
    chosen = ancestors(members, ground.plan.population.ancestor_num)
    turns = [Turn(at, member.candidate, member.verdict) for at, member in enumerate(members, 1)]
    shown = [(member.candidate, member.verdict) for member in chosen]
    prompt = offspring_prompt(ground.plan, ground.problem, shown, turns, number, frozen is not None, found)
    answer = await ground.ask(step, "code", prompt)
    candidate, why = candidate_of(answer)
    if answer.status != "ok" or candidate is None:
        reason = why if answer.status == "ok" else f"the agent's call ended as {answer.status}: {answer.why}"
        return Verdict(stage="code", outcome="no_candidate", reason=reason[:1500])
    ground.hand_off(step, candidate)
    if why := refusal(candidate.source, frozen):
        return Verdict(stage="code", outcome="frozen_lines_changed", reason=why)
    return candidate
