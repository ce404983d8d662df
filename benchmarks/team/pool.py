"""A team's pool: three servers over HTTP, 12 users, 2,000 jobs on 8 GPUs that a file names; then random kill -9.

Everything is real but the GPUs: servers, tokens, hostd, broker, locks, supervisors, sandboxes; each user is a process
with an MCP client of its own. Jobs sleep (0.5 to 10 s, uniform, one in twenty on two GPUs), so the figures depend
little on what else the machine does. What is checked is checked from outside: jobs print the time from within their
sandbox at their begin and end, and the locks are tried by this process.

`python benchmarks/team/pool.py [--jobs 2000] [--chaos 120] [--nice 0] [--out FILE]`
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "toolsets")]

from benchmarks.team.figures import (  # noqa: E402
    CHAOS_SCALE,
    FREE_S,
    GPUS,
    IN_FLIGHT,
    LONGEST_S,
    PAIRS,
    SERVERS,
    SHORTEST_S,
    USERS,
    fairness,
    makespan,
    page,
)
from gpu_mcp_server.hostd.gpus.broker_client import broker_status  # noqa: E402
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks  # noqa: E402
from gpu_mcp_server.hostd.jobs.job_folder import JobFolder  # noqa: E402
from tests.hostd.brokers import broker_pid  # noqa: E402
from tests.hostd.laboratory import processes_with, wrapped  # noqa: E402

BEAT_S = 0.1
KILLS_S = (0.2, 1.2)


@dataclass(frozen=True)
class Work:
    """One job."""

    seconds: float
    gpus: int


def work_of(user: int, jobs: int, scale: float = 1.0) -> list[Work]:
    """Draw a user's jobs."""
    chance = random.Random(1000 + user)
    return [
        Work(round(scale * chance.uniform(SHORTEST_S, LONGEST_S), 3), 2 if chance.random() < PAIRS else 1)
        for _ in range(jobs)
    ]


def script(seconds: float, *, beats: bool) -> str:
    """Return what a job does: say the time, sleep, say the time; with beats also meanwhile."""
    if not beats:
        return f"date +%s.%N; sleep {seconds}; date +%s.%N"
    return f"date +%s.%N; for i in $(seq {math.ceil(seconds / BEAT_S)}); do sleep {BEAT_S}; date +%s.%N; done"


async def be_user(about: dict[str, Any]) -> None:
    """Be one user: keep some jobs asked for until all are done, whatever becomes of the server meanwhile."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    left = [Work(*w) for w in about["work"]]
    log = Path(about["log"]).open("a", buffering=1)  # noqa: ASYNC230, SIM115

    async def some(client: Client) -> None:
        while left:
            work = left.pop(0)
            asked, done = time.time(), False
            try:
                words = ["/bin/sh", "-c", script(work.seconds, beats=about["beats"])]
                limits = {"timeout_s": 4 * work.seconds + 30, "gpus": work.gpus}
                answer = await client.call_tool("run_command", {"command": words, **limits})
                while not answer.is_error and answer.structured_content["state"] != "finished":
                    job = {"job_id": answer.structured_content["job_id"], "wait_s": 240}
                    answer = await client.call_tool("job_status", job)
                found = answer.structured_content or {}
                done = found.get("status") == "ok"
                said = [float(x) for x in found.get("stdout", "").split()]
                about_job = {"asked": asked, "begin": said[0], "end": said[-1], "gpus": found["gpus"]} if done else {}
                why = "" if done else f"{found.get('status')} {found.get('note')} {answer.content if not found else ''}"
                log.write(json.dumps({"user": about["name"], "work": vars(work), **about_job, "why": why}) + "\n")
            finally:
                if not done:
                    left.append(work)

    while left:
        headers = {"Authorization": f"Bearer {about['token']}"}
        try:
            async with httpx2.AsyncClient(headers=headers, timeout=600) as http:
                transport = streamable_http_client(about["url"] + "/mcp", http_client=http)
                async with Client(transport, read_timeout_seconds=600) as client, asyncio.TaskGroup() as group:
                    for _ in range(IN_FLIGHT):
                        group.create_task(some(client))
        except Exception as error:
            log.write(json.dumps({"user": about["name"], "why": f"lost: {str(error)[:100]}"}) + "\n")
            await asyncio.sleep(0.3)  # its server may have been killed


@dataclass
class Team:
    """The servers, the users and what lies below them."""

    folder: Path
    scale: float = 1.0
    beats: bool = False
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list[Any])
    users: list[subprocess.Popen[bytes]] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self.folder.chmod(0o711)
        gpus = self.folder / "gpus.json"
        gpus.write_text(json.dumps([{"uuid": f"GPU-{n}"} for n in range(GPUS)]))
        self.locks = GpuLocks(str(self.folder / "locks"))
        env = {"GPU_MCP_HOSTD_GPUS": str(gpus), "GPU_MCP_HOSTD_LOCKS": self.locks.folder}
        self.python = wrapped(self.folder / "state", env)
        self.ports = [free_port() for _ in range(SERVERS)]
        self.tokens = [asyncio.run(self._token(n)) for n in range(USERS)]
        self.log = self.folder / "log"

    def data(self, server: int) -> Path:
        return self.folder / f"server-{server}"

    def states(self) -> list[Path]:
        return [self.data(n) / "hostd" for n in range(SERVERS)]

    async def _token(self, user: int) -> str:
        from gpu_mcp_server.settings.server_settings import Settings
        from gpu_mcp_server.team.team_services import Team as Users

        data = self.data(user % SERVERS)
        data.mkdir(exist_ok=True)
        data.chmod(0o711)
        async with Users.open(Settings(data_dir=data)) as team:
            await team.users.put(f"user-{user}")
            return (await team.tokens.create(f"user-{user}", ("run",)))[1]

    def serve(self, server: int) -> subprocess.Popen[bytes]:
        """Start a server and wait until it answers."""
        env = dict(
            os.environ, PYTHONPATH=os.pathsep.join(sys.path[:2]), GPU_MCP_DATA_DIR=str(self.data(server)),
            GPU_MCP_INDEX_DOCUMENTATION="false", GPU_MCP_HOSTS__LOCAL__PYTHON=str(self.python),
        )  # fmt: skip
        words = [sys.executable, "-m", "gpu_mcp_server", "serve", "--http", "--port", str(self.ports[server])]
        out = (self.folder / f"server-{server}.log").open("ab")
        process = subprocess.Popen([*words, "--auth", "tokens"], env=env, stdout=out, stderr=out)
        while process.poll() is None:
            with socket.socket() as end:
                if end.connect_ex(("127.0.0.1", self.ports[server])) == 0:
                    return process
            time.sleep(0.05)
        raise SystemExit((self.folder / f"server-{server}.log").read_text()[-2000:])

    def user(self, number: int, work: list[Work]) -> subprocess.Popen[bytes]:
        """Start a user."""
        about = {
            "name": f"user-{number}", "token": self.tokens[number], "log": str(self.log), "beats": self.beats,
            "url": f"http://127.0.0.1:{self.ports[number % SERVERS]}", "work": [[w.seconds, w.gpus] for w in work],
        }  # fmt: skip
        process = subprocess.Popen([sys.executable, __file__, "--user"], stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(about).encode())
        process.stdin.close()
        return process

    def start(self, jobs: int) -> None:
        self.servers = [self.serve(n) for n in range(SERVERS)]
        share = [jobs // USERS + (n < jobs % USERS) for n in range(USERS)]
        self.users = [self.user(n, work_of(n, share[n], self.scale)) for n in range(USERS)]

    def revive(self, chance: random.Random) -> None:
        """Start users and servers anew that were killed."""
        for n, process in enumerate(self.users):
            if process.poll() is not None:
                self.users[n] = self.user(n, work_of(chance.randrange(10**6), 10_000, self.scale))
        for n, process in enumerate(self.servers):
            if process.poll() is not None:
                self.servers[n] = self.serve(n)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def end(self) -> None:
        """End all that was started here, with kill -9."""
        hostds = [pid for server in self.servers for pid in children(server.pid)]
        for process in (*self.users, *self.servers):
            process.kill()
        for process in (*self.users, *self.servers):
            process.wait()
        for pid in hostds:
            kill(pid)

    def taken(self) -> list[str]:
        """Return the GPUs whose locks cannot be had."""
        return [name for name in (f"GPU-{n}" for n in range(GPUS)) if not self.locks.is_free(name, "exclusive")]

    def doubles(self) -> tuple[int, list[str]]:
        """Return how many holds of GPUs there were by what the jobs printed, and where two overlapped."""
        held: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for state in self.states():
            for path in (state / "jobs").glob("j-*"):
                folder = JobFolder(str(path))
                final, live = folder.read_json("record.json") or {}, folder.read_notes().get("live") or {}
                gpus = final.get("gpus") or live.get("gpus")
                said = [float(x) for x in folder.read("main", "stdout", 0, 1 << 20).split() if x.count(b".") == 1]
                for gpu in gpus or () if said else ():
                    held[gpu].append((said[0], said[-1], path.name))
        found: list[str] = []
        for gpu, times in held.items():
            times.sort()
            found += [f"{gpu}: {a} and {b}" for a, b in itertools.pairwise(times) if b[0] < a[1]]
        return sum(map(len, held.values())), found


def free_port() -> int:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def calm(folder: Path, jobs: int) -> dict[str, object]:
    """Let all jobs run; say what was seen."""
    team = Team(folder)
    team.start(jobs)
    try:
        for process in team.users:
            process.wait()
        held = team.doubles()
    finally:
        team.end()
    lines = team.lines()
    done = [x for x in lines if "end" in x]
    failed = [x["why"] for x in lines if "end" not in x]
    return {
        "jobs done": f"{len(done)} of {jobs}",
        "jobs or calls that failed": f"{len(failed)} {failed[:3] or ''}",
        **makespan(done),
        **fairness(done),
        **doubled(*held),
    }


def doubled(count: int, doubles: list[str]) -> dict[str, object]:
    """Say whether two ever held one GPU."""
    return {"two holders of one GPU at once": f"{len(doubles)} {doubles[:3] or ''} in {count} holds, by their stamps"}


def victims(team: Team) -> dict[str, list[int]]:
    """Return what may be killed, by what it is."""
    newest = [JobFolder(str(p)) for s in team.states() for p in sorted((s / "jobs").glob("j-*"))[-100:]]
    supervisors = [folder.read_notes().get("pid") for folder in newest if folder.is_alive()]
    broker = broker_pid(team.locks)
    return {
        "clients": [p.pid for p in team.users],
        "servers": [p.pid for p in team.servers],
        "hostd": [pid for p in team.servers for pid in children(p.pid)],
        "brokers": [broker] if broker else [],
        "supervisors": [pid for pid in supervisors if isinstance(pid, int)],
    }


def chaos(folder: Path, seconds: float) -> dict[str, object]:
    """Kill at random for a while, then everything at once; say what leaked."""
    team, chance = Team(folder, CHAOS_SCALE, beats=True), random.Random(23)
    team.start(100_000)
    killed: dict[str, int] = defaultdict(int)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            time.sleep(chance.uniform(*KILLS_S))
            kind = chance.choice(("clients", "servers", "hostd", "brokers", "supervisors", "supervisors"))
            pids = victims(team)[kind]
            killed[kind] += bool(pids) and kill(chance.choice(pids))
            team.revive(chance)
        waiting = broker_status(team.locks).get("all_waiting", 0)
    finally:
        team.end()
    return {
        "killed": ", ".join(f"{n} {kind}" for kind, n in sorted(killed.items())),
        "jobs done meanwhile": sum("end" in x for x in team.lines()),
        "in line when servers, hostds and users were all killed": waiting,
        **leaks(team),
        **doubled(*team.doubles()),
    }


def leaks(team: Team) -> dict[str, object]:
    """Say how long after the end of everything something is left of it."""
    ended, free_at, gone_at = time.monotonic(), None, None
    while time.monotonic() - ended < 60.0 and (free_at is None or gone_at is None):
        free_at = free_at or (None if team.taken() else time.monotonic() - ended)
        left = [pid for pid in processes_with(str(team.folder)) if pid != broker_pid(team.locks)]
        gone_at = gone_at or (None if left else time.monotonic() - ended)
        time.sleep(0.02)
    show = broker_status(team.locks)
    free = f"{free_at:.2f} s (goal <= {FREE_S:.0f} s)" if free_at is not None else f"never: {team.taken()}"
    return {
        "all locks free after": free,
        "no process left but the broker after": f"{gone_at:.2f} s" if gone_at is not None else "never",
        "left in the broker's books": f"{len(show.get('leases', []))} leases, {show.get('all_waiting', 0)} in line",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--user", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--chaos", type=float, default=120.0, help="seconds")
    parser.add_argument("--nice", type=int, default=0, help="below 0 it goes before other work of the machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.user:
        asyncio.run(be_user(json.load(sys.stdin)))
        return
    load = os.getloadavg()[0]
    if options.nice:
        os.nice(options.nice)
    seen: list[tuple[str, dict[str, object]]] = []
    for title, part, size in (("All jobs", calm, options.jobs), ("Random kill -9", chaos, options.chaos)):
        if size:
            with tempfile.TemporaryDirectory(prefix="gpu-mcp-team-", ignore_cleanup_errors=True) as name:
                try:
                    seen.append((title, part(Path(name), size)))
                finally:
                    pid = broker_pid(GpuLocks(f"{name}/locks"))
                    if pid is not None:
                        kill(pid)
    text = page(seen, load)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
