"""`recipe`: headless runs, on this machine or, after `login`, at a team's server with the agent here."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result, table
from gpu_mcp_server.errors import BadRequest, GpuMcpError

if TYPE_CHECKING:
    from gpu_mcp_server.bridge.remote_runs import RemoteRuns
    from gpu_mcp_server.models.recipe import RunState
    from gpu_mcp_server.models.run_plan import RunPlan
    from gpu_mcp_server.models.suite import CandidateReport, PlanComparison, RepeatReport, SuiteReport
    from gpu_mcp_server.recipes.headless_runs import Runs
    from gpu_mcp_server.services.lab import Lab

app = typer.Typer(help="Run agents headless, resume runs after any kill, show them.", no_args_is_help=True)

suite_app = typer.Typer(help="One plan over many problems.", no_args_is_help=True)
app.add_typer(suite_app, name="suite")

Jobs = Annotated[
    int, typer.Option("--jobs", help="Problems, or candidates of a population, to work on at once.", min=1, max=64)
]
RunId = Annotated[str, typer.Argument(help="From `recipe list`.")]


class ProgressView:
    """Shows a run on stderr: a line for each step that is done, one that changes for what goes on."""

    def __init__(self) -> None:
        self._line = in_process_client.ProgressLine()

    async def __call__(self, message: str) -> None:
        """Show a message."""
        step, _, said = message.partition(": ")
        if said and not said.startswith(in_process_client.GOES_ON) and "-" in step and step[-1].isdigit():
            self._line.end()
            typer.echo(message, err=True)
        else:
            await self._line(0.0, None, message)

    def end(self) -> None:
        """Leave the line clean."""
        self._line.end()


@asynccontextmanager
async def chosen_runs() -> "AsyncGenerator[tuple[Lab, Runs | RemoteRuns]]":
    """Open this machine's laboratory, and the runs of the team's server that the user is logged in to, or its own."""
    address = in_process_client.remote_address()
    async with in_process_client.laboratory() as lab:
        if address is None:
            from gpu_mcp_server.recipes.headless_runs import Runs

            yield lab, Runs(lab)
            return
        from gpu_mcp_server.bridge.command_session import CommandSession
        from gpu_mcp_server.bridge.remote_runs import RemoteRuns

        typer.echo(f"runs are judged at {address}; --local means this machine", err=True)
        async with CommandSession.open(address) as session:
            yield lab, RemoteRuns(session, lab)


def refuse_elsewhere(what: str) -> None:
    """Refuse a command that a team's server does not do, of a user who is logged in to one."""
    if address := in_process_client.remote_address():
        raise BadRequest(f"{what} works on this machine, and you are logged in to {address}.", hint="Say --local.")


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="TOML of the run; docs/reference/plan.md has its keys.")],
    run_id: Annotated[str | None, typer.Option(help="r-...; a new one if absent.")] = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Start a run and wait for its end; after a kill, `recipe resume` continues it."""
    from gpu_mcp_server.recipes.run.plan_loader import read_plan

    chosen = read_plan(plan)

    async def work() -> "RunState":
        async with chosen_runs() as (_, runs):
            runs.check_agent(chosen)
            begun = await runs.begin(chosen, run_id)
            typer.echo(f"run {begun}", err=True)
            return await _went(runs, begun, jobs)

    _said(in_process_client.run(work), as_json=as_json)


@app.command()
def resume(run_id: RunId, jobs: Jobs = 1, as_json: Json = False) -> None:
    """Continue a run that was killed or stopped."""

    async def work() -> "RunState":
        async with chosen_runs() as (_, runs):
            return await _went(runs, run_id, jobs)

    _said(in_process_client.run(work), as_json=as_json)


@app.command()
def show(run_id: RunId, as_json: Json = False) -> None:
    """Show a run: why it stopped, its best, its steps; also while it runs."""

    async def work() -> "RunState":
        from gpu_mcp_server.recipes.headless_runs import Runs

        async with chosen_runs() as (_, runs):
            return runs.state(run_id) if isinstance(runs, Runs) else await runs.state(run_id)

    announce(f"reading run {run_id}")
    _said(in_process_client.run(work), as_json=as_json)


@app.command(name="list")
def list_runs(as_json: Json = False) -> None:
    """List runs, the newest first."""

    async def work() -> "list[RunState]":
        from gpu_mcp_server.recipes.headless_runs import Runs

        async with chosen_runs() as (_, runs):
            if isinstance(runs, Runs):
                return [runs.state(run_id) for run_id in runs.ids()]
            return await runs.states()

    announce("reading runs")
    states = in_process_client.run(work)
    rows = [
        [s.run_id, s.mode, s.stopped or s.state, _speed(s), str(s.spent.agent_calls), f"{s.spent.wall_s:.0f}"]
        for s in states
    ]
    text = table(["RUN", "MODE", "STATE", "BEST", "CALLS", "SECONDS"], rows) if rows else "no runs"
    print_result([state.model_dump(mode="json") for state in states], text, as_json=as_json)


@app.command()
def repeat(
    plan: Annotated[Path, typer.Argument(help="TOML of the run.")],
    times: Annotated[int, typer.Option("-n", "--times", help="How often.", min=1, max=1000)] = 6,
    name: Annotated[
        str | None, typer.Option(help="Name of the series; the same name resumes it. The plan's if absent.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a plan several times and report how much it varies: pass rate, spread, difference of sources."""
    from gpu_mcp_server.recipes.run.plan_loader import read_plan

    chosen = read_plan(plan)

    async def work() -> "RepeatReport":
        from gpu_mcp_server.recipes.suites import Suites

        async with chosen_runs() as (lab, runs):
            live = ProgressView()
            try:
                return await Suites(lab, runs).repeat(chosen, times, name or chosen.name, live)
            finally:
                live.end()

    report = in_process_client.run(work)
    print_result(report.model_dump(mode="json"), report.summary(), as_json=as_json)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="TOML of plan A.")],
    b: Annotated[Path, typer.Argument(help="TOML of plan B, which differs in one key.")],
    problem: Annotated[list[Path] | None, typer.Option(help="Problems' files; A's own problem if absent.")] = None,
    times: Annotated[int, typer.Option("-n", "--times", help="Runs of each plan a problem.", min=1, max=100)] = 1,
    name: Annotated[
        str | None, typer.Option(help="Name of the comparison; the same name resumes it. A-B if absent.")
    ] = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Run two plans on the same problems in pairs; report the difference with its interval. Prints Markdown."""
    from gpu_mcp_server.recipes.run.plan_loader import read_plan

    plans = read_plan(a, problem_given=bool(problem)), read_plan(b, problem_given=bool(problem))
    problems: dict[str, Path | str] = {path.stem: path.absolute() for path in problem or ()}
    problems = problems or {"own": plans[0].problem if plans[0].problem.startswith("p-") else Path(plans[0].problem)}

    async def work() -> "PlanComparison":
        from gpu_mcp_server.recipes.plan_comparison import compare_plans

        chosen = name or f"{a.stem}-{b.stem}"
        async with chosen_runs() as (lab, runs):
            live = ProgressView()
            try:
                return await compare_plans(lab, plans, chosen, problems, times=times, tell=live, jobs=jobs, runs=runs)
            finally:
                live.end()

    report = in_process_client.run(work)
    print_result(report.model_dump(mode="json"), report.summary(), as_json=as_json)


@app.command()
def report(
    run_id: RunId,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="FILE.html; RUN_ID.html if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run as one self-contained HTML page."""
    path = out or Path(f"{run_id}.html")

    async def work() -> str:
        from gpu_mcp_server.recipes.headless_runs import Runs
        from gpu_mcp_server.recipes.reports import run_report as reports

        async with chosen_runs() as (lab, runs):
            return await reports.report(lab, run_id) if isinstance(runs, Runs) else await runs.report(run_id)

    announce(f"writing run {run_id} to {path}")
    text = in_process_client.run(work)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}.", hint="Name another file.") from error
    print_result({"written": str(path)}, f"written: {path}", as_json=as_json)


@app.command()
def schema(
    name: Annotated[str | None, typer.Argument(help="Name of one hand-off; all if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON schema of hand-offs between roles: specification, build-plan, test-plan, verdict ..."""
    from gpu_mcp_server.models.recipe import HANDOFFS

    if name is not None and name not in HANDOFFS:
        raise BadRequest(f"There is no hand-off {name!r}.", hint=f"There are {', '.join(HANDOFFS)}.")
    found = {each: model.model_json_schema() for each, model in HANDOFFS.items() if name in (None, each)}
    print_result(found, json.dumps(found, indent=1), as_json=as_json)


@suite_app.command()
def kernelbench(
    plan: Annotated[Path, typer.Argument(help="TOML of the run; its problem is replaced by each of the level.")],
    root: Annotated[Path, typer.Option(help="Folder that holds level1, level2 ...")],
    level: Annotated[int, typer.Option(help="Level.", min=1)] = 1,
    problem: Annotated[list[str] | None, typer.Option(help="Only these: numbers or names.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the suite; the same name resumes it. PLAN-levelN if absent.")
    ] = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Run a plan over a level of KernelBench; after a kill, the same command continues it. Prints Markdown."""
    from gpu_mcp_server.recipes.run.plan_loader import read_plan
    from gpu_mcp_server.recipes.suites import kernelbench_problems

    chosen = read_plan(plan, problem_given=True)
    problems = kernelbench_problems(root.expanduser().absolute(), level, problem or ())
    report = in_process_client.run(lambda: _over(chosen, name or f"{chosen.name}-level{level}", problems, jobs))
    print_result(report.model_dump(mode="json"), report.summary(), as_json=as_json)


@suite_app.command()
def hip(
    plan: Annotated[Path, typer.Argument(help="TOML of the run; its problem is replaced by each task.")],
    instructions: Annotated[Path, typer.Option(help="GEAK-HIP instruction file (JSON), its tasks' folders beside it.")],
    task: Annotated[list[str] | None, typer.Option(help="Only these, by name.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the suite; the same name resumes it. PLAN-hip if absent.")
    ] = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Run a plan over the tasks of a GEAK-HIP instruction file.

    Tasks that hipcc builds are judged on a host with an AMD GPU if they have an extractor, otherwise only compiled.
    Other tasks need an extractor.
    """
    from gpu_mcp_server.recipes.run.plan_loader import read_plan
    from gpu_mcp_server.recipes.suites import hip_problems

    refuse_elsewhere("`recipe suite hip`")
    chosen = read_plan(plan, problem_given=True)

    async def work() -> "SuiteReport":
        problems = await hip_problems(instructions.expanduser().absolute(), task or ())
        return await _over(chosen, name or f"{chosen.name}-hip", problems, jobs)

    report = in_process_client.run(work)
    print_result(report.model_dump(mode="json"), report.summary(), as_json=as_json)


@suite_app.command()
def folder(
    root: Annotated[Path, typer.Argument(help="Folder of tasks in any format that import_problem takes.")],
    candidates: Annotated[
        Path | None,
        typer.Option(help="Judge the answers in this folder, without an agent: TASK.py, TASK/solution.json ..."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="TOML of a run, instead of --candidates; each task replaces its problem.")
    ] = None,
    tier: Annotated[
        str, typer.Option(help="Tier of the judgement: smoke, correctness or performance.")
    ] = "performance",
    max_bytes: Annotated[int | None, typer.Option(help="Leave out cases with more bytes of tensors.", min=1)] = None,
    traces: Annotated[
        Path | None, typer.Option(help="JSONL file to write verdicts to, as flashinfer's traces.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Host to run on; the default host if absent.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the suite; the folder's if absent.")] = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Run a plan over a folder's tasks, or judge existing answers. Prints Markdown."""
    from gpu_mcp_server.recipes.suite_candidates import suite_tasks

    if (candidates is None) == (plan is None):
        raise BadRequest(
            "Give exactly one of --candidates and --plan.", hint="--candidates judges answers without an agent."
        )
    tasks = suite_tasks(root.expanduser().absolute())
    suite = name or root.expanduser().absolute().name
    if candidates is not None:
        refuse_elsewhere("`recipe suite folder --candidates`")
        answers = candidates.expanduser().absolute()
        judged = in_process_client.run(lambda: _judged_answers(suite, tasks, answers, (tier, host, max_bytes), traces))
        print_result(judged.model_dump(mode="json"), judged.summary(), as_json=as_json)
    if plan is not None:
        from gpu_mcp_server.recipes.run.plan_loader import read_plan

        chosen = read_plan(plan, problem_given=True)
        report = in_process_client.run(lambda: _over(chosen, suite, tasks, jobs))
        print_result(report.model_dump(mode="json"), report.summary(), as_json=as_json)


async def _judged_answers(
    suite: str,
    tasks: Mapping[str, Path],
    answers: Path,
    how: tuple[str, str | None, int | None],
    traces: Path | None,
) -> "CandidateReport":
    from gpu_mcp_server.models.evaluation import TimingOptions
    from gpu_mcp_server.models.problem import ImportOverrides
    from gpu_mcp_server.recipes.suite_candidates import JudgeWish, SuiteCandidates, write_traces

    tier, host, max_bytes = how
    wish = JudgeWish(TimingOptions.model_validate({"tier": tier}), host, ImportOverrides(max_bytes=max_bytes))
    async with in_process_client.laboratory() as lab:
        live = ProgressView()
        try:
            judging = SuiteCandidates(lab, wish, live)
            report = await judging.judge_all(suite, tasks, answers)
            if traces is not None:
                write_traces(judging.traces, traces)
            return report
        finally:
            live.end()


async def _over(plan: "RunPlan", name: str, problems: Mapping[str, Path], jobs: int) -> "SuiteReport":
    from gpu_mcp_server.recipes.suites import Suites

    async with chosen_runs() as (lab, runs):
        live = ProgressView()
        try:
            return await Suites(lab, runs).over(plan, name, problems, live, jobs)
        finally:
            live.end()


async def _went(runs: "Runs | RemoteRuns", run_id: str, jobs: int) -> "RunState":
    live, again = ProgressView(), f"`gpu-mcp-server recipe resume {run_id}` goes on"
    try:
        return await runs.go(run_id, live, jobs)
    except asyncio.CancelledError:
        raise in_process_client.CommandStopped(f"Finished steps are kept: {again}.") from None
    except GpuMcpError as error:
        error.hint = f"{error.hint} {again}.".strip()
        raise
    finally:
        live.end()


def _speed(state: "RunState") -> str:
    return state.best.speed_text().removeprefix("speed-up ").partition(" (")[0] if state.best else "-"


def _said(state: "RunState", *, as_json: bool) -> None:
    print_result(state.model_dump(mode="json"), state.summary(), as_json=as_json)
