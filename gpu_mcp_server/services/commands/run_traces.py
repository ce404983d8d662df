"""Traces of a run beyond its output: each rank's ending, failed tests, the place where a GPU kernel broke."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_mcp_server.errors import GpuMcpError, ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, JobSpec, Limits, OutputFile, ProcessSpec
from gpu_mcp_server.models.job import RankOptions, RankResult, TestReport
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.profilers import coredump
from gpu_mcp_server.services.commands.rank_hosts import PEERS, RankGroup
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner
from gpu_mcp_server.services.jobs.job_table import JobRow, new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.toolchains import junit

FOLDER = ".gpu-mcp"
RANKS, PROGRAM, GROUPS = f"{FOLDER}/ranks", f"{FOLDER}/rank_launcher.py", f"{FOLDER}/multi_host_ranks.py"
RANK_FILE = re.compile(re.escape(RANKS) + r"/(\d{1,4})\.(json|out|err)$")
TESTS = "test_reports"
"""In a job's context: where reports of tests are looked for besides our own; there at all, it is a run of tests."""
LAST_CHARS = 400
PEER_S = 15.0
"""For a job on another host to end after the first one; it does by itself within seconds."""
GDB_S = 60.0
NVIDIA = "/opt/nvidia"


@dataclass(frozen=True)
class TracedCommand:
    """A command made ready to leave such traces."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    outputs: tuple[str, ...] = ()
    """To ask for when not everything comes back anyway."""
    ranks: int = 0
    roots: tuple[str, ...] = ()
    """Folders that its launcher needs shown."""


@dataclass(frozen=True)
class RunTraces:
    """Traces that were found."""

    notes: list[str] = field(default_factory=list[str])
    ranks: list[RankResult] = field(default_factory=list[RankResult])
    tests: TestReport | None = None
    elsewhere: list[tuple[str, OutputFile]] = field(default_factory=list[tuple[str, OutputFile]])
    """Files that were made on other hosts, by host."""


def instrument_command(
    argv: Sequence[str],
    probe: HostProbe,
    host: str,
    *,
    gpus: int,
    ranks: RankOptions | None,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    tests: bool = False,
    group: RankGroup | None = None,
) -> TracedCommand:
    """Return the command as it is started; for `tests` also what makes programs below it write reports.

    Args:
        argv: The command.
        probe: The host's.
        host: Its name.
        gpus: How many it holds there.
        ranks: Several processes of it; `group` are those on this host, if others have some as well.
        timeout_s: Limit of the job.
        env: Environment that was asked for.
        tests: Whether it runs tests.
        group: See `ranks`.

    Raises:
        ToolMissing: If ranks want mpirun and the host has none.
    """
    python = probe.judge.path if probe.judge else None
    command = junit.with_report_option(junit.with_judge_python(argv, python) if tests else argv)
    outputs = [junit.REPORT] if len(command) > len(argv) else []
    if gpus:
        outputs.append(coredump.FILE)
    variables = {
        **({**coredump.ENVIRONMENT, "CUDA_COREDUMP_FILE": coredump.FILE} if gpus else {}),
        **(env or {}),
        **(junit.environment(argv, env or {}) if tests else {}),
    }
    one = TracedCommand(tuple(command), variables, {}, tuple(outputs))
    return one if ranks is None else _several(one, probe, host, ranks, timeout_s, group)


def _several(
    one: TracedCommand, probe: HostProbe, host: str, ranks: RankOptions, timeout_s: float, group: RankGroup | None
) -> TracedCommand:
    """Return a command as our launcher of ranks starts it, all of them or the group of this host."""
    mpirun = probe.toolchains.tools.get("mpirun")
    if ranks.launcher == "mpirun" and mpirun is None:
        raise ToolMissing(
            "mpirun", host, hint="apt-get install openmpi-bin; or launcher torchrun, which needs nothing."
        )
    plan = {
        "argv": list(one.argv),
        "count": ranks.count,
        "launcher": ranks.launcher,
        "mpirun": mpirun.path if mpirun else "",
        "folder": RANKS,
        "limit_s": max(timeout_s - 8.0, timeout_s * 0.8),
    }
    files = {PROGRAM: (WORKERS / "rank_launcher.py").read_bytes()}
    first, count, start = 0, ranks.count, ("{python}", PROGRAM, "start", json.dumps(plan))
    if group is not None:
        first, count = group.first, group.count
        plan |= {"first": first, "count": count, "world": ranks.count, "group": group.plan["group"]}
        whole = {**group.plan, "program": PROGRAM, "ranks": plan, "limit_s": timeout_s}
        files[GROUPS] = (WORKERS / "multi_host_ranks.py").read_bytes()
        start = ("{python}", GROUPS, json.dumps(whole))
    left = (f"{RANKS}/{n}.{kind}" for n in range(first, first + count) for kind in ("json", "out", "err"))
    roots = tuple(mpirun.roots) if mpirun and ranks.launcher == "mpirun" else ()
    return TracedCommand(start, one.env, files, (*one.outputs, *left), count, roots)


def is_trace(path: str) -> bool:
    """Say whether a file is one of these traces, which no workspace keeps."""
    return path.startswith(f"{FOLDER}/") or path.rpartition("/")[2] == coredump.FILE or junit.is_own_report(path)


def is_listed(output: OutputFile) -> bool:
    """Say whether an answer lists a file: all that a run made, and of ours what holds more than the answer says."""
    match = RANK_FILE.match(output.path)
    return output.path.rpartition("/")[2] != coredump.FILE and (not match or (match[2] != "json" and output.size > 0))


class RunTraceReader:
    """Reads the traces of finished runs."""

    def __init__(self, jobs: JobRunner, workspaces: Workspaces) -> None:
        self._jobs, self._workspaces = jobs, workspaces
        self._broken: dict[str, str] = {}

    async def read_traces(self, done: FinishedJob, row: JobRow) -> RunTraces:
        """Return what a finished run left."""
        notes: list[str] = []
        outputs = {o.path: o for o in done.record.outputs}
        first = int(row.context.get("first") or 0)
        ranks = await self._ranks(done, outputs, range(first, first + int(row.context.get("ranks") or 0)))
        elsewhere = await asyncio.gather(*(self._of_peer(peer) for peer in row.context.get(PEERS, ())))
        if elsewhere:
            ranks = [r.model_copy(update={"host": done.host}) for r in ranks]
            ranks += [r for found, _ in elsewhere for r in found]
        if missing := missing_ranks(ranks):
            notes.append(missing)
        tests = await self._tests(done, row)
        core = next((o for p, o in outputs.items() if p.rpartition("/")[2] == coredump.FILE), None)
        said = safe_text(done.stdout[-20_000:] + done.stderr[-20_000:]) + "".join(r.last for r in ranks)
        if TESTS in row.context and (doubt := await self._doubts(done, row, tests, said)):
            notes.append(doubt)
        if core is not None:
            notes.append(await self._place(done, row, core))
        elif done.record.gpus and (words := coredump.kernel_fault(said)):
            notes.append(f"a kernel broke ({words}): check_memory with this command names kernel and line")
        return RunTraces(notes, ranks, tests, [file for _, files in elsewhere for file in files])

    async def _of_peer(self, peer: Mapping[str, Any]) -> tuple[list[RankResult], list[tuple[str, OutputFile]]]:
        """Return the ranks of a job on another host, which ends with the first one, and the files that it made."""
        job, host, numbers = peer["job"], peer["host"], range(peer["first"], peer["first"] + peer["count"])
        try:
            done = await self._jobs.wait(job, host, timeout_s=PEER_S)
            if done is None:
                await self._jobs.end_quietly(job, host)
                done = await self._jobs.wait(job, host, timeout_s=PEER_S)
        except GpuMcpError as error:
            return [RankResult(rank=n, host=host, state="never started", last=str(error)) for n in numbers], []
        outputs = {o.path: o for o in done.record.outputs} if done else {}
        found = await self._ranks(done, outputs, numbers) if done else [parse_rank(n, {}) for n in numbers]
        why = done.record.note if done else f"job {job} does not end"
        told = [r.model_copy(update={"host": host, "last": r.last or why}) for r in found]
        return told, [(host, o) for o in outputs.values() if not is_trace(o.path)]

    async def _tests(self, done: FinishedJob, row: JobRow) -> TestReport | None:
        wanted = [o for o in done.record.outputs if junit.is_report(o.path, row.context.get(TESTS, ()))]
        contents = [await self._jobs.fetch(done.host, o.sha256) for o in wanted[: junit.MAX_REPORTS]]
        return junit.merge_reports([r for r in map(junit.parse, contents) if r is not None])

    async def _doubts(self, done: FinishedJob, row: JobRow, tests: TestReport | None, said: str) -> str | None:
        """Say what makes a report doubtful, or why there may be none."""
        leader = done.record.leader
        judge = (await self._jobs.probe(done.host)).judge
        if tests is None and (absent := junit.missing_pytest(said, judge.path if judge else None)):
            return absent
        old = None
        if tests is None and row.workspace_id:
            kept = await self._workspaces.manifest(row.workspace_id)
            old = next((f.path for f in kept if junit.is_report(f.path, row.context[TESTS])), None)
        unchanged = f"{old} is as it was before: not written, or says the same" if old else None
        return unchanged or junit.inconsistencies(tests, leader.exit_code if leader else None, said)

    async def _ranks(self, done: FinishedJob, outputs: Mapping[str, OutputFile], numbers: range) -> list[RankResult]:
        found: dict[int, dict[str, bytes]] = {n: {} for n in numbers}
        for path, output in outputs.items():
            match = RANK_FILE.match(path)
            if match and int(match[1]) in numbers:
                found[int(match[1])][match[2]] = await self._jobs.fetch(done.host, output.sha256)
        return [parse_rank(n, files) for n, files in found.items()]

    async def _place(self, done: FinishedJob, row: JobRow, core: OutputFile) -> str:
        """Ask cuda-gdb where a kernel broke; once a job."""
        if row.job_id not in self._broken:
            try:
                self._broken[row.job_id] = await self._asked(done, row, core)
            except GpuMcpError as error:
                return f"a kernel broke, and its core dump cannot be read: {error}"
        return self._broken[row.job_id]

    async def _asked(self, done: FinishedJob, row: JobRow, core: OutputFile) -> str:
        probe = await self._jobs.probe(done.host)
        gdb = probe.toolchains.tools.get("cuda-gdb")
        if gdb is None:
            return "a kernel broke; this host has no cuda-gdb: check_memory names kernel and line"
        argv = (gdb.path, "-batch", "-nx", "-ex", f"target cudacore {coredump.FILE}")
        spec = JobSpec(
            id=new_job_id(),
            purpose="debug",
            processes=(ProcessSpec(argv=argv, gpu=False),),
            files={"main": (FileRef(coredump.FILE, core.sha256, core.size),)},
            roots=tuple(dict.fromkeys((*gdb.roots, *([probe.nvcc.root] if probe.nvcc else ()), NVIDIA))),
            limits=Limits(wall_s=GDB_S, output_bytes=1 << 20),
            min_level=done.record.level or "namespaces",
        )
        data = await self._jobs.fetch(done.host, core.sha256)
        asked = await self._jobs.run(spec, host=done.host, blobs={core.sha256: data})
        sources: dict[str, str] = {}
        for file in await self._workspaces.manifest(row.workspace_id) if row.workspace_id else []:
            if file.path.endswith((".cu", ".cuh", ".py", ".h", ".hpp")) and file.size < 1 << 20 and len(sources) < 60:
                data = await self._workspaces.read_bytes(row.workspace_id or "", file.path)
                sources[file.path] = data.decode("utf-8", "replace")
        where = coredump.parse(safe_text(asked.stdout + b"\n" + asked.stderr), sources)
        return f"a kernel broke: {where}" if where else "a kernel broke: check_memory names kernel and line"


def parse_rank(number: int, files: Mapping[str, bytes]) -> RankResult:
    """Understand what one rank left."""
    try:
        about: Any = json.loads(files.get("json", b"{}"))
        code, seconds, state = about.get("code"), about.get("seconds"), about.get("state")
    except (ValueError, AttributeError):
        code = seconds = state = None
    out, err = (safe_text(files.get(k, b"")[-4000:]).strip() for k in ("out", "err"))
    last = "\n".join(t[-LAST_CHARS:] for t in (out, err) if t)
    known = isinstance(code, int)
    return RankResult(
        rank=number,
        state="never started" if not files else ("ended" if state == "ended" else "did not end"),
        exit_code=code if known and code >= 0 else None,
        signal=-code if known and code < 0 else None,
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        last=last,
    )


def missing_ranks(ranks: Sequence[RankResult]) -> str | None:
    """Name the ranks that failed or never came to their end, with what they last said."""
    bad = [r for r in ranks if r.state != "ended" or r.exit_code != 0]
    if not bad:
        return None
    words: list[str] = []
    for rank in bad[:4]:
        how = (
            f"exit {rank.exit_code}"
            if rank.exit_code is not None
            else f"signal {rank.signal}"
            if rank.signal
            else rank.state
        )
        last = rank.last.strip().rpartition("\n")[2][:120]
        where = f" on {rank.host}" if rank.host else ""
        words.append(f"rank {rank.rank}{where}: {how}" + (f", last said {last!r}" if last else ", said nothing"))
    return f"{len(bad)} of {len(ranks)} ranks failed: " + "; ".join(words)
