"""Costs of the server itself, each figure beside its yardstick in one run: `make bench`.

Prints one table and, with --json PATH, writes the samples. Needs no GPU. Nothing is asserted here; the bounds are the
project's goals.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from gpu_mcp_server.hostd.protocol import JobSpec, Limits, ProcessSpec
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

ROOT = Path(__file__).parents[1]
SERVER = [sys.executable, "-m", "gpu_mcp_server"]
BARE = """
from mcp.server import MCPServer
server = MCPServer("bare")
@server.tool()
async def nothing(text: str) -> str:
    "Return the text."
    return text
server.run("stdio")
"""
SPACE_S = 0.3
THINKING_S = 2.0
"""Between evaluations: less than an agent takes to write a candidate, enough to make the judge's sandboxes."""
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}
SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 512, "cols": 1023}, {"rows": 1024, "cols": 4096}]


def start_to_tools_list(command: list[str], env: dict[str, str]) -> float:
    """Return seconds from the start of a server to its answer to tools/list, over raw stdio."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )
    assert process.stdin and process.stdout
    client = {"name": "bench", "version": "0"}
    first = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": first},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    process.stdin.write(b"".join(json.dumps(m).encode() + b"\n" for m in messages))
    process.stdin.flush()
    while json.loads(process.stdout.readline()).get("id") != 2:
        pass
    took = time.perf_counter() - began
    process.stdin.close()
    process.wait()
    return took


def plain(argv: list[str]) -> float:
    """Return seconds of one plain exec."""
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


async def timed_call(client: Client, tool: str, arguments: dict[str, Any]) -> tuple[float, Any]:
    """Return seconds of a call and its result."""
    began = time.perf_counter()
    result = await client.call_tool(tool, arguments)
    took = time.perf_counter() - began
    if result.is_error:
        raise SystemExit(f"{tool}: {result.content}")
    return took, result.structured_content


async def calls(env: dict[str, str], repeats: int) -> dict[str, list[float]]:
    """Time tools against one warm server."""
    found: dict[str, list[float]] = {"gpu_status": [], "warm": [], "plain true": []}
    async with Client(StdioServerParameters(command=SERVER[0], args=SERVER[1:], env=env)) as client:
        for _ in range(5):
            await client.call_tool("gpu_status", {})
            await client.call_tool("run_command", {"command": ["true"]})
        for _ in range(repeats):
            found["gpu_status"].append((await timed_call(client, "gpu_status", {}))[0])
            await asyncio.sleep(SPACE_S)  # as an agent's calls come: a sandbox has been made meanwhile
            found["plain true"].append(plain(["true"]))
            found["warm"].append((await timed_call(client, "run_command", {"command": ["true"]}))[0])
        problem = {
            "name": "softmax",
            "reference": (ROOT / "examples/softmax/reference.py").read_text(encoding="utf-8"),
            "inputs": [{"name": "x", **TENSOR}],
            "outputs": [{"name": "y", **TENSOR}],
            "shapes": SHAPES,
            "rtol": 1e-4,
            "atol": 1e-6,
        }
        _, registered = await timed_call(client, "register_problem", problem)
        source = (ROOT / "examples/softmax/vectorized.c").read_text(encoding="utf-8")
        arguments = {"problem_id": registered["problem_id"], "source": source, "language": "c"}
        arguments["timing"] = {"fresh": True}
        await timed_call(client, "evaluate_kernel", arguments)
        for _ in range(max(3, repeats // 20)):
            await asyncio.sleep(THINKING_S)
            took, verdict = await timed_call(client, "evaluate_kernel", arguments)
            own = await own_seconds(client, verdict["evidence_artifact_id"])
            found.setdefault("evaluate_kernel whole", []).append(took)
            found.setdefault("evaluate_kernel candidate and reference", []).append(own)
            found.setdefault("evaluate_kernel besides", []).append(took - own)
    return found


async def first_status(env: dict[str, str], times: int) -> list[float]:
    """Time the first gpu_status of servers that just started, each with a store of its own: its host is not known."""
    found: list[float] = []
    for number in range(times):
        own = {**env, "GPU_MCP_DATA_DIR": f"{env['GPU_MCP_DATA_DIR']}/first-{number}"}
        async with Client(StdioServerParameters(command=SERVER[0], args=SERVER[1:], env=own)) as client:
            found.append((await timed_call(client, "gpu_status", {}))[0])
    return found


async def cold(folder: Path, repeats: int) -> list[float]:
    """Time the same job where no sandbox made ahead of time fits it, through the services that run_command uses."""
    found: list[float] = []
    async with Lab.open(Settings(data_dir=folder)) as lab:
        for _ in range(repeats):
            await asyncio.sleep(SPACE_S / 4)
            process = ProcessSpec(argv=("true",))
            spec = JobSpec(id=new_job_id(), processes=(process,), limits=Limits(tmp_bytes=32 << 20))
            began = time.perf_counter()
            await lab.jobs.runner.run(spec, host="local")
            found.append(time.perf_counter() - began)
    return found


async def own_seconds(client: Client, artifact_id: str) -> float:
    """Return what candidate and reference themselves ran in one evaluation, as the owner's clock saw it."""
    read = await client.read_resource(f"artifact://{artifact_id}")
    seconds = json.loads(getattr(read.contents[0], "text", "{}"))["evidence"]["seconds"]
    return float(seconds["candidate"]) + float(seconds["reference"])


def row(name: str, samples: list[float], goal: str = "") -> list[str]:
    """Return a line of the table."""
    ms = sorted(1e3 * s for s in samples)
    p95 = ms[min(len(ms) - 1, round(0.95 * (len(ms) - 1)))]
    return [name, f"{statistics.median(ms):.2f}", f"{ms[0]:.2f}-{p95:.2f}", str(len(ms)), goal]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-bench-"))
    folder.chmod(0o711)
    env = {**os.environ, "GPU_MCP_DATA_DIR": str(folder)}
    try:
        ours: list[float] = []
        bare: list[float] = []
        for _ in range(10):
            bare.append(start_to_tools_list([sys.executable, "-c", BARE], env))
            ours.append(start_to_tools_list(SERVER, env))
        found = asyncio.run(calls(env, options.repeats))
        found["cold"] = asyncio.run(cold(folder, options.repeats))
        found["first gpu_status"] = asyncio.run(first_status(env, 7))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    base = statistics.median(found["plain true"])
    lines = [
        ["what", "median ms", "min-p95 ms", "n", "goal"],
        row("start to tools/list", ours, "<= 1500"),
        row("  bare SDK server", bare, f"ratio {statistics.median(ours) / statistics.median(bare):.2f} (<= 2)"),
        row("gpu_status, first", found["first gpu_status"], "<= 2000"),
        row("gpu_status, warm", found["gpu_status"], "<= 5"),
        row("plain exec of true", found["plain true"]),
        row("run_command true over it, sandbox made ahead", [s - base for s in found["warm"]], "<= 6"),
        row("run_command true over it, sandbox made now", [s - base for s in found["cold"]], "<= 25"),
        row("evaluate_kernel softmax.c, compile cached", found["evaluate_kernel whole"]),
        row("  candidate and reference themselves", found["evaluate_kernel candidate and reference"]),
        row("  besides them", found["evaluate_kernel besides"], "<= 1000"),
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    now = f"{datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.2f}"
    head = f"{now}, {machine}, Python {platform.python_version()}"
    aligned = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    text = "\n".join([head, *aligned])
    print(text)
    if options.json:
        options.json.write_text(
            json.dumps({"about": head, "seconds": {"start": ours, "bare": bare, **found}}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
