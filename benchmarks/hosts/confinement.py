"""Measure confinement by kind of host: sandbox level, limits, how candidates are stopped, confirmed times.

`python benchmarks/hosts/confinement.py [--verdicts 4] [--only WORD] [--out FILE]`, as root. Each row starts a hostd in
surroundings made for it: mounts in a namespace of its own, an ordinary user, groups that were handed over. Two hostile
jobs show whether the limits on memory and processes hold. A softmax in plain C shows whether times are confirmed.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "toolsets")]

from gpu_mcp_server.backends.docker import DockerBackend  # noqa: E402
from gpu_mcp_server.backends.hostd_client import HostdClient  # noqa: E402
from gpu_mcp_server.models.problem import TensorSpec  # noqa: E402
from gpu_mcp_server.services.builds.candidate_source import CandidateSource  # noqa: E402
from tests.backends.dockerd import DOCKERD, Dockerd  # noqa: E402
from tests.hostd.laboratory import Laboratory  # noqa: E402
from tests.laboratory import laboratory  # noqa: E402

UID = 61500
AS_USER = f"setpriv --reuid {UID} --regid {UID} --clear-groups"
GROUPS = Path("/sys/fs/cgroup")
NO_GROUPS = f"umount -R {GROUPS}"
UNIFIED = f"{NO_GROUPS} && mount -t cgroup2 none {GROUPS}"
NO_BWRAP = "mount --bind /dev/null $(command -v bwrap)"
HANDED_OVER = ("memory", "pids", "cpu", "cpuacct", "freezer", "unified")
CHILD_S = 280
MIB = 1 << 20
LIMITS = {"memory_bytes": 192 * MIB, "processes": 24, "wall_s": 20.0}

EAT = """
import os, time
held = []
for _ in range(64):
    held.append(bytearray(b"x" * (16 << 20)))
    print(len(held) * 16, flush=True)
    time.sleep(0.01)
"""
FORK = """
import os, signal
born = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            signal.pause()
    except OSError:
        break
    born += 1
    os.write(1, b"%d\\n" % born)
"""


@dataclass(frozen=True)
class Surroundings:
    """One kind of host, as a shell makes it of this machine."""

    name: str
    mounts: str = ""
    user: bool = False
    groups: bool = False
    """Whether control groups are handed over to the user."""


KINDS = (
    Surroundings("root, cgroup v1 beside v2"),
    Surroundings("root, v2 without memory and pids", UNIFIED),
    Surroundings("root, no control groups", NO_GROUPS),
    Surroundings("root, no bubblewrap", NO_BWRAP),
    Surroundings("ordinary user, cgroup v1 not delegated", user=True),
    Surroundings("ordinary user, cgroup v1 and v2 delegated", user=True, groups=True),
    Surroundings("ordinary user, v2 not delegated", UNIFIED, user=True),
    Surroundings("ordinary user, no control groups", NO_GROUPS, user=True),
    Surroundings("ordinary user, no bubblewrap", NO_BWRAP, user=True),
)


@contextmanager
def handed_over(wanted: bool) -> Generator[str]:
    """Make groups that belong to the user; yield the shell command that enters them."""
    if not wanted:
        yield ""
        return
    made = [GROUPS / name / f"confinement-{os.getpid()}" for name in HANDED_OVER if (GROUPS / name).is_dir()]
    for group in made:
        group.mkdir()
        for path in [group, *group.iterdir()]:
            os.chown(path, UID, UID)
    try:
        yield " && ".join(f"echo $$ > {group}/cgroup.procs" for group in made)
    finally:
        for group in made:
            for folder in sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
                folder.rmdir()
            group.rmdir()


def look_at(kind: Surroundings, verdicts: int) -> dict[str, Any]:
    """Return what a program in these surroundings found."""
    with tempfile.TemporaryDirectory(prefix="confinement-") as text, handed_over(kind.groups) as enter:
        os.chmod(text, 0o711)  # noqa: PTH101
        home = Path(text) / "home"
        home.mkdir(mode=0o755)
        if kind.user:
            os.chown(home, UID, UID)
        inside = f"{AS_USER if kind.user else ''} {sys.executable} {Path(__file__).resolve()} --here {home} {verdicts}"
        script = " && ".join(filter(None, [kind.mounts, enter, f"exec {inside.strip()}"]))
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
        environment["GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON"] = sys.executable
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            capture_output=True, text=True, env=environment, timeout=CHILD_S, check=False, cwd="/",
        )  # fmt: skip
    if done.returncode:
        return {"failed": (done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


async def limits_of(lab: Laboratory) -> dict[str, Any]:
    """Run the hostile jobs; return how each ended."""
    found: dict[str, Any] = {"level": lab.level, "why": lab.weaker_because}
    for name, script in (("memory", EAT), ("processes", FORK)):
        done = await lab.python(script, limits=LIMITS)
        reached = done.text.split()[-1:] or ["0"]
        found[name] = [str(done.record.status), int(reached[0])]
    return found


async def verdicts_of(times: int) -> dict[str, Any]:
    """Judge a softmax; return how the candidate was stopped, and how many times were confirmed."""
    matrix = {"shape": ["rows", "cols"], "dtype": "float32"}
    examples = ROOT / "examples" / "softmax"
    found: dict[str, Any] = {"freeze": "", "timed": 0, "confirmed": 0, "verdicts": []}
    async with laboratory(min_level="landlock") as lab:
        problem = await lab.evaluation.registry.register(
            name="softmax", reference=(examples / "reference.py").read_text(), entry="softmax", rtol=1e-4, atol=1e-5,
            inputs=[TensorSpec.model_validate({"name": "x", **matrix})],
            outputs=[TensorSpec.model_validate({"name": "y", **matrix})], shapes=[{"rows": 64, "cols": 256}],
        )  # fmt: skip
        for number in range(times):
            source = CandidateSource(f"{(examples / 'naive.c').read_text()}\n// {number}\n", "c", "softmax.c")
            told = await lab.evaluation.evaluator.evaluate(problem.problem_id, source)
            found["freeze"] = (told.evidence or {}).get("freeze", "")
            found["timed"] += told.speedup is not None
            found["confirmed"] += told.speedup is not None and not told.unconfirmable()
            found["verdicts"].append(str(told.verdict))
    return found


async def look_here(home: Path, times: int) -> None:
    """Look at the host that this process is on, and print what was found."""
    lab = await Laboratory.open(home / "state")
    try:
        found = await limits_of(lab)
    finally:
        await lab.close()
    print(json.dumps({**found, **await verdicts_of(times)}))


async def look_at_docker() -> dict[str, Any]:
    """Look at a container of a dockerd started for it; no verdict, as its image has no NumPy."""
    daemon = Dockerd()
    try:
        if why := daemon.started():
            return {"failed": why[:200]}
        backend = DockerBackend("confinement", daemon.settings(memory_bytes=2 << 30))
        lab = Laboratory(await HostdClient.open(backend), Path("/state"))
        try:
            return await limits_of(lab)
        finally:
            await lab.close()
            await backend.remove()
    finally:
        daemon.stop()


def row(name: str, found: dict[str, Any]) -> str:
    """Return a line of the table."""
    if "failed" in found:
        return f"| {name} | not run: {found['failed']} | | | | | |"
    memory, processes = (f"{found[key][0]} at {found[key][1]}" for key in ("memory", "processes"))
    timed = f"{found['confirmed']} of {len(found['verdicts'])}" if found.get("verdicts") else "not tried"
    return (
        f"| {name} | {found['level']} | {found['why'] or '-'} | {memory} MiB | {processes} | "
        f"{found.get('freeze') or '-'} | {timed} |"
    )


def main() -> None:
    """Look at each kind of host, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=int, default=4)
    parser.add_argument("--only", default="", help="kinds whose names have this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", nargs=2, metavar=("HOME", "VERDICTS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        asyncio.run(look_here(Path(args.here[0]), int(args.here[1])))
        return
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        raise SystemExit("This needs root and setpriv, to become an ordinary user as well.")
    about = f"{datetime.now(UTC):%Y-%m-%d}, Linux {platform.release()}, {os.cpu_count()} cores"
    rows = ["| host | level | what it lacks | 1 GiB, limit 192 MiB | 200 forks, limit 24 | stopped by | confirmed |"]
    rows += ["| --- " * 7 + "|"]
    for kind in KINDS:
        if args.only in kind.name:
            rows.append(row(kind.name, look_at(kind, args.verdicts)))
            print(rows[-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
    if DOCKERD and args.only in "container of Docker":
        rows.append(row("container of Docker, hostd an ordinary user", asyncio.run(look_at_docker())))
    text = "\n".join([f"{about}, {args.verdicts} verdicts each.", "", *rows]) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
