"""Plays an agent that knows only what the tools say: ten tasks, over stdio, as a client does.

    python benchmarks/agent/play.py [--judge-python PATH] [--json PATH]

For each task: gpu_status and register_problem, then candidates until the last answer says what is wanted. The first
registration of half of the tasks and the first candidate of most have the mistakes that people make. A candidate is
written with the signature that the answer to register_problem says, and only if the answer before said why: where it
did not, that is a dead end. What cannot be judged here is asked to be judged all the same, once: the refusal must name
what to do instead. Counted from the first register_problem on: calls, characters of the answers (as text, and as the
structure that some clients show), seconds. A model that errs more often than the script makes more calls.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from tasks import TASKS, Candidate, Task

ROOT = Path(__file__).parents[2]
SIGNATURES = {
    "c": r"^C candidate: (int launch\([^)]*\))",
    "cuda": r"^CUDA candidate: (extern \"C\" int launch\([^)]*\))",
}
CALLS, CHARACTERS = 8, 9_000
"""Goals, of the median."""


@dataclass
class Played:
    """Cost of playing one task."""

    task: str
    calls: int = 0
    characters: int = 0
    structure: int = 0
    seconds: float = 0.0
    reached: bool = False
    dead_ends: list[str] = field(default_factory=list[str])
    answers: list[str] = field(default_factory=list[str])


class Player:
    """One agent on one task."""

    def __init__(self, client: Client, task: Task) -> None:
        self._client, self._task = client, task
        self.played = Played(task.name)

    async def _call(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        began = time.monotonic()
        result = await self._client.call_tool(tool, arguments)
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        played = self.played
        played.calls += 1
        played.seconds += time.monotonic() - began
        played.characters += len(text)
        shown = text if result.structured_content is None else json.dumps(result.structured_content, ensure_ascii=False)
        played.structure += len(shown)
        played.answers.append(f"{tool}: {text.partition(chr(10))[0][:120]}")
        return text, result.structured_content or {}

    async def play(self) -> Played:
        """Register, then try candidates until the target is reached."""
        task = self._task
        if task.wrong_problem:
            said, _ = await self._call("register_problem", **{**task.problem, **task.wrong_problem})
            self._expect(task.because, said)
        said, registered = await self._call("register_problem", **task.problem)
        if "problem_id" not in registered:
            self.played.dead_ends.append(f"register_problem: {said[:200]}")
            return self.played
        contract, parent = said, None
        if task.compiled_only and task.language != "triton":
            source = self._written(task.candidates[-1], contract)
            given = {"problem_id": registered["problem_id"], "source": source, "language": task.language}
            said, _ = await self._call("evaluate_kernel", **given)
        for candidate in task.candidates:
            self._expect(candidate.because, said)
            given = {"source": self._written(candidate, contract), "language": task.language, "note": candidate.note}
            if parent:
                given["parent"] = parent
            given |= candidate.arguments
            if task.compiled_only:
                said, found = await self._call("compile_kernel", **given)
            else:
                said, found = await self._call("evaluate_kernel", problem_id=registered["problem_id"], **given)
            parent = found.get("attempt_id") or parent
        self.played.reached = task.target in said
        if not self.played.reached:
            self.played.dead_ends.append(f"the last answer does not say {task.target!r}: {said[:200]}")
        if not task.compiled_only:
            listed, _ = await self._call("list_attempts", problem_id=registered["problem_id"])
            if str(parent) not in listed:  # correct, and too short for a time on this machine
                self._expect("view recent", listed)
                listed, _ = await self._call("list_attempts", problem_id=registered["problem_id"], view="recent")
            self.played.reached &= f"{parent}  evaluate  correct" in listed
        return self.played

    def _expect(self, because: str, said: str) -> None:
        if because not in said:
            self.played.dead_ends.append(f"nothing said {because!r}: {said[:200]}")

    def _written(self, candidate: Candidate, contract: str) -> str:
        """Return a candidate's source with the signature that was said; HIP's is CUDA's with its own stream."""
        kind = "c" if self._task.language == "c" else "cuda"
        found = re.search(SIGNATURES[kind], contract, re.MULTILINE)
        signature = found.group(1) if found else "no signature was said"
        if self._task.language == "hip":
            signature = signature.replace("cudaStream_t", "hipStream_t")
        return candidate.source.replace("{launcher}", signature)


@contextmanager
def data_folder() -> Generator[str]:
    """Make a folder that jobs under their own uid can get through to, as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-agent-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield folder


async def run(judge_python: str | None) -> tuple[list[Played], dict[str, int]]:
    """Play all tasks with a server of their own each; return what they took, and what a conversation begins with."""
    played: list[Played] = []
    began: dict[str, int] = {}
    for task in TASKS:
        with data_folder() as folder:
            kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")}
            own = {"HOME": folder, "GPU_MCP_DATA_DIR": f"{folder}/data", "GPU_MCP_INDEX_DOCUMENTATION": "false"}
            own |= {"GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON": judge_python} if judge_python else {}
            server = StdioServerParameters(command=sys.executable, args=["-m", "gpu_mcp_server"], env={**kept, **own})
            async with Client(server) as client:
                tools = (await client.list_tools()).tools
                began = {
                    "tools": sum(len(t.model_dump_json(by_alias=True, exclude_none=True)) for t in tools),
                    "instructions": len(client.instructions or ""),
                }
                await client.call_tool("gpu_status", {})
                played.append(await Player(client, task).play())
        print(f"{played[-1].task}: {played[-1].calls} calls, {played[-1].characters} characters", file=sys.stderr)
    return played, began


def report(played: list[Played], began: dict[str, int], load: float) -> str:
    """Return the table, and what the goals say of it."""
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, {datetime.now(UTC):%Y-%m-%d}. A conversation "
        f"begins with {began['tools']:,} bytes of tools and {began['instructions']:,} characters of instructions.",
        "",
        "| task | calls | characters, text | characters, structure | seconds | target | dead ends |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    lines += [
        f"| {each.task} | {each.calls} | {each.characters:,} | {each.structure:,} | {each.seconds:.1f} | "
        f"{'reached' if each.reached else 'not reached'} | {len(each.dead_ends)} |"
        for each in played
    ]
    calls = statistics.median(each.calls for each in played)
    read = statistics.median(each.characters for each in played)
    shown = statistics.median(each.structure for each in played)
    ends = sum(len(each.dead_ends) for each in played)
    seconds = statistics.median(each.seconds for each in played)
    lines += [
        f"| median | {calls:g} | {read:,.0f} | {shown:,.0f} | {seconds:.1f} | "
        f"{sum(each.reached for each in played)} of {len(played)} | {ends} |",
        "",
        f"Goals: {CALLS} calls: {'met' if calls <= CALLS else 'missed'}; {CHARACTERS:,} characters: "
        f"{'met' if read <= CHARACTERS else 'missed'}; no dead end: {'met' if not ends else 'missed'}.",
    ]
    return "\n".join([*lines, *(f"- {each.task}: {end}" for each in played for end in each.dead_ends)])


def main() -> None:
    """Play, print the table, and end with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge-python", help="A Python with NumPy, where the server's own has none.")
    parser.add_argument("--json", type=Path, help="Where to write all that was recorded, answers' first lines too.")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    played, began = asyncio.run(run(given.judge_python))
    print(report(played, began, load))
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in played], indent=1), encoding="utf-8")
    if any(each.dead_ends or not each.reached for each in played):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
