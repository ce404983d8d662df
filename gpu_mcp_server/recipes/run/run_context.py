"""Context shared by every mode of a run: journalled steps, the agent, the judge, the documentation."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import BadRequest, GpuMcpError, MachineLacks, NotFound
from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import Evaluation, Tier, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.recipe import Candidate, StopReason, Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.agents.agent_jobs import AgentCalls, Answer, Interrupted
from gpu_mcp_server.recipes.agents.agent_proxy import OnCall
from gpu_mcp_server.recipes.run.compile_tier import COMPILES, compiled, source_for
from gpu_mcp_server.recipes.run.confirmation_step import confirmed_verdict, is_provisional, is_worth_another_look
from gpu_mcp_server.recipes.run.journal import Journal
from gpu_mcp_server.recipes.run.prompt_verdict import is_doubted, pace, rate, reached, trusted_worth, verdict_of, worth
from gpu_mcp_server.recipes.run.run_candidates import recorded_verdict
from gpu_mcp_server.services.experience.experience_search import signature
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.records.trust import as_first_judged
from gpu_mcp_server.time_format import format_time

Tell = Callable[[str], Awaitable[None]]

PROBLEM = "problem"
"""Step that notes which problem a run has."""
LOOKED_UP = 3000
"""Characters of a documentation page in a prompt."""
JUDGE_WAIT_S = 3600.0
MOST_DOUBTS = 3
"""Candidates in doubt that are timed once more at a run's end."""


@dataclass(frozen=True)
class Ending:
    """Reason for which a run stopped."""

    stopped: StopReason
    why: str = ""


@dataclass
class Ground:
    """One run, open."""

    lab: Lab
    plan: RunPlan
    registered: Problem | None
    run_id: str
    folder: Path
    journal: Journal
    tell: Tell
    agents: AgentCalls
    wall_s: float = 0.0
    agent_calls: int = 0
    asking: int = 0
    """Calls of the agent that are under way; they count as made."""
    jobs: int = 1
    """How many calls may be under way at once, where a mode asks for several candidates."""
    cost_usd: float | None = None
    best: Verdict | None = None
    best_source: str = ""
    correct: list[tuple[Verdict, str]] = field(default_factory=list[tuple[Verdict, str]])
    """All that were considered, with their sources: a voided best has a next one."""
    memory: str = ""
    """What earlier attempts at this problem and its kin teach, for the first prompt."""
    prompts: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def problem(self) -> Problem:
        """The problem; a run over a program has none."""
        assert self.registered is not None
        return self.registered

    def over(self) -> Ending | None:
        """Return why the budget is used up, if it is."""
        budget = self.plan.budget
        if (over := self.time_over()) is not None:
            return over
        if self.agent_calls + self.asking >= budget.agent_calls:
            called = self.agent_calls + self.asking
            return Ending("budget", f"the agent was called {called} times, which is budget.agent_calls")
        if budget.cost_usd is not None and (self.cost_usd or 0) >= budget.cost_usd:
            return Ending("budget", f"{self.cost_usd:.2f} USD of {budget.cost_usd:g} are spent, as the agent reports")
        return None

    def time_over(self) -> Ending | None:
        """Return why the time is used up, if it is."""
        limit = self.plan.budget.wall_s
        if limit is None or self.wall_s < limit:
            return None
        return Ending("budget", f"{self.wall_s:.0f} s of {limit:g} s are spent")

    async def step(
        self, step: str, kind: str, work: Callable[[], Awaitable[dict[str, Any]]], **begun: Any
    ) -> Mapping[str, Any]:
        """Do a step, or return what it was when it is done already."""
        done = self.journal.done(step)
        if done is None:
            if self.journal.begun(step) is None or begun:
                self.journal.begin(step, kind=kind, **begun)
            began = time.monotonic()
            await self.tell(f"{step}: begun")
            result = await work()
            self.journal.finish(step, kind=kind, seconds=round(time.monotonic() - began, 3), **result)
            done = self.journal.done(step)
            assert done is not None
            await self.tell(f"{step}: {done['outcome']}{_speed_of(done)}{self._so_far()}")
        self.wall_s += float(done["seconds"])
        return done

    def _so_far(self) -> str:
        if self.best is None or not rate(self.best):
            return ""
        best, trust = self.best, self.best.trust.partition(":")[0]
        figure = f"{best.speedup:.3g}" if best.speedup else format_time((best.median_us or 0) / 1e6)
        # A confirmed time ranks before a greater speed-up that is not: the figure alone may seem to fall.
        return f"; best so far {figure}" + (f", {trust}" if trust else "")

    async def ask(self, step: str, kind: str, prompt: str, on_call: OnCall | None = None) -> Answer:
        """Ask the agent, with our tools if `on_call` is to hear of them; its prompt and its answer are kept."""
        artifacts = self.lab.store.artifacts
        begun = self.journal.begun(step)
        job_id = begun["job_id"] if begun else new_job_id()

        async def work() -> dict[str, Any]:
            nonlocal job_id
            kept = await artifacts.put(prompt.encode(), name=f"{self.run_id}.{step}.prompt.md", media_type="text/plain")
            try:
                answer = await self.agents.call(job_id, step, prompt, on_call)
            except Interrupted:
                job_id = new_job_id()
                self.journal.begin(step, kind=kind, job_id=job_id)
                answer = await self.agents.call(job_id, step, prompt, on_call)
            said = {"text": answer.text, "handoff": answer.handoff}
            ids = {
                f"{name}_artifact_id": await artifacts.put(text.encode(), name=f"{self.run_id}.{step}.{name}")
                for name, text in said.items()
                if text
            }
            counted = {name: getattr(answer, name) for name in ("cost_usd", "tokens", "calls", "characters")}
            told = {name: value for name, value in counted.items() if value is not None}
            return {"outcome": answer.status, "why": answer.why[:2000], "prompt_artifact_id": kept, **ids, **told}

        fresh = {} if begun else {"job_id": job_id}
        self.asking += 1
        try:
            done = await self.step(step, kind, work, **fresh)
        finally:
            self.asking -= 1
        self.prompts[step] = done["prompt_artifact_id"]
        self.agent_calls += 1
        if "cost_usd" in done:
            self.cost_usd = (self.cost_usd or 0.0) + float(done["cost_usd"])
        parts = {
            name: (await artifacts.read(done[f"{name}_artifact_id"])).decode()
            if f"{name}_artifact_id" in done
            else None
            for name in ("text", "handoff")
        }
        return Answer(done["outcome"], done["why"], parts["text"] or "", parts["handoff"], done.get("cost_usd"))

    async def judge(self, step: str, candidate: Candidate, asked: str, parent_id: str | None) -> Verdict:
        """Judge a candidate once, whoever began it."""
        batch_id = f"{self.run_id}.{step}"

        async def work() -> dict[str, Any]:
            earlier = await self.earlier(batch_id)
            first = as_first_judged(earlier[-1]) if earlier else None
            verdict = await recorded_verdict(self.lab, first, self.plan) if first else None
            if verdict is None:
                verdict = await self._evaluated(batch_id, candidate, parent_id)
            if verdict.attempt_id is not None:
                await self.lab.store.experience.keep_prompt(verdict.attempt_id, self.run_id, step, self.prompts[asked])
            self.hand_off(step, verdict)
            return {"outcome": verdict.outcome, "speedup": verdict.speedup, "verdict": verdict.model_dump(mode="json")}

        done = await self.step(step, "judge", work)
        verdict = await self.confirm_target(Verdict.model_validate(done["verdict"]))
        self.consider(verdict, candidate.source)
        return verdict

    async def confirm_target(self, verdict: Verdict) -> Verdict:
        """Return a verdict that reaches the target as a confirmation run leaves it; others as they are."""
        unsettled = is_provisional(verdict, self.plan) or is_worth_another_look(verdict, self.plan)
        if unsettled and reached(self.plan, verdict.speedup, verdict.median_us):
            return await self.confirm(verdict)
        return verdict

    async def confirm(self, verdict: Verdict) -> Verdict:
        """Have a verdict confirmed, as a step of its own, once."""
        step = f"confirm-{verdict.attempt_id}"

        async def work() -> dict[str, Any]:
            outcome, now = await confirmed_verdict(self.lab, verdict, self.plan, self.tell)
            self.hand_off(step, now)
            return {"outcome": outcome, "speedup": now.speedup, "verdict": now.model_dump(mode="json")}

        return Verdict.model_validate((await self.step(step, "confirm", work))["verdict"])

    async def confirm_best(self) -> None:
        """Have the best confirmed, and the next best where it is voided or in doubt, until one stays.

        Where no run could confirm it, those that are confirmed go before it.
        """
        await self._settle_doubts()
        while self.best is not None and is_provisional(self.best, self.plan):
            now, source = await self.confirm(self.best), self.best_source
            left = [each for each in self.correct if each[0].attempt_id != now.attempt_id]
            self.correct, self.best, self.best_source = [], None, ""
            for verdict, text in [*left, (now, source)]:
                self.consider(verdict, text)
            if now.outcome == "correct" and not is_doubted(now.trust):
                break
        if self.correct and not self.plan.accept_provisional:
            self.best, self.best_source = max(self.correct, key=lambda each: trusted_worth(each[0]))

    async def _settle_doubts(self) -> None:
        """Time candidates once more that are faster than the best but for a doubt, the fastest first, until one is."""
        if self.best is None or is_doubted(self.best.trust):
            return
        unsettled = [each for each in self.correct if is_worth_another_look(each[0], self.plan)]
        for verdict, source in sorted(unsettled, key=lambda each: pace(each[0]), reverse=True)[:MOST_DOUBTS]:
            if pace(verdict) <= pace(self.best):
                return
            now = await self.confirm(verdict)
            self.correct = [each for each in self.correct if each[0].attempt_id != now.attempt_id]
            self.consider(now, source)

    async def _evaluated(self, batch_id: str, candidate: Candidate, parent_id: str | None) -> Verdict:
        tier, note = self.plan.tier, " ".join(f"{self.run_id}: {candidate.idea}".split())[:500]
        try:
            if tier == "compile":
                return await compiled(self.lab, self.plan, self.problem, candidate, batch_id, note)
            evaluation = await self._evaluate(batch_id, candidate, parent_id, note, tier)
        except NotFound:
            raise
        except (BadRequest, MachineLacks) as error:
            return Verdict(stage="compile", outcome="refused", reason=str(error), signature=signature(str(error)))
        return verdict_of(evaluation, self.plan)

    async def _evaluate(
        self, batch_id: str, candidate: Candidate, parent_id: str | None, note: str, tier: Tier
    ) -> Evaluation:
        return await self.lab.evaluation.evaluator.evaluate(
            self.problem.problem_id,
            source_for(self.problem, candidate, self.plan),
            host=self.plan.host,
            flags=tuple(self.plan.flags),
            entry=self.plan.entry,
            parent_id=parent_id,
            note=note,
            wait_s=JUDGE_WAIT_S,
            progress=self.tell,
            batch_id=batch_id,
            timing=TimingOptions(tier=tier),
            reuse=not self.plan.fresh,
        )

    async def earlier(self, batch_id: str) -> list[Attempt]:
        """Return what an earlier process judged under this name; jobs of it that still run are waited for."""
        experience, found = self.lab.store.experience, list[Attempt]()
        for attempt, job_id in await experience.of_batch(batch_id):
            if attempt.status == "running":
                if job_id is not None:
                    await self.lab.commands.status(job_id, wait_s=JUDGE_WAIT_S)
                else:
                    await experience.finish(attempt.attempt_id, status="abandoned", reason="its run was killed")
            try:
                now = await experience.get(attempt.attempt_id)
            except NotFound:  # its host lacked what it needs
                continue
            if now.status in ("judged", "compile_failed"):
                found.append(now)
        return found

    async def noted(self) -> list[Verdict]:
        """Return the verdicts that an earlier process noted of attempts of the agent's own."""
        found: list[Verdict] = []
        for step in self.journal.steps():
            done = self.journal.done(step) or {}
            if step.startswith("judge-a-") and "verdict" in done:
                verdict = await self.confirm_target(Verdict.model_validate(done["verdict"]))
                await self.consider_attempt(verdict)
                found.append(verdict)
        return found

    async def consider_attempt(self, verdict: Verdict) -> None:
        """Keep a recorded attempt as the best if it is."""
        attempt = await self.lab.store.experience.get(str(verdict.attempt_id))
        source = attempt.source_artifact_id
        text = (await self.lab.store.artifacts.read(source)).decode("utf-8", "replace") if source else ""
        self.consider(verdict, text)

    async def judged(self, attempt_id: str) -> Verdict | None:
        """Note the verdict on an attempt that the agent had judged itself; None if it is none, or is noted already."""
        step = f"judge-{attempt_id}"
        if self.journal.done(step) is not None:
            return None
        try:
            attempt = await self.lab.store.experience.get(attempt_id)
        except NotFound:
            return None
        if attempt.problem_id != self.problem.problem_id or attempt.status not in ("judged", "compile_failed"):
            return None
        verdict = await recorded_verdict(self.lab, attempt, self.plan)
        told = {"outcome": verdict.outcome, "speedup": verdict.speedup, "verdict": verdict.model_dump(mode="json")}
        self.journal.finish(step, kind="judge", seconds=0.0, **told)
        self.hand_off(step, verdict)
        verdict = await self.confirm_target(verdict)
        await self.consider_attempt(verdict)
        await self.tell(f"{step}: {verdict.outcome}{_speed_of(told)}{self._so_far()}")
        return verdict

    def consider(self, verdict: Verdict, source: str) -> None:
        """Keep a verdict as the best if it is: one that reaches the target before others, then by speed-up."""
        if verdict.outcome not in ("correct", COMPILES):
            return
        self.correct.append((verdict, source))
        if self.best is None or worth(verdict) > worth(self.best):
            self.best, self.best_source = verdict, source

    async def look_up(self, step: str, error: str) -> str:
        """Return what the documentation says of an error; nothing if it says nothing."""

        async def work() -> dict[str, Any]:
            try:
                (uri,) = await self.lab.documents.explain_messages([error])
                if uri is None:
                    found = await self.lab.documents.search(error[:400], limit=3)
                    uri = next((hit.uri for hit in found.hits if hit.match != "words"), None)
                page = await self.lab.documents.read(uri) if uri is not None else None
            except GpuMcpError as failure:
                return {"outcome": f"nothing: {failure}"[:300], "text": ""}
            if page is None:
                return {"outcome": "nothing found", "text": ""}
            quoted = f"{page.title} ({page.library}), {page.notice}\n{page.document[:LOOKED_UP]}"
            return {"outcome": page.uri, "text": quoted}

        done = await self.step(step, "lookup", work)
        return str(done["text"])

    def hand_off(self, step: str, model: Model) -> None:
        """Keep a hand-off with the run."""
        folder = self.folder / "handoffs"
        folder.mkdir(exist_ok=True)
        (folder / f"{step}.json").write_text(model.model_dump_json(indent=1), encoding="utf-8")


def _speed_of(done: Mapping[str, Any]) -> str:
    """Return the speed-up that a step's entry has, or the time of a call, behind a comma; empty without either."""
    if done.get("speedup"):
        return f", speed-up {done['speedup']:.3g}"
    verdict = Verdict.model_validate(done["verdict"]) if "verdict" in done else None
    return f", {format_time(verdict.median_us / 1e6)} a call" if verdict and verdict.median_us else ""
