"""Long jobs of a batch system, as they were handed over."""

from typing import Literal

from gpu_mcp_server.models._base import Model, ResultModel


class BatchRequest(Model):
    """A program for a batch system, and on what it runs."""

    argv: tuple[str, ...]
    """Program and arguments; never a shell line."""
    workspace_id: str | None = None
    """Files that lie in its working folder; new and changed ones come back into it."""
    env: dict[str, str] = {}
    """Besides it each task has ARRAY_TASK, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."""
    gpus: int | None = None
    """GPUs of each node; as the host's settings say if not given. So are nodes."""
    nodes: int | None = None
    tasks_per_node: int = 1
    """Processes on each node, each in its own sandbox with its share of the GPUs."""
    array: str = ""
    """Indices such as 0-7: that many jobs."""
    launcher: Literal["srun", "mpirun"] = "srun"
    """What starts the tasks."""
    time_s: float = 3600.0
    """Wall-clock limit."""
    outputs: tuple[str, ...] = ()
    """Files to bring back when there is no workspace."""


class BatchSubmission(ResultModel):
    """What the scheduler has taken."""

    host: str
    number: str
    """The scheduler's."""
    job_ids: list[str]
    """One for each index of an array; job_status, cancel_job and read_artifact take them."""
    gpu_hours: float
    """At most."""
    note: str | None = None

    def summary(self) -> str:
        """Number, ids and what comes next."""
        more = f" and {len(self.job_ids) - 3} more" if len(self.job_ids) > 3 else ""
        line = (
            f"{', '.join(self.job_ids[:3])}{more}: {self.host} has it as {self.number}; job_status tells how it stands"
        )
        return f"{line}. {self.note}" if self.note else line
