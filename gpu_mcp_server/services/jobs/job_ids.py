"""Ids of jobs."""

import secrets
import time


def new_job_id() -> str:
    """Return a job id that sorts by time."""
    return f"j-{time.time_ns() // 1_000_000:x}-{secrets.token_hex(4)}"
