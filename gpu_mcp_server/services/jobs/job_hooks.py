"""Interfaces of the pool and of quotas, called before jobs are submitted."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from gpu_mcp_server.hostd.protocol import JobRecord, JobSpec


class JobHooks(Protocol):
    """Hooks of the pool into jobs that want GPUs."""

    def before_submit(self, spec: JobSpec, host: str) -> JobSpec:
        """Complete what a job says of the GPUs it wants."""
        ...

    def on_job_end(self, record: JobRecord) -> None:
        """Hear of a job's end."""
        ...


class QuotaCheck(Protocol):
    """Check of a user's quotas before another job."""

    def job(self, gpus: int, refresh: Callable[[str, str], Awaitable[Any]]) -> AbstractAsyncContextManager[None]:
        """Let a job be noted within the block, or refuse it; `refresh` asks the host how one stands."""
        ...
