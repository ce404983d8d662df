"""Random faults over many jobs of a host behind SSH: every job must end with one truthful record.

`python benchmarks/hosts/faults.py [--jobs 500] [--faults 200] [--seed 1] [--out FILE]`, as root: the disk that is
filled is a tmpfs. The clock that jumps is that of hostd, its jobs' supervisors, the broker and the server.
"""
# ruff: noqa: ASYNC221, ASYNC240  # nothing else runs on its loop but the line

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from faults_server import Journal  # noqa: E402

from gpu_mcp_server.hostd.jobs.job_store import JobStore  # noqa: E402
from gpu_mcp_server.hostd.sandbox.processes import descendants  # noqa: E402
from tests.backends.sshd import Sshd  # noqa: E402

DISK = "192m"
STUCK_S = 120.0


class Line:
    """A port of its own that carries bytes to sshd, and can be cut."""

    def __init__(self, port: int) -> None:
        self._to, self.port = port, 0
        self._ends: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        ours = {writer, back}
        self._ends |= ours
        with contextlib.suppress(OSError):
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        for end in ours:
            end.transport.abort()
        self._ends -= ours

    def cut(self) -> None:
        for end in list(self._ends):
            end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


class Host:
    """The host that things happen to, and the server that uses it."""

    def __init__(self, folder: Path, jobs: int, draw: random.Random) -> None:
        self.folder, self.jobs, self.draw = folder, jobs, draw
        self.disk = folder / "disk"
        self.disk.mkdir(mode=0o711)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=711", "none", str(self.disk)], check=True)
        self.state = self.disk / "state"
        self.clock = folder / "clock"
        self.clock.write_text("+0")
        ssh = folder / "ssh"
        ssh.mkdir(mode=0o755)
        env = {"HOME": str(ssh / "home"), "GPU_MCP_HOSTD_LOCKS": str(folder / "locks"), **self._clock_env()}
        self.sshd = Sshd(ssh, "SetEnv " + " ".join(f"{key}={value}" for key, value in env.items()))
        self.server: subprocess.Popen[bytes] | None = None

    def _clock_env(self) -> dict[str, str]:
        """Return what gives a program the clock that jumps.

        libfaketime 0.9.10 cannot be used: where it leaves CLOCK_MONOTONIC alone, Python's time.sleep fails with EINVAL.
        """
        shim = self.folder / "clock.so"
        if not shim.exists():
            source = Path(__file__).with_name("clock.c")
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
        return {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(self.clock)}

    async def start(self) -> None:
        self.line = Line(self.sshd.port)
        await self.line.start()
        key = self.sshd.host_key.export_public_key().decode().strip()
        self.sshd.known_hosts.write_text(f"[127.0.0.1]:{self.line.port} {key}\n")
        host = self.sshd.settings(port=self.line.port, state_dir=str(self.state), grace_s=60, quiet_s=10)
        about = {"jobs": self.jobs, "host": host.model_dump(mode="json")}
        (self.folder / "about").write_text(json.dumps(about))
        self.serve()

    def serve(self) -> None:
        program = [sys.executable, str(Path(__file__).with_name("faults_server.py")), str(self.folder)]
        with (self.folder / "server.log").open("ab") as log:
            env = {**os.environ, **self._clock_env(), "GPU_MCP_HOSTD_LOCKS": str(self.folder / "locks")}
            self.server = subprocess.Popen(program, env=env, stdout=log, stderr=log)

    def processes(self, word: str = "") -> list[int]:
        """Return the processes of hostd on this host whose command line has a word; supervisors have hostd's own."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if (
                    str(self.sshd.home).encode() in line or str(self.folder / "locks").encode() in line
                ) and word.encode() in line:
                    found.append(int(entry.name))
        return found

    def supervisors(self) -> list[int]:
        pids = (
            [folder.read_notes().get("pid") for folder in JobStore(str(self.state)).unfinished_jobs()]
            if self.state.exists()
            else []
        )
        return [pid for pid in pids if isinstance(pid, int)]

    def kill_one(self, pids: list[int]) -> bool:
        if pids:
            kill(self.draw.choice(pids))
        return bool(pids)

    # each fault: what happens, how long it lasts; False when there was nothing it could happen to

    async def cut_line(self) -> bool:
        self.line.cut()
        return True

    async def stop_sshd(self) -> bool:
        self.sshd.stop()
        await asyncio.sleep(self.draw.uniform(0, 1.5))
        self.sshd.start()
        return True

    async def kill_hostd(self) -> bool:
        sessions = self.sshd.sessions()  # a job's own process has hostd's command line until it has become the job
        return self.kill_one([pid for pid in self.processes("serve") if parent_of(pid) in sessions])

    async def kill_supervisor(self) -> bool:
        return self.kill_one(self.supervisors())

    async def kill_server(self) -> bool:
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        await asyncio.sleep(self.draw.uniform(0, 1))
        self.serve()
        return True

    async def kill_broker(self) -> bool:
        return self.kill_one(self.processes("broker"))

    async def fill_disk(self) -> bool:
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        await asyncio.sleep(self.draw.uniform(0.1, 1.5))
        filler.unlink()
        return True

    async def jump_clock(self) -> bool:
        self.clock.write_text(f"{self.draw.choice([-86400, -3600, -30, 0, 30, 3600, 86400]):+d}")
        return True

    async def reboot(self) -> bool:
        """End everything at once, and come up again a moment later."""
        for _ in range(50):
            pids = {*self.processes(), *self.supervisors(), *self.sshd.sessions()}
            pids |= set(descendants(*pids))
            for number in (signal.SIGSTOP, signal.SIGKILL):  # at once: none sees another die
                for pid in pids:
                    kill(pid, number)
            if not pids:
                break
        await self.stop_sshd()
        return True

    def faults(self) -> dict[str, Callable[[], Awaitable[bool]]]:
        return {
            "line": self.cut_line, "sshd": self.stop_sshd, "hostd": self.kill_hostd, "supervisor": self.kill_supervisor,
            "server": self.kill_server, "broker": self.kill_broker, "disk": self.fill_disk, "reboot": self.reboot,
            "clock": self.jump_clock,
        }  # fmt: skip

    async def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        await self.reboot()
        self.sshd.stop()
        subprocess.run(["umount", "-l", str(self.disk)], check=False)


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def afflict(host: Host, jobs: int, faults: int) -> Counter[str]:
    """Let things happen while jobs run, faults and jobs at one pace; then wait for the last record."""
    counted: Counter[str] = Counter()
    ended = Journal(host.folder / "ended")
    changed_at, seen = time.monotonic(), 0
    names = [name for name in host.faults() for _ in range(-(-faults // len(host.faults())))]
    host.draw.shuffle(names)
    names = names[:faults]
    while len({line["number"] for line in ended.lines()}) < jobs:
        done = len(ended.lines())
        if done > seen:
            changed_at, seen = time.monotonic(), done
        if time.monotonic() > changed_at + STUCK_S:
            print("nothing ends any more", file=sys.stderr)
            break
        assert host.server is not None
        if host.server.poll() is not None:
            counted["the server ended by itself"] += 1
            host.serve()
        happened = sum(counted[name] for name in host.faults())
        write(host.folder / "allowed", str(min(jobs - 1, jobs * (happened + 1) // faults + 6) if names else jobs))
        if names and done >= min(jobs - 8, jobs * happened // faults - 12):
            name = names[0]
            if await host.faults()[name]():
                counted[name] += 1
            else:  # there is nothing that it could happen to: another one instead
                names.append(host.draw.choice(list(host.faults())))
            names.pop(0)
        await asyncio.sleep(host.draw.uniform(0.05, 0.5) if names else 0.2)
    return counted


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def judged(host: Host, jobs: int) -> tuple[Counter[str], list[str]]:
    """Return how jobs ended, and everything that is not as it must be."""
    wrong: list[str] = []
    lines = Journal(host.folder / "ended").lines()
    by_number: dict[int, list[dict[str, object]]] = {}
    for line in lines:
        by_number.setdefault(line["number"], []).append(line)
    wrong += [f"job {n} has no record" for n in range(jobs) if n not in by_number]
    ids = [line["id"] for line in Journal(host.folder / "begun").lines()]
    wrong += [f"{i} was begun {c} times" for i, c in Counter(ids).items() if c > 1]
    for number, said in by_number.items():
        first = said[0]
        wrong += [f"job {number} has two records: {said}" for other in said if other != first]
        wrong += [f"job {number}: {why}" for why in _untrue(number, first)]
        folder = host.state / "jobs" / str(first["id"])
        record = json.loads((folder / "record.json").read_text()) if (folder / "record.json").exists() else {}
        if record.get("status") != first["status"]:
            wrong.append(f"job {number}: its host says {record.get('status')}, we say {first['status']}")
    left = [f.id for f in JobStore(str(host.state)).unfinished_jobs()]
    wrong += [f"{job} still runs" for job in left]
    sleeping = subprocess.run(
        ["pgrep", "-f", r"^sleep 7\d{5}"], capture_output=True, text=True, check=False
    ).stdout.split()
    wrong += [f"process {pid} of a job is left" for pid in sleeping]
    ended = (": ".join(filter(None, (str(said[0]["status"]), str(said[0]["note"])))) for said in by_number.values())
    return Counter(ended), wrong


def _untrue(number: int, said: dict[str, object]) -> list[str]:
    """Return what a record says that is not so."""
    kind, status, stdout = said["kind"], said["status"], str(said["stdout"])
    begin, end = f"begin {number}\n", f"end {number}\n"
    found: list[str] = []
    if said["shown"] != status:
        found.append(f"shown as {said['shown']}, its record says {status}")
    if stdout.count("begin") > 1 or stdout.count("end") > 1:
        found.append("it ran twice")
    if not (begin + end).startswith(stdout):
        found.append(f"its output is torn: {stdout!r}")
    whole = {"fails": begin, "slow": begin}.get(str(kind), begin + end)
    expected = {"fails": "failed", "slow": "timeout"}.get(str(kind), "ok")
    if status == "timeout" and not stdout:
        whole = ""  # on a busy machine its second may be over before it has said a word
    if status == expected and stdout != whole and "disk_full" not in str(said["note"]):
        found.append(f"{status}, but its output is {stdout!r}")
    if status in ("ok", "failed", "timeout") and status != expected and "disk_full" not in str(said["note"]):
        found.append(f"{status} where {expected} is the truth: {said['note']!r}")
    if status not in ("ok", "failed", "timeout") and not said["note"]:
        found.append(f"{status} without a reason")
    return found


def report(counted: Counter[str], ended: Counter[str], wrong: list[str], about: list[str], command: str) -> str:
    lines = [
        "# Random faults",
        "",
        f"Command: `{command}`. {about[0]}",
        *about[1:],
        "",
        "| fault | times |",
        "| --- | --- |",
    ]
    lines += [f"| {name} | {count} |" for name, count in sorted(counted.items())]
    lines += ["", "| outcome | jobs |", "| --- | --- |"]
    lines += [f"| {status} | {count} |" for status, count in sorted(ended.items())]
    lines += ["", "## What it shows", ""]
    lines += [f"- Records that are missing, doubled or untrue, and things left behind: {len(wrong)}."]
    return "\n".join([*lines, *(f"- {one}" for one in wrong[:40]), ""])


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/var/tmp"))
    folder.chmod(0o711)
    write(folder / "allowed", "6")
    load, began = os.getloadavg()[0], time.monotonic()
    host = Host(folder, given.jobs, random.Random(given.seed))
    try:
        await host.start()
        counted = await afflict(host, given.jobs, given.faults)
        ended, wrong = judged(host, given.jobs)
        errors = Counter(str(line["error"]) for line in Journal(folder / "errors").lines())
        about = [
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"load {load:.1f} before the start (shared machine), {datetime.now(UTC):%Y-%m-%d}.",
            f"{given.jobs} jobs, {sum(counted.values())} faults, seed {given.seed}, {time.monotonic() - began:.0f} s; "
            f"what the server met meanwhile: {dict(errors) or 'nothing'}.",
        ]
    finally:
        await host.stop()
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    words = ["python", "benchmarks/hosts/faults.py", *sys.argv[1:]]
    text = report(counted, ended, wrong, about, " ".join(words))
    print(text)
    if given.out:
        given.out.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
