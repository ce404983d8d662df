"""A team on one server: many clients connected, some of them busy, mixed calls over HTTP for minutes.

Starts `serve --http` with users and tokens, keeps its processes to one core and its jobs to another, opens real MCP
clients of both eras, each with its stream for notifications, and lets some of them work: look, write and read files,
search, compile, run, judge C kernels, cancel. Some of them work through a bridge, and push their files. Says how long
each tool took, what failed that was not asked for, whether every job came to its end, how the server's memory went, and
what wrong tokens cost.

    python benchmarks/team/load.py                                  # 200 clients, 50 active, 10 minutes
    python benchmarks/team/load.py --clients 40 --active 10 --seconds 60 --markdown -
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.team.person import Person, Tally  # noqa: E402
from tests.laboratory import PROBLEM  # noqa: E402

BOUND_P99_MS = 250.0
"""Of gpu_status."""
BOUND_GROWTH = 0.05
"""Of the server's memory over the second half."""
USERS = 10
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Server:
    """`serve --http` as a process of its own, its jobs on another core."""

    def __init__(self, folder: Path, cores: tuple[str, str] | None, judge_python: str = sys.executable) -> None:
        self.folder = folder
        python = sys.executable
        self.prefix: list[str] = []
        if cores is not None:
            self.prefix = ["taskset", "-c", cores[0]]
            wrapper = folder / "python-of-jobs"
            wrapper.write_text(f'#!/bin/sh\nexec taskset -c {cores[1]} {sys.executable} "$@"\n')
            wrapper.chmod(0o755)
            python = str(wrapper)
        hosts = {"local": {"kind": "local", "python": python, "judge_python": judge_python}}
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("GPU_MCP_")},
            "GPU_MCP_DATA_DIR": str(folder / "data"), "GPU_MCP_HOSTS": json.dumps(hosts), "HOME": str(folder),
            "GPU_MCP_MIN_LEVEL": "namespaces", "GPU_MCP_TOOLSETS": "default,team",
        }  # fmt: skip
        self.process: subprocess.Popen[str] | None = None

    def command(self, *arguments: str) -> str:
        """Run a command of ours on the server's store."""
        done = subprocess.run(
            [sys.executable, "-m", "gpu_mcp_server", *arguments],
            capture_output=True, text=True, env=self.environment, cwd=ROOT, check=True,
        )  # fmt: skip
        return done.stdout

    def start(self) -> str:
        """Start it and return its address."""
        log = (self.folder / "log").open("w")
        self.process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "gpu_mcp_server", "serve", "--http", "127.0.0.1:0"],
            stderr=log, env=self.environment, cwd=ROOT, text=True,
        )  # fmt: skip
        while True:
            found = re.search(r"Uvicorn running on (http://127\.0\.0\.1:\d+)", (self.folder / "log").read_text())
            if found:
                return found[1]
            if self.process.poll() is not None:
                raise SystemExit((self.folder / "log").read_text())
            time.sleep(0.05)

    def memory(self) -> tuple[int, int]:
        """Return the bytes that the server holds, and those of the host side with all its jobs."""
        assert self.process is not None
        family = {self.process.pid: private_bytes(self.process.pid)}
        parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
        for _ in range(6):
            for pid, parent in parents.items():
                if parent in family and pid not in family:
                    family[pid] = private_bytes(pid)
        return family[self.process.pid], sum(size for pid, size in family.items() if pid != self.process.pid)

    def stop(self) -> None:
        """Drain and end it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)


def private_bytes(pid: int) -> int:
    """Return the anonymous memory of a process. Source: proc_pid_status(5), RssAnon."""
    with contextlib.suppress(OSError):
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


async def watched(server: Server, tally: Tally, began: float) -> None:
    """Note the memory once a second."""
    while True:
        tally.memory.append((time.monotonic() - began, *await asyncio.to_thread(server.memory)))
        await asyncio.sleep(1)


async def lost_jobs(url: str, tally: Tally) -> Counter[str]:
    """Ask for every job that was started; return how each ended."""
    ends: Counter[str] = Counter()
    by_token: dict[str, list[str]] = defaultdict(list)
    for job_id, token in tally.jobs.items():
        by_token[token].append(job_id)
    for token, jobs in by_token.items():
        person = Person(url, token, 0, Tally(), "")
        async with person.connected():
            for job_id in jobs:
                status = await person.call("job_status", job_id=job_id, wait_s=60)
                ends[status.get("status") or status.get("state") or "LOST"] += 1
    return ends


async def wrong_tokens(url: str, token: str, number: int) -> tuple[Counter[int], set[str], float]:
    """Send wrong tokens, half of them with a name that there is; return the statuses, what was said, and seconds."""
    statuses: Counter[int] = Counter()
    said: set[str] = set()
    names = [token.rpartition("_")[0], "gpumcp_" + "0" * len(token.split("_")[1])]
    turn = asyncio.Semaphore(20)
    chance = random.Random(0)

    async def one(http: httpx2.AsyncClient, number: int) -> None:
        secret = "".join(chance.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", k=43))
        async with turn:
            answer = await http.post(
                "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
                headers={"Authorization": f"Bearer {names[number % 2]}_{secret}"},
            )  # fmt: skip
        statuses[answer.status_code] += 1
        said.add(answer.text)

    began = time.perf_counter()
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        for start in range(0, number, 500):
            await asyncio.gather(*(one(http, i) for i in range(start, min(number, start + 500))))
    return statuses, said, time.perf_counter() - began


def growth(samples: list[int]) -> float:
    """Return how much the last tenth is above the first tenth, by medians."""
    part = max(1, len(samples) // 10)
    first, last = statistics.median(samples[:part]), statistics.median(samples[-part:])
    return last / first - 1 if first else 0.0


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def measured(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Run the whole of it."""
    tokens = [
        json.loads(server.command("token", "create", f"user{n}", "--scope", "run", "--json"))["token"]
        for n in range(USERS)
    ]
    url = server.start()
    tally = Tally()
    first = Person(url, tokens[0], 0, tally, "")
    async with first.connected():
        problems = [(await first.call("register_problem", **PROBLEM))["problem_id"]]
    people: list[Person] = []
    for token in tokens[1:]:
        person = Person(url, token, 1, tally, "")
        async with person.connected():
            problems.append((await person.call("register_problem", **PROBLEM))["problem_id"])
    async with contextlib.AsyncExitStack() as stack:
        step = max(1, options.clients // options.active)
        bridged = range(0, options.clients, step)[: options.bridges]
        for number in range(options.clients):
            user = number % USERS
            laptop = server.folder / "laptops" / str(number) if number in bridged else None
            person = Person(url, tokens[user], number, tally, problems[user], laptop)
            await stack.enter_async_context(person.connected())
            people.append(person)
        print(f"{len(people)} clients are connected", file=sys.stderr)
        await people[0].look()
        await people[0].documents()  # loads the index; both are then as they are for the rest of the day
        tally.took.clear()
        began = time.monotonic()
        watcher = asyncio.create_task(watched(server, tally, began))
        until = began + options.seconds
        chosen = people[::step][: options.active]
        await asyncio.gather(*(person.work(until, options.think_s) for person in chosen))
        lasted_s = time.monotonic() - began
        watcher.cancel()
        ends = await lost_jobs(url, tally)
    refused, said, refusing_s = await wrong_tokens(url, tokens[0], options.wrong_tokens)
    half = [sample for sample in tally.memory if sample[0] > lasted_s / 2]
    calls = sum(len(times) for times in tally.took.values())
    return {
        "clients": len(people), "bridges": len(bridged), "active": len(chosen), "seconds": lasted_s,
        "think_s": options.think_s, "calls": calls,
        "tools": {
            tool: {
                "calls": len(t), "p50_ms": quantile(t, 0.5) * 1e3, "p95_ms": quantile(t, 0.95) * 1e3,
                "p99_ms": quantile(t, 0.99) * 1e3, "max_ms": max(t) * 1e3,
            }
            for tool, t in sorted(tally.took.items())
        },
        "wrong": dict(tally.wrong.most_common(20)), "jobs": len(tally.jobs), "job_ends": dict(ends),
        "server_mib": [s[1] / 2**20 for s in tally.memory], "host_side_mib": [s[2] / 2**20 for s in tally.memory],
        "server_growth": growth([s[1] for s in half]), "host_side_growth": growth([s[2] for s in half]),
        "wrong_tokens": {"statuses": dict(refused), "different_answers": len(said), "seconds": refusing_s},
    }  # fmt: skip


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    """Hold what was found against the goals."""
    status = found["tools"].get("gpu_status", {})
    return {
        "no error that was not asked for": not found["wrong"],
        "no lost job": not set(found["job_ends"]) - {"ok", "cancelled"},
        f"server's memory grows <= {BOUND_GROWTH:.0%} in the second half": found["server_growth"] <= BOUND_GROWTH,
        f"gpu_status p99 <= {BOUND_P99_MS:g} ms": status.get("p99_ms", 1e9) <= BOUND_P99_MS,
        "wrong tokens get 401 and nothing else": set(found["wrong_tokens"]["statuses"]) <= {401}
        and found["wrong_tokens"]["different_answers"] <= 1,
    }


def page(found: dict[str, Any]) -> str:
    """Return the result as a page."""
    rate = found["calls"] / found["seconds"]
    about = [
        f"Command: `python benchmarks/team/load.py {' '.join(sys.argv[1:])}`. {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}.",
        f"{found['clients']} clients are connected (half of each era), {found['active']} active, {found['bridges']} of "
        f"them through a bridge, for {found['seconds']:.0f} s with {found['think_s']:g} s between calls.",
        "The server keeps to one core. The host side, its jobs and the clients share the other, so the times include "
        "the clients' own waiting.",
    ]
    lines = [
        "# A team on one server",
        "",
        *about,
        "",
        "## Are the goals met?",
        "",
        "| goal | |",
        "| --- | --- |",
        *(f"| {goal} | {'met' if met else '**missed**'} |" for goal, met in verdicts(found).items()),
        "",
        "## How long does a call take?",
        "",
        "| tool | calls | p50 ms | p95 ms | p99 ms | max ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {tool} | {t['calls']} | {t['p50_ms']:.0f} | {t['p95_ms']:.0f} | {t['p99_ms']:.0f} | {t['max_ms']:.0f} |"
            for tool, t in found["tools"].items()
        ),
        "",
        "## What it shows",
        "",
        f"- The server answered {found['calls']} calls, {rate:.1f} a second.",
        f"- {found['jobs']} jobs ended: {json.dumps(found['job_ends'])}.",
    ]
    for name, key in (("the server", "server"), ("the host side with its jobs", "host_side")):
        samples = found[f"{key}_mib"]
        lines.append(
            f"- Anonymous memory of {name}: {samples[0]:.0f} MiB at first, {statistics.median(samples):.0f} in the "
            f"median, {samples[-1]:.0f} at the end; second half {found[f'{key}_growth']:+.1%}."
        )
    wrong = found["wrong_tokens"]
    lines.append(
        f"- {sum(wrong['statuses'].values())} wrong tokens in {wrong['seconds']:.1f} s, half of them with the name of "
        f"a real token: statuses {json.dumps(wrong['statuses'])}, distinct answers: {wrong['different_answers']}."
    )
    if found["wrong"]:
        lines += ["", "What failed:", "", *(f"- {number} x {what}" for what, number in found["wrong"].items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it and say what was found; exit code 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--active", type=int, default=50)
    parser.add_argument("--bridges", type=int, default=20, help="of the active ones that work through `connect`")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--think-s", type=float, default=2.0, help="mean pause between two things to do")
    parser.add_argument("--wrong-tokens", type=int, default=10_000)
    parser.add_argument("--cores", default="0,1", help="core of the server, core of everything else; '' for none")
    parser.add_argument("--json", type=Path, help="write what was found")
    parser.add_argument("--markdown", help="write the page; - for stdout")
    options = parser.parse_args()
    cores = tuple(options.cores.split(",")) if options.cores else None
    if cores is not None:
        os.sched_setaffinity(0, {int(cores[1])})
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-load-"))
    folder.chmod(0o711)
    server = Server(folder, cores)  # pyright: ignore[reportArgumentType]
    try:
        found = asyncio.run(measured(server, options))
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    text = page(found)
    if options.markdown and options.markdown != "-":
        Path(options.markdown).write_text(text)
    print(text)
    sys.exit(0 if all(verdicts(found).values()) else 1)


if __name__ == "__main__":
    main()
