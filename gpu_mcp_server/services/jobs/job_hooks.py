"""Who is asked before jobs are submitted."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from gpu_mcp_server.hostd.protocol import JobRecord, JobSpec


class JobHooks(Protocol):
    """Who has a say in jobs that want GPUs: the pool."""

    def before_submit(self, spec: JobSpec, host: str) -> JobSpec:
        """Complete what a job says of the GPUs it wants."""
        ...

    def on_job_end(self, record: JobRecord) -> None:
        """Hear of a job's end."""
        ...


class QuotaCheck(Protocol):
    """Who says whether a user may have another job: their quotas."""

    def job(self, gpus: int, refresh: Callable[[str, str], Awaitable[Any]]) -> AbstractAsyncContextManager[None]:
        """Let a job be noted within the block, or refuse it; `refresh` asks the host how one stands."""
        ...
