"""Runs: begun, resumed after any kill, listed, shown."""

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import NotFound, ProblemRefused
from gpu_mcp_server.models.problem import ImportOverrides, Problem
from gpu_mcp_server.models.recipe import RunCost, RunState, RunStep, Verdict
from gpu_mcp_server.models.run_plan import WITHOUT_PROBLEM, AgentCommand, Mode, RunPlan
from gpu_mcp_server.recipes.agents.agent_jobs import AgentCalls, Agents
from gpu_mcp_server.recipes.modes.agent_mode import sessions
from gpu_mcp_server.recipes.modes.nccl_mode import nccl
from gpu_mcp_server.recipes.modes.population import population
from gpu_mcp_server.recipes.modes.program_mode import program
from gpu_mcp_server.recipes.modes.project_mode import project
from gpu_mcp_server.recipes.modes.structured_mode import structured
from gpu_mcp_server.recipes.modes.tune_mode import tune, tune_best, tuned_points
from gpu_mcp_server.recipes.run.compile_tier import unjudged
from gpu_mcp_server.recipes.run.journal import Journal, entries
from gpu_mcp_server.recipes.run.next_step import next_step
from gpu_mcp_server.recipes.run.prompt_verdict import worth
from gpu_mcp_server.recipes.run.run_context import PROBLEM, Ending, Ground, Tell
from gpu_mcp_server.recipes.run.run_memory import recall
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.detect import source_at
from gpu_mcp_server.services.workspaces.local_files import IN_WORKSPACE, checked_path

MODES: Mapping[Mode, Callable[[Ground], Awaitable[Ending]]] = {
    "structured": structured, "population": population, "agent": sessions, "nccl": nccl,
    "tune": tune, "project": project, "program": program,
}  # fmt: skip
ASKED = ("specification", "plan", "code", "session", "reflect")
"""Kinds of steps that call the agent."""
GOOD: Mapping[Mode, str] = {"nccl": "verified", "project": "green"}
"""Outcome of what a mode is for, where no kernel is judged."""
PLAN_FILE = "plan.json"
END = "end"
RUN_ID = re.compile(r"^r-[A-Za-z0-9_.-]{1,80}\Z")


async def silent(message: str) -> None:
    """Tell nobody."""


class Runs:
    """The runs of one data folder: `recipes/RUN_ID/` with plan.json, journal.jsonl, handoffs, best source."""

    elsewhere = False

    def __init__(self, lab: Lab, agents: Callable[[AgentCommand], AgentCalls] | None = None) -> None:
        """Keep where they are.

        Args:
            lab: That judges.
            agents: Makes the calls of a run's agent; without it the agent runs in a sandbox of this machine.
        """
        self._lab = lab
        self._agents: Callable[[AgentCommand], AgentCalls] = agents or (lambda command: Agents(lab, command))
        self._root = lab.settings.data_dir / "recipes"

    def create(self, plan: RunPlan, run_id: str | None = None) -> str:
        """Note a new run, or one of this name that is noted already; nothing is begun."""
        run_id = run_id or f"r-{plan.name}-{secrets.token_hex(3)}"
        folder = self._root / run_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / PLAN_FILE
        if not path.exists():
            new = path.with_suffix(".new")
            new.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
            new.replace(path)
        return run_id

    def plan(self, run_id: str) -> RunPlan:
        """Return a run's plan.

        Raises:
            NotFound: If there is no such run.
        """
        return RunPlan.model_validate_json((self.folder(run_id) / PLAN_FILE).read_text(encoding="utf-8"))

    def check_agent(self, plan: RunPlan) -> None:
        """Refuse an agent that cannot be called, before anything is begun; mode tune calls none.

        Raises:
            BadRequest: If it cannot.
        """
        if plan.mode != "tune":
            self._agents(plan.agent).check()

    async def begin(self, plan: RunPlan, run_id: str | None = None) -> str:
        """Note a new run; see `create`."""
        return self.create(plan, run_id)

    async def look(self, run_id: str) -> RunState | None:
        """Return a run that anything was done of; None of any other."""
        return self.state(run_id) if self.begun(run_id) else None

    async def read_journal(self, run_id: str) -> list[dict[str, Any]]:
        """Return what a run's journal says so far."""
        return self.journal(run_id)

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Return what a run left."""
        return await self._lab.store.artifacts.read(artifact_id)

    async def gpu_seconds(self, run_id: str) -> float:
        """Return the seconds times GPUs of the jobs that judged and profiled a run's candidates so far."""
        journal = entries(self._root / run_id)
        profiles = [entry["profile"]["profile_id"] for entry in journal if "profile" in entry]
        judged = [verdict.attempt_id for verdict in verdicts_of(journal)]
        return await self._lab.jobs.table.gpu_seconds([one for one in (*judged, *profiles) if one is not None])

    def journal(self, run_id: str) -> list[dict[str, Any]]:
        """Return what a run's journal says so far; nothing of one that is not begun."""
        return entries(self._root / run_id)

    def begun(self, run_id: str) -> bool:
        """Say whether anything was done of a run."""
        return bool(entries(self._root / run_id))

    def ids(self) -> list[str]:
        """Return all runs, the newest first."""
        found = [path.parent for path in self._root.glob(f"*/{PLAN_FILE}")]
        return [path.name for path in sorted(found, key=lambda p: (p / PLAN_FILE).stat().st_mtime_ns, reverse=True)]

    def state(self, run_id: str) -> RunState:
        """Return a run as its journal has it, also while it goes on.

        Raises:
            NotFound: If there is no such run.
        """
        folder = self.folder(run_id)
        return state_of(run_id, self.plan(run_id), entries(folder))

    async def go(self, run_id: str, tell: Tell = silent, jobs: int = 1) -> RunState:
        """Run it for the user who began it, or go on where it was killed; a finished one stays as it is.

        Args:
            run_id: The run.
            tell: Told what happens.
            jobs: Calls of the agent at once, where a population has several children to ask for.

        Raises:
            NotFound: If there is no such run, or what it names is not there.
            BadRequest: If another process runs it, it is another user's, or its agent cannot be called here.
            HostError: If it cannot go on; resume it when that is mended.
        """
        self.folder(run_id)
        with acting_as(await self._lab.status.overview.runs_worker(run_id)):
            return await self._go(run_id, tell, jobs)

    async def _go(self, run_id: str, tell: Tell, jobs: int) -> RunState:
        noted, folder = self.plan(run_id), self.folder(run_id)
        with Journal(folder) as journal:
            if journal.done(END) is not None:
                return self.state(run_id)
            async with self._laid_out(noted) as plan:
                agents = self._agents(plan.agent)
                self.check_agent(plan)
                try:
                    judged = plan.mode not in WITHOUT_PROBLEM
                    problem = await self._problem(plan, folder, journal, tell) if judged else None
                except ProblemRefused as error:
                    stopped = "degenerate" if error.degenerate else "refused"
                    journal.finish(END, stopped=stopped, why=str(error)[:500], best=None)
                    return self.state(run_id)
                ground = Ground(self._lab, plan, problem, run_id, folder, journal, tell, agents, jobs=jobs)
                ending = await recall(ground) or await MODES[plan.mode](ground)
                ending = await tune_best(ground, ending)
                await ground.confirm_best()
                kept = await self._keep_best(ground)
                journal.finish(END, stopped=ending.stopped, why=ending.why, **kept)
        return self.state(run_id)

    @asynccontextmanager
    async def _laid_out(self, plan: RunPlan) -> AsyncGenerator[RunPlan]:
        """Give the plan with its problem as a path of this machine, where it lies in a workspace."""
        if not plan.problem.startswith(IN_WORKSPACE):
            yield plan
            return
        workspace_id, _, below = plan.problem.removeprefix(IN_WORKSPACE).partition("/")
        async with self._lab.store.workspaces.laid_out(workspace_id) as folder:
            path = folder / checked_path(below) if below else folder
            yield plan.model_copy(update={"problem": str(path)})

    async def _problem(self, plan: RunPlan, folder: Path, journal: Journal, tell: Tell) -> Problem:
        if plan.tier == "compile":
            return await unjudged(self._lab, plan, folder)
        done = journal.done(PROBLEM)
        if done is None:
            problem_id = plan.problem
            if not problem_id.startswith("p-"):
                await tell("problem: is registered")
                source = await source_at(Path(plan.problem))
                wish = ImportOverrides(accept_degenerate=plan.accept_degenerate, basis=plan.basis)
                source = replace(source, wish=wish)
                problem_id = (await self._lab.evaluation.registry.import_file(source, host=plan.host)).problem_id
            problem = await self._lab.store.problems.get(problem_id)
            journal.finish(PROBLEM, problem_id=problem_id, degenerate=bool(problem.degenerate))
            return problem
        return await self._lab.store.problems.get(done["problem_id"])

    async def _keep_best(self, ground: Ground) -> dict[str, Any]:
        if ground.best is None:
            return {"best": None}
        name = f"{ground.run_id}.best"
        kept = await self._lab.store.artifacts.put(ground.best_source.encode(), name=name, media_type="text/plain")
        await asyncio.to_thread((ground.folder / "best.txt").write_text, ground.best_source, encoding="utf-8")
        return {"best": ground.best.model_dump(mode="json"), "best_source_artifact_id": kept}

    def folder(self, run_id: str) -> Path:
        """Return where a run lies.

        Raises:
            NotFound: If there is no such run.
        """
        folder = self._root / run_id
        if not RUN_ID.match(run_id) or not (folder / PLAN_FILE).is_file():
            raise NotFound("run", run_id, hint="`gpu-mcp-server recipe list` shows those there are.")
        return folder


def state_of(run_id: str, plan: RunPlan, journal: list[dict[str, Any]]) -> RunState:
    """Return the state that a journal tells of."""
    done = {entry["step"]: entry for entry in journal if entry["event"] == "done"}
    steps = [_step(entry) for entry in done.values() if "kind" in entry]
    end, problem = done.get(END), done.get(PROBLEM)
    costs = [entry["cost_usd"] for entry in done.values() if "cost_usd" in entry]
    verdicts = verdicts_of(journal)
    good = "compiles" if plan.tier == "compile" else GOOD.get(plan.mode, "correct")
    correct = [verdict for verdict in verdicts if verdict.outcome == good]
    return RunState(
        run_id=run_id,
        name=plan.name,
        mode=plan.mode,
        problem_id=problem["problem_id"] if problem else None,
        degenerate=bool(problem and problem.get("degenerate")),
        state="finished" if end else "unfinished",
        stopped=end["stopped"] if end else None,
        why=end["why"] if end else "",
        steps=steps,
        best=Verdict.model_validate(end["best"]) if end and end.get("best") else max(correct, key=worth, default=None),
        best_source_artifact_id=end.get("best_source_artifact_id") if end else None,
        tuned=tuned_points(done.values()),
        next_step=next_step(run_id, plan, journal, verdicts),
        spent=RunCost(
            wall_s=sum(step.seconds for step in steps),
            agent_calls=sum(step.kind in ASKED for step in steps),
            cost_usd=sum(costs) if costs else None,
            tokens=_sum(done, "tokens"),
            tool_calls=_sum(done, "calls"),
            tool_characters=_sum(done, "characters"),
        ),
    )


def _sum(done: Mapping[str, Mapping[str, Any]], name: str) -> int | None:
    found = [int(entry[name]) for entry in done.values() if name in entry]
    return sum(found) if found else None


def verdicts_of(journal: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Return all verdicts in the order in which they came; one that was confirmed or voided is as it was left."""
    found = [
        Verdict.model_validate(each)
        for entry in journal
        if entry["event"] == "done" and entry.get("kind") != "confirm"
        for each in [*([entry["verdict"]] if "verdict" in entry else []), *entry.get("verdicts", [])]
    ]
    settled = settled_verdicts(journal)
    return [verdict if verdict.coarse else settled.get(verdict.attempt_id, verdict) for verdict in found]


def settled_verdicts(journal: Sequence[Mapping[str, Any]]) -> dict[str | None, Verdict]:
    """Return the verdicts as confirmation runs left them, by attempt."""
    found = [
        Verdict.model_validate(entry["verdict"])
        for entry in journal
        if entry["event"] == "done" and entry.get("kind") == "confirm"
    ]
    return {verdict.attempt_id: verdict for verdict in found}


def _step(entry: Mapping[str, Any]) -> RunStep:
    verdict = cast("dict[str, Any]", entry.get("verdict") or {})
    return RunStep(
        step=entry["step"], kind=entry["kind"], seconds=entry["seconds"], outcome=entry["outcome"],
        attempt_id=verdict.get("attempt_id"), speedup=entry.get("speedup"), median_us=verdict.get("median_us"),
    )  # fmt: skip
