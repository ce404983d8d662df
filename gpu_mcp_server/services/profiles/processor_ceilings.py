"""Measures the ceilings of each host's processor, once: STREAM's triad and multiply-adds, of one thread and of all.

The program is ours alone, in a job of its own. What was measured while other work ran is told and not kept.
"""

import hashlib
import json

from pydantic import Field, ValidationError

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.hostd.protocol import JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models._base import Model
from gpu_mcp_server.package_files import WORKERS, worker_source
from gpu_mcp_server.services.hosts.host_connections import HostProbe, environment_of, min_level, roots_of
from gpu_mcp_server.services.jobs.command_checks import job_files
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.settings.host_settings import BATCH_KINDS
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.database import Database

SOURCE = "processor_ceilings.c"
COMPILERS = ("gcc", "clang", "cc")
LIMIT_S = 60.0
FORMAT = 1
IDLE = 0.5
"""Load for each core below which a host counts as idle."""
Rate = Field(default=None, gt=0, lt=1e9)


class ProcessorCeilings(Model):
    """Measured ceilings of a processor, or the reason for their absence."""

    threads: int = Field(default=0, ge=0, lt=1 << 20)
    array_bytes: int = Field(default=0, ge=0, lt=1 << 62)
    """Of each of STREAM's three."""
    cache_bytes: int = Field(default=0, ge=0, lt=1 << 62)
    """Of the last cache; 0 where the system does not say it."""
    load: float = Field(default=0.0, ge=0, lt=1e9)
    """Processes that ran before."""
    stream_gb_s: float | None = Rate
    float32_gflop_s: float | None = Rate
    float64_gflop_s: float | None = Rate
    one_stream_gb_s: float | None = Rate
    """Of one thread, as the next two."""
    one_float32_gflop_s: float | None = Rate
    one_float64_gflop_s: float | None = Rate
    why: str = ""

    @property
    def was_idle(self) -> bool:
        """Return whether hardly anything ran beside the measurement."""
        return self.load <= IDLE * self.threads

    def describe(self, dtype: str) -> str:
        """Say how they were measured, for a type of floats."""
        one = self.one_float64_gflop_s if dtype == "float64" else self.one_float32_gflop_s
        parts = [f"{self.threads} threads, arrays of {self.array_bytes / 2**20:.0f} MiB"]
        if self.one_stream_gb_s and one:
            parts.append(f"one thread: {self.one_stream_gb_s:.3g} GB/s, {one:.3g} GFLOP/s")
        parts += [] if self.was_idle else ["other work ran meanwhile, so they may lie higher"]
        return f"CEILINGS: {'; '.join(parts)}"


class ProcessorCeilingMeter:
    """Measures once, remembers in the table of capabilities."""

    def __init__(self, settings: Settings, jobs: JobRunner, db: Database) -> None:
        self._settings, self._jobs, self._db = settings, jobs, db

    async def measure_once(self, host: str, probe: HostProbe) -> ProcessorCeilings:
        """Return a host's ceilings, measured now if they never were while it was idle."""
        parts = ["processor ceilings", FORMAT, host, probe.hostname, probe.cpu, probe.cores]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        row = await self._db.fetch_one("SELECT json FROM capabilities WHERE key = ?", (key,))
        if row:
            return ProcessorCeilings.model_validate_json(row["json"])
        if self._jobs.hosts.kind(host) in BATCH_KINDS:
            return ProcessorCeilings(why="ceilings are not measured on a batch system")
        compiler = next((probe.compilers[name].path for name in COMPILERS if name in probe.compilers), None)
        if compiler is None:
            return ProcessorCeilings(why="the host has no C compiler to measure its ceilings with")
        found = await self._measure(host, probe, compiler)
        if found.was_idle and not found.why:
            await self._db.execute(
                "INSERT OR REPLACE INTO capabilities (key, json, created_at) VALUES (?, ?, datetime('now'))",
                (key, found.model_dump_json()),
            )
        return found

    async def _measure(self, host: str, probe: HostProbe, compiler: str) -> ProcessorCeilings:
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-pthread", "-w"]
        plan = {
            "compile": [compiler, *flags, SOURCE, "-o", "ceilings"],
            "command": ["./ceilings"],
            "limit_s": LIMIT_S,
            "log": "log.txt",
            "about": "seen/about.json",
        }
        files, blobs = job_files({SOURCE: (WORKERS / SOURCE).read_bytes()})
        program = worker_source("run_sanitized")
        process = ProcessSpec(
            argv=("{python}", json.dumps(plan)), env=environment_of(probe, {"LC_ALL": "C"}), program=program
        )
        spec = JobSpec(
            id=new_job_id(),
            purpose="probe",
            processes=(process,),
            files={"main": tuple(files)},
            outputs=("log.txt",),
            roots=roots_of(probe, self._settings.hosts[host].roots),
            limits=Limits(wall_s=2 * LIMIT_S),
            min_level=min_level(self._settings),
        )
        status = ""
        try:
            done = await self._jobs.run(spec, host=host, blobs=blobs)
            status = done.record.status
            said = b"".join([await self._jobs.fetch(host, output.sha256) for output in done.record.outputs])
            return ProcessorCeilings.model_validate_json(said)
        except GpuMcpError as error:
            return ProcessorCeilings(why=f"ceilings were not measured: {error}"[:300])
        except ValidationError:
            return ProcessorCeilings(why=f"ceilings were not measured: the job ended as {status}")
