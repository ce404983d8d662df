"""Track the judging on each host, so that work that can wait does."""

import math
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager


class HostUse:
    """Judging of this server on each host, now and last.

    Attributes:
        on_begin: Called with a host when somebody is about to be judged there.
    """

    def __init__(self) -> None:
        self._active: Counter[str] = Counter()
        self._ended_at: dict[str, float] = {}
        self.on_begin: Callable[[str], None] = lambda host: None

    @contextmanager
    def busy(self, host: str) -> Generator[None]:
        """Count the host as in use within the block."""
        self._active[host] += 1
        self.on_begin(host)
        try:
            yield
        finally:
            self._active[host] -= 1
            self._ended_at[host] = time.monotonic()

    def idle_s(self, host: str) -> float:
        """Return for how long nobody was judged on a host; infinite where nobody ever was."""
        if self._active[host]:
            return 0.0
        return time.monotonic() - self._ended_at.get(host, -math.inf)
