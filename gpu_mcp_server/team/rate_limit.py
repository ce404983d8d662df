"""Limit of requests for each user."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from gpu_mcp_server.errors import QuotaExceeded
from gpu_mcp_server.models.user import User

AT_ONCE = 64
"""Requests of one user that are answered at the same time."""
BURST = 0.25
"""Of a minute's requests that may come at once."""


class TooManyRequests(QuotaExceeded):
    """Another request may be sent after a while.

    Attributes:
        wait_s: How long.
    """

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message, hint="Use job_status with wait_s instead of polling.")
        self.wait_s = wait_s


@dataclass
class _Bucket:
    left: float
    at: float


class RateLimiter:
    """Requests of each user, at once and by the minute. By a clock that nobody sets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, int] = {}
        self._buckets: dict[str, _Bucket] = {}

    @contextmanager
    def request(self, user: User, *, endless: bool = False) -> Generator[None]:
        """Count a request as long as the block runs; one that only listens is not among those at once.

        Raises:
            TooManyRequests: If there are too many.
        """
        if user.is_local:
            yield
            return
        self._check_rate(user)
        if endless:
            yield
            return
        running = self._running.get(user.name, 0)
        if running >= AT_ONCE:
            said = f"You have {running} requests running, which is the limit: wait until one ends."
            raise TooManyRequests(said, wait_s=1.0)
        self._running[user.name] = running + 1
        try:
            yield
        finally:
            self._running[user.name] -= 1
            if not self._running[user.name]:
                del self._running[user.name]

    def _check_rate(self, user: User) -> None:
        limit = user.quotas.requests_per_minute
        if limit is None:
            return
        now, most = self._clock(), max(1.0, limit * BURST)
        bucket = self._buckets.setdefault(user.name, _Bucket(most, now))
        bucket.left = min(most, bucket.left + (now - bucket.at) * limit / 60)
        bucket.at = now
        if bucket.left < 1:
            wait_s = (1 - bucket.left) * 60 / limit
            said = f"Your quota is {limit} requests a minute (requests_per_minute), used up for another {wait_s:.1f} s."
            raise TooManyRequests(said, wait_s)
        bucket.left -= 1
