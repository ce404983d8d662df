"""`demo`: what an agent would do, against a server of its own over stdio, and the table that comes of it."""

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import typer
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from gpu_mcp_server.cli.clients import shown_command
from gpu_mcp_server.cli.in_process_client import ProgressLine
from gpu_mcp_server.cli.output import WIDTH, shorten_line, table
from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.package_files import content_path
from gpu_mcp_server.text_safety import escape_controls
from gpu_mcp_server.time_format import format_time

CANDIDATES = {
    "naive": "one thread, one pass after the other",
    "vectorized": "vector instructions and threads",
    "wrong_tail": "wrong in the last partial tile",
    "cached_answer": "caches its first answer",
    "late_answer": "says it is done and computes afterwards",
    "no_answer": "returns without computing",
}
SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 1024, "cols": 1023}]
GPU_SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 4096, "cols": 1023}, {"rows": 8192, "cols": 8192}]
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}
CPU_HALF_WIDTH = 0.1
"""Of the interval on a processor, as a part of the median: enough to tell these candidates apart, in seconds."""


@dataclass
class Demo:
    """One run of the demonstration."""

    client: Client
    out: TextIO
    host: str | None
    verbose: bool
    results: dict[str, Any] = field(default_factory=dict[str, Any])

    def say(self, text: str = "") -> None:
        """Print a line."""
        print(escape_controls(text), file=self.out, flush=True)

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool as an agent does; an error of ours ends the demonstration."""
        if self.host:
            arguments["host"] = self.host
        line = ProgressLine() if sys.stderr.isatty() or self.verbose else None
        try:
            result = await self.client.call_tool(tool, arguments, progress_callback=line)
        finally:
            if line is not None:
                line.end()
        if result.is_error:
            raise GpuMcpError("".join(getattr(c, "text", "") for c in result.content))
        return result.structured_content or {}

    async def run(self) -> None:
        """Show the host, then every device's candidates, then what to do next."""
        lab = await self.call("gpu_status")
        host = next((h for h in lab["hosts"] if h["reachable"] or self.host), None)
        if host is None:
            raise GpuMcpError("No host can be used.", hint=f"`{shown_command()} doctor` says why.")
        self.results["host"] = host
        if not host["reachable"]:
            raise GpuMcpError(f"Host {host['host']} cannot be used: {host['problem']}.")
        self.say(shorten_line(f"host {host['host']}: {host['cpu']}, {host['cores']} cores, sandbox {host['level']}"))
        if self.verbose:
            self.say_details_of(host)
        if host.get("problem"):
            self.say(f"note: {host['problem']}")
        if "cuda" in host["devices"]:
            torch = re.search(r", torch \d", host.get("judge") or "")
            reference = ("reference_torch.py", "torch") if torch else ("reference.py", "numpy")
            problem_id = await self.judge("cuda", ".cu", *reference, GPU_SHAPES)
        elif "cpu" in host["devices"]:
            self.say("No CUDA device: the candidates are in C, on the processor.")
            problem_id = await self.judge("cpu", ".c", "reference.py", "numpy", SHAPES)
        else:
            raise GpuMcpError(f"Host {host['host']} can judge nothing.", hint=f"`{shown_command()} doctor` says why.")
        self.say_next_steps(problem_id)

    def say_details_of(self, host: dict[str, Any]) -> None:
        """Print what the host has."""
        if host.get("weaker_because"):
            self.say(f"  sandbox not full: {host['weaker_because']}")
        self.say(f"  compilers: {', '.join(f'{k} {v}' for k, v in host['toolchains'].items()) or 'none'}")
        self.say(f"  judge: {host.get('judge') or 'none'}")

    async def judge(
        self, device: str, suffix: str, reference: str, framework: str, shapes: list[dict[str, int]]
    ) -> str:
        """Register the problem, judge each candidate, print the table; return the problem's id."""
        problem = await self.call(
            "register_problem",
            name=f"row-wise softmax ({framework})",
            reference=(examples() / reference).read_text(encoding="utf-8"),
            inputs=[{"name": "x", **TENSOR}],
            outputs=[{"name": "y", **TENSOR}],
            shapes=shapes,
            rtol=1e-4,
            atol=1e-6,
        )
        self.say(
            shorten_line(
                f"problem {problem['problem_id']}: {problem['name']} on {device}, {len(CANDIDATES)} candidates"
            )
        )
        if self.verbose:
            self.say(f"  must fail, and did: {', '.join(problem.get('trivial_answers_tried', []))}")
        timing: dict[str, Any] = {"fresh": True} | ({"half_width": CPU_HALF_WIDTH} if device == "cpu" else {})
        parent: str | None = None
        judged: list[tuple[str, Any]] = []
        for number, (name, what) in enumerate(CANDIDATES.items(), 1):
            source = (examples() / f"{name}{suffix}").read_text(encoding="utf-8")
            arguments: dict[str, Any] = {"problem_id": problem["problem_id"], "source": source, "note": what}
            arguments |= {"language": "cuda" if suffix == ".cu" else "c"} | ({"parent": parent} if parent else {})
            verdict = await self.call("evaluate_kernel", **arguments, timing=timing)
            parent = parent or verdict["attempt_id"]
            judged.append((name, verdict))
            took = format_time(verdict["seconds"].get("total", 0))
            self.say(f"  {number} of {len(CANDIDATES)} judged: {name}, in {took}")
        self.results[device] = {"problem": problem, "verdicts": dict(judged)}
        largest = "x".join(str(v) for v in shapes[-1].values())
        self.say()
        self.say(verdict_table(judged))
        self.say(f"time: of one call at {largest}; speed-up: against {framework} over all shapes")
        self.say()
        if self.verbose:
            self.say("\n".join(line for name, verdict in judged for line in verdict_details(name, verdict)))
        return str(problem["problem_id"])

    def say_next_steps(self, problem_id: str) -> None:
        """Print three commands that go on from here."""
        command = shown_command()
        self.say("next:")
        for words, what in (
            (f"history {problem_id} --plot softmax.svg", "all attempts, and a picture"),
            ("doctor", "what this machine has and lacks"),
            ("client-config", "registers the server with your agent"),
        ):
            line = f"  {command} {words}"
            self.say(f"{line}  # {what}" if len(line) + len(what) + 4 <= WIDTH else f"  # {what}\n{line}")


def verdict_table(judged: list[tuple[str, Any]]) -> str:
    """Return one line a candidate: verdict, time, speed-up and a short reason, at most WIDTH columns."""
    rows: list[list[str]] = []
    for name, verdict in judged:
        word = verdict.get("verdict") or verdict["status"]
        timed = [s for s in verdict.get("shapes", []) if s.get("candidate")] if word == "correct" else []
        time = format_time(timed[-1]["candidate"]["median_us"] / 1e6) if timed else "-"
        speedup = f"{verdict['speedup']:.3g}" if timed and verdict.get("speedup") else "-"
        rows.append([name, word, time, speedup, short_reason(verdict)])
    lines = table(["candidate", "verdict", "time", "speed-up", "why"], rows).splitlines()
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 1].rstrip(" ,;:") + "…" for line in lines)


def short_reason(verdict: dict[str, Any]) -> str:
    """Return why, without where and how often; the whole reason is for `--verbose` and the record."""
    if verdict.get("verdict") == "correct":
        timed = any(shape.get("candidate") for shape in verdict.get("shapes", []))
        return "every timed call was checked" if timed else f"no time: {verdict.get('note') or 'none was measured'}"
    reason = " ".join(str(verdict.get("reason") or verdict["status"]).split())
    place, colon, rest = reason.partition(": ")
    if colon and "=" in place:
        reason = rest
    wrong = re.search(r"\d+ of \d+ elements are wrong", reason)
    return wrong[0] if wrong else reason.partition(": ")[0]


def verdict_details(name: str, verdict: dict[str, Any]) -> list[str]:
    """Return all of a verdict that the table leaves out."""
    lines = [f"{name} ({verdict['attempt_id']}): {verdict.get('verdict') or verdict['status']}"]
    lines += [f"  {said}" for said in (verdict.get("reason"), verdict.get("note")) if said]
    for shape in verdict.get("shapes", []):
        timed = shape.get("candidate")
        if not timed:
            continue
        dims = ", ".join(f"{key}={value}" for key, value in shape["dims"].items())
        median, low, high = (format_time(timed[f"{which}_us"] / 1e6) for which in ("median", "low", "high"))
        ratio = f"; speed-up {shape['speedup']:.3g}" if shape.get("speedup") else ""
        lines.append(f"  {dims}: {median}, 95 % interval of the median {low} to {high}{ratio}")
    kernels: list[dict[str, Any]] = verdict.get("resources") or []
    for kernel in kernels:
        lines.append(
            f"  {kernel['kernel'].partition('(')[0]}: {kernel['registers_per_thread']} registers, "
            f"{kernel.get('spill_store_bytes', 'unknown')} B spilled"
        )
    return [*lines, f"  sandbox {verdict.get('level') or 'unknown'}"]


def examples() -> Path:
    """Return the folder of the example candidates: of the checkout, or of the installed package."""
    folder = content_path("examples/softmax")
    if folder.is_dir():
        return folder
    raise GpuMcpError("The examples are not installed.", hint="Run the demo from a checkout.")


async def _run(host: str | None, log: TextIO, *, verbose: bool, as_json: bool) -> dict[str, Any]:
    words = ["-m", "gpu_mcp_server", "--toolsets", "default"]
    command = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    failed: GpuMcpError | None = None
    async with Client(stdio_client(command, errlog=log)) as client:
        demo = Demo(client, sys.stderr if as_json else sys.stdout, host, verbose)
        try:
            await demo.run()
        except GpuMcpError as error:  # raised in here it would leave the client's task groups as a group
            failed = error
    if failed is not None:
        raise failed
    return demo.results


def main(*, host: str | None = None, verbose: bool = False, as_json: bool = False) -> None:
    """Run the demonstration; every number in it is measured now, and kept in the user's own store."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        try:
            results = asyncio.run(_run(host, log, verbose=verbose, as_json=as_json))
        finally:
            if verbose:
                log.seek(0)
                shutil.copyfileobj(log, sys.stderr)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
