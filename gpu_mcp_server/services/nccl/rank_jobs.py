"""Jobs with NCCL: programs are built against one installation, and run with one process a rank in one sandbox."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.job import RankOptions, RankResult
from gpu_mcp_server.nccl.checks import run_output
from gpu_mcp_server.nccl.program_model.program import units_of
from gpu_mcp_server.services.builds.build_plans import LONG, compile_limits, note_of, nvidia_target
from gpu_mcp_server.services.commands import run_traces
from gpu_mcp_server.services.commands.command_runner import Progress, environment_of, min_level
from gpu_mcp_server.services.jobs.command_checks import job_files
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.nccl.host_support import NcclHost, NcclHosts, require_install
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.toolchains import diagnostics
from gpu_mcp_server.toolchains.architectures import nvcc_options
from gpu_mcp_server.toolchains.base import toolchains_of

Launcher = Literal["self", "torchrun", "mpirun"]
PROGRAM = "program"
GPU_WAIT_S = 600.0
MEMORY_BYTES, SHM_BYTES, DISK_BYTES, TMP_BYTES = 32 << 30, 2 << 30, 4 << 30, 1 << 30
"""NCCL's proxies and bootstrap keep tens of MiB a pair of ranks in /dev/shm."""
KEPT_OUTPUT_BYTES = 4 << 20
DUMPS = "dumps"
FOUND_CODE = 86
"""Exit code of compute-sanitizer for findings."""
WORDS = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "lo"}
"""NCCL says what is wrong, and looks for other ranks where a sandbox has them."""


@dataclass(frozen=True)
class NcclBuild:
    """A program to build."""

    files: Mapping[str, str]
    main: str
    defines: Sequence[str] = ()


@dataclass(frozen=True)
class NcclBuildResult:
    """Result of compiling a program."""

    binary: bytes | None
    status: str
    diagnostics: Sequence[Diagnostic]
    seconds: float | None
    log: str

    @property
    def first(self) -> str:
        """The first message."""
        return self.diagnostics[0].line_text() if self.diagnostics else self.status


@dataclass(frozen=True)
class ProgramLaunch:
    """Options of starting a program."""

    arguments: Sequence[str] = ()
    ranks: int = 2
    launcher: Launcher = "self"
    """`self`: one process, which starts its ranks or drives all GPUs itself."""
    timeout_s: float = 120.0


@dataclass(frozen=True)
class NcclRunResult:
    """Ending and output of a run."""

    status: str
    """ok, failed, timeout, oom ..."""
    ranks: Sequence[RankResult]
    texts: Sequence[str]
    """Stdout and stderr of each process that was started."""
    files: Mapping[str, bytes]
    note: str
    seconds: float | None
    level: str
    job_id: str

    @property
    def ok(self) -> bool:
        """Return whether every process ended with 0."""
        return self.status == "ok" and all(r.exit_code == 0 for r in self.ranks)

    @property
    def text(self) -> str:
        """Return all printed text."""
        return "\n".join(self.texts)

    def ending(self) -> str:
        """Say how it ended, ranks that did not end well first."""
        said = [r.model_copy(update={"last": run_output.program_text(r.last)}) for r in self.ranks]
        missing = run_traces.missing_ranks(said)
        return "; ".join(w for w in (missing or "", self.note) if w) or self.status


@dataclass(frozen=True)
class Run:
    """A run of a program that was built."""

    binary: bytes
    launch: ProgramLaunch
    gpus: int
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    before: Sequence[str] = ()
    """Put before the program: a checker and its options."""
    roots: Sequence[str] = ()
    dumps: bool = False


class NcclJobs:
    """Builds and runs."""

    def __init__(self, settings: Settings, jobs: JobRunner, hosts: NcclHosts) -> None:
        self._settings, self._jobs, self._hosts = settings, jobs, hosts

    async def build(self, host: NcclHost, builds: Sequence[NcclBuild]) -> list[NcclBuildResult]:
        """Build programs side by side.

        Raises:
            ToolMissing: If the host has no nvcc or no NCCL.
        """
        return list(await asyncio.gather(*(self._build(host, b) for b in builds)))

    async def _build(self, host: NcclHost, build: NcclBuild) -> NcclBuildResult:
        probe = host.probe
        if probe.nvcc is None:
            hint = "Install the CUDA toolkit there, or set `cuda` of this host to its root."
            raise ToolMissing("nvcc", host.host, hint=hint)
        files, blobs = job_files({path: text.encode("utf-8", "surrogateescape") for path, text in build.files.items()})
        path = ":".join([f"{probe.nvcc.root}/bin", "/usr/local/bin", "/usr/bin", "/bin"])
        spec = JobSpec(
            id=new_job_id(),
            purpose="compile",
            processes=(ProcessSpec(argv=command(host, build), env={"LC_ALL": "C", "PATH": path}),),
            files={"main": tuple(files)},
            outputs=(PROGRAM,),
            roots=self._hosts.roots(host.host, probe),
            limits=compile_limits(self._settings, LONG, output_bytes=KEPT_OUTPUT_BYTES, tmp_bytes=TMP_BYTES),
            min_level=min_level(self._settings),
        )
        done = await self._jobs.run(spec, host=host.host, blobs=blobs)
        said = safe_text(done.stderr + done.stdout)
        made = next((o for o in done.record.outputs if o.path == PROGRAM), None)
        binary = await self._jobs.fetch(host.host, made.sha256) if made and done.record.status == "ok" else None
        found = diagnostics.parse(said)
        if done.record.status == "timeout":
            found = [Diagnostic(severity="error", message=note_of(done.record, LONG)), *found]
        if binary is None and not any(d.severity == "error" for d in found):
            last = diagnostics.output_tail(said)
            found = [last, *found] if last else found
        messages, _ = diagnostics.first_messages(found)
        return NcclBuildResult(binary, str(done.record.status), messages, done.record.wall_s, said)

    async def run(self, host: NcclHost, run: Run, *, progress: Progress | None = None) -> NcclRunResult:
        """Run a program in the sandbox, with all its ranks in one set of namespaces.

        Raises:
            SandboxTooWeak, NoFreeGpu, JobBroken: If the host did not run it.
            ToolMissing: If ranks want mpirun and the host has none.
        """
        spec, blobs = self._spec(host, run)
        if progress is not None:
            await progress(f"job {spec.id} on {host.host}")
        done = await self._jobs.run(spec, host=host.host, blobs=blobs)
        raise_if_not_run(done.record, host.host)
        return await self._ran(done, _processes(run.launch))

    def _spec(self, host: NcclHost, run: Run) -> tuple[JobSpec, Mapping[str, bytes]]:
        launch, probe = run.launch, host.probe
        options = RankOptions(
            count=_processes(launch), launcher="mpirun" if launch.launcher == "mpirun" else "torchrun"
        )
        argv = (*run.before, f"./{PROGRAM}", *launch.arguments)
        made = run_traces.instrument_command(
            argv, probe, host.host, gpus=run.gpus, ranks=options, timeout_s=launch.timeout_s
        )
        more, blobs = job_files({**made.files, **({f"{DUMPS}/about": b""} if run.dumps else {})})
        sha256 = hashlib.sha256(run.binary).hexdigest()
        env = {**WORDS, **made.env, **run.env, **({"GMCP_DUMPS": DUMPS} if run.dumps else {})}
        linked = run.gpus > 1 and host.nvlink_group_size >= run.gpus
        gpus = GpuRequest(run.gpus, "exclusive", wait_s=GPU_WAIT_S, nvlink=linked) if run.gpus else GpuRequest()
        spec = JobSpec(
            id=new_job_id(),
            purpose="nccl",
            processes=(ProcessSpec(argv=made.argv, env=environment_of(probe, env), profiled=bool(run.before)),),
            files={"main": (FileRef(PROGRAM, sha256, len(run.binary), 0o755), *more)},
            outputs=("*",) if run.dumps else made.outputs,
            roots=tuple(dict.fromkeys((*self._hosts.roots(host.host, probe), *run.roots))),
            gpus=gpus,
            limits=Limits(
                wall_s=launch.timeout_s,
                memory_bytes=MEMORY_BYTES,
                shm_bytes=SHM_BYTES,
                disk_bytes=DISK_BYTES,
                tmp_bytes=TMP_BYTES,
                output_bytes=KEPT_OUTPUT_BYTES,
            ),
            min_level=min_level(self._settings),
        )
        return spec, {**{s: b for s, b in blobs.items() if isinstance(b, bytes)}, sha256: run.binary}

    async def _ran(self, done: FinishedJob, processes: int) -> NcclRunResult:
        files: dict[str, bytes] = {}
        for output in done.record.outputs:
            if output.path != PROGRAM:
                files[output.path] = await self._jobs.fetch(done.host, output.sha256)
        kinds = [
            {k: files[p] for k in ("json", "out", "err") if (p := f"{run_traces.RANKS}/{n}.{k}") in files}
            for n in range(processes)
        ]
        ranks = [run_traces.parse_rank(n, kind) for n, kind in enumerate(kinds)]
        texts = [safe_text(kind.get("out", b"") + b"\n" + kind.get("err", b"")) for kind in kinds]
        own = safe_text(done.stderr).strip()  # of the launcher: mpirun's words
        status = str(done.record.status)
        if status == "failed" and done.record.leader is not None and done.record.leader.exit_code == 124:
            status = "timeout"
        return NcclRunResult(
            status,
            ranks,
            [*texts, own] if own else texts,
            {p: d for p, d in files.items() if not run_traces.is_trace(p)},
            done.record.note,
            done.record.wall_s,
            str(done.record.level or ""),
            done.record.id,
        )


def command(host: NcclHost, build: NcclBuild) -> tuple[str, ...]:
    """Return nvcc's command line: no device linking, no static library, the device interface is headers only.

    Raises:
        ToolMissing: If the host has no NCCL or no nvcc.
    """
    install, nvcc = require_install(host), host.probe.nvcc
    assert nvcc is not None
    compiler = toolchains_of(host.probe.model_dump(), "cuda")[0]
    arch = nvidia_target(None, host.probe, host.host, compiler).arch
    folders = dict.fromkeys(
        ["", "include", *(p.rpartition("/")[0] for p in build.files if p.endswith((".h", ".cuh", ".hpp")))]
    )
    found = [nvcc.path, "-std=c++17", "-O2", *nvcc_options(arch), "-lineinfo", "-Xptxas=-v", f"-I{install.include}"]
    found += [f"-I./{f}" if f else "-I." for f in folders]
    found += [f"-D{d}" for d in build.defines]
    uses_mpi = any("mpi.h" in text for text in build.files.values())
    found += list(host.mpi_compile) if uses_mpi else []
    units = units_of(build.files, build.main)
    found += [] if all(u.endswith(".cu") for u in units) else ["-x", "cu"]  # what checks put in is CUDA in any file
    found += [*units, "-o", PROGRAM, f"-L{install.folder}", "-l:libnccl.so.2"]
    found += ["-Xlinker", "-rpath", "-Xlinker", install.folder]
    return (*found, *(host.mpi_link if uses_mpi else ()))


def _processes(launch: ProgramLaunch) -> int:
    return 1 if launch.launcher == "self" else launch.ranks
