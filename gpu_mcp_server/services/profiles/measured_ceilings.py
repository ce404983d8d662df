"""Measures the ceilings of each host's GPU, once for each driver: a copy, and float32 FMAs.

Nothing reaches a data sheet's peaks: beside them a kernel at the end of its road looks as if it had room. The program
is ours alone, in a job of its own: what a profiled program left behind could lie about a later one's roof.
"""

import hashlib
import json
from typing import Any

from pydantic import Field, ValidationError

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models._base import Model
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.hosts.host_connections import HostProbe, environment_of, min_level, roots_of
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.profiles import profile_targets
from gpu_mcp_server.settings.host_settings import BATCH_KINDS
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.database import Database

WALL_S = 60.0
FORMAT = 1


class Ceilings(Model):
    """Measured ceilings of a GPU, or the reason for their absence."""

    device: str = ""
    copy_gb_s: float | None = Field(default=None, gt=0, lt=1e6)
    """Read and written."""
    fma_tflop_s: float | None = Field(default=None, gt=0, lt=1e6)
    why: str = ""


class MeasuredCeilings:
    """Measures once, remembers in the table of capabilities."""

    def __init__(self, settings: Settings, jobs: JobRunner, db: Database) -> None:
        self._settings, self._jobs, self._db = settings, jobs, db

    async def measure_once(self, host: str, probe: HostProbe) -> Ceilings | None:
        """Return a host's ceilings, measured now if they never were.

        `None` where no GPU can be had alone at once, and on a batch system, whose queue it is not worth.
        """
        key = _key(host, probe)
        row = await self._db.fetch_one("SELECT json FROM capabilities WHERE key = ?", (key,))
        if row:
            return Ceilings.model_validate_json(row["json"])
        if self._jobs.hosts.kind(host) in BATCH_KINDS:
            return None
        try:
            done = await self._jobs.run(self._spec(host, probe), host=host)
        except GpuMcpError:  # busy: the next profile tries again
            return None
        try:
            found = Ceilings.model_validate_json(done.stdout or b"{}")
        except ValidationError:
            found = Ceilings(why=(done.record.note or done.stderr[-200:].decode("utf-8", "replace")).strip())
        await self._db.execute(
            "INSERT OR REPLACE INTO capabilities (key, json, created_at) VALUES (?, ?, datetime('now'))",
            (key, found.model_dump_json()),
        )
        return found

    def _spec(self, host: str, probe: HostProbe) -> JobSpec:
        process = ProcessSpec(
            argv=("{python}",), env=environment_of(probe, {}), program=worker_source("measure_ceilings")
        )
        count = profile_targets.GPUS
        return JobSpec(
            id=new_job_id(),
            purpose="probe",
            processes=(process,),
            roots=roots_of(probe, self._settings.hosts[host].roots),
            gpus=GpuRequest(count, "exclusive", wait_s=2.0) if count else GpuRequest(),
            limits=Limits(wall_s=WALL_S),
            min_level=min_level(self._settings),
        )


def _key(host: str, probe: HostProbe) -> str:
    parts: list[Any] = ["ceilings", FORMAT, host, probe.hostname, probe.driver, [g["name"] for g in probe.gpus]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
