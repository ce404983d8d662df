"""A real agent on public problems, with our tools and with a shell alone: verified wins, false wins, tokens, cost.

    python benchmarks/agent/real.py PLAN.toml (--kernelbench ROOT | --problems FILE ...) [--seeds 3] [--out FOLDER]
        [--shell COMMAND --allow-shell]

PLAN.toml is a plan of mode agent (docs/how-to/headless-runs.md) with your own agent and key. Each problem is worked
on once a seed in two arms. `tools`: a headless run, the agent confined to our tools. `shell`: COMMAND, the prompt on
stdin, in a new folder of this machine, **not confined** (hence --allow-shell), as it needs the compiler and the GPU.
The seed stands for `{seed}` in COMMAND and in the plan's command, and reaches a model of client chat; elsewhere seeds
are repetitions. Both arms ask for JSON that states the claim. Afterwards the same judge decides in both arms, in a
fresh evaluation on secret inputs: a verified win is correct and faster beyond its interval; a false win was claimed
and is not had by that judge. Transcripts are what the agents printed, and in arm `tools` the steps with what was
judged. With --kernelbench: 20 problems of level 1, evenly spread. Each seed of each arm has a data folder of its own,
below yours. A run that is there is not done again.
"""

import argparse
import asyncio
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.recipe import Candidate
from gpu_mcp_server.models.run_plan import AgentCommand, RunPlan
from gpu_mcp_server.models.suite import Proportion
from gpu_mcp_server.recipes.agents.agent_clis import unused_decoding
from gpu_mcp_server.recipes.agents.prompt_builder import about
from gpu_mcp_server.recipes.agents.reported_usage import parse_report
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.compile_tier import source_for
from gpu_mcp_server.recipes.run.paired_statistics import difference_of_shares
from gpu_mcp_server.recipes.run.plan_loader import read_plan
from gpu_mcp_server.recipes.suites import kernelbench_problems
from gpu_mcp_server.services.builds.candidate_source import NAMES
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.detect import source_at
from gpu_mcp_server.settings.server_settings import Settings

PROBLEMS = 20
CLAIM = (
    'End your answer with one line of JSON: {"claim": {"correct": true or false, "speedup": number or null}}, which is '
    "what you are sure of."
)
CLAIMED = re.compile(r'\{\s*"claim"\s*:\s*(\{[^{}]*\})\s*\}')
REASON_CHARACTERS = 200


@dataclass
class Row:
    """One arm's work on one problem with one seed."""

    arm: str
    problem: str
    seed: int
    claimed: bool
    """Whether the agent said that it is correct and faster."""
    verdict: str
    """Of the judge, anew: correct, incorrect, cheat, compile_failed, or why there is nothing to judge."""
    speedup: float | None
    low: float | None
    high: float | None
    """Ends of its 95 % interval."""
    tokens: int | None
    cost_usd: float | None
    seconds: float
    transcript: str
    reason: str = ""

    @property
    def win(self) -> bool:
        """Say whether it is correct and faster beyond its interval."""
        return self.verdict == "correct" and self.low is not None and self.low > 1

    @property
    def false_win(self) -> bool:
        """Say whether a win was claimed, and the judge found it wrong, or slower beyond its interval."""
        return self.claimed and (self.verdict != "correct" or (self.high is not None and self.high < 1))


def claim_of(text: str) -> bool:
    """Say whether an agent's last words claim a correct and faster candidate."""
    found = CLAIMED.findall(text.replace('\\"', '"'))
    try:
        said: Any = json.loads(found[-1]) if found else {}
    except ValueError:
        return False
    speedup = said.get("speedup")
    return said.get("correct") is True and isinstance(speedup, int | float) and speedup > 1


async def judge(lab: Lab, problem: Problem, plan: RunPlan, source: str) -> Evaluation:
    """Judge a source anew, whatever was judged before."""
    return await lab.evaluation.evaluator.evaluate(
        problem.problem_id,
        source_for(problem, Candidate(source=source), plan),
        host=plan.host,
        flags=tuple(plan.flags),
        entry=plan.entry,
        timing=TimingOptions(tier="performance"),
        wait_s=3600.0,
    )


@dataclass
class Work:
    """Work that an agent left."""

    said: str
    """Its last words."""
    transcript: str
    source: str | None
    tokens: int | None
    cost_usd: float | None


def agent_with_seed(agent: AgentCommand, seed: int) -> AgentCommand:
    """Return an agent with a seed, where it has a use for one."""
    wished = agent.model_copy(update={"decoding": {**agent.decoding, "seed": seed}})
    return agent if "seed" in unused_decoding(wished) else wished


async def with_tools(lab: Lab, plan: RunPlan, problem: Problem, seed: int) -> Work:
    """Return what a headless run left."""
    agent = agent_with_seed(plan.agent, seed)
    request = f"{plan.request}\n{CLAIM}".strip()
    wishes = {"problem": problem.problem_id, "agent": agent, "fresh": True, "request": request}
    runs = Runs(lab)
    state = await runs.go(runs.create(plan.model_copy(update=wishes), f"r-real-{problem.problem_id}-{seed}"[:80]))
    answers = [e["text_artifact_id"] for e in runs.journal(state.run_id) if "text_artifact_id" in e]
    said = [(await lab.store.artifacts.read(answer)).decode("utf-8", "replace") for answer in answers]
    kept = state.best_source_artifact_id
    source = (await lab.store.artifacts.read(kept)).decode() if kept else None
    text, spent = "\n".join(said), state.spent
    return Work(text, f"{text}\n\n--- steps\n{state.summary()}", source, spent.tokens, spent.cost_usd)


async def with_shell(command: str, plan: RunPlan, problem: Problem, seed: int) -> Work:
    """Return the same of an agent with a shell of this machine; its work is a file of a new folder."""
    name = NAMES[plan.language]
    prompt = f"{about(problem, plan)}\n\nYou have a shell. Leave your best as {name} in this folder. {CLAIM}\n"
    with tempfile.TemporaryDirectory(prefix="real-") as folder:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command.replace("{seed}", str(seed))), cwd=folder, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(plan.agent.timeout_s):
                said, _ = await process.communicate(prompt.encode())
        except TimeoutError:
            os.killpg(process.pid, 9)
            await process.wait()
            said = f"ended after {plan.agent.timeout_s:g} s".encode()
        printed, left = said.decode("utf-8", "replace"), Path(folder) / name
        text, cost, tokens = parse_report(printed)
        return Work(text, printed, left.read_text("utf-8", "replace") if left.is_file() else None, tokens, cost)


async def play(lab: Lab, arm: str, plan: RunPlan, path: Path, seed: int, shell: str, out: Path) -> Row:
    """Have one arm work on one problem, and judge what it left."""
    problem_id = (await lab.evaluation.registry.import_file(await source_at(path), host=plan.host)).problem_id
    problem, began = await lab.store.problems.get(problem_id), time.monotonic()
    work = with_tools(lab, plan, problem, seed) if arm == "tools" else with_shell(shell, plan, problem, seed)
    left = await work
    seconds = time.monotonic() - began
    transcript = out / f"{arm}-{path.stem}-{seed}.txt"
    transcript.write_text(f"{left.transcript}\n\n--- source\n{left.source or 'none'}\n", encoding="utf-8")
    row = Row(
        arm, path.stem, seed, claim_of(left.said), "no_candidate", None, None, None, left.tokens, left.cost_usd,
        seconds, transcript.name,
    )  # fmt: skip
    if left.source is None:
        return row
    try:
        found = await judge(lab, problem, plan, left.source)
    except GpuMcpError as error:
        row.verdict, row.reason = "refused", str(error)[:REASON_CHARACTERS]
        return row
    ends = found.speedup_range()
    row.verdict, row.reason = found.verdict or found.status, found.reason[:REASON_CHARACTERS]
    row.speedup = found.speedup
    row.low, row.high = ends or (None, None)
    return row


def summary(rows: Sequence[Row]) -> str:
    """Return each arm's figures, and the difference of wins over the pairs that both arms have."""
    lines = [
        "| arm | runs | claimed | verified wins | false wins | tokens | USD as reported |", "| --- " * 7 + "|",
    ]  # fmt: skip
    for arm in dict.fromkeys(row.arm for row in rows):
        own = [row for row in rows if row.arm == arm]
        tokens = [row.tokens for row in own if row.tokens is not None]
        cost = [row.cost_usd for row in own if row.cost_usd is not None]
        wins = Proportion.from_counts(sum(row.win for row in own), len(own))
        false = Proportion.from_counts(sum(row.false_win for row in own), len(own))
        lines.append(
            f"| {arm} | {len(own)} | {sum(row.claimed for row in own)} | {wins.text()} | {false.text()} | "
            f"{sum(tokens) if tokens else 'unknown'} ({len(tokens)} runs) | "
            f"{f'{sum(cost):.2f}' if cost else 'unknown'} ({len(cost)} runs) |"
        )
    keyed = {(row.arm, row.problem, row.seed): row for row in rows}
    tools = [row for row in rows if row.arm == "tools"]
    pairs = [(row, keyed[at]) for row in tools if (at := ("shell", row.problem, row.seed)) in keyed]
    if pairs:
        wins = difference_of_shares([b.win for _, b in pairs], [a.win for a, _ in pairs])
        false = difference_of_shares([b.false_win for _, b in pairs], [a.false_win for a, _ in pairs])
        lines += ["", f"tools - shell, pairs: verified wins {wins.text()}; false wins {false.text()}"]
    return "\n".join(lines)


def spread(paths: Sequence[Path], count: int) -> list[Path]:
    """Return so many of them, evenly spread over their order; all where there are fewer."""
    return [paths[n * len(paths) // count] for n in range(count)] if len(paths) > count else [*paths]


async def main() -> None:
    """Play what is not there yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--kernelbench", type=Path, help="folder that holds level1")
    where.add_argument("--problems", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("real-agent"))
    parser.add_argument("--shell", default="", help="command of the arm with a shell alone")
    parser.add_argument("--allow-shell", action="store_true", help="run it on this machine, not confined")
    arguments = parser.parse_args()
    if arguments.shell and not arguments.allow_shell:
        parser.error("--shell runs an agent on this machine that nothing confines; --allow-shell says that it may")
    plan = read_plan(arguments.plan, problem_given=True)
    if plan.mode != "agent":
        parser.error(f"{arguments.plan} is of mode {plan.mode}; this measures mode agent")
    paths = arguments.problems or spread([*kernelbench_problems(arguments.kernelbench, 1).values()], PROBLEMS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / "rows.jsonl"
    rows = [Row(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    known = {(row.arm, row.problem, row.seed) for row in rows}
    settings, arms = Settings(), ("tools", "shell") if arguments.shell else ("tools",)
    for seed, arm in ((seed, arm) for seed in range(1, arguments.seeds + 1) for arm in arms):
        # our tools show what was judged before: a seed must not see another's, nor the other arm's
        own = settings.model_copy(update={"data_dir": settings.data_dir / "real-agent" / f"{arm}-{seed}"})
        async with Lab.open(own) as lab:
            for path in paths:
                if (arm, path.stem, seed) in known:
                    continue
                row = await play(lab, arm, plan, path.absolute(), seed, arguments.shell, arguments.out)
                rows.append(row)
                with kept.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(asdict(row)) + "\n")
                won = "win" if row.win else "false win" if row.false_win else "no win"
                print(f"{arm} {path.stem} {seed}: {row.verdict}, {won}", flush=True)
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {len(paths)} problems, {arguments.seeds} seeds\n\n{summary(rows)}")


if __name__ == "__main__":
    asyncio.run(main())
