"""Verdicts an hour on one host, with 1, 4, 16 and 64 agents at a time, and what bounds them.

Starts `serve --http` with a user for each agent. An agent has one candidate judged after the other, by the Python
client, and thinks of nothing in between: each is a new source, every fifth is wrong. Says for each number of agents how
many verdicts came in an hour's worth, where an evaluation's time went (waiting, compiling, judging), how busy the
device was, whether a verdict was another than it should be, and how wide the times' intervals were.

    python benchmarks/team/verdicts.py --language triton --seconds 60 --markdown OUT.md      # on a GPU
    python benchmarks/team/verdicts.py --language c --agents 1,4 --seconds 20                # on a processor
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "toolsets")]
from benchmarks.team.load import Server, quantile  # noqa: E402
from gpu_mcp_server.client import AsyncClient  # noqa: E402
from gpu_mcp_server.errors import GpuMcpError  # noqa: E402
from tests.laboratory import HONEST, PROBLEM  # noqa: E402

CUDA = """
#include <cuda_runtime.h>
#include <cstdint>
__global__ void twice(const float *x, float *y, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * tanhf(x[i]) + 1;
}
extern "C" int launch(const float *x, float *y, int64_t n, cudaStream_t stream) {
    twice<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, 2 * (1 - 2 / (tl.exp(2 * v) + 1)) + 1, mask=at < n)

def launch(x, y, n):
    twice[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
"""
SOURCES = {"c": HONEST, "cuda": CUDA, "triton": TRITON}
REMARK = {"c": "//", "cuda": "//", "triton": "#"}
REFERENCE = "import torch\n\ndef reference(x):\n    return 2 * torch.tanh(x) + 1\n"
"""On a GPU: a NumPy reference would run on the processor, for longer than all else of an evaluation."""
REFERENCES = {"c": PROBLEM["reference"], "cuda": REFERENCE, "triton": REFERENCE}
SHAPES = {"c": PROBLEM["shapes"], "cuda": [{"n": 1 << 20}], "triton": [{"n": 1 << 20}]}
EVERY = 5
"""One candidate of so many is wrong."""
SOME = 16
"""Evaluations whose parts are read."""
SHOWN_S = 0.05
"""Parts that took less, in the middle, are not shown."""
WIDER = 1.5
"""Goal: half-widths stay within this factor of one agent's."""


@dataclass
class Level:
    """Results of one number of agents."""

    agents: int
    seconds: float = 0.0
    took: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: {"waiting": [], "compiling": [], "judging": []})
    half_widths: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Percent of the device, sampled."""
    other: Counter[str] = field(default_factory=Counter)
    """Verdicts that are not as they should be, and calls that failed."""
    untimed: int = 0
    evidence: list[tuple[AsyncClient, str]] = field(default_factory=list)
    """Artifacts of right candidates, and whose they are."""
    judging: list[dict[str, float]] = field(default_factory=list)
    """Seconds of their judging, by part."""

    def per_hour(self) -> float:
        return 3600 * len(self.took) / self.seconds

    def add(self, found: dict[str, Any], *, right: bool, took: float) -> None:
        """Count an evaluation."""
        self.took.append(took)
        if found["verdict"] != ("correct" if right else "incorrect"):
            self.other[f"{'right' if right else 'wrong'} candidate is {found['verdict'] or found['status']}"] += 1
        seconds = found.get("seconds", {})
        compiling, judging = seconds.get("compile", 0.0), seconds.get("judge", 0.0)
        self.parts["compiling"].append(compiling)
        self.parts["judging"].append(judging)
        self.parts["waiting"].append(max(0.0, took - compiling - judging))
        if right:
            widths = [s["half_width"] for s in found.get("shapes", []) if s.get("half_width")]
            self.half_widths += widths
            self.untimed += not widths


def candidate_of(language: str, number: int) -> tuple[str, bool]:
    """Return a new source, and whether it is right."""
    right = number % EVERY != EVERY - 1
    text = SOURCES[language] if right else SOURCES[language].replace("+ 1", "+ 2", 1)
    return f"{text}{REMARK[language]} {number}\n", right


async def work(gpu: AsyncClient, problem: str, language: str, numbers: "itertools.count[int]", level: Level) -> None:
    """Be one agent, until cancelled."""
    while True:
        source, right = candidate_of(language, next(numbers))
        begin = time.monotonic()
        try:
            found = await gpu.evaluate(problem, source, language=language)
        except GpuMcpError as error:
            level.other[str(error)[:140]] += 1
            continue
        level.add(found, right=right, took=time.monotonic() - begin)
        if right and found.get("evidence_artifact_id"):
            level.evidence.append((gpu, found["evidence_artifact_id"]))


async def read_parts(level: Level) -> None:
    """Read of what judging consisted."""
    for gpu, artifact in level.evidence[-SOME:]:
        pages, line = list[str](), 1
        while line:
            page_ = await gpu.call_tool("read_artifact", artifact_id=artifact, first_line=line, max_lines=2000)
            pages.append(page_["text"])
            line = page_["last_line"] + 1 if page_.get("left_out_lines") else 0
        evidence = json.loads("\n".join(pages))["evidence"]
        steps = {f"start: {step}": seconds for step, seconds in evidence["start_seconds"].items()}
        level.judging.append({**evidence["seconds"], **steps})


def ticks() -> tuple[int, int]:
    """Return the processors' ticks so far, idle ones and all. Source: proc_stat(5)."""
    counts = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return counts[3] + counts[4], sum(counts)


async def sample(level: Level, device: str) -> None:
    """Note once a second how busy the device is; of GPUs nvidia-smi's utilization.gpu."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-l", "1"]
    if device == "cuda":
        smi = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert smi.stdout is not None
        try:
            async for line in smi.stdout:
                level.busy.append(float(line))
        finally:
            smi.kill()
            await smi.wait()
    before: tuple[int, int] | None = None
    while True:
        idle, whole = ticks()
        if before is not None and whole > before[1]:
            level.busy.append(100 * (1 - (idle - before[0]) / (whole - before[1])))
        before = idle, whole
        await asyncio.sleep(1)


async def play(server: Server, options: argparse.Namespace) -> tuple[list[Level], str]:
    """Run all numbers of agents, one after the other; return what came of it, and the device's name."""
    most = max(options.agents)
    with ThreadPoolExecutor() as at_once:  # each is a process of a second
        said = list(at_once.map(lambda n: server.command("token", "create", f"agent{n}", "--json"), range(most)))
    tokens = [json.loads(text)["token"] for text in said]
    url, device = server.start(), "cpu" if options.language == "c" else "cuda"
    numbers, levels = itertools.count(), list[Level]()
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(AsyncClient(url, token)) for token in tokens]
        given = {"reference": REFERENCES[options.language], "shapes": SHAPES[options.language]}
        about = {**PROBLEM, **given, "name": f"twice tanh plus one, {options.language}"}
        problem = (await agents[0].register_problem(**about))["problem_id"]
        await agents[0].call_tool("share", handle=problem, to="everybody")
        first = await agents[0].evaluate(
            problem, candidate_of(options.language, next(numbers))[0], language=options.language
        )
        for count in options.agents:
            level = Level(count)
            sampler = asyncio.create_task(sample(level, device))
            tasks = [
                asyncio.create_task(work(gpu, problem, options.language, numbers, level)) for gpu in agents[:count]
            ]
            begin = time.monotonic()
            ended, _ = await asyncio.wait(tasks, timeout=options.seconds, return_when=asyncio.FIRST_EXCEPTION)
            level.seconds = time.monotonic() - begin
            for task in [*tasks, sampler]:
                task.cancel()
            await asyncio.gather(*tasks, sampler, return_exceptions=True)
            for task in ended:
                task.result()
            await read_parts(level)
            levels.append(level)
            print(row(level), file=sys.stderr, flush=True)
            if options.markdown:  # after each: a machine may be lost before the last
                options.markdown.write_text(page(levels, str(first.get("device")), options))
    return levels, str(first.get("device"))


def middle(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def row(level: Level) -> str:
    """Return a row of the table."""
    p50, p95 = (quantile(level.took, 0.5), quantile(level.took, 0.95)) if level.took else (0.0, 0.0)
    parts = " + ".join(f"{middle(level.parts[name]):.2f}" for name in level.parts)
    busy = f"{statistics.mean(level.busy):.0f}" if level.busy else "unknown"
    width = f"{100 * middle(level.half_widths):.2g}" if level.half_widths else "none"
    wrong = sum(level.other.values())
    return (
        f"| {level.agents} | {len(level.took)} | {level.per_hour():.0f} | {p50:.1f} | {p95:.1f} | {parts} | {busy} | "
        f"{width} | {level.untimed} | {wrong} |"
    )


def bound(level: Level) -> str:
    """Say what an evaluation's time is spent on for the most part."""
    name = max(level.parts, key=lambda part: sum(level.parts[part]))
    share = sum(level.parts[name]) / max(1e-9, sum(map(sum, level.parts.values())))
    return f"{level.agents} at a time: {share:.0%} of an evaluation is {name}"


def judging(level: Level) -> str:
    """Say of what judging consists, the longest part first."""
    names = {name for each in level.judging for name in each}
    taken = {name: middle([each.get(name, 0.0) for each in level.judging]) for name in names}
    shown = sorted((name for name in taken if taken[name] >= SHOWN_S), key=lambda name: -taken[name])
    return f"{level.agents} at a time, judging, s: " + ", ".join(f"{name} {taken[name]:.2f}" for name in shown)


def page(levels: list[Level], device: str, options: argparse.Namespace) -> str:
    """Return the result as a page."""
    lines = [
        "# Verdicts an hour",
        "",
        f"Command: `python benchmarks/team/verdicts.py {' '.join(sys.argv[1:])}`. {device}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}. {options.language}, sizes "
        f"{', '.join(str(shape['n']) for shape in SHAPES[options.language])}, {options.seconds:g} s a row.",
        "",
        "## How many verdicts come in an hour?",
        "",
        "| agents | verdicts | an hour | p50, s | p95, s | waiting + compiling + judging, s | device busy, % | "
        "half-width, % | without a time | not as expected |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *map(row, levels),
        "",
        "## What it shows",
        "",
        *(f"- {bound(level)}." for level in levels if level.took),
        *(f"- {judging(level)}." for level in levels if level.judging),
    ]
    first = middle(levels[0].half_widths)
    if first and len(levels) > 1:
        widest = max(middle(level.half_widths) for level in levels) / first
        met = "within" if widest <= WIDER else "beyond"
        lines.append(f"- Half-widths grow {widest:.2f} times at most, {met} the goal of {WIDER:g}.")
    for level in levels:
        lines += [f"- {level.agents} at a time, {number} x: {what}" for what, number in level.other.most_common(5)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=list(SOURCES), default="triton")
    parser.add_argument("--agents", default="1,4,16,64", help="numbers of agents, one after the other")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each number of agents")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with NumPy, for Triton with torch")
    parser.add_argument("--markdown", type=Path, help="write the page there too")
    options = parser.parse_args()
    options.agents = [int(number) for number in options.agents.split(",")]
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-verdicts-"))
    folder.chmod(0o711)
    server = Server(folder, None, judge_python=options.judge_python)
    try:
        levels, device = asyncio.run(play(server, options))
    finally:
        server.stop()
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            shutil.rmtree(folder)
    print(page(levels, device, options))


if __name__ == "__main__":
    main()
