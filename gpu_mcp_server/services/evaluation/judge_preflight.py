"""Check that a host's judge can start: its Python, inside the sandbox, with the modules references import."""

import json

from gpu_mcp_server.hostd.protocol import JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models._base import Model
from gpu_mcp_server.services.commands.command_runner import min_level, roots_of
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.settings.server_settings import Settings

WALL_S = 120.0
"""To import torch from a cold disk."""
CODE = """
import importlib, json
found = {}
for name in ("numpy", "torch"):
    try:
        found[name] = str(importlib.import_module(name).__version__)
    except ImportError:
        found[name] = None
print(json.dumps(found))
"""


class PreflightReport(Model):
    """Result of starting the judge's Python inside the sandbox."""

    path: str
    problem: str | None = None
    """Why it did not start."""
    numpy: str | None = None
    torch: str | None = None

    def text(self) -> str:
        """Say it on one line."""
        if self.problem:
            return f"{self.path} does not start inside the sandbox: {self.problem}"
        parts = [f"{name} {v}" if v else f"no {name}" for name, v in (("NumPy", self.numpy), ("torch", self.torch))]
        return f"{self.path} starts inside the sandbox; it imports {', '.join(parts)}"


async def judge_python(jobs: JobRunner, settings: Settings, host: str) -> PreflightReport | None:
    """Start a host's judge Python inside the sandbox; `None` if it has none.

    Raises:
        HostError: If no job can be run there.
    """
    probe = await jobs.probe(host)
    if probe.judge is None:
        return None
    spec = JobSpec(
        id=new_job_id(),
        purpose="check",
        processes=(ProcessSpec(argv=(probe.judge.path, "-I", "-B", "-c", CODE)),),
        roots=roots_of(probe, settings.hosts[host].roots),
        limits=Limits(wall_s=WALL_S),
        min_level=min_level(settings),
    )
    done = await jobs.run(spec, host=host)
    if done.record.status != "ok":
        said = safe_text(done.stderr).strip().rpartition("\n")[2]
        return PreflightReport(
            path=probe.judge.path, problem=done.record.note or said[-300:] or str(done.record.status)
        )
    return PreflightReport(path=probe.judge.path, **json.loads(done.stdout))
