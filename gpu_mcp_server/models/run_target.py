"""Target of a profiler or memory checker."""

from pydantic import Field

from gpu_mcp_server.models._base import Model


class RunTarget(Model):
    """A program of a workspace, or an attempt at one shape."""

    command: list[str] | None = Field(default=None, min_length=1, max_length=1000)
    """Program and arguments."""
    workspace_id: str | None = None
    attempt_id: str | None = None
    """An evaluation in CUDA, Triton, Python, C or C++; a small driver of ours calls its launcher."""
    shape: dict[str, int] | None = None
    """A size for every symbol of the attempt's problem; its last shape otherwise."""
    report: str | None = None
    """For profiles: file or folder of the workspace that a profiler wrote elsewhere; nothing is run."""
    host: str | None = None
    timeout_s: float = Field(default=300.0, gt=0, le=1800)
    """Limit of the run."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """How long to wait before the answer is a job_id alone."""
    kernel: str | None = Field(default=None, max_length=500)
    """Only this one: function name, for checks a part of the mangled one; or `regex:` and an expression."""
    skip: int = Field(default=0, ge=0)
    """Launches of it to leave out first."""
    count: int | None = Field(default=None, ge=1, le=1000)
    """Launches of it; by default one is profiled, and all are checked."""
