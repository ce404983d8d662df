"""Abilities of hosts, found by tiny programs in the sandbox, once for each driver and set of tools."""

import hashlib
import json
from typing import Any, cast

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.host import Capability
from gpu_mcp_server.package_files import WORKERS, worker_source
from gpu_mcp_server.services.commands.command_runner import environment_of, min_level, roots_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.command_checks import job_files
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.database import Database

WALL_S = 120.0
FORMAT = 1
TINY = ".gpu-mcp/tiny.py"
TOOLS = ("ncu", "compute-sanitizer", "cuda-gdb", "nsys", "mpirun")
HOMES = ("/opt/nvidia",)
TODO = {
    "counters": "As root: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d; reload the driver",
    "sanitizer": "check_memory will not work here",
    "MPI": "apt-get install openmpi-bin; or launcher torchrun",
    "memory export": "the judge stages copies instead; verdicts say so",
    "read-only mapping": "the judge compares inputs afterwards instead; verdicts say so",
}


class Capabilities:
    """Tries once, remembers."""

    def __init__(self, settings: Settings, jobs: JobRunner, db: Database) -> None:
        self._settings, self._jobs, self._db = settings, jobs, db

    async def known_capabilities(self, host: str) -> list[Capability]:
        """Return what was found before; nothing when it was not tried with this driver."""
        row = await self._db.fetch_one(
            "SELECT json FROM capabilities WHERE key = ?", (_key(host, await self._jobs.probe(host)),)
        )
        return [Capability.model_validate(c) for c in json.loads(row["json"])] if row else []

    async def try_all(self, host: str) -> list[Capability]:
        """Try now and remember.

        Raises:
            GpuMcpError: If the host cannot run the job, or all its GPUs are busy.
        """
        probe = await self._jobs.probe(host)
        spec, blobs = self._spec(host, probe)
        done = await self._jobs.run(spec, host=host, blobs=blobs)
        try:
            found: Any = json.loads(done.stdout)
        except ValueError:
            why = done.record.note or done.stderr[-300:].decode("utf-8", "replace")
            raise GpuMcpError(f"The probe of {host!r} said nothing: {why}") from None
        answers = cast("dict[str, list[Any]]", found) if isinstance(found, dict) else {}
        listed = [
            Capability(name=n, able=bool(a[0]), found=str(a[1])[:200], todo="" if a[0] else TODO.get(n, ""))
            for n, a in answers.items()
        ]
        triton = probe.judge.triton if probe.judge else None
        listed += [Capability(name="Triton", able=True, found=triton)] if triton else []
        await self._db.execute(
            "INSERT OR REPLACE INTO capabilities (key, json, created_at) VALUES (?, ?, datetime('now'))",
            (_key(host, probe), json.dumps([c.model_dump() for c in listed])),
        )
        return listed

    def _spec(self, host: str, probe: HostProbe) -> tuple[JobSpec, dict[str, Any]]:
        tools = probe.toolchains.tools
        python = probe.judge.path if probe.judge else "/usr/bin/python3"
        sites = [p.site for p in probe.toolchains.pythons]
        plan = {
            "python": python,
            "tiny": TINY,
            "gpu": bool(probe.gpus),
            "ncu": tools["ncu"].path if "ncu" in tools else None,
            "sanitizer": tools["compute-sanitizer"].path if "compute-sanitizer" in tools else None,
            "mpirun": tools["mpirun"].path if "mpirun" in tools else None,
            "headers": ["/usr/include", "/usr/local/cuda*/include", *(f"{s}/nvidia/nccl/include" for s in sites)],
            "libraries": [f"{s}/nvidia/nccl/lib/libnccl.so.2" for s in sites],
        }
        files, blobs = job_files({TINY: (WORKERS / "tiny_kernel.py").read_bytes()})
        process = ProcessSpec(
            argv=("{python}", json.dumps(plan)),
            env=environment_of(probe, {}),
            program=worker_source("capabilities"),
            profiled=True,
        )
        roots = [r for n in TOOLS if n in tools for r in tools[n].roots]
        roots += [r for p in probe.toolchains.pythons for r in p.roots]
        spec = JobSpec(
            id=new_job_id(),
            purpose="probe",
            processes=(process,),
            files={"main": tuple(files)},
            roots=roots_of(probe, (*self._settings.hosts[host].roots, *roots, *HOMES)),
            gpus=GpuRequest(count=1, mode="shared", wait_s=2.0) if probe.gpus else GpuRequest(),
            limits=Limits(wall_s=WALL_S, tmp_bytes=1 << 30),
            min_level=min_level(self._settings),
        )
        return spec, blobs


def _key(host: str, probe: HostProbe) -> str:
    tools = {n: probe.toolchains.tools[n].version for n in TOOLS if n in probe.toolchains.tools}
    parts = [FORMAT, host, probe.hostname, probe.driver, probe.level, tools, [g["name"] for g in probe.gpus]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
