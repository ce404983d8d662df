"""Size of the team's pool, and figures of a run: makespan, fairness, waits; as the page of results."""

import itertools
import os
import platform
import sys
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

GPUS, USERS, SERVERS, IN_FLIGHT = 8, 12, 3, 10
SHORTEST_S, LONGEST_S, PAIRS = 0.5, 10.0, 0.05
GOAL, FAIR, FREE_S = 0.95, 0.95, 10.0
CHAOS_SCALE = 0.1
"""Jobs are so much shorter while processes are killed, so that there are many."""


def jain(values: list[float]) -> float:
    """Return Jain's index. Source: Jain, Chiu, Hawe, DEC TR-301 (1984)."""
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))


def makespan(done: list[dict[str, Any]]) -> dict[str, object]:
    """Compare the time that all jobs took with the least that is possible."""
    asked, began = min(x["asked"] for x in done), min(x["begin"] for x in done)
    ended = max(x["end"] for x in done)
    total = sum(x["work"]["seconds"] * x["work"]["gpus"] for x in done)
    longest = max(x["work"]["seconds"] for x in done)
    least = max(total / GPUS, longest)
    between = handed_over(done)
    return {
        "GPU seconds of sleep": f"{total:.0f}, longest job {longest:.2f} s",
        "least possible": f"{least:.1f} s",
        "makespan": f"{ended - asked:.1f} s; the least possible is {least / (ended - asked):.3f} of it, goal >= {GOAL}",
        "from the first job's begin": f"{ended - began:.1f} s; {least / (ended - began):.3f} (the first calls open the "
        "servers' laboratories, which look at the host's compilers)",
        "from a job's end to the next one's begin on a GPU": f"median {between[len(between) // 2]:.3f} s, "
        f"p90 {between[int(0.9 * len(between))]:.3f} s",
    }


def handed_over(done: list[dict[str, Any]]) -> list[float]:
    """Return the seconds between two jobs on one GPU, sorted."""
    by_gpu: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for x in done:
        for gpu in x["gpus"]:
            by_gpu[gpu].append((x["begin"], x["end"]))
    return sorted(b[0] - a[1] for times in by_gpu.values() for a, b in itertools.pairwise(sorted(times)))


def fairness(done: list[dict[str, Any]]) -> dict[str, object]:
    """Say who got how much while all competed alike: until the first user had nothing left in line."""
    names = [f"user-{n}" for n in range(USERS)]
    began = min(x["asked"] for x in done)
    alike = min(max(x["begin"] for x in done if x["user"] == name) for name in names)
    got = [
        sum(max(0.0, min(x["end"], alike) - x["begin"]) * len(x["gpus"]) for x in done if x["user"] == name)
        for name in names
    ]
    waits = sorted(x["begin"] - x["asked"] for x in done)
    bound = IN_FLIGHT * LONGEST_S * USERS / GPUS
    return {
        "Jain's index": f"{jain(got):.4f} (goal >= {FAIR}) over {alike - began:.0f} s in which all had jobs in line",
        "GPU seconds of each user then": ", ".join(f"{v:.0f}" for v in sorted(got)),
        "wait": f"median {waits[len(waits) // 2]:.1f} s, worst {waits[-1]:.1f} s",
        "bound of the wait": f"{bound:.0f} s: {IN_FLIGHT} jobs of {LONGEST_S:.0f} s in line for each of {USERS} users, "
        f"{GPUS} GPUs",
    }


def page(seen: list[tuple[str, dict[str, object]]], load: float) -> str:
    """Return what was seen, with what it was seen on."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    lines = [
        "# The team's pool",
        "",
        f"Command: `{' '.join(['python', 'benchmarks/team/pool.py', *sys.argv[1:]])}`. Shared machine, {machine}, "
        f"Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d},",
        f"load {load:.1f} before the start, {os.getloadavg()[0]:.1f} at the end.",
        "",
        f"{SERVERS} servers over HTTP on one host with {GPUS} GPUs that a file names, {USERS} users with tokens,",
        f"each a process with an MCP client that keeps {IN_FLIGHT} jobs asked for. Jobs sleep in the full sandbox, "
        f"{SHORTEST_S} to {LONGEST_S:.0f} s, uniform,",
        f"{PAIRS:.0%} on two GPUs, the rest on one, all exclusive; times are not scaled, but for the kills, where jobs",
        f"are {CHAOS_SCALE} as long. Sleeping jobs depend little on the load; what lies between two jobs does.",
    ]
    for title, found in seen:
        rows = [f"| {key} | {value} |" for key, value in found.items()]
        lines += ["", f"## {title}", "", "| what | measured |", "| --- | --- |", *rows]
    return "\n".join([*lines, "", "## What it shows", "", ""])
