"""Many runs of one plan: a suite of problems, or one problem several times.

Each run has a name of its own, so a suite that is killed goes on where it was.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpu_mcp_server.errors import BadRequest, HostError, NotFound
from gpu_mcp_server.models.recipe import RunState
from gpu_mcp_server.models.run_plan import RunPlan, SuiteBudget
from gpu_mcp_server.models.suite import PlanComparison, Proportion, RepeatReport, SuiteReport, SuiteRow
from gpu_mcp_server.recipes.headless_runs import Runs, silent
from gpu_mcp_server.recipes.reports.step_variance import variance_by_step
from gpu_mcp_server.recipes.reports.suite_page import page_of
from gpu_mcp_server.recipes.reports.text_difference import mean_difference
from gpu_mcp_server.recipes.run.bounded_calls import run_bounded
from gpu_mcp_server.recipes.run.run_context import Tell
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats import geak, kernelbench
from gpu_mcp_server.services.problems.formats.detect import source_at

FAST = (0, 1, 2)
_NUMBER = re.compile(r"^(\d+)")
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


def kernelbench_problems(root: Path, level: int, chosen: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files of a level by name, in order of their numbers.

    Raises:
        NotFound: If the folder or a chosen problem is not there.
    """
    folders = [root / f"level{level}", root / "KernelBench" / f"level{level}"]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise NotFound("level", str(folders[0]), hint="--root is the folder that holds level1, level2 ...")

    def order(path: Path) -> tuple[int, str]:
        found = _NUMBER.match(path.name)
        return int(found[1]) if found else 1 << 30, path.name

    known = {path.stem: path for path in sorted(folder.glob("*.py"), key=order) if not path.name.startswith("_")}
    if not chosen:
        return known
    picked: dict[str, Path] = {}
    for name in chosen:
        right = [stem for stem in known if stem == name or stem.partition("_")[0] == name]
        if not right:
            raise NotFound("problem of the level", name, hint="Give a number or a file's name without .py.")
        picked[right[0]] = known[right[0]]
    return picked


async def hip_problems(instructions: Path, chosen: Sequence[str] = ()) -> dict[str, Path]:
    """Return the tasks of a GEAK-HIP instruction file, in its order, each as FILE#TASK.

    Raises:
        NotFound: If the file or a chosen task is not there.
        BadRequest: If it is no instruction file.
    """
    source = await source_at(instructions)
    names = geak.tasks_of(source)
    absent = [name for name in chosen if name not in names]
    if absent:
        raise NotFound("task", absent[0], hint=f"{source.name} has {', '.join(names[:30])}.")
    assert source.folder is not None
    return {name: source.folder / f"{source.name}#{name}" for name in names if not chosen or name in chosen}


class RunKeeper(Protocol):
    """Runs of this machine, or of a team's server."""

    elsewhere: bool
    """Whether a team's server judges."""

    def check_agent(self, plan: RunPlan) -> None:
        """Refuse an agent that cannot be called."""
        ...

    async def begin(self, plan: RunPlan, run_id: str | None = None) -> str:
        """Note a new run, or one of this name."""
        ...

    async def look(self, run_id: str) -> RunState | None:
        """Return a run that anything was done of."""
        ...

    async def go(self, run_id: str, tell: Tell = silent, jobs: int = 1) -> RunState:
        """Run it, or go on where it stopped."""
        ...

    async def gpu_seconds(self, run_id: str) -> float:
        """Return what its jobs took of GPUs."""
        ...

    async def read_journal(self, run_id: str) -> list[dict[str, Any]]:
        """Return its journal."""
        ...

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Return what a run left."""
        ...


class Suites:
    """Runs a plan over many problems, or many times."""

    def __init__(self, lab: Lab, runs: RunKeeper | None = None) -> None:
        """Keep where reports go, and who runs.

        Args:
            lab: Of this machine, for reports.
            runs: Of this machine if absent.
        """
        self._lab, self._runs = lab, runs or Runs(lab)

    async def over(
        self, plan: RunPlan, suite: str, problems: Mapping[str, Path], tell: Tell = silent, jobs: int = 1
    ) -> SuiteReport:
        """Run it for every problem that is not done yet, `jobs` at once; a report is written after each.

        No further problem is begun once `plan.suite` is spent; those that are running go on to their end.

        Raises:
            HostError, BadRequest: If a run cannot go on; the others are broken off, and the same command continues.
        """
        self._runs.check_agent(plan)
        states: dict[str, RunState] = {}
        ended = ""

        def report() -> SuiteReport:
            found = {n: states[n] for n in problems if n in states}
            return suite_report(suite, found, len(problems), ended, accept_provisional=plan.accept_provisional)

        async def one(name: str, path: Path) -> None:
            nonlocal ended
            run_id = run_id_of(suite, name)
            if await self._runs.look(run_id) is None:
                ended = ended or await self._spent(plan.suite, [run_id_of(suite, other) for other in problems])
                if ended:
                    return
            await tell(f"{name}: begun, {len(states) + 1} of {len(problems)}")

            async def tell_of_problem(message: str) -> None:
                await tell(f"{name} {message}" if jobs > 1 else message)

            states[name] = await self.run_problem(plan, run_id, path, tell_of_problem)
            self.write_report(suite, report())

        await run_bounded(jobs, [partial(one, name, path) for name, path in problems.items()])
        self.write_report(suite, report())
        return report()

    async def _spent(self, budget: SuiteBudget, run_ids: Sequence[str]) -> str:
        """Say which part of a suite's budget its runs have used up, those that go on included; empty if none."""
        limits = budget.model_dump(exclude_none=True)
        if not limits:
            return ""
        begun = {run_id: state for run_id in run_ids if (state := await self._runs.look(run_id)) is not None}
        spent = [state.spent for state in begun.values()]
        gpu_s = [await self._runs.gpu_seconds(run_id) for run_id in begun] if budget.gpu_s is not None else []
        used = {
            "agent_calls": sum(one.agent_calls for one in spent), "tokens": sum(one.tokens or 0 for one in spent),
            "cost_usd": sum(one.cost_usd or 0 for one in spent), "gpu_s": sum(gpu_s),
        }  # fmt: skip
        over = [name for name, limit in limits.items() if used[name] >= limit]
        return "; ".join(f"{used[name]:g} of suite.{name} {limits[name]:g} are spent" for name in over)

    async def run_problem(self, plan: RunPlan, run_id: str, path: Path | str, tell: Tell) -> RunState:
        """Run one problem; what is no problem is a row that is refused, and is tried again by the next call."""
        try:
            run_id = await self._runs.begin(await self._fitted(plan, path), run_id)
            return await self._runs.go(run_id, tell)
        except (BadRequest, NotFound) as error:
            if await self._runs.look(run_id) is not None:
                raise
            return RunState(
                run_id=run_id, name=plan.name, mode=plan.mode, state="unfinished", stopped="refused",
                why=f"{error} {error.hint}".strip()[:500],
            )  # fmt: skip

    async def _fitted(self, plan: RunPlan, path: Path | str) -> RunPlan:
        """Return the plan for a problem, which is a file, or the id of one that is registered.

        A HIP task is judged where a host has an AMD GPU and the task an extractor; otherwise it is of tier compile.
        """
        plan = plan.model_copy(update={"problem": str(path)})
        if isinstance(path, str):
            return plan
        source = await source_at(path)
        if "basis" not in plan.model_fields_set:
            plan = plan.model_copy(update={"basis": kernelbench.suite_basis(source)})
        if self._runs.elsewhere or not geak.recognizes(source) or not geak.wants_hip(await geak.project(source)):
            return plan
        host = await self._amd_host(plan.host) if await geak.has_extractor(source) else None
        if host is None:
            return plan.model_copy(update={"tier": "compile", "mode": "structured"})
        return plan.model_copy(update={"host": host})

    async def _amd_host(self, named: str | None) -> str | None:
        """Return the host that is named, or the first, that has an AMD GPU; those that do not answer have none."""
        for name in [named] if named else self._lab.hosts.names():
            with contextlib.suppress(HostError):
                if (await self._lab.hosts.probe(name)).amd_gpus:
                    return name
        return None

    async def repeat(self, plan: RunPlan, times: int, name: str, tell: Tell = silent) -> RepeatReport:
        """Run it so often, each from the beginning, and say how much it varies."""
        plan = plan.model_copy(update={"fresh": True})  # times that are kept would not vary
        rows: list[SuiteRow] = []
        sources: list[str] = []
        for number in range(1, times + 1):
            run_id = await self._runs.begin(plan, run_id_of(name, str(number)))
            state = await self._runs.go(run_id, tell)
            rows.append(row_of(str(number), state))
            if state.best_source_artifact_id is not None:
                sources.append((await self._runs.read_artifact(state.best_source_artifact_id)).decode())
        report = RepeatReport(
            name=name,
            rows=rows,
            passed=Proportion.from_counts(sum(row.correct for row in rows), len(rows)),
            reached=Proportion.from_counts(sum(row.stopped == "target" for row in rows), len(rows)),
            speedups=sorted(row.speedup for row in rows if row.speedup is not None),
            difference=mean_difference(sources),
            steps=variance_by_step(
                [await self._runs.read_journal(row.run_id) for row in rows],
                [await self._answers(row.run_id) for row in rows],
            ),
        )
        self.write_report(name, report)
        return report

    async def _answers(self, run_id: str) -> dict[str, str]:
        """Return what the agent answered by step: its hand-off, else its words."""
        done = [entry for entry in await self._runs.read_journal(run_id) if entry["event"] == "done"]
        kept = {entry["step"]: entry.get("handoff_artifact_id") or entry.get("text_artifact_id") for entry in done}
        read = self._runs.read_artifact
        return {step: (await read(artifact)).decode() for step, artifact in kept.items() if artifact}

    def write_report(self, name: str, report: SuiteReport | RepeatReport | PlanComparison) -> None:
        """Write a report as Markdown, JSON and a web page."""
        folder = self._lab.settings.data_dir / "recipes" / "suites"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        plain = _ODD.sub("-", name)
        texts = {
            ".md": report.summary() + "\n",
            ".json": json.dumps(report.model_dump(mode="json"), indent=1) + "\n",
            ".html": page_of(report),
        }
        for suffix, text in texts.items():
            path = folder / (plain + suffix)
            new = path.with_name(path.name + ".new")
            new.write_text(text, encoding="utf-8")
            new.replace(path)


def suite_report(
    suite: str, states: Mapping[str, RunState], problems: int, ended: str = "", *, accept_provisional: bool = False
) -> SuiteReport:
    """Return what is done of a suite; a problem that is not done yet, or is degenerate, counts nowhere.

    A speed-up counts where its time is confirmed, or provisional ones are accepted.
    """
    rows = [row_of(name, state) for name, state in states.items()]
    judged = [row for row in rows if row.stopped != "compiled" and not row.degenerate]

    def faster(row: SuiteRow, times: int) -> bool:
        counts = row.speedup is not None and (accept_provisional or row.trust == "confirmed")
        return row.correct and (times == 0 or (counts and (row.speedup or 0.0) > times))

    fast = {f"fast_{p}": Proportion.from_counts(sum(faster(row, p) for row in judged), len(judged)) for p in FAST}
    return SuiteReport(suite=suite, rows=rows, problems=problems, fast=fast, ended=ended)


def row_of(name: str, state: RunState) -> SuiteRow:
    """Return a run as a row."""
    best, spent = state.best, state.spent
    return SuiteRow(
        name=name, run_id=state.run_id, stopped=state.stopped, why=state.why,
        degenerate=state.degenerate or state.stopped == "degenerate",
        correct=best is not None and best.outcome == "correct",
        speedup=best.speedup if best else None, attempt_id=best.attempt_id if best else None,
        time_us=best.median_us if best and best.speedup is None and best.time_range_us else None,
        speedup_range=best.speedup_range if best else None, time_range_us=best.time_range_us if best else None,
        trust=best.trust if best else "",
        agent_calls=spent.agent_calls, wall_s=spent.wall_s, cost_usd=spent.cost_usd, tokens=spent.tokens,
    )  # fmt: skip


def run_id_of(suite: str, name: str) -> str:
    """Return a run's name; what does not fit is told apart by its hash."""
    plain = _ODD.sub("-", name)[:40]
    other = "" if plain == name else "-" + hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"r-{_ODD.sub('-', suite)[:30]}-{plain}{other}"
