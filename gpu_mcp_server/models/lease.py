"""GPUs that are held between jobs, and the line for them."""

from typing import Literal

from gpu_mcp_server.models._base import Model, ResultModel


class QueueEntry(Model):
    """A job in a host's queue."""

    position: int
    job: str
    user: str
    mode: str
    gpus: int
    waited_s: float
    expected_s: float | None = None
    """Until it is served; absent while nothing is known."""
    why: str
    """What it waits for."""


class ReservationInfo(Model):
    """A reservation of this user on a host."""

    lease_id: str
    gpus: list[str]
    user: str
    in_use: bool
    ends_in_s: float
    """Unless it is used before."""
    leaves_in_s: float | None = None
    """Seconds until it leaves for a waiting job; use of it withdraws that."""


class GpuLease(ResultModel):
    """GPUs reserved for the jobs of this server."""

    lease_id: str
    host: str
    state: Literal["held", "queued", "ended"]
    gpus: list[str] = []
    """UUIDs."""
    ends_in_s: float | None = None
    """Unless a job uses it before, which renews it."""
    note: str | None = None

    def summary(self) -> str:
        """State, GPUs and what comes next."""
        match self.state:
            case "held":
                left = f", ends after {self.ends_in_s:.0f} s without use" if self.ends_in_s is not None else ""
                line = f"{self.lease_id}: {', '.join(self.gpus)} on {self.host} held{left}; jobs there use it"
            case "queued":
                line = f"{self.lease_id}: queued on {self.host}; reserve_gpu with this lease_id keeps waiting"
            case "ended":
                line = f"{self.lease_id}: ended, {len(self.gpus)} GPUs of {self.host} are free again"
        return f"{line}. {self.note}" if self.note else line
